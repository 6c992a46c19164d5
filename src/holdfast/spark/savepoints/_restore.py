"""Restore a savepoint: make a checkpointLocation of it that a query goes on from.

1. a note of what is being done, and a `metadata` file that keeps Spark away;
2. the state of operators, as a completed checkpoint of the new job;
3. all files of Spark, logs last;
4. Spark's `metadata`; then the note goes.
"""

import dataclasses
import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from os import PathLike

import msgspec

from holdfast.errors import InvalidRequestError, OutcomeUnknownError
from holdfast.locations import (
    CheckpointMetadata,
    CheckpointStorageAccess,
    CompletedCheckpoint,
    FileStateHandle,
    StreamStateHandle,
    checkpoint_directory,
    complete_checkpoint,
    file_system_for,
    load_checkpoint,
    load_checkpoints,
    resolve_pointer,
    with_streams,
)
from holdfast.spark import _sessions
from holdfast.spark._coordinator import SPARK, progress_of
from holdfast.spark._link import LINK_FILE, Link, encode_link
from holdfast.spark._setting import PREFIX
from holdfast.spark._settings import Settings
from holdfast.spark.savepoints._content import SPARK_FILES, SparkFile, SparkFiles, spark_files_of
from holdfast.spark.savepoints._files import (
    chunks,
    delete,
    in_parallel,
    materialised,
    stored,
    tree,
    write,
)
from holdfast.spark.savepoints._logs import PROVIDER_CLASS, decode_offsets
from holdfast.spark.savepoints._origin import use_stores
from holdfast.spark.savepoints._rewriting import has_paths, rewritten
from holdfast.spark.savepoints._selection import METADATA, numbers
from holdfast.spark.savepoints._unfinished import (
    UNFINISHED_FILE,
    Unfinished,
    begin,
    finish,
    is_finished,
    unfinished_in,
)

_log = logging.getLogger(__name__)

_RESTORE = "restore"
_FILE_SINK = "FileSink["


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredQuery:
    """A query that can be started.

    Attributes:
        query_id: Spark's id of it.
        checkpoint_location: URI of its checkpointLocation.
        batch_id: The last batch that is done; the query goes on with the next.
        job_id: The job of its operators; None if it has none.
        settings: Settings of Spark to start it with: those for streaming that it had, and where its
            operators' checkpoints are.
    """

    query_id: str
    checkpoint_location: str
    batch_id: int
    job_id: str | None
    settings: dict[str, str]


def restore_savepoint(
    pointer: str | PathLike[str],
    checkpoint_location: str | PathLike[str],
    *,
    checkpoint_dir: str | PathLike[str] | None = None,
    job_id: str | None = None,
    keep_query_id: bool = False,
    paths: Mapping[str, str] | None = None,
    shuffle_partitions: int | None = None,
) -> RestoredQuery:
    """Make a checkpointLocation of a savepoint; a query started with it goes on from there.

    By default it becomes a query of its own, a fork: it may run beside the one that the savepoint is
    of. An interrupted restore is finished by repeating it; until then Spark can't start the query.

    Args:
        pointer: The savepoint: URI of its directory.
        checkpoint_location: URI of the new checkpointLocation; nothing may be there.
        checkpoint_dir: Where its operators, if it has any, will have their checkpoints; by default
            `spark.holdfast.checkpoint.dir`.
        job_id: The same for their job, which must have no checkpoints yet; by default the query's id.
        keep_query_id: Whether it stays the same query for Spark, and for sinks that know a batch by
            query and number. Then the old one must never run again: Spark would stop one of both
            without an error.
        paths: For the beginning of each URI of input files that have moved, what it is now.
        shuffle_partitions: Over how many partitions Spark's own state is to be spread from now on.
            It has to be in RocksDB; Spark does it, and counts it as a batch.

    Raises:
        InvalidRequestError: Something is there already, or an argument can't be used.
        CheckpointNotFoundError: There is no such savepoint, or a file of it is gone.
        CheckpointCorruptedError: A file of it is damaged. What was restored so far can't be started.
        CheckpointConflictError: Somebody else has taken the job.
        StorageUnavailableError: Something could not be read or written; repeat it.
    """
    configuration = _sessions.configuration()
    use_stores(configuration, str(pointer), str(checkpoint_location))
    savepoint = load_checkpoint(resolve_pointer(pointer))
    spark_files = spark_files_of(savepoint.metadata, savepoint.location.external_pointer)
    progress = progress_of(savepoint.metadata)
    location = checkpoint_directory(checkpoint_location)
    if shuffle_partitions is not None:
        _check_can_be_spread(savepoint, shuffle_partitions)
    unfinished = unfinished_in(location) or _new(
        savepoint, spark_files, keep_query_id=keep_query_id
    )
    _check_free(location, unfinished, savepoint, keep_query_id=keep_query_id)
    job = _Job.of(savepoint.metadata, configuration, checkpoint_dir, job_id or unfinished.query_id)
    if job is not None:
        job.check_free(unfinished)

    if not is_finished(location, unfinished):
        file_system_for(location).prepare_directory(location)
        begin(location, unfinished)
        if job is not None:
            job.restore(savepoint, unfinished, location)
        _clear(location)
        _materialise(spark_files, location, paths or {})
        if job is not None:
            write(f"{location}/{LINK_FILE}", encode_link(job.link).encode())
    finish(location, unfinished)
    if shuffle_partitions is not None:
        _sessions.repartition(location, shuffle_partitions)
    _warn_of_sink(spark_files, location)
    _log.info("restored %s behind batch %d at %s", pointer, progress.batch_id, location)
    return RestoredQuery(
        query_id=unfinished.query_id,
        checkpoint_location=location,
        batch_id=progress.batch_id + (shuffle_partitions is not None),
        job_id=job.job_id if job else None,
        settings=spark_files.settings | (job.settings_for(unfinished.query_id) if job else {}),
    )


