"""Take a savepoint: copy what a query needs, then publish the metadata that leads to it."""

import logging
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from os import PathLike

import msgspec
import pyspark
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.common import checkpoint_directory
from holdfast.errors import CheckpointNotFoundError, InvalidRequestError
from holdfast.locations.coordination import complete_checkpoint, disposed_on_failure
from holdfast.locations.metadata import CheckpointMetadata
from holdfast.locations.storages import CompletedCheckpoint, FileSystemCheckpointStorage
from holdfast.spark.checkpoint_location import (
    METADATA,
    Batch,
    batch_at,
    inferred_settings,
    is_within,
    names_in,
    newest_committed,
    read_text,
    select,
    tree,
)
from holdfast.spark.query import retained, writer
from holdfast.spark.savepoints.base import Base, Copier
from holdfast.spark.savepoints.origin import GONE_WAY_OUT, Origin, has_link, origin_of, use_stores
from holdfast.spark.settings import Settings
from holdfast.spark_progress import (
    SPARK,
    SPARK_FILES,
    SparkFile,
    SparkFiles,
    SparkProgress,
    progress_of,
)

_log = logging.getLogger(__name__)

_MOST_ATTEMPTS = 5
_COMMIT_WAIT_S = 30.0
_POLL_S = 0.05

_INLINE_BYTES = 4 << 10
_MOST_INLINE_BYTES = 4 << 20


def take_savepoint(
    query: "StreamingQuery | str | PathLike[str]",
    target: str | PathLike[str] | None = None,
    *,
    checkpoint_dir: str | PathLike[str] | None = None,
    job_id: str | None = None,
    base: str | PathLike[str] | None = None,
    operators: bool = True,
    configuration: Mapping[str, str] | None = None,
) -> str:
    """Take a savepoint of a streaming query, whatever is in it; a running one goes on meanwhile.

    It holds all that a query needs to go on behind the last batch that is done: Spark's own logs and
    state, and the state of operators made by `stateful`. Without `base` it is a directory that holds
    everything itself: copied elsewhere it can still be restored. The rows that the sink has written
    are not in it.

    Args:
        query: The query; or, of one that may also be stopped, the URI of its checkpointLocation.
        target: URI of the directory to make it in; by default `spark.holdfast.savepoint.dir`.
        checkpoint_dir: Where its operators have their checkpoints, if not where its
            checkpointLocation says.
        job_id: The same for their job.
        base: An earlier savepoint of the query. What hasn't changed since is not copied, but
            referred to there: keep it as long as this one, and beside it if they are to be moved.
        operators: Whether the state of its operators goes in. False for a query that had some once and
            has gone on without.
        configuration: Settings of Spark (`spark.holdfast.*`, `spark.hadoop.*`) that say how its stores
            are reached, of a query that is given by URI; by default those of the session, if there
            is one.

    Returns:
        Pointer to the savepoint: the URI of its directory.

    Raises:
        InvalidRequestError: An argument can't be used; something is in the checkpointLocation that
            can't be copied; or the query has gone on without its operators.
        CheckpointNotFoundError: No batch is done yet, or files go while they are copied, time after
            time.
        CheckpointCorruptedError: A state is damaged.
        StorageUnavailableError: Something could not be read or written; no savepoint was made.
        OutcomeUnknownError: The store did not say whether it was made.
    """
    return _take(_Request(query, target, checkpoint_dir, job_id, base, operators, configuration))


def stop_with_savepoint(
    query: StreamingQuery,
    target: str | PathLike[str] | None = None,
    *,
    checkpoint_dir: str | PathLike[str] | None = None,
    job_id: str | None = None,
    base: str | PathLike[str] | None = None,
    operators: bool = True,
) -> str:
    """Stop a query, then take a savepoint of it. Arguments, result and errors of `take_savepoint`.

    A batch that runs is not waited for: it will be repeated. The query stays stopped also if no
    savepoint could be taken.
    """
    request = _Request(query, target, checkpoint_dir, job_id, base, operators, None)
    request.prepared()
    query.stop()
    return _take(request)


