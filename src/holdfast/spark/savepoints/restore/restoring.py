"""Restore a savepoint: make a checkpointLocation of it that a query goes on from.

1. notes of what is being done and who does it, and a `metadata` file that keeps Spark away;
2. the state of operators, as a completed checkpoint of the new job;
3. all files of Spark, logs last;
4. Spark's `metadata`, if all is there and nobody has begun the same restore anew;
5. if it is to be, Spark spreads its state over other partitions;
6. a note of what was done, which stays; the notes of 1 go.
"""

import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike

from holdfast.common import checkpoint_directory
from holdfast.errors import InvalidRequestError
from holdfast.locations.file_systems import file_system_for
from holdfast.locations.storages import CompletedCheckpoint, load_checkpoint, resolve_pointer
from holdfast.redaction import shown
from holdfast.spark import sessions
from holdfast.spark.checkpoint_location import (
    APPLICATION_FILE,
    LINK_FILE,
    METADATA,
    Moves,
    check_disjoint,
    encode_application,
    encode_link,
    names_in,
    newest_batch,
    with_query_id,
    write,
)
from holdfast.spark.savepoints.configuration import configuration_of, use_stores
from holdfast.spark.savepoints.notes import (
    Attempt,
    Change,
    Restored,
    Unfinished,
    change_begun_in,
    check_newest,
    newest_attempt,
    note_restored,
    restored_in,
)
from holdfast.spark.savepoints.restore.materialising import check_whole, clear, materialise
from holdfast.spark.savepoints.restore.restored_job import RestoredJob
from holdfast.spark.savepoints.restore.spreading import check_can_be_spread, spreads
from holdfast.spark_progress import SparkFiles, directories_of, progress_of, spark_files_of

_log = logging.getLogger(__name__)