@dataclass(frozen=True, slots=True)
class _Job:
    """Where the operators of a query that is restored will have their checkpoints."""

    access: CheckpointStorageAccess
    link: Link

    @classmethod
    def of(
        cls,
        metadata: CheckpointMetadata,
        configuration: dict[str, str],
        checkpoint_dir: str | PathLike[str] | None,
        job_id: str,
    ) -> "_Job | None":
        """That of a savepoint; None if it holds no operator."""
        if not metadata.operators:
            return None
        settings = Settings.parse(configuration)
        if checkpoint_dir is not None:
            directory = checkpoint_directory(checkpoint_dir)
            settings = dataclasses.replace(settings, checkpoint_dir=directory)
        if settings.checkpoint_dir is None:
            message = (
                "savepoint holds the state of operators; name the directory for their checkpoints "
                f"(checkpoint_dir, or {PREFIX}checkpoint.dir)"
            )
            raise InvalidRequestError(message)
        use_stores(configuration, settings.checkpoint_dir)
        link = Link(
            checkpoint_dir=settings.checkpoint_dir,
            job_id=job_id,
            storage=settings.checkpoint_storage,
        )
        return cls(settings.open_storage().create_checkpoint_storage(job_id), link)

    @property
    def job_id(self) -> str:
        return self.link.job_id

    def settings_for(self, query_id: str) -> dict[str, str]:
        """Settings by which the query finds them."""
        found = {f"{PREFIX}checkpoint.dir": str(self.link.checkpoint_dir)}
        if self.job_id != query_id:
            found[f"{PREFIX}job.id"] = self.job_id
        return found

    def check_free(self, unfinished: Unfinished) -> None:
        """Refuse a job that has checkpoints which are not of this restore."""
        for one in load_checkpoints(self.access):
            if one.metadata.commit_token != unfinished.token:
                message = (
                    f"job {self.job_id} has checkpoints already; name another job or directory, "
                    "delete that of the job if nobody needs it, or use roll_back to go back in it"
                )
                raise InvalidRequestError(message, one.location.external_pointer)

    def restore(
        self, savepoint: CompletedCheckpoint, unfinished: Unfinished, checkpoint_location: str
    ) -> None:
        """Make the savepoint's state the job's first checkpoint, unless it is already."""
        if self.access.completed_checkpoints():
            return
        self.access.initialize_base_locations_for_checkpoint()
        ownership = self.access.claim_job()
        pending = self.access.initialize_location_for_checkpoint(savepoint.checkpoint_id)
        try:
            files = {
                one.uri: one
                for one in savepoint.metadata.streams()
                if isinstance(one, FileStateHandle)
            }
            copied = in_parallel(
                lambda one: stored(one.open_input_stream, pending), list(files.values())
            )
            by_uri = dict(zip(files, copied, strict=True))

            def change(handle: StreamStateHandle) -> StreamStateHandle:
                return by_uri[handle.uri] if isinstance(handle, FileStateHandle) else handle

            progress = msgspec.structs.replace(
                progress_of(savepoint.metadata),
                query_id=unfinished.query_id,
                checkpoint_location=checkpoint_location,
            )
            metadata = msgspec.structs.replace(
                with_streams(savepoint.metadata, change),
                job_id=self.job_id,
                commit_token=unfinished.token,
                epoch=ownership.epoch,
                coordinator_states=_without_spark_files(savepoint.metadata)
                | {SPARK: msgspec.msgpack.encode(progress)},
            )
            complete_checkpoint(pending, metadata, ownership)
        except OutcomeUnknownError:
            raise  # it may exist
        except BaseException:
            pending.dispose_on_failure()
            raise


