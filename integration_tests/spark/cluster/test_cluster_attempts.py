"""Several attempts at one task, on a cluster whose workers are different hosts for Spark."""

from collections.abc import Iterator

import pytest
from jobs.cluster import (
    SETTINGS,
    Reference,
    check_late_files_are_swept,
    check_result,
)
from jobs.disruptions import RetriedGroups, SpeculativeGroups
from jobs.driver import Driver, driver
from jobs.job import Job
from jobs.killed import GROUP
from jobs.processes import Signals
from servers.spark import SparkCluster

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.efficiency.enabled": "false",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1",
    "spark.speculation.quantile": "0.5",
}

NEVER_TWICE_IN_ONE_EXECUTOR = {
    "spark.excludeOnFailure.enabled": "true",
    "spark.excludeOnFailure.application.maxFailedTasksPerExecutor": "100",
    "spark.excludeOnFailure.stage.maxFailedTasksPerExecutor": "100",
    "spark.excludeOnFailure.task.maxTaskAttemptsPerExecutor": "1",
}


@pytest.fixture(scope="module")
def speculating(
    cluster: SparkCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Driver]:
    local = {"spark.local.dir": str(tmp_path_factory.mktemp("driver"))}
    settings = SETTINGS | SPECULATION | NEVER_TWICE_IN_ONE_EXECUTOR | local
    with driver(cluster.master, settings) as speculating:
        yield speculating


def test_failed_task_is_retried_on_another_executor(
    speculating: Driver, fed_job: Job, signals: Signals, reference: Reference
) -> None:
    speculating.start(fed_job, RetriedGroups(GROUP, signals))
    assert speculating.error() == ""
    assert signals.text("first") != signals.text("second")
    check_result(fed_job, reference)


def test_speculative_attempts_commit_only_the_first_to_finish(
    speculating: Driver, fed_job: Job, signals: Signals, reference: Reference
) -> None:
    speculating.start(fed_job, SpeculativeGroups(GROUP, signals))
    assert speculating.error() == ""
    assert signals.text("waits") != signals.text("twin")
    check_result(fed_job, reference)
    check_late_files_are_swept(fed_job, signals)
    check_result(fed_job, reference)
