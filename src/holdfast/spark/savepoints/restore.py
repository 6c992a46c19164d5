"""Restore a savepoint: make a checkpointLocation of it, from which a query resumes.

1. notes of the operation and the attempt, and a `metadata` file that keeps Spark away;
2. the state of operators, as a completed checkpoint of the new job;
3. all files of Spark, logs last;
4. Spark's `metadata`, if everything is there and no other process has begun the same restore;
5. on request, Spark repartitions its state;
6. a note of the completed restore, which stays; the notes of 1 are deleted.
"""

import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike

import msgspec

from holdfast.common import checkpoint_directory
from holdfast.errors import InvalidRequestError
from holdfast.locations.file_systems import file_system_for
from holdfast.locations.handles import files_of
from holdfast.locations.storages import CompletedCheckpoint, load_checkpoint, resolve_pointer
from holdfast.redaction import redact
from holdfast.spark import sessions
from holdfast.spark.checkpoint_location import (
    APPLICATION_FILE,
    LINK_FILE,
    METADATA,
    PROVIDER_CLASS,
    SHUFFLE_PARTITIONS,
    Moves,
    check_disjoint,
    decode_offsets,
    encode_application,
    encode_link,
    names_in,
    newest_batch,
    read_text,
    replace,
    with_query_id,
    write,
)
from holdfast.spark.savepoints.change_notes import (
    RESTORE,
    RESTORED_FILE,
    Attempt,
    Change,
    ChangeNote,
    CompletedRestore,
    change_at,
    check_newest,
    completed_restore,
    newest_attempt,
)
from holdfast.spark.savepoints.restored_query import (
    RestoredJob,
    check_files,
    check_moves,
    clear,
    write_spark_files,
)
from holdfast.spark.savepoints.stored_query import configuration_of, use_stores
from holdfast.spark_progress import (
    SparkFiles,
    all_streams,
    directories_of,
    progress_of,
    spark_files_of,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredQuery:
    """A query that can be started.

    Attributes:
        query_id: Spark's id of the query.
        checkpoint_location: URI of its checkpointLocation.
        batch_id: The last completed batch; the query resumes with the next.
        job_id: The job of its operators; None if it has no operators.
        settings: Spark settings to start the query with, in a separate session: the query's settings of its state, and
            the place of its operators' checkpoints.
        restored_before: Whether the same restore had been done already, so that nothing was changed.
    """

    query_id: str
    checkpoint_location: str
    batch_id: int
    job_id: str | None
    settings: dict[str, str]
    restored_before: bool = False


def restore_savepoint(
    pointer: str | PathLike[str],
    checkpoint_location: str | PathLike[str],
    *,
    checkpoint_dir: str | PathLike[str] | None = None,
    job_id: str | None = None,
    keep_query_id: bool = False,
    paths: Mapping[str, str] | None = None,
    shuffle_partitions: int | None = None,
    configuration: Mapping[str, str] | None = None,
) -> RestoredQuery:
    """Make a checkpointLocation of a savepoint; a query started with it resumes from there.

    By default the result is a separate query, a fork, which may run at the same time as the query that the savepoint
    was taken of. An interrupted restore is finished by repeating it; until then Spark can't start the query. A
    completed restore may be repeated until the query runs a batch, and returns the same again. If several
    processes make the same restore at once, the last to begin finishes it, and the others fail.

    Args:
        pointer: The savepoint: URI of its directory.
        checkpoint_location: URI of the new checkpointLocation, which must be empty.
        checkpoint_dir: The directory for checkpoints of its operators, if it has any, outside of the
            checkpointLocation; by default `spark.holdfast.checkpoint.dir`.
        job_id: The job of its operators, which must have no checkpoints yet; by default the query's id.
        keep_query_id: Whether it stays the same query for Spark. Then the old query must never run again: Spark
            would stop one of the two without an error. A sink that skips batches by the query id and their
            number loses those that the old query ran after the savepoint; give it `application_id()`, which changes
            with each restore.
        paths: New places of input files: the new beginning of their URIs by the old one. Plain text,
            like all URIs here: a space is a space, and a % is a %.
        shuffle_partitions: The new number of partitions of Spark's own state, which has to be in RocksDB.
            Spark repartitions it during the restore, and counts that as a batch.
        configuration: Spark settings (`spark.holdfast.*`, `spark.hadoop.*`) for its stores;
            by default those of the session, if there is one.

    Raises:
        InvalidRequestError: The directory is not empty, or the query has run a batch since, or an
            argument can't be used.
        CheckpointNotFoundError: There is no such savepoint, or a file of it is gone.
        CheckpointCorruptedError: A file of it is corrupt. Spark can't start the partly restored query. State that the
            store copies by itself is verified when the query reads it.
        CheckpointConflictError: Another process has taken the job, or has begun the same restore, or changes files
            in the directory.
        StorageUnavailableError: Something could not be read or written; repeat the restore.
    """
    restore = plan_restore(
        pointer,
        checkpoint_location,
        checkpoint_dir=checkpoint_dir,
        job_id=job_id,
        keep_query_id=keep_query_id,
        paths=paths,
        shuffle_partitions=shuffle_partitions,
        configuration=configuration,
    )
    return restore.run()


def plan_restore(
    pointer: str | PathLike[str],
    checkpoint_location: str | PathLike[str],
    *,
    checkpoint_dir: str | PathLike[str] | None = None,
    job_id: str | None = None,
    keep_query_id: bool = False,
    paths: Mapping[str, str] | None = None,
    shuffle_partitions: int | None = None,
    configuration: Mapping[str, str] | None = None,
) -> "Restore":
    """Return a restore that was checked, and write nothing. Arguments and errors of `restore_savepoint`."""
    configuration = configuration_of(configuration)
    use_stores(configuration, str(pointer), str(checkpoint_location))
    savepoint = load_checkpoint(resolve_pointer(pointer))
    spark_files = spark_files_of(savepoint.metadata, savepoint.location.external_pointer)
    use_stores(configuration, *directories_of(savepoint))
    if shuffle_partitions is not None:
        _check_can_repartition(savepoint, shuffle_partitions)  # before anything is written
    location = checkpoint_directory(checkpoint_location)
    completed = completed_restore(location)
    earlier = Change(location, completed.restore) if completed else change_at(location)
    savepoint_query = progress_of(savepoint.metadata).query_id
    query_id = savepoint_query if keep_query_id else str(uuid.uuid4())
    if earlier is not None:
        query_id = earlier.note.query_id
    job = RestoredJob.of(savepoint.metadata, configuration, checkpoint_dir, job_id or query_id)
    if job is not None:
        check_disjoint(location, job.link.checkpoint_dir, job.job_id)
    # An earlier operation has chosen the query's id, the token and the future file.
    note = ChangeNote(
        kind=RESTORE,
        to=savepoint.metadata.commit_token,
        metadata=earlier.note.metadata if earlier else _metadata_text(spark_files, query_id),
        query_id=query_id,
        token=earlier.note.token if earlier else uuid.uuid4().hex,
        job_id=job.job_id if job else None,
        checkpoint_dir=job.link.checkpoint_dir if job else None,
        shuffle_partitions=shuffle_partitions,
    )
    change = Change(location, note)
    if earlier is None and names_in(location):
        message = (
            "the new checkpointLocation is not empty, and nothing was restored; pass another directory, or "
            "delete this one if it is not needed"
        )
        raise InvalidRequestError(message, location, kind="not-empty")
    has_expected_id = keep_query_id == (query_id == savepoint_query)
    if earlier is not None and (earlier != change or not has_expected_id):
        raise _other_operation_error(earlier, change)
    restore = Restore(savepoint, spark_files, change, job, Moves(paths or {}), completed)
    restore.check()
    return restore


def _other_operation_error(earlier: Change, wanted: Change) -> InvalidRequestError:
    note = earlier.note
    if note.kind != RESTORE:
        message = f"a {note.kind} was begun here and is not finished; repeat it first, with the same arguments"
        return InvalidRequestError(message, earlier.location, kind="unfinished")
    job = f", job {note.job_id} in {note.checkpoint_dir}" if note.job_id else ""
    arguments = f"query {note.query_id}{job}, shuffle_partitions {note.shuffle_partitions}"
    if earlier.is_finished():
        other = "with other arguments" if note.to == wanted.note.to else "from another savepoint"
        message = f"a restored query is here, {other} ({arguments}); pass a new directory"
        return InvalidRequestError(message, earlier.location, kind="already-restored")
    message = (
        f"another restore was begun here ({arguments}) and is not finished; repeat it with the same "
        "arguments, or delete the directory"
    )
    return InvalidRequestError(message, earlier.location, kind="unfinished")


@dataclass(frozen=True, slots=True)
class Restore:
    """A restore of a savepoint to a checkpointLocation.

    Attributes:
        savepoint: The savepoint.
        spark_files: Spark's files in it.
        change: The restore, as its note in the checkpointLocation stores it.
        job: The new job of the query's operators; None without operators.
        moves: New places of input files.
        completed: The same restore, if it was completed before.
    """

    savepoint: CompletedCheckpoint
    spark_files: SparkFiles
    change: Change
    job: RestoredJob | None
    moves: Moves
    completed: CompletedRestore | None

    @property
    def location(self) -> str:
        return self.change.location

    @property
    def batch_id(self) -> int:
        """The last batch of the savepoint."""
        return progress_of(self.savepoint.metadata).batch_id

    @property
    def size_bytes(self) -> int:
        """Length of the savepoint's files."""
        return sum(file.size for file in files_of(all_streams(self.savepoint)))

    def check(self) -> None:
        """Refuse a restore that can't be done. Errors are those of `restore_savepoint`."""
        attempt = newest_attempt(self.location)
        if self.completed is not None:
            if not self._has_files():
                message = "the restored query was changed since; pass a new directory"
                raise InvalidRequestError(message, self.location, kind="already-restored")
            self._check_paths(self.completed.paths)
        elif attempt is not None and attempt.is_done:
            self._has_files()  # for its error
            self._check_paths(attempt.paths)
        else:
            check_moves(self.spark_files, self.location, self.moves)
        if self.job is not None:
            self.job.is_restored(self.change)  # for its error

    def run(self) -> RestoredQuery:
        """Restore the files and the job, unless that was done before."""
        if self.completed is not None:
            self._restore_job()
        else:
            self._restore()
        if change_at(self.location) == self.change:
            self.change.forget()
        _log.info(
            "%s %s after batch %d at %s",
            "had restored" if self.completed else "restored",
            self.savepoint.location.external_pointer,
            self.batch_id,
            self.location,
        )
        is_repartitioned = self.change.note.shuffle_partitions is not None
        return RestoredQuery(
            query_id=self.change.note.query_id,
            checkpoint_location=self.location,
            batch_id=self.batch_id + is_repartitioned,
            job_id=self.job.job_id if self.job else None,
            settings=self.spark_files.settings | (self.job.settings if self.job else {}),
            restored_before=self.completed is not None,
        )

    def _restore(self) -> None:
        """Restore the files and the job, then write the note of the completed restore."""
        attempt = self._finish_earlier_attempt() or self._begin()
        partitions = self.change.note.shuffle_partitions
        if partitions is not None and newest_batch(self.location) == self.batch_id:
            sessions.state_repartitioner()(self.location, partitions)
            check_newest(self.location, attempt)
        completed = CompletedRestore(restore=self.change.note, paths=dict(self.moves.paths))
        replace(f"{self.location}/{RESTORED_FILE}", msgspec.json.encode(completed))

    def _finish_earlier_attempt(self) -> Attempt | None:
        """Finish and return an earlier attempt that has written all files, or return None."""
        self.change.finish_done_attempt()
        if not self._has_files():
            return None
        attempt = newest_attempt(self.location)
        if attempt is not None:
            self._check_paths(attempt.paths)
        self._restore_job()
        return attempt

    def _begin(self) -> Attempt:
        """Clear the leftovers of earlier attempts and write everything."""
        file_system_for(self.location).prepare_directory(self.location)
        attempt = self.change.begin(paths=self.moves.paths)
        clear(self.location, attempt)
        self._restore_job()
        sizes = write_spark_files(self.spark_files, self.location, self.moves)
        note = self.change.note
        own = {} if self.job is None else {LINK_FILE: encode_link(self.job.link).encode()}
        own[APPLICATION_FILE] = encode_application(note.query_id, note.token)
        for name, content in own.items():
            write(f"{self.location}/{name}", content)
            sizes[name] = len(content)
        check_files(self.location, sizes)
        return self.change.finish(attempt)

    def _check_paths(self, paths: Mapping[str, str]) -> None:
        if paths != self.moves.paths:
            redacted = {redact(old): redact(new) for old, new in paths.items()}
            message = (
                f"the restored query is here already, with paths {redacted}; repeat it with these, "
                "or delete the directory and restore it again"
            )
            raise InvalidRequestError(message, self.location, kind="already-restored")

    def _restore_job(self) -> None:
        """Make the first checkpoint of the job, if the query has operators and the job does not have it yet."""
        if self.job is not None:
            self.job.restore(self.savepoint, self.change)

    def _has_files(self) -> bool:
        """Return whether an attempt has written all files, and Spark has repartitioned its state if requested.

        Raises:
            InvalidRequestError: The query has been started since.
        """
        if not self.change.is_finished():
            return False
        partitions = self.change.note.shuffle_partitions
        last = newest_batch(self.location)
        if last == self.batch_id:
            return True
        if (
            last == self.batch_id + 1
            and partitions
            and _repartitions(self.location, last, partitions)
        ):
            # If Spark has not committed that batch, the restore starts from scratch.
            return str(last) in names_in(f"{self.location}/commits")
        message = "the restored query has run a batch already; pass a new directory"
        raise InvalidRequestError(message, self.location, kind="already-ran")


def _metadata_text(spark_files: SparkFiles, query_id: str) -> str:
    """Return the content of Spark's future `metadata` file."""
    (handle,) = (file.handle for file in spark_files.files if file.path == METADATA)
    with handle.open_input_stream() as stream:
        return with_query_id(stream.read(), query_id)


def _check_can_repartition(savepoint: CompletedCheckpoint, shuffle_partitions: int) -> None:
    """Refuse to repartition Spark's state where Spark can't. Raises `InvalidRequestError`."""
    pointer = savepoint.location.external_pointer
    if type(shuffle_partitions) is not int or shuffle_partitions < 1:
        message = f"shuffle_partitions must be a number >= 1, got {shuffle_partitions!r}"
        raise InvalidRequestError(message)
    if savepoint.metadata.operators:
        message = (
            "can't repartition Spark's state of a query with Holdfast operators, which don't see the batch that "
            "repartitions it; leave shuffle_partitions out"
        )
        raise InvalidRequestError(message, pointer)
    offsets = decode_offsets(progress_of(savepoint.metadata).offsets, uri=pointer)
    if offsets.pinned.get(SHUFFLE_PARTITIONS) == str(shuffle_partitions):
        message = f"state has {shuffle_partitions} partitions already; leave shuffle_partitions out"
        raise InvalidRequestError(message, pointer)
    provider = offsets.pinned.get(PROVIDER_CLASS, "")
    if not provider.endswith("RocksDBStateStoreProvider"):
        message = (
            f"Spark can only repartition state in RocksDB, and this is in {provider or 'none'}; leave "
            "shuffle_partitions out"
        )
        raise InvalidRequestError(message, pointer)
    sessions.state_repartitioner()  # for its error


def _repartitions(location: str, batch_id: int, shuffle_partitions: int) -> bool:
    """Return whether Spark repartitions its state to this number of partitions in a batch."""
    uri = f"{location}/offsets/{batch_id}"
    pinned = decode_offsets(read_text(uri), uri=uri).pinned
    return pinned.get(SHUFFLE_PARTITIONS) == str(shuffle_partitions)