@dataclass(frozen=True, slots=True)
class _Request:
    """What somebody wants a savepoint of, and where."""

    query: StreamingQuery | str | PathLike[str]
    target: str | PathLike[str] | None
    checkpoint_dir: str | PathLike[str] | None
    job_id: str | None
    base: str | PathLike[str] | None
    operators: bool
    configuration: Mapping[str, str] | None

    def prepared(self) -> tuple[Origin, str, Base]:
        """The query, the directory and the base. Raises `InvalidRequestError`."""
        origin = origin_of(
            self.query,
            checkpoint_dir=self.checkpoint_dir,
            job_id=self.job_id,
            operators=self.operators,
            configuration=self.configuration,
        )
        directory = self.target or Settings.parse(origin.configuration).savepoint_dir
        if directory is None:
            message = "no savepoint directory: name one, or set spark.holdfast.savepoint.dir"
            raise InvalidRequestError(message)
        directory = checkpoint_directory(directory)
        if is_within(directory, origin.checkpoint_location):
            message = (
                "savepoint directory lies in the query's checkpointLocation, where nobody could tell "
                "its files from Spark's; name one beside it"
            )
            raise InvalidRequestError(message, directory)
        use_stores(origin.configuration, directory, None if self.base is None else str(self.base))
        if self.base is None:
            return origin, directory, Base()
        return origin, directory, Base.load(self.base, origin.query_id, origin.configuration)


class _MissedError(Exception):
    """Something of the query was not there, as when it is deleted while it is copied."""

    def __init__(self, batch_id: int, error: CheckpointNotFoundError) -> None:
        super().__init__(batch_id, *error.args)
        self.error = error


def _take(request: _Request) -> str:
    missed: list[_MissedError] = []
    while len(missed) < _MOST_ATTEMPTS:
        origin, directory, base = request.prepared()
        # Its coordinator, if it is in this process, lets nothing go while it is copied.
        with retained(origin.job_id) if origin.access else nullcontext():
            try:
                return _attempt(origin, directory, base, operators=request.operators)
            except _MissedError as error:
                missed.append(error)
                if len(missed) > 1 and error.args == missed[-2].args:
                    break  # the query has not gone on: it will not come
                _log.info("a file is gone that was to be copied; trying again (%s)", error.error)
    failure = missed[-1].error
    message = (
        f"what a savepoint needs is not there, after {len(missed)} attempts: "
        f"{failure.args[0]}. If the query runs elsewhere and deletes it meanwhile, keep more: raise "
        "spark.holdfast.checkpoint.num-retained and spark.sql.streaming.minBatchesToRetain"
    )
    raise CheckpointNotFoundError(message, failure.location) from failure


@contextmanager
def _of_the_query(batch_id: int, target: str) -> Iterator[None]:
    """What isn't found in here may be there once the query has gone on."""
    try:
        yield
    except CheckpointNotFoundError as error:
        if error.location.startswith(target):
            raise
        raise _MissedError(batch_id, error) from error


