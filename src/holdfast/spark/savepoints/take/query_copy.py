"""Copy a query as it is behind one batch: Spark's files, and the state of its operators.

Nobody is kept from changing what is copied: if something goes meanwhile, the copy is given up.
"""

import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pyspark

from holdfast.common import Clock
from holdfast.errors import CheckpointNotFoundError, InvalidRequestError
from holdfast.locations.coordination import complete_checkpoint, dispose_on_error
from holdfast.locations.metadata import CheckpointMetadata
from holdfast.locations.storages import CompletedCheckpoint, FileSystemCheckpointStorage
from holdfast.spark.checkpoint_location import (
    METADATA,
    LoggedBatch,
    batch_at,
    has_link,
    inferred_settings,
    is_within,
    names_in,
    newest_committed,
    read_text,
    select,
    tree,
)
from holdfast.spark.query import writer
from holdfast.spark.savepoints.stored_query import GONE_WAY_OUT, StoredQuery
from holdfast.spark.savepoints.take.base import Base, Copier
from holdfast.spark.savepoints.take.canonical_state import SavepointFormat
from holdfast.spark_progress import (
    SPARK,
    SPARK_FILES,
    SparkFile,
    SparkFiles,
    SparkProgress,
    progress_of,
)

_log = logging.getLogger(__name__)

_COMMIT_WAIT_S = 30.0
_POLL_S = 0.05

_INLINE_BYTES = 4 << 10
_MOST_INLINE_BYTES = 4 << 20


class MissedError(Exception):
    """A file of the query was not there, perhaps deleted since it was listed."""

    def __init__(self, batch_id: int, error: CheckpointNotFoundError) -> None:
        super().__init__(batch_id, *error.args)
        self.error = error


