"""The one view of a checkpoint, which commands, the report, their JSON and the table of subtasks show."""

from collections.abc import Iterable
from datetime import UTC, datetime
from os import PathLike
from typing import TYPE_CHECKING, Any, Self

import msgspec

from holdfast.errors import CheckpointError
from holdfast.locations.coordination import checkpoint_size, find_checkpoint, is_savepoint
from holdfast.locations.metadata import StoredOperator, StoredSubtask
from holdfast.locations.storages import CompletedCheckpoint
from holdfast.spark_progress.progress import find_progress
from holdfast.spark_progress.spark_files import all_streams

if TYPE_CHECKING:
    import pyarrow as pa


class SubtaskView(msgspec.Struct, frozen=True, kw_only=True):
    """A subtask in a checkpoint, with None for statistics that were not recorded.

    Attributes:
        subtask: Index of the subtask.
        stored_bytes: Size of its state, in files and inline.
        rows_in: Rows that were processed.
        rows_late: Rows that were dropped because they were late.
        rows_out: Rows that were emitted.
        state_bytes: State that was written for this checkpoint.
        restore_ms: Time to read the restored state, milliseconds.
        process_ms: Time in the operator's code, milliseconds.
        sync_ms: Time of the synchronous part of the snapshot, milliseconds.
        async_ms: Time of the asynchronous part, milliseconds.
        restored_from: Place of the restored state: `worker`, `local`, `storage`, or empty.
        backend_metrics: Metrics of the backend of keyed state, by the backend's names.
        fetched_bytes: Bytes of segments that were read from storage.
        fetch_requests: Requests for these bytes.
        fetch_ms: Time in which at least one of these requests was in progress, milliseconds.
    """

    subtask: int
    stored_bytes: int
    rows_in: int | None = None
    rows_late: int | None = None
    rows_out: int | None = None
    state_bytes: int | None = None
    restore_ms: float | None = None
    process_ms: float | None = None
    sync_ms: float | None = None
    async_ms: float | None = None
    restored_from: str = ""
    backend_metrics: dict[str, int] = {}
    fetched_bytes: int | None = None
    fetch_requests: int | None = None
    fetch_ms: float | None = None

    @classmethod
    def of(cls, subtask: int, state: StoredSubtask) -> Self:
        statistics = msgspec.structs.asdict(state.statistics) if state.statistics else {}
        return cls(subtask=subtask, stored_bytes=state.stored_bytes, **statistics)

    @property
    def snapshot_ms(self) -> float | None:
        """Time of both parts of the snapshot, milliseconds."""
        total_ms: float | None = add_known((self.sync_ms, self.async_ms))
        return total_ms


class OperatorView(msgspec.Struct, frozen=True, kw_only=True):
    """An operator in a checkpoint; key and key types are those of Spark."""

    parallelism: int
    max_parallelism: int
    key: tuple[str, ...]
    key_hash: str
    key_types: tuple[str, ...]
    subtasks: tuple[SubtaskView, ...]

    @classmethod
    def of(cls, operator: StoredOperator) -> Self:
        return cls(
            parallelism=operator.parallelism,
            max_parallelism=operator.max_parallelism,
            key=operator.key,
            key_hash=operator.key_hash,
            key_types=operator.key_types,
            subtasks=tuple(
                SubtaskView.of(index, state) for index, state in sorted(operator.subtasks.items())
            ),
        )


