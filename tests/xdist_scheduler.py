"""Distributes test files over the processes of pytest-xdist, the longest file first.

So the fixtures of a module are made in one process, and no process is left with a long file at the end. Each process
has its own Spark and its own servers, which start when its first test requests them.

Durations are recorded by a run with `RECORD_DURATIONS=1`, as in `RECORD_DURATIONS=1 make test-all`.
"""

import gc
import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

import psutil
import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

WORKER_BYTES = 3 << 30
"""Approximate memory of a process of tests, with its Spark and its servers."""

DURATIONS = Path(__file__).parent / "data" / "durations.json"
"""Mean seconds of a test, by file."""

UNRECORDED_TEST_S = 1.0
"""Seconds of a test in a file that is not recorded yet: a file that turns out to be short may start early."""

LONG_S = 20.0
"""Pending tests of a process that take longer than this delay the file that it gets next."""

SPARK = ("tests/spark/", "integration_tests/spark/")
"""Prefixes of files that share a Spark session."""

SHARED_SERVERS = ("integration_tests/spark/cluster/", "integration_tests/test_hdfs")
"""Prefixes of files that share servers with a slow start, and so stay together."""


class LongestFirst(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
    """Distributes files, the longest first.

    Only as many processes as there are cores have a Spark, because it is the largest part of their cost.
    They run the tests that need it before all others; the other processes run none of them.
    """

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        super().__init__(config, log)
        self._with_spark: set[WorkerController] = set()
        self._test_s: dict[str, float] = json.loads(DURATIONS.read_text())

    def _split_scope(self, nodeid: str) -> str:
        shared = (prefix for prefix in SHARED_SERVERS if nodeid.startswith(prefix))
        return next(shared, file_of(nodeid))

    def _assign_work_unit(self, node: WorkerController) -> None:
        spark = {file for file in self.workqueue if file.startswith(SPARK)}
        others = set(self.workqueue) - spark
        files = (spark or others) if self._has_spark(node) else others
        if not files:
            node.shutdown()
            return
        # A process gets its next file while two tests are left, so a long file would wait for long tests.
        choose = min if self._pending_s(node) > LONG_S else max
        self.workqueue.move_to_end(choose(files, key=self._duration_s), last=False)
        super()._assign_work_unit(node)

    def _duration_s(self, scope: str) -> float:
        return self._sum_s(self.workqueue[scope])

    def _pending_s(self, node: WorkerController) -> float:
        """Return the duration of the tests that the process has and has not completed."""
        files = self.assigned_work.get(node, {}).values()
        return self._sum_s(test for tests in files for test, done in tests.items() if not done)

    def _sum_s(self, tests: Iterable[str]) -> float:
        return sum(self._test_s.get(file_of(test), UNRECORDED_TEST_S) for test in tests)

    def _has_spark(self, node: WorkerController) -> bool:
        """Return whether the process may start Spark; it may replace a lost one."""
        self._with_spark &= set(self.nodes)
        if len(self._with_spark) < (os.cpu_count() or 1):
            self._with_spark.add(node)
        return node in self._with_spark


class DurationRecorder:
    """Replaces the recorded durations of all files that run."""

    def __init__(self) -> None:
        self._seconds: dict[str, Counter[str]] = defaultdict(Counter)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[file_of(report.nodeid)][report.nodeid] += report.duration  # type: ignore[assignment]  # floats

    def pytest_sessionfinish(self) -> None:
        recorded = json.loads(DURATIONS.read_text())
        for file, tests in self._seconds.items():
            recorded[file] = round(tests.total() / len(tests), 3)
        DURATIONS.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")


def file_of(test: str) -> str:
    """Return the file of a test's node id."""
    return test.partition("::")[0]


def pytest_configure(config: pytest.Config) -> None:
    """Record durations on demand, in the process that gets the reports of all others."""
    is_worker = hasattr(config, "workerinput")
    plugins = config.pluginmanager
    if "RECORD_DURATIONS" in os.environ and not is_worker and not plugins.has_plugin("durations"):
        plugins.register(DurationRecorder(), "durations")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Return two processes for each core with `--numprocesses auto`, or fewer if memory is short.

    Integration tests wait for servers and killed processes longer than they compute.
    """
    if config.getvalue("numprocesses") != "auto":
        return None
    max_workers = psutil.virtual_memory().available // WORKER_BYTES
    return max(1, min(2 * (os.cpu_count() or 1), max_workers))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LongestFirst | None:
    """Return the scheduler of `--dist loadfile`; groups of xdist 3.8 have no effect with pytest 9.2."""
    return LongestFirst(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection() -> None:
    """Disable the garbage collector while tests are collected, because all objects stay."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Exclude collected tests from later garbage collections, which they would slow down."""
    gc.collect()
    gc.freeze()
    gc.enable()
