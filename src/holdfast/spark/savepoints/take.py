"""Take savepoints: copy the files that a query needs after one batch, then publish the metadata that leads to them.

The query's files may change while they are copied: if one disappears, the copy is aborted and tried again.
"""

import logging
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import pyspark
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.common import SYSTEM_CLOCK, Clock
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
from holdfast.spark.query import pin_checkpoints, writer_version
from holdfast.spark.savepoints.copier import Base, Copier, SavepointFormat, check_format
from holdfast.spark.savepoints.stored_query import (
    NO_OPERATORS_HINT,
    Place,
    QueryAddress,
    StoredQuery,
    savepoint_directory,
    use_stores,
)
from holdfast.spark_progress import (
    SPARK,
    SPARK_FILES,
    SparkFile,
    SparkFiles,
    SparkProgress,
    progress_of,
)

_log = logging.getLogger(__name__)

_Result = TypeVar("_Result")

_MAX_ATTEMPTS = 5

_COMMIT_WAIT_S = 30.0
_POLL_S = 0.05

_INLINE_BYTES = 4 << 10
_MAX_INLINE_BYTES = 4 << 20


def take_savepoint(
    query: StreamingQuery | Place,
    target: Place | None = None,
    *,
    checkpoint_dir: Place | None = None,
    job_id: str | None = None,
    base: Place | None = None,
    format: SavepointFormat = "native",
    operators: bool = True,
    configuration: Mapping[str, str] | None = None,
) -> str:
    """Take a savepoint of any streaming query; a running query keeps running.

    The savepoint holds everything that a query needs to resume after its last completed batch: Spark's logs and
    state, and the state of Holdfast operators. Without `base` the directory is self-contained: a copy of it elsewhere
    can be restored. The rows that the sink has written are not included.

    Args:
        query: The query; or the URI of its checkpointLocation, also of a stopped query.
        target: URI of the directory to make it in; by default `spark.holdfast.savepoint.dir`.
        checkpoint_dir: The directory of its operators' checkpoints; by default that noted in its
            checkpointLocation.
        job_id: The job of its operators, likewise.
        base: An earlier savepoint of the query. Files that haven't changed since are not copied, but referred to:
            keep the base as long as this savepoint, and move both together.
        format: `native` copies keyed state in the files of its backend, which is fast. `canonical` rewrites it without
            expired and deleted rows: each state as sorted rows that every backend reads alike. It reads all rows, and
            has no base.
        operators: Whether to include the state of its operators. False for a query that had operators once
            and has continued without them.
        configuration: Spark settings (`spark.holdfast.*`, `spark.hadoop.*`) for its stores, for a query given by
            URI; by default those of the session, if there is one.

    Returns:
        Pointer to the savepoint: the URI of its directory.

    Raises:
        InvalidRequestError: An argument can't be used; the checkpointLocation has a file that can't be copied; or the
            query has continued without its operators.
        CheckpointNotFoundError: The query has not completed a batch, or files repeatedly disappear while they are
            copied.
        CheckpointCorruptedError: A state is corrupt.
        StorageUnavailableError: Something could not be read or written; no savepoint was made.
        OutcomeUnknownError: The store did not report whether it was made.
    """
    address = QueryAddress(query, checkpoint_dir, job_id, operators, configuration)
    return SavepointRequest(address, target, base, format).take()


def stop_with_savepoint(
    query: StreamingQuery,
    target: Place | None = None,
    *,
    checkpoint_dir: Place | None = None,
    job_id: str | None = None,
    base: Place | None = None,
    format: SavepointFormat = "native",
    operators: bool = True,
) -> str:
    """Stop a query, then take a savepoint of it. Arguments, result and errors of `take_savepoint`.

    It doesn't wait for a running batch, which will be repeated. The query stays stopped even if the savepoint
    fails.
    """
    address = QueryAddress(query, checkpoint_dir, job_id, operators)
    request = SavepointRequest(address, target, base, format)
    request.prepare()
    query.stop()
    return request.take()