class CheckpointView(msgspec.Struct, frozen=True, kw_only=True):
    """A completed checkpoint or savepoint.

    Attributes:
        kind: `checkpoint` or `savepoint`.
        job: Job id.
        checkpoint: Checkpoint id.
        pointer: URI of its directory.
        batch: The micro-batch that it completes; None if no Spark query took it.
        query_name: Name of the query; empty if it has none.
        completed: Time of completion by the driver's clock, ISO 8601 in UTC.
        completed_ms: The same in milliseconds since 1970.
        duration_ms: Milliseconds from start to completion.
        epoch: Number of the claim under which it was committed.
        writer: Name and version of the program that wrote it.
        new_bytes: Size of `_metadata` and of the files in the checkpoint's own directory.
        referenced_bytes: Size of the files elsewhere.
        total_bytes: Sum of both.
        state_bytes: Size of the state of operators.
        metadata_bytes: Size of `_metadata`.
        rows_in: Rows that were processed by the operator with the most; None if not recorded.
        rows_late: Rows that were dropped because they were late, of all operators.
        rows_out: Rows that were emitted by all operators.
        operators: By uid, sorted.
        has_claimed: Pointers of checkpoints that the job has claimed.
    """

    kind: str
    job: str
    checkpoint: int
    pointer: str
    batch: int | None
    query_name: str
    completed: str
    completed_ms: int
    duration_ms: float
    epoch: int
    writer: str
    new_bytes: int
    referenced_bytes: int
    total_bytes: int
    state_bytes: int
    metadata_bytes: int
    rows_in: int | None
    rows_late: int | None
    rows_out: int | None
    operators: dict[str, OperatorView]
    has_claimed: tuple[str, ...]

    @classmethod
    def of(cls, completed: CompletedCheckpoint, *, allow_corrupt_progress: bool = False) -> Self:
        """Return the view of a checkpoint.

        Args:
            completed: The checkpoint.
            allow_corrupt_progress: Leave out Spark's progress and files if they can't be decoded.

        Raises:
            CheckpointCorruptedError: Spark's progress or files can't be decoded.
        """
        metadata = completed.metadata
        progress = None
        try:
            progress = find_progress(metadata)
            streams = all_streams(completed)
        except CheckpointError:
            if not allow_corrupt_progress:
                raise
            streams = metadata.streams()
        size = checkpoint_size(completed, streams)
        operators = {
            uid: OperatorView.of(state) for uid, state in sorted(metadata.operators.items())
        }
        subtasks = [subtask for operator in operators.values() for subtask in operator.subtasks]
        # Operators in a chain process the same rows.
        rows_in = (
            add_known(each.rows_in for each in operator.subtasks) for operator in operators.values()
        )
        pointer = completed.location.external_pointer
        return cls(
            kind="savepoint" if is_savepoint(pointer) else "checkpoint",
            job=metadata.job_id,
            checkpoint=metadata.checkpoint_id,
            pointer=pointer,
            batch=progress.batch_id if progress else None,
            query_name=progress.query_name if progress else "",
            completed=iso_time(metadata.created_ms),
            completed_ms=metadata.created_ms,
            duration_ms=metadata.duration_ms,
            epoch=metadata.epoch,
            writer=metadata.writer,
            new_bytes=size.new_bytes,
            referenced_bytes=size.referenced_bytes,
            total_bytes=size.total_bytes,
            state_bytes=metadata.state_bytes,
            metadata_bytes=completed.metadata_bytes,
            rows_in=max((rows for rows in rows_in if rows is not None), default=None),
            rows_late=add_known(subtask.rows_late for subtask in subtasks),
            rows_out=add_known(subtask.rows_out for subtask in subtasks),
            operators=operators,
            has_claimed=tuple(claim.pointer for claim in metadata.claimed),
        )


def subtasks(pointer: str | PathLike[str]) -> "pa.Table":
    """Return the statistics of the subtasks of a checkpoint or savepoint, a row for each subtask.

    The pointer is that of `read_state`. Counts that were not recorded are null. Times are in milliseconds.

    Raises:
        CheckpointNotFoundError: There is no such checkpoint.
        CheckpointCorruptedError: Stored bytes are damaged.
    """
    import pyarrow as pa  # noqa: PLC0415  # commands load this package, and most of them need no Arrow

    schema = pa.schema(
        {
            "job": pa.string(),
            "checkpoint": pa.int64(),
            "batch": pa.int64(),
            "completed": pa.timestamp("ms", "UTC"),
            "operator": pa.string(),
            "parallelism": pa.int32(),
            "max_parallelism": pa.int32(),
            "subtask": pa.int32(),
            **dict.fromkeys(("stored_bytes", "rows_in", "rows_out"), pa.int64()),
            **dict.fromkeys(("restore_ms", "process_ms", "sync_ms", "async_ms"), pa.float64()),
            "restored_from": pa.string(),
            "rows_late": pa.int64(),
            "fetched_bytes": pa.int64(),
            "fetch_requests": pa.int64(),
            "fetch_ms": pa.float64(),
        }
    )
    checkpoint = CheckpointView.of(find_checkpoint(pointer))
    rows = [
        msgspec.structs.asdict(subtask)
        | {
            "job": checkpoint.job,
            "checkpoint": checkpoint.checkpoint,
            "batch": checkpoint.batch,
            "completed": checkpoint.completed_ms,
            "operator": uid,
            "parallelism": operator.parallelism,
            "max_parallelism": operator.max_parallelism,
            "restored_from": None if subtask.rows_in is None else subtask.restored_from,
        }
        for uid, operator in checkpoint.operators.items()
        for subtask in operator.subtasks
    ]
    return pa.Table.from_pylist(rows, schema)


def iso_time(ms: int) -> str:
    """Return a time in milliseconds since 1970 as ISO 8601 in UTC; `unknown` if no date can represent it."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):  # the clock was far off
        return "unknown"


def add_known(values: Iterable[Any]) -> Any:
    """Return the sum of the values other than None; None without such values."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