def copy_query(
    stored: StoredQuery,
    target: str,
    base: Base,
    *,
    operators: bool,
    clock: Clock,
    format: SavepointFormat = "native",
) -> str:
    """Make a savepoint of what the query has stored by now.

    Args:
        stored: The query.
        target: URI of the directory to make the savepoint in.
        base: An earlier savepoint, whose files are referred to where they are the same.
        operators: Whether the query has operators whose state counts.
        clock: Says when the savepoint is made, and for how long the query is waited for.
        format: How keyed state is written.

    Returns:
        Pointer to the savepoint.

    Raises:
        MissedError: Something of the query has gone while it was copied.
    """
    started_s = clock.monotonic_s()
    batch_id, last = _newest_batch(stored, operators=operators)
    if last is not None:
        _wait_for_commit(stored, batch_id, clock)
    with _of_the_query(batch_id, target):
        files = tree(stored.checkpoint_location)
        if METADATA not in files:
            message = "a restore or a roll back has just begun here"
            raise CheckpointNotFoundError(message, f"{stored.checkpoint_location}/{METADATA}")
        batch = batch_at(stored.checkpoint_location, files, batch_id)
        selected = select(files, batch)

    threshold = min(_INLINE_BYTES, _MOST_INLINE_BYTES // len(selected))
    storage = FileSystemCheckpointStorage(target, inline_threshold=threshold, single_writer=True)
    access = storage.create_checkpoint_storage(stored.job_id)
    location = access.initialize_location_for_savepoint(batch_id + 1, target)
    with dispose_on_error(location):
        copier = Copier(location, base, format)
        with _of_the_query(batch_id, target):
            metadata = _copied_state(stored, last, batch, copier, clock.now_ms())
            copied = _copied_files(stored, selected, files, copier)
        spark_files = SparkFiles(
            is_committed=batch.is_committed,
            settings=stored.streaming_settings | inferred_settings(selected),
            files=copied,
            state_origins=copier.state_origins,
        )
        coordinator_states = metadata.coordinator_states | {
            SPARK_FILES: spark_files.encode(location.external_pointer)
        }
        metadata = msgspec.structs.replace(
            metadata,
            coordinator_states=coordinator_states,
            duration_ms=1000 * (clock.monotonic_s() - started_s),
        )
        completed = complete_checkpoint(location, metadata)
    _log.info(
        "took savepoint %s of query %s behind batch %d in %.0f ms: %d files of Spark, %d bytes "
        "copied",
        completed.location.external_pointer,
        stored.query_id,
        batch_id,
        metadata.duration_ms,
        len(spark_files.files),
        copier.copied_bytes,
    )
    return completed.location.external_pointer


@contextmanager
def _of_the_query(batch_id: int, target: str) -> Iterator[None]:
    """Raise `MissedError` for a file of the query that isn't there in the block: a later try may do without."""
    try:
        yield
    except CheckpointNotFoundError as error:
        if is_within(error.location, target):
            raise
        raise MissedError(batch_id, error) from error


def _newest_batch(
    stored: StoredQuery, *, operators: bool
) -> tuple[int, CompletedCheckpoint | None]:
    """The last batch that is done, and the checkpoint of the query's operators behind it."""
    committed = newest_committed(stored.checkpoint_location)
    last = stored.checkpoint_of_operators()
    if last is None:
        if committed is None:
            message = "the query has done no batch yet"
            raise CheckpointNotFoundError(message, stored.checkpoint_location, kind="not-begun")
        if operators and has_link(stored.checkpoint_location):
            message = "query has only just begun with its operators"
            raise MissedError(
                committed, CheckpointNotFoundError(message, stored.checkpoint_location)
            )
        return committed, None
    batch_id = progress_of(last.metadata).batch_id
    # Spark notes a batch behind the checkpoint, and was looked at first: it can't be ahead.
    if committed is not None and batch_id < committed:
        message = (
            f"query has gone on to batch {committed}, but the last checkpoint of its operators is "
            f"behind batch {batch_id}; {GONE_WAY_OUT}"
        )
        raise InvalidRequestError(message, last.location.external_pointer)
    return batch_id, last


def _wait_for_commit(stored: StoredQuery, batch_id: int, clock: Clock) -> None:
    """Let a running query note that the batch is done, which it does a moment later."""
    deadline_s = clock.monotonic_s() + _COMMIT_WAIT_S
    while (
        stored.streaming_query is not None
        and stored.streaming_query.isActive
        and str(batch_id) not in names_in(f"{stored.checkpoint_location}/commits")
        and clock.monotonic_s() < deadline_s
    ):
        clock.sleep(_POLL_S)


def _copied_files(
    stored: StoredQuery, selected: list[str], sizes: dict[str, int], copier: Copier
) -> tuple[SparkFile, ...]:
    root = stored.checkpoint_location
    copied = copier.files(root, {path: sizes[path] for path in selected})
    # What zips refer to is known for sure only from the copies of them: Spark may replace them.
    return (*copied, *copier.parts_of_zips(root, copied))


def _copied_state(
    stored: StoredQuery,
    last: CompletedCheckpoint | None,
    batch: LoggedBatch,
    copier: Copier,
    created_ms: int,
) -> CheckpointMetadata:
    """The state of operators, copied; or metadata without any."""
    if last is not None:
        return msgspec.structs.replace(
            copier.state(last.metadata),
            commit_token=uuid.uuid4().hex,
            created_ms=created_ms,
            writer=writer(),
            epoch=0,
        )
    return progress_alone(stored, batch, created_ms)


def progress_alone(stored: StoredQuery, batch: LoggedBatch, created_ms: int) -> CheckpointMetadata:
    """Metadata with how far a query has come, and without the state of operators."""
    progress = SparkProgress(
        query_id=stored.query_id,
        run_id=stored.streaming_query.runId if stored.streaming_query is not None else "",
        batch_id=batch.batch_id,
        offsets=read_text(f"{stored.checkpoint_location}/offsets/{batch.batch_id}"),
        checkpoint_location=stored.checkpoint_location,
        spark_version=pyspark.__version__,
    )
    return CheckpointMetadata(
        job_id=stored.job_id,
        checkpoint_id=batch.batch_id + 1,
        created_ms=created_ms,
        duration_ms=0,
        writer=writer(),
        operators={},
        coordinator_states={SPARK: msgspec.msgpack.encode(progress)},
    )
