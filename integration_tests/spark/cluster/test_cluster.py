"""Executors in separate processes on a standalone cluster that die, or report too late."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from contracts.patience import wait_until
from jobs.cluster import (
    SETTINGS,
    Reference,
    check_late_files_are_swept,
    check_result,
)
from jobs.disruptions import (
    ShuffledJob,
    ShufflingSink,
    WaitingAndFailingGroups,
    WaitingGroups,
    WaitingInSharedTask,
    WaitingSink,
    WatchedGroups,
)
from jobs.driver import Driver, driver
from jobs.job import Job
from jobs.killed import BATCH, GROUP
from jobs.processes import Signals
from jobs.pyspark_versions import VERSION
from servers.spark import SparkCluster, executor_of, kill_tree

from holdfast.spark_progress import history_of


@pytest.fixture(scope="module")
def on_cluster(cluster: SparkCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    local = {"spark.local.dir": str(tmp_path_factory.mktemp("driver"))}
    with driver(cluster.master, SETTINGS | local) as on_cluster:
        yield on_cluster


def test_executor_killed_during_operator_is_replaced(
    on_cluster: Driver, fed_job: Job, signals: Signals, reference: Reference
) -> None:
    on_cluster.start(fed_job, WaitingGroups(GROUP, signals))
    kill_tree(executor_of(int(signals.wait("waits"))))
    assert on_cluster.error() == ""
    check_result(fed_job, reference)


def test_executor_killed_between_subtasks_of_a_task_is_replaced(
    on_cluster: Driver, fed_job: Job, signals: Signals
) -> None:
    on_cluster.start(fed_job, WaitingInSharedTask(GROUP, signals), parallelism=7)
    kill_tree(executor_of(int(signals.wait("waits"))))
    assert on_cluster.error() == ""
    assert [*fed_job.ids_by_subtask()] == [*range(7)]
    fed_job.check_every_row_is_there_once()


def test_worker_killed_after_its_task_wrote_loses_nothing(
    cluster: SparkCluster,
    on_cluster: Driver,
    fed_job: Job,
    signals: Signals,
    reference: Reference,
) -> None:
    on_cluster.start(fed_job, WaitingGroups(GROUP, signals))
    written = fed_job.output / f"batch={BATCH}" / "_temporary" / "0"
    wait_until(lambda: list(written.glob("task_*")), "no task writes")
    python_worker = int(signals.wait("waits", "had 1"))
    directory = executor_of(python_worker).cwd()
    number = int(Path(directory).relative_to(cluster.directory).parts[0].removeprefix("worker"))
    cluster.kill_worker(number)
    signals.give("go")
    assert on_cluster.error() == ""
    cluster.start_worker(number)
    check_result(fed_job, reference)


def test_executor_lost_after_a_shuffle_of_the_user_loses_no_rows(
    on_cluster: Driver, fed_job: Job, signals: Signals
) -> None:
    job = ShuffledJob(fed_job.spark, fed_job.directory)
    job.settings = fed_job.settings
    on_cluster.start(job, WaitingGroups(GROUP, signals))
    written = job.output / f"batch={BATCH}" / "_temporary" / "0"
    wait_until(lambda: list(written.glob("task_*")), "no task writes")
    # With it, half of both shuffles is lost, and subtask 1 keeps the rows that it got by them.
    kill_tree(executor_of(int(signals.wait("had 1", "waits"))))
    error = on_cluster.error()
    if error and VERSION >= (4, 1):
        # Spark may notice the other order, and can't repeat a task that has written.
        on_cluster.start(job, WaitingGroups(GROUP, signals))
        error = on_cluster.error()
    assert error == ""
    job.check_every_row_is_there_once()


@pytest.mark.parametrize("persist", [False, True], ids=["after a shuffle", "in the cache"])
def test_batch_is_repeated_after_operator_output_was_lost(
    on_cluster: Driver,
    fed_job: Job,
    signals: Signals,
    reference: Reference,
    *,
    persist: bool,
) -> None:
    sink = WaitingSink(signals) if persist else ShufflingSink(signals)
    on_cluster.start(fed_job, WatchedGroups(GROUP, signals), sink, persist=persist)
    signals.wait(*sink.waits)
    kill_tree(executor_of(int(signals.wait("had 0"))))
    signals.give("go")
    assert on_cluster.error() == ""
    (attempt,) = history_of([fed_job.latest()]).failed_attempts
    assert attempt.batch == BATCH
    assert attempt.reason.startswith("CheckpointDeclinedError")
    check_result(fed_job, reference)


def test_task_attempt_outliving_its_batch_is_discarded(
    on_cluster: Driver, fed_job: Job, signals: Signals, reference: Reference
) -> None:
    operator = WaitingAndFailingGroups(GROUP, signals)
    on_cluster.start(fed_job, operator)
    assert "as planned" in on_cluster.error()
    assert fed_job.checkpoint_ids() == [BATCH]
    signals.give("repaired")
    on_cluster.start(fed_job, operator)
    assert on_cluster.error() == ""
    check_result(fed_job, reference)
    check_late_files_are_swept(fed_job, signals)
    check_result(fed_job, reference)


def test_older_of_two_drivers_stops_and_duplicates_nothing(
    on_cluster: Driver, fed_job: Job, signals: Signals, reference: Reference
) -> None:
    on_cluster.start(fed_job, WatchedGroups(GROUP, signals), WaitingSink(signals))
    signals.wait("waits")
    fed_job.run(fed_job.operator(WatchedGroups(GROUP, signals)))  # another driver: this process
    check_result(fed_job, reference)
    signals.give("go")
    error = on_cluster.error()
    assert "CheckpointConflictError" in error
    assert "another driver has taken over this job" in error
    check_result(fed_job, reference)
    on_cluster.start(fed_job, WatchedGroups(GROUP, signals))
    assert on_cluster.error() == ""  # there is nothing left to do
    check_result(fed_job, reference)
