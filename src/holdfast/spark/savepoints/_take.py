"""Take a savepoint: copy what a query needs, then publish the metadata that leads to it."""

import logging
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from os import PathLike

import msgspec
import pyspark
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.errors import CheckpointNotFoundError, InvalidRequestError, OutcomeUnknownError
from holdfast.locations import (
    CheckpointMetadata,
    CheckpointStorageLocation,
    CompletedCheckpoint,
    FileSystemCheckpointStorage,
    checkpoint_directory,
    complete_checkpoint,
    latest_checkpoint,
)
from holdfast.spark._coordinator import SPARK, SparkProgress, progress_of, writer
from holdfast.spark._retention import retained
from holdfast.spark._settings import Settings
from holdfast.spark.savepoints._base import Base, Copier
from holdfast.spark.savepoints._batches import batch_at, inferred_settings, newest_committed
from holdfast.spark.savepoints._content import SPARK_FILES, SparkFile, SparkFiles
from holdfast.spark.savepoints._files import names_in, read, tree
from holdfast.spark.savepoints._origin import Origin, origin_of, use_stores
from holdfast.spark.savepoints._selection import Batch, select

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
) -> str:
    """Take a savepoint of a streaming query, whatever is in it; a running one goes on meanwhile.

    It holds all that a query needs to go on behind the last batch that is done: Spark's own logs and
    state, and the state of operators made by `stateful`. Without `base` it is a directory that holds
    everything itself: copied elsewhere it can still be restored. The rows that the sink has written
    are not in it.

    Args:
        query: The query; or, of one that may also be stopped, the URI of its checkpointLocation.
        target: URI of the directory to make it in; by default `spark.holdfast.savepoint.dir`.
        checkpoint_dir: Where its operators have their checkpoints. The checkpointLocation says it,
            unless the query last ran with an older version.
        job_id: The same for their job.
        base: An earlier savepoint of the query. What hasn't changed since is not copied, but
            referred to there: keep it as long as this one, and beside it if they are to be moved.

    Returns:
        Pointer to the savepoint: the URI of its directory.

    Raises:
        InvalidRequestError: An argument can't be used, or a source keeps what can't be copied.
        CheckpointNotFoundError: No batch is done yet, or files go while they are copied, time after
            time.
        CheckpointCorruptedError: The state of an operator is damaged.
        StorageUnavailableError: Something could not be read or written; no savepoint was made.
        OutcomeUnknownError: The store did not say whether it was made.
    """
    origin = origin_of(query, checkpoint_dir=checkpoint_dir, job_id=job_id)
    directory = target or Settings.parse(origin.configuration).savepoint_dir
    if directory is None:
        message = "no savepoint directory: name one, or set spark.holdfast.savepoint.dir"
        raise InvalidRequestError(message)
    directory = checkpoint_directory(directory)
    use_stores(origin.configuration, directory, None if base is None else str(base))
    earlier = Base.load(base, origin.query_id) if base is not None else Base()
    # Its coordinator, if it is in this process, lets nothing go while it is copied.
    with retained(origin.job_id) if origin.access else nullcontext():
        for _ in range(_MOST_ATTEMPTS):
            try:
                return _attempt(origin, directory, earlier)
            except CheckpointNotFoundError as error:
                failure = error
                _log.info("a file is gone that was to be copied; trying again (%s)", error)
    message = (
        f"what a savepoint needs is not there, after {_MOST_ATTEMPTS} attempts: "
        f"{failure.args[0]}. If the query runs elsewhere and deletes it meanwhile, keep more: raise "
        "spark.holdfast.checkpoint.num-retained and spark.sql.streaming.minBatchesToRetain"
    )
    raise CheckpointNotFoundError(message, failure.location) from failure


def stop_with_savepoint(
    query: StreamingQuery,
    target: str | PathLike[str] | None = None,
    *,
    checkpoint_dir: str | PathLike[str] | None = None,
    job_id: str | None = None,
    base: str | PathLike[str] | None = None,
) -> str:
    """Stop a query, then take a savepoint of it. Arguments, result and errors of `take_savepoint`.

    A batch that runs is not waited for: it will be repeated. The query stays stopped also if no
    savepoint could be taken.
    """
    query.stop()
    return take_savepoint(query, target, checkpoint_dir=checkpoint_dir, job_id=job_id, base=base)


def _attempt(origin: Origin, target: str, base: Base) -> str:
    """Copy everything as it is now. Raises `CheckpointNotFoundError` if some of it has gone."""
    started = time.monotonic()
    last = _last_checkpoint(origin)
    if last is not None:
        batch_id = progress_of(last.metadata).batch_id
        _wait_for_commit(origin, batch_id)
    else:
        batch_id = newest_committed(origin.checkpoint_location)
    files = tree(origin.checkpoint_location)
    batch = batch_at(origin.checkpoint_location, files, batch_id)
    selected = select(files, batch)

    threshold = min(_INLINE_BYTES, _MOST_INLINE_BYTES // len(selected))
    storage = FileSystemCheckpointStorage(target, inline_threshold=threshold, single_writer=True)
    access = storage.create_checkpoint_storage(origin.job_id)
    location = access.initialize_location_for_savepoint(batch_id + 1, target)
    with _disposed_on_failure(location):
        copier = Copier(location, base)
        metadata = _copied_state(origin, last, batch, copier)
        spark_files = SparkFiles(
            is_committed=batch.is_committed,
            settings=inferred_settings(selected) | origin.streaming_settings,
            sink=origin.sink,
            files=_copied_files(origin, selected, files, copier),
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


def _last_checkpoint(origin: Origin) -> CompletedCheckpoint | None:
    """The newest checkpoint of the query's operators; None if it has none."""
    if origin.access is None:
        return None
    last = latest_checkpoint(origin.access)
    if last is None:
        message = (
            f"operators of the query have no completed checkpoint in job {origin.job_id}. With "
            "storage memory and no directory they are only in the process that runs it"
        )
        raise CheckpointNotFoundError(message, origin.checkpoint_location)
    owner = progress_of(last.metadata).query_id
    if owner != origin.query_id:
        message = f"job {origin.job_id} is that of another query, {owner}; name the right one"
        raise InvalidRequestError(message, last.location.external_pointer)
    return last


@contextmanager
def _disposed_on_failure(location: CheckpointStorageLocation) -> Iterator[None]:
    try:
        yield
    except OutcomeUnknownError:
        raise  # it may exist
    except BaseException:
        try:
            location.dispose_on_failure()
        except Exception:  # noqa: BLE001  # the user has to see why there is no savepoint
            _log.warning("could not clean up after a savepoint", exc_info=True)
        raise


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
    return (*copied, *copier.files(root, copier.parts_of_zips(copied)))


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
        offsets=read(f"{origin.checkpoint_location}/offsets/{batch.batch_id}").decode(),
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