@dataclass(frozen=True, slots=True, kw_only=True)
class SavepointPreview:
    """A savepoint that could be taken now.

    Attributes:
        query_id: Spark's id of the query.
        batch_id: The batch after which the query would resume.
        job_id: The job of its operators; None without operators.
        parallelism: Number of subtasks by the uid of each operator.
        size_bytes: Length of all files that the query needs; with a base not all of them are copied.
    """

    query_id: str
    batch_id: int
    job_id: str | None
    parallelism: dict[str, int]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SavepointRequest:
    """The arguments of a savepoint."""

    address: QueryAddress
    target: Place | None
    base: Place | None
    format: SavepointFormat

    def prepare(self) -> tuple[StoredQuery, str, Base]:
        """Return the query, the directory and the base. Raises `InvalidRequestError`."""
        check_format(self.format, has_base=self.base is not None)
        stored = self.address.stored_query()
        directory = savepoint_directory(self.target, stored.configuration)
        if is_within(directory, stored.checkpoint_location):
            message = (
                "savepoint directory is in the query's checkpointLocation, which is Spark's; pass a directory "
                "outside of it"
            )
            raise InvalidRequestError(message, directory, kind="overlap")
        use_stores(stored.configuration, directory, None if self.base is None else str(self.base))
        if self.base is None:
            return stored, directory, Base()
        return stored, directory, Base.load(self.base, stored.query_id, stored.configuration)

    def take(self) -> str:
        """Take the savepoint. Result and errors of `take_savepoint`."""
        return self._repeat(
            lambda stored, directory, base: copy_query(
                stored, directory, base, operators=self.address.operators, format=self.format
            )
        )

    def preview(self) -> SavepointPreview:
        """Return the savepoint that could be taken, and write nothing. Errors of `take_savepoint`."""
        return self._repeat(self._preview)

    def _preview(self, stored: StoredQuery, directory: str, _: Base) -> SavepointPreview:
        batch, last, files = _newest_files(
            stored, directory, operators=self.address.operators, clock=SYSTEM_CLOCK
        )
        metadata = None if last is None else last.metadata
        operators = {} if metadata is None else metadata.operators
        return SavepointPreview(
            query_id=stored.query_id,
            batch_id=batch.batch_id,
            job_id=None if metadata is None else metadata.job_id,
            parallelism={uid: operator.parallelism for uid, operator in operators.items()},
            size_bytes=sum(files.values()) + (metadata.state_bytes if metadata else 0),
        )

    def _repeat(self, action: Callable[[StoredQuery, str, Base], _Result]) -> _Result:
        """Repeat an action on the query if a file disappears during it.

        Raises:
            CheckpointNotFoundError: Files repeatedly disappear.
        """
        errors: list[SourceChangedError] = []
        while len(errors) < _MAX_ATTEMPTS:
            stored, directory, base = self.prepare()
            # The query's coordinator, if it is in this process, deletes no checkpoint during the action.
            with pin_checkpoints(stored.job_id) if stored.access else nullcontext():
                try:
                    return action(stored, directory, base)
                except SourceChangedError as error:
                    errors.append(error)
                    if len(errors) > 1 and error.args == errors[-2].args:
                        break  # the query has made no progress, so the file won't appear
                    _log.info("a file to copy is gone; trying again (%s)", error.error)
        failure = errors[-1].error
        message = (
            f"savepoint failed after {len(errors)} attempts, and none was written, because a file to copy is "
            f"missing: {failure.args[0]}. If the query runs in another process, which deletes it, raise "
            "spark.holdfast.checkpoint.num-retained and spark.sql.streaming.minBatchesToRetain"
        )
        raise CheckpointNotFoundError(
            message, failure.location, kind="savepoint-failed"
        ) from failure