def _newest_batch(origin: Origin, *, operators: bool) -> tuple[int, CompletedCheckpoint | None]:
    """The last batch that is done, and the checkpoint of the query's operators behind it."""
    committed = newest_committed(origin.checkpoint_location)
    last = origin.latest_checkpoint()
    if last is None:
        if committed is None:
            message = "the query has done no batch yet"
            raise CheckpointNotFoundError(message, origin.checkpoint_location)
        if operators and has_link(origin.checkpoint_location):
            message = "query has only just begun with its operators"
            raise _MissedError(
                committed, CheckpointNotFoundError(message, origin.checkpoint_location)
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
    _wait_for_commit(origin, batch_id)
    return batch_id, last


def _attempt(origin: Origin, target: str, base: Base, *, operators: bool) -> str:
    """Copy everything as it is now. Raises `_MissedError` if some of it has gone."""
    started = time.monotonic()
    batch_id, last = _newest_batch(origin, operators=operators)
    with _of_the_query(batch_id, target):
        files = tree(origin.checkpoint_location)
        if METADATA not in files:
            message = "a restore or a roll back has just begun here"
            raise CheckpointNotFoundError(message, f"{origin.checkpoint_location}/{METADATA}")
        batch = batch_at(origin.checkpoint_location, files, batch_id)
        selected = select(files, batch)

    threshold = min(_INLINE_BYTES, _MOST_INLINE_BYTES // len(selected))
    storage = FileSystemCheckpointStorage(target, inline_threshold=threshold, single_writer=True)
    access = storage.create_checkpoint_storage(origin.job_id)
    location = access.initialize_location_for_savepoint(batch_id + 1, target)
    with disposed_on_failure(location):
        copier = Copier(location, base)
        with _of_the_query(batch_id, target):
            metadata = _copied_state(origin, last, batch, copier)
            copied = _copied_files(origin, selected, files, copier)
        spark_files = SparkFiles(
            is_committed=batch.is_committed,
            settings=origin.streaming_settings | inferred_settings(selected),
            files=copied,
            state_origins=copier.state_origins,
        )
        coordinator_states = metadata.coordinator_states | {
            SPARK_FILES: spark_files.encode(location.external_pointer)
        }
        metadata = msgspec.structs.replace(
            metadata,
            coordinator_states=coordinator_states,
            duration_ms=1000 * (time.monotonic() - started),
        )
        completed = complete_checkpoint(location, metadata)
    _log.info(
        "took savepoint %s of query %s behind batch %d in %.0f ms: %d files of Spark, %d bytes "
        "copied",
        completed.location.external_pointer,
        origin.query_id,
        batch_id,
        metadata.duration_ms,
        len(spark_files.files),
        copier.copied_bytes,
    )
    return completed.location.external_pointer


def _wait_for_commit(origin: Origin, batch_id: int) -> None:
    """Let a running query note that the batch is done, which it does a moment later."""
    deadline = time.monotonic() + _COMMIT_WAIT_S
    while (
        origin.query is not None
        and origin.query.isActive
        and str(batch_id) not in names_in(f"{origin.checkpoint_location}/commits")
        and time.monotonic() < deadline
    ):
        time.sleep(_POLL_S)


def _copied_files(
    origin: Origin, selected: list[str], sizes: dict[str, int], copier: Copier
) -> tuple[SparkFile, ...]:
    root = origin.checkpoint_location
    copied = copier.files(root, {path: sizes[path] for path in selected})
    # What zips refer to is known for sure only from the copies of them: Spark may replace them.
    return (*copied, *copier.parts_of_zips(root, copied))


def _copied_state(
    origin: Origin, last: CompletedCheckpoint | None, batch: Batch, copier: Copier
) -> CheckpointMetadata:
    """The state of operators, copied; or metadata without any."""
    if last is not None:
        return msgspec.structs.replace(
            copier.state(last.metadata),
            commit_token=uuid.uuid4().hex,
            created_ms=time.time_ns() // 1_000_000,
            writer=writer(),
            epoch=0,
        )
    progress = SparkProgress(
        query_id=origin.query_id,
        run_id=origin.query.runId if origin.query is not None else "",
        batch_id=batch.batch_id,
        offsets=read_text(f"{origin.checkpoint_location}/offsets/{batch.batch_id}"),
        checkpoint_location=origin.checkpoint_location,
        spark_version=pyspark.__version__,
    )
    return CheckpointMetadata(
        job_id=origin.job_id,
        checkpoint_id=batch.batch_id + 1,
        created_ms=time.time_ns() // 1_000_000,
        duration_ms=0,
        writer=writer(),
        operators={},
        coordinator_states={SPARK: msgspec.msgpack.encode(progress)},
    )