def _check_can_be_spread(savepoint: CompletedCheckpoint, shuffle_partitions: int) -> None:
    """Refuse to spread state of Spark's that can't be."""
    pointer = savepoint.location.external_pointer
    if type(shuffle_partitions) is not int or shuffle_partitions < 1:
        message = f"shuffle_partitions is {shuffle_partitions!r}; it must be a number, at least 1"
        raise InvalidRequestError(message)
    if savepoint.metadata.operators:
        message = (
            "Spark counts spreading its state as a batch, which operators of Holdfast don't see; "
            "leave shuffle_partitions out"
        )
        raise InvalidRequestError(message, pointer)
    offsets = decode_offsets(progress_of(savepoint.metadata).offsets, uri=pointer)
    provider = offsets.pinned.get(PROVIDER_CLASS, "")
    if not provider.endswith("RocksDBStateStoreProvider"):
        message = (
            f"Spark can spread only state in RocksDB, and this is in {provider or 'none'}; leave "
            "shuffle_partitions out"
        )
        raise InvalidRequestError(message, pointer)


def _without_spark_files(metadata: CheckpointMetadata) -> dict[str, bytes]:
    return {
        name: state for name, state in metadata.coordinator_states.items() if name != SPARK_FILES
    }


def _new(
    savepoint: CompletedCheckpoint, spark_files: SparkFiles, *, keep_query_id: bool
) -> Unfinished:
    """A restore that begins now."""
    (handle,) = (one.handle for one in spark_files.files if one.path == METADATA)
    with handle.open_input_stream() as stream:
        stored_metadata = msgspec.json.decode(stream.read(), type=dict[str, object])
    old_id = progress_of(savepoint.metadata).query_id
    query_id = old_id if keep_query_id else str(uuid.uuid4())
    return Unfinished(
        kind=_RESTORE,
        to=savepoint.metadata.commit_token,
        metadata=msgspec.json.encode(stored_metadata | {"id": query_id}).decode(),
        query_id=query_id,
        token=uuid.uuid4().hex,
    )


def _check_free(
    location: str, unfinished: Unfinished, savepoint: CompletedCheckpoint, *, keep_query_id: bool
) -> None:
    """Refuse a place where something is that this restore has not made."""
    files = tree(location)
    progress = progress_of(savepoint.metadata)
    if UNFINISHED_FILE not in files:
        if files:
            message = (
                "something is there already; name a new directory, or delete this one if nobody "
                "needs it"
            )
            raise InvalidRequestError(message, location)
        return
    is_same = (
        unfinished.kind == _RESTORE
        and unfinished.to == savepoint.metadata.commit_token
        and keep_query_id == (unfinished.query_id == progress.query_id)
    )
    if not is_same:
        message = (
            f"another {unfinished.kind} was begun here and is not finished; repeat that, or delete "
            "the directory"
        )
        raise InvalidRequestError(message, location)
    if is_finished(location, unfinished) and numbers(files, "offsets")[-1] != progress.batch_id:
        message = "the restored query has gone on already; name a new directory"
        raise InvalidRequestError(message, location)


def _clear(location: str) -> None:
    """Delete what an interrupted attempt has left."""
    delete(
        f"{location}/{path}" for path in tree(location) if path not in (UNFINISHED_FILE, METADATA)
    )


def _materialise(spark_files: SparkFiles, location: str, paths: Mapping[str, str]) -> None:
    """Write Spark's files; its logs come last, as Spark itself writes them."""
    files = [one for one in spark_files.files if one.path != METADATA]
    for directory in sorted({f"{location}/{one.path}".rpartition("/")[0] for one in files}):
        file_system_for(directory).prepare_directory(directory)
    write_one = partial(_write, location=location, paths=paths)
    in_parallel(write_one, [one for one in files if not _is_log(one)])
    in_parallel(write_one, [one for one in files if _is_log(one)])


def _is_log(one: SparkFile) -> bool:
    return one.path.startswith(("offsets/", "commits/"))


def _write(one: SparkFile, *, location: str, paths: Mapping[str, str]) -> None:
    uri = f"{location}/{one.path}"
    if not has_paths(one.path, sources=bool(paths)):
        materialised(one.handle, uri)
        return
    with one.handle.open_input_stream() as stream:
        content = b"".join(chunks(stream))
    write(uri, rewritten(one.path, content, checkpoint_location=location, paths=paths))


def _warn_of_sink(spark_files: SparkFiles, location: str) -> None:
    if spark_files.sink is not None and spark_files.sink.startswith(_FILE_SINK):
        _log.warning(
            "the query restored at %s wrote with Spark's file sink, %s, whose log _spark_metadata "
            "lies in the output. Into the same directory it skips batches that are noted there; a "
            "new one lacks that log, and fails when it is compacted: let the fork write with "
            "foreachBatch, or copy the whole output directory for it",
            location,
            spark_files.sink,
        )