_RESTORE = "restore"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredQuery:
    """A query that can be started.

    Attributes:
        query_id: Spark's id of the query.
        checkpoint_location: URI of its checkpointLocation.
        batch_id: The last batch that is done; the query goes on with the next.
        job_id: The job of its operators; None if it has no operators.
        settings: Settings of Spark to start the query with, in a session of its own: what it had set for
            its state, and where its operators' checkpoints are.
        restored_before: Whether the same restore had been done already; nothing was changed then.
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
    """Make a checkpointLocation of a savepoint; a query started with it goes on from there.

    By default it becomes a query of its own, a fork, which may run beside the query that the savepoint was
    taken of. An interrupted restore is finished by repeating it; until then Spark can't start the query. A
    restore that is done may be repeated until the query goes on, and returns the same again. If several
    processes make the same restore at once, the last to begin finishes it, and the others fail.

    Args:
        pointer: The savepoint: URI of its directory.
        checkpoint_location: URI of the new checkpointLocation; nothing may be there.
        checkpoint_dir: Where its operators, if it has any, will have their checkpoints, not in the
            checkpointLocation; by default `spark.holdfast.checkpoint.dir`.
        job_id: The job of its operators, which must have no checkpoints yet; by default the query's id.
        keep_query_id: Whether it stays the same query for Spark. Then the old query must never run again: Spark
            would stop one of the two without an error. A sink that skips batches by the query id and their
            number loses those that the old query ran after the savepoint; give it `application_id()`, which is
            a new one after each restore.
        paths: Where input files have moved: by the old beginning of their URIs, the new one. Plain text,
            as all URIs here: a space is a space, and a % is a %.
        shuffle_partitions: Over how many partitions Spark's own state is to be spread from now on.
            It has to be in RocksDB; Spark does it, here, and counts it as a batch.
        configuration: Settings of Spark (`spark.holdfast.*`, `spark.hadoop.*`) that say how its stores
            are reached; by default those of the session, if there is one.

    Raises:
        InvalidRequestError: Something else is there already, or the query has gone on since, or an
            argument can't be used.
        CheckpointNotFoundError: There is no such savepoint, or a file of it is gone.
        CheckpointCorruptedError: A file of it is damaged. What was restored so far can't be started.
        CheckpointConflictError: Somebody else has taken the job, or has begun the same restore
            meanwhile, or changes what lies there.
        StorageUnavailableError: Something could not be read or written; repeat it.
    """
    configuration = configuration_of(configuration)
    use_stores(configuration, str(pointer), str(checkpoint_location))
    savepoint = load_checkpoint(resolve_pointer(pointer))
    spark_files = spark_files_of(savepoint.metadata, savepoint.location.external_pointer)
    use_stores(configuration, *directories_of(savepoint))
    progress = progress_of(savepoint.metadata)
    location = checkpoint_directory(checkpoint_location)
    if shuffle_partitions is not None:
        check_can_be_spread(savepoint, shuffle_partitions)  # before anything is written
    restored = restored_in(location)
    begun = Change(location, restored.restore) if restored else change_begun_in(location)
    new_id = progress.query_id if keep_query_id else str(uuid.uuid4())
    query_id = begun.note.query_id if begun else new_id
    job = RestoredJob.of(savepoint.metadata, configuration, checkpoint_dir, job_id or query_id)
    if job is not None:
        check_disjoint(location, job.link.checkpoint_dir, job.job_id)
    note = Unfinished(
        kind=_RESTORE,
        to=savepoint.metadata.commit_token,
        metadata=begun.note.metadata if begun else _metadata(spark_files, query_id),
        query_id=query_id,
        token=begun.note.token if begun else uuid.uuid4().hex,
        job_id=job.job_id if job else None,
        checkpoint_dir=job.link.checkpoint_dir if job else None,
        shuffle_partitions=shuffle_partitions,
    )
    change = Change(location, note)
    if begun is None:
        _check_empty(location)
    elif begun != change or keep_query_id != (query_id == progress.query_id):
        raise _refusal(begun, wanted=change)
    restore = _Restore(savepoint, spark_files, change, job, Moves(paths or {}))
    if restored is not None:
        restore.check_done(restored)
    else:
        if job is not None:
            job.is_restored(change)  # for its error, before anything is written
        attempt = (restore.finished_before() if begun else None) or restore.anew()
        if shuffle_partitions is not None and newest_batch(location) == progress.batch_id:
            sessions.spreads_state()(location, shuffle_partitions)
            check_newest(location, attempt)
        note_restored(location, Restored(restore=note, paths=dict(restore.moves.paths)))
    if change_begun_in(location) == change:
        change.forget()
    _log.info(
        "%s %s behind batch %d at %s",
        "had restored" if restored else "restored",
        savepoint.location.external_pointer,
        progress.batch_id,
        location,
    )
    return RestoredQuery(
        query_id=query_id,
        checkpoint_location=location,
        batch_id=progress.batch_id + (shuffle_partitions is not None),
        job_id=job.job_id if job else None,
        settings=spark_files.settings | (job.settings if job else {}),
        restored_before=restored is not None,
    )


@dataclass(frozen=True, slots=True)
class _Restore:
    """A restore: what is restored, and where to."""

    savepoint: CompletedCheckpoint
    spark_files: SparkFiles
    change: Change
    job: RestoredJob | None
    moves: Moves

    @property
    def location(self) -> str:
        return self.change.location

    def finished_before(self) -> Attempt | None:
        """The attempt that has come to its end here before; None if all is to be made anew.

        Raises:
            InvalidRequestError: The attempt had other paths, or the query has been started since.
        """
        self.change.finish_what_is_done()
        if not self._is_materialised():
            return None
        attempt = newest_attempt(self.location)
        if attempt is not None:
            self._check_paths(attempt.paths)
        self._restore_job()
        return attempt

    def check_done(self, restored: Restored) -> None:
        """See that all is there still, as it was restored; a checkpoint that is gone is made again.

        Raises:
            InvalidRequestError: The restore had other paths, or something has changed since.
        """
        if not self._is_materialised():
            message = "the restored query was changed since; name a new directory"
            raise InvalidRequestError(message, self.location)
        self._check_paths(restored.paths)
        self._restore_job()

    def _check_paths(self, paths: Mapping[str, str]) -> None:
        if paths != self.moves.paths:
            message = (
                f"the restored query is here already, with paths {_shown(paths)}; repeat it with these, "
                "or delete the directory and restore it anew"
            )
            raise InvalidRequestError(message, self.location)

    def anew(self) -> Attempt:
        """Make everything, whatever former attempts have left."""
        file_system_for(self.location).prepare_directory(self.location)
        attempt = self.change.begin(paths=self.moves.paths)
        clear(self.location, attempt)
        self._restore_job()
        sizes = materialise(self.spark_files, self.location, self.moves)
        if self.job is not None:
            link = encode_link(self.job.link).encode()
            write(f"{self.location}/{LINK_FILE}", link)
            sizes[LINK_FILE] = len(link)
        note = self.change.note
        application = encode_application(note.query_id, note.token)
        write(f"{self.location}/{APPLICATION_FILE}", application)
        sizes[APPLICATION_FILE] = len(application)
        check_whole(self.location, sizes)
        return self.change.finish(attempt)

    def _restore_job(self) -> None:
        if self.job is not None:
            self.job.restore(self.savepoint, self.change)

    def _is_materialised(self) -> bool:
        """Whether all is there but the note and what Spark does itself.

        Raises:
            InvalidRequestError: The query has been started since.
        """
        if not self.change.is_finished():
            return False
        partitions = self.change.note.shuffle_partitions
        batch_id = progress_of(self.savepoint.metadata).batch_id
        last = newest_batch(self.location)
        if last == batch_id:
            return True
        if last == batch_id + 1 and partitions and spreads(self.location, last, partitions):
            # If Spark has not come to the end of spreading, all is made anew.
            return str(last) in names_in(f"{self.location}/commits")
        message = "the restored query has gone on already; name a new directory"
        raise InvalidRequestError(message, self.location, kind="gone-on")


def _shown(paths: Mapping[str, str]) -> dict[str, str]:
    return {shown(old): shown(new) for old, new in paths.items()}


def _metadata(spark_files: SparkFiles, query_id: str) -> str:
    """What Spark's `metadata` file will say."""
    (handle,) = (file.handle for file in spark_files.files if file.path == METADATA)
    with handle.open_input_stream() as stream:
        return with_query_id(stream.read(), query_id)


def _check_empty(location: str) -> None:
    """Refuse a place where something is."""
    if names_in(location):
        message = "something is there already; name a new directory, or delete this one if nobody needs it"
        raise InvalidRequestError(message, location)


def _refusal(begun: Change, *, wanted: Change) -> InvalidRequestError:
    """Why what was begun, or done, is not gone on with."""
    note = begun.note
    if note.kind != _RESTORE:
        message = f"a {note.kind} was begun here and is not finished; repeat that"
        return InvalidRequestError(message, begun.location)
    where = f", job {note.job_id} in {note.checkpoint_dir}" if note.job_id else ""
    how = f"query {note.query_id}{where}, shuffle_partitions {note.shuffle_partitions}"
    if begun.is_finished():
        other = "with other arguments" if note.to == wanted.note.to else "from another savepoint"
        message = f"a restored query is here, {other} ({how}); name a new directory"
    else:
        message = (
            f"another restore was begun here ({how}) and is not finished; repeat it with the same "
            "arguments, or delete the directory"
        )
    return InvalidRequestError(message, begun.location)
