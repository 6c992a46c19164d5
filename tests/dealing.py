"""How tests are dealt to the processes that run them: whole files, the longest first.

So the fixtures of a module are made in one process, and no process is left alone with a long file in
the end. Each process has its own Spark and its own servers, which start when its first test asks.
"""

import gc
import os

import psutil
import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

BYTES_OF_A_PROCESS = 3 << 30
"""About what a process of tests needs, with its Spark and its servers."""

SECONDS_OF_A_TEST = {
    "integration_tests/": 1.0,
    "integration_tests/test_cases_of_spark": 0.5,
    "integration_tests/test_cluster": 20.0,
    "integration_tests/test_connect": 10.0,
    "integration_tests/test_crash": 8.0,
    "integration_tests/test_hdfs_outages": 5.0,
    "integration_tests/test_random_kills": 60.0,
    "integration_tests/test_s3": 0.3,
    "integration_tests/test_savepoints": 10.0,
    "integration_tests/test_segments_on_hosts": 15.0,
    "integration_tests/test_servers": 5.0,
    "integration_tests/test_submit": 30.0,
    "integration_tests/test_two_phase_commit": 8.0,
    "tests/": 0.03,
    "tests/backends/test_columnar_machine": 250.0,
    "tests/backends/test_keyed_state_machine": 80.0,
    "tests/locations/test_lifecycle_machine": 50.0,
    "tests/spark/": 1.0,
    "tests/test_docs.py::test_the_code_of": 8.0,
}
"""About, by how its name begins; what takes much longer than its file has tests is listed here."""


def seconds_of(test: str) -> float:
    """About how long a test takes."""
    [*_, longest] = sorted((name for name in SECONDS_OF_A_TEST if test.startswith(name)), key=len)
    return SECONDS_OF_A_TEST[longest]


class LongestFirst(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
    """Deals tests file by file."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.partition("::")[0]

    def _assign_work_unit(self, node: object) -> None:
        longest = max(self.workqueue, key=lambda file: sum(map(seconds_of, self.workqueue[file])))
        self.workqueue.move_to_end(longest, last=False)
        super()._assign_work_unit(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """With `--numprocesses auto`: two for each core, as far as there is memory.

    Integration tests wait for servers and killed processes longer than they compute.
    """
    if config.getvalue("numprocesses") != "auto":
        return None
    room = psutil.virtual_memory().available // BYTES_OF_A_PROCESS
    return max(1, min(2 * (os.cpu_count() or 1), room))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LongestFirst | None:
    """With `--dist loadfile`. Groups of xdist 3.8 have no effect with pytest 9.2."""
    return LongestFirst(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection() -> None:
    """Look for no garbage while tests are collected, since all of it stays."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Leave what is there until the end out of each later look for garbage, which it makes slow."""
    gc.collect()
    gc.freeze()
    gc.enable()