class SourceChangedError(Exception):
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
    clock: Clock = SYSTEM_CLOCK,
    format: SavepointFormat = "native",
) -> str:
    """Make a savepoint of the files that the query has stored so far, and return its pointer.

    Arguments are those of `take_savepoint`, with the query and the base looked up.

    Raises:
        SourceChangedError: A file of the query disappeared.
    """
    started_s = clock.monotonic_s()
    batch, last, selected = _newest_files(stored, target, operators=operators, clock=clock)
    batch_id = batch.batch_id
    threshold = min(_INLINE_BYTES, _MAX_INLINE_BYTES // len(selected))
    storage = FileSystemCheckpointStorage(target, inline_threshold=threshold, single_writer=True)
    access = storage.create_checkpoint_storage(stored.job_id)
    location = access.initialize_location_for_savepoint(batch_id + 1, target)
    pointer = location.external_pointer
    with dispose_on_error(location):
        copier = Copier(location, base, format)
        with _detecting_changes(batch_id, target):
            if last is None:
                metadata = metadata_without_operators(stored, batch, clock.now_ms())
            else:
                metadata = msgspec.structs.replace(
                    copier.copy_state(last.metadata),
                    commit_token=uuid.uuid4().hex,
                    created_ms=clock.now_ms(),
                    writer=writer_version(),
                    epoch=0,
                )
            spark_files = _copy_spark_files(stored, batch, selected, copier)
        metadata = msgspec.structs.replace(
            metadata,
            coordinator_states=metadata.coordinator_states
            | {SPARK_FILES: spark_files.encode(pointer)},
            duration_ms=1000 * (clock.monotonic_s() - started_s),
        )
        complete_checkpoint(location, metadata)
    _log.info(
        "took savepoint %s of query %s after batch %d in %.0f ms: %d files of Spark, %d bytes copied",
        pointer,
        stored.query_id,
        batch_id,
        metadata.duration_ms,
        len(spark_files.files),
        copier.copied_bytes,
    )
    return pointer


def _newest_files(
    stored: StoredQuery, target: str, *, operators: bool, clock: Clock
) -> tuple[LoggedBatch, CompletedCheckpoint | None, dict[str, int]]:
    """Return the last completed batch, the checkpoint of operators after it, and Spark's files with their lengths.

    Raises:
        SourceChangedError: A file of the query disappeared.
    """
    batch_id, last = _newest_batch(stored, operators=operators)
    if last is not None:
        _wait_for_commit(stored, batch_id, clock)
    with _detecting_changes(batch_id, target):
        files = tree(stored.checkpoint_location)
        if METADATA not in files:
            message = "a restore or a rollback has just begun here"
            raise CheckpointNotFoundError(message, f"{stored.checkpoint_location}/{METADATA}")
        batch = batch_at(stored.checkpoint_location, files, batch_id)
        return batch, last, {path: files[path] for path in select(files, batch)}


@contextmanager
def _detecting_changes(batch_id: int, target: str) -> Iterator[None]:
    """Raise `SourceChangedError` for a missing file of the query: another attempt may not need it."""
    try:
        yield
    except CheckpointNotFoundError as error:
        if is_within(error.location, target):
            raise
        raise SourceChangedError(batch_id, error) from error


def _newest_batch(
    stored: StoredQuery, *, operators: bool
) -> tuple[int, CompletedCheckpoint | None]:
    """Return the last completed batch, and the checkpoint of the query's operators after it."""
    committed = newest_committed(stored.checkpoint_location)
    last = stored.checkpoint_of_operators()
    if last is None:
        if committed is None:
            message = "the query has not completed a batch yet"
            raise CheckpointNotFoundError(message, stored.checkpoint_location, kind="not-begun")
        if operators and has_link(stored.checkpoint_location):
            message = "query has just started with its operators"
            raise SourceChangedError(
                committed, CheckpointNotFoundError(message, stored.checkpoint_location)
            )
        return committed, None
    batch_id = progress_of(last.metadata).batch_id
    # Spark commits a batch after the checkpoint, and its log was read first: it can't be ahead.
    if committed is not None and batch_id < committed:
        message = (
            f"query has committed batch {committed}, but the last checkpoint of its operators is "
            f"after batch {batch_id}; {NO_OPERATORS_HINT}"
        )
        raise InvalidRequestError(message, last.location.external_pointer, kind="without-operators")
    return batch_id, last


def _wait_for_commit(stored: StoredQuery, batch_id: int, clock: Clock) -> None:
    """Wait until a running query commits the batch, which takes a moment."""
    deadline_s = clock.monotonic_s() + _COMMIT_WAIT_S
    while (
        stored.streaming_query is not None
        and stored.streaming_query.isActive
        and str(batch_id) not in names_in(f"{stored.checkpoint_location}/commits")
        and clock.monotonic_s() < deadline_s
    ):
        clock.sleep(_POLL_S)


def _copy_spark_files(
    stored: StoredQuery, batch: LoggedBatch, sizes: dict[str, int], copier: Copier
) -> SparkFiles:
    root = stored.checkpoint_location
    copies: list[SparkFile] = copier.copy_files(root, sizes)
    # Spark may replace ZIPs, so only the copies of them have the right parts.
    copies += copier.copy_zip_parts(root, copies)
    return SparkFiles(
        is_committed=batch.is_committed,
        settings=stored.streaming_settings | inferred_settings(sizes),
        files=tuple(copies),
        state_origins=copier.state_origins,
    )


def metadata_without_operators(
    stored: StoredQuery, batch: LoggedBatch, created_ms: int
) -> CheckpointMetadata:
    """Return metadata with the query's progress, but without state of operators."""
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
        writer=writer_version(),
        operators={},
        coordinator_states={SPARK: msgspec.msgpack.encode(progress)},
    )
