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
from xdist.workermanage import WorkerController

BYTES_OF_A_PROCESS = 3 << 30
"""About what a process of tests needs, with its Spark and its servers."""

SECONDS_OF_A_TEST = {
    "integration_tests/": 1.0,
    "integration_tests/spark/cluster/": 15.0,
    "integration_tests/spark/cluster/test_submit": 30.0,
    "integration_tests/spark/test_cases_of_spark": 2.0,
    "integration_tests/spark/test_crash": 8.0,
    "integration_tests/spark/test_savepoints": 25.0,
    "integration_tests/spark/test_two_phase_commit": 12.0,
    "integration_tests/test_connect": 30.0,
    "integration_tests/test_demo": 250.0,
    "integration_tests/test_hdfs_outages": 5.0,
    "integration_tests/test_proof": 15.0,
    "integration_tests/test_s3": 0.3,
    "integration_tests/test_servers": 25.0,
    "tests/": 0.03,
    "tests/backends/test_columnar_machine": 80.0,
    "tests/backends/test_keyed_state_machine": 60.0,
    "tests/locations/test_lifecycle_machine": 50.0,
    "tests/spark/": 1.0,
    "tests/spark/test_processors_against_spark": 25.0,
    "tests/testing/test_values": 8.0,
    "tests/test_docs.py::test_the_code_of": 20.0,
}
"""About, by how its name begins; what takes much longer than its file has tests is listed here."""

SPARK = ("tests/spark/", "integration_tests/spark/")
"""How tests begin that share a session of Spark."""

TOGETHER = ("integration_tests/spark/cluster/", "integration_tests/test_hdfs")
"""How tests begin that share servers which take long to start, beyond their file."""


def seconds_of(test: str) -> float:
    """About how long a test takes."""
    [*_, longest] = sorted((name for name in SECONDS_OF_A_TEST if test.startswith(name)), key=len)
    return SECONDS_OF_A_TEST[longest]


class LongestFirst(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
    """Deals tests file by file.

    As many processes as there are cores have a Spark of their own, which is most of what a process
    costs; they run the tests that need it before all others, and the rest of the processes none of them.
    """

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        super().__init__(config, log)
        self._with_spark: set[WorkerController] = set()

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return next((group for group in TOGETHER if nodeid.startswith(group)), file)

    def _assign_work_unit(self, node: WorkerController) -> None:
        spark = {file for file in self.workqueue if file.startswith(SPARK)}
        others = set(self.workqueue) - spark
        files = (spark or others) if self._has_spark(node) else others
        if not files:
            node.shutdown()
            return
        longest = max(files, key=lambda file: sum(map(seconds_of, self.workqueue[file])))
        self.workqueue.move_to_end(longest, last=False)
        super()._assign_work_unit(node)

    def _has_spark(self, node: WorkerController) -> bool:
        """Whether the process may start Spark; one takes the place of another that was lost."""
        self._with_spark &= set(self.nodes)
        if len(self._with_spark) < (os.cpu_count() or 1):
            self._with_spark.add(node)
        return node in self._with_spark


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
