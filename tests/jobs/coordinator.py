"""A driver's coordinator without Spark, and the reports of tasks to it."""

from collections.abc import Callable

from contracts.values import read
from jobs.operators import Groups

from holdfast.common import SYSTEM_CLOCK, Clock
from holdfast.locations import FileSystemCheckpointStorage, StoredSubtask
from holdfast.locations.adapters import CheckpointedStateScope, file_system_for
from holdfast.locations.coordination import CheckpointsCleaner
from holdfast.locations.handles import OperatorStateHandle, OperatorStateMode, StatePartitions
from holdfast.locations.storages import JobDirectory
from holdfast.spark.operators import Operator
from holdfast.spark.query import (
    CLEANER,
    CheckpointCoordinator,
    Continuation,
    PendingCheckpoint,
    Retention,
    StoredJob,
)
from holdfast.spark.settings import LogFormat
from holdfast.spark.subtask import Acknowledgement
from holdfast.spark_progress import SparkProgress

QUERY = "query"


def coordinator(
    directory: str,
    *,
    job_id: str = "job",
    query_id: str = QUERY,
    uid: str = "operator",
    num_retained: int = 2,
    parallelism: int | None = 2,
    default_parallelism: int = 1,
    key: str | list[str] | None = None,
    start: str | None = None,
    claims_start: bool = False,
    allow_non_restored_state: bool = False,
    clock: Clock = SYSTEM_CLOCK,
    inline_threshold: int = 0,
    cleaner: CheckpointsCleaner = CLEANER,
    log_format: LogFormat = "text",
    sweep: Callable[[], object] | None = None,
) -> CheckpointCoordinator:
    """Return a coordinator of the job, as each start of the query makes one."""
    storage = FileSystemCheckpointStorage(directory, inline_threshold=inline_threshold)
    operator = Operator(
        function=Groups(1),
        sink=None,
        uid=uid,
        parallelism=parallelism,
        max_parallelism=None,
        key=(key,) if isinstance(key, str) else tuple(key or ()),
        broadcast=None,
        schema=None,
        persist=False,
    )
    return CheckpointCoordinator(
        StoredJob(
            job_id=job_id,
            access=storage.create_checkpoint_storage(job_id),
            directory=JobDirectory.below(directory, job_id, single_writer=False),
            savepoint=start,
            claims_savepoint=claims_start,
        ),
        Continuation(
            query_id=query_id,
            operators={uid: operator},
            default_parallelism=lambda: default_parallelism,
            allow_non_restored_state=allow_non_restored_state,
        ),
        Retention(num_retained=num_retained, cleaner=cleaner, sweep=sweep, sweep_interval_s=3000.0),
        clock=clock,
        log_format=log_format,
    )


def begin_checkpoint(driver: CheckpointCoordinator, batch_id: int) -> PendingCheckpoint:
    """Begin the checkpoint of a batch that has none."""
    pending = driver.begin(batch_id)
    assert pending is not None
    return pending


def acknowledge(
    pending: PendingCheckpoint,
    subtasks: tuple[int, ...] = (0, 1),
    mode: OperatorStateMode = OperatorStateMode.SPLIT_DISTRIBUTE,
    count: int = 1,
    state_of: Callable[[int], bytes] = lambda subtask: b"state of %d" % subtask,
) -> dict[str, list[Acknowledgement]]:
    """Write a state file for each subtask, and return what the subtasks report."""
    acknowledgements = []
    for subtask in subtasks:
        with pending.location.create_checkpoint_state_output_stream(
            CheckpointedStateScope.EXCLUSIVE
        ) as stream:
            stream.write(state_of(subtask))
            handle = stream.close_and_get_handle()
        assert handle is not None
        partitions = StatePartitions(mode, 0, handle.size, 0, count)
        state = StoredSubtask((OperatorStateHandle({"s": partitions}, handle),))
        acknowledgements.append(Acknowledgement(subtask, subtask, state, pending.checkpoint_id))
    return {"operator": acknowledgements}


def assigned_states(pending: PendingCheckpoint) -> list[bytes]:
    """Return the state that each subtask of the batch starts from, of subtasks that `acknowledge` reported."""
    subtasks = pending.assigned["operator"].subtasks
    return [read(state.managed_operator[0].stream) for state in subtasks]


def progress(batch_id: int) -> SparkProgress:
    """Return Spark's progress after a batch."""
    return SparkProgress(
        query_id=QUERY,
        run_id="run",
        batch_id=batch_id,
        offsets="v1\n{}",
        checkpoint_location="file:///spark",
        spark_version="4.3.0",
    )


def run_batch(driver: CheckpointCoordinator, batch_id: int) -> None:
    """Complete the checkpoint of a batch."""
    pending = begin_checkpoint(driver, batch_id)
    driver.complete(pending, acknowledge(pending), progress(batch_id))


def names_in_checkpoint(directory: str, checkpoint_id: int) -> set[str]:
    """Return the names in a checkpoint's directory."""
    uri = f"{directory}/job/chk-{checkpoint_id}"
    return {entry.uri.rpartition("/")[2] for entry in file_system_for(uri).list(uri)}
