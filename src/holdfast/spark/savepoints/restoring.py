"""Restore a savepoint: make a checkpointLocation of it that a query goes on from.

1. notes of what is being done and who does it, and a `metadata` file that keeps Spark away;
2. the state of operators, as a completed checkpoint of the new job;
3. all files of Spark, logs last;
4. Spark's `metadata`, if all is there and nobody has begun the same anew;
5. if it is to be, Spark spreads its state over other partitions;
6. a note of what was done, which stays; those of what was being done go.
"""

import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from os import PathLike

import msgspec

from holdfast.common import checkpoint_directory, in_parallel, uripath
from holdfast.errors import CheckpointConflictError, CheckpointCorruptedError, InvalidRequestError
from holdfast.locations.coordination import chunks
from holdfast.locations.file_systems import file_system_for
from holdfast.locations.storages import CompletedCheckpoint, load_checkpoint, resolve_pointer
from holdfast.redaction import shown
from holdfast.spark import sessions
from holdfast.spark.checkpoint_location import (
    LINK_FILE,
    METADATA,
    PROVIDER_CLASS,
    SHUFFLE_PARTITIONS,
    UNFINISHED_FILE,
    Moves,
    check_apart,
    decode_offsets,
    delete,
    encode_link,
    has_paths,
    is_hidden,
    materialised,
    names_in,
    numbers,
    read_text,
    rewritten,
    tree,
    write,
)
from holdfast.spark.savepoints.attempts import Attempt, check_newest, is_attempt, newest_attempt
from holdfast.spark.savepoints.done_restore import Restored, note_restored, restored_in
from holdfast.spark.savepoints.origin import configuration_of, use_stores
from holdfast.spark.savepoints.restored_job import RestoredJob
from holdfast.spark.savepoints.unfinished import (
    Unfinished,
    begin,
    finish,
    finish_what_is_done,
    forget,
    is_finished,
    unfinished_in,
)
from holdfast.spark_progress import (
    SparkFile,
    SparkFiles,
    directories_of,
    progress_of,
    spark_files_of,
)

_log = logging.getLogger(__name__)

_RESTORE = "restore"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredQuery:
    """A query that can be started.

    Attributes:
        query_id: Spark's id of it.
        checkpoint_location: URI of its checkpointLocation.
        batch_id: The last batch that is done; the query goes on with the next.
        job_id: The job of its operators; None if it has none.
        settings: Settings of Spark to start it with, in a session of its own: those for its state that
            it had, and where its operators' checkpoints are.
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

    By default it becomes a query of its own, a fork: it may run beside the one that the savepoint is
    of. An interrupted restore is finished by repeating it; until then Spark can't start the query. One
    that is done may be repeated until the query goes on, and says the same again. Of several that do
    the same at once the last one ends.

    Args:
        pointer: The savepoint: URI of its directory.
        checkpoint_location: URI of the new checkpointLocation; nothing may be there.
        checkpoint_dir: Where its operators, if it has any, will have their checkpoints, not in the
            checkpointLocation; by default `spark.holdfast.checkpoint.dir`.
        job_id: The same for their job, which must have no checkpoints yet; by default the query's id.
        keep_query_id: Whether it stays the same query for Spark, and for sinks that know a batch by
            query and number. Then the old one must never run again: Spark would stop one of both
            without an error.
        paths: For the beginning of each URI of input files that have moved, what it is now. Plain
            text, as all URIs here: a space is a space, and a % is a %.
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
        _check_can_be_spread(savepoint, shuffle_partitions)
        sessions.spreads_state()  # for its error, before anything is written
    restored = restored_in(location)
    begun = restored.restore if restored else unfinished_in(location)
    query_id = begun.query_id if begun else _query_id(savepoint, keep_query_id=keep_query_id)
    job = RestoredJob.of(savepoint.metadata, configuration, checkpoint_dir, job_id or query_id)
    if job is not None:
        check_apart(location, job.link.checkpoint_dir, job.job_id)
    unfinished = Unfinished(
        kind=_RESTORE,
        to=savepoint.metadata.commit_token,
        metadata=begun.metadata if begun else _metadata(spark_files, query_id),
        query_id=query_id,
        token=begun.token if begun else uuid.uuid4().hex,
        job_id=job.job_id if job else None,
        checkpoint_dir=job.link.checkpoint_dir if job else None,
        shuffle_partitions=shuffle_partitions,
    )
    if begun is None:
        _check_empty(location)
    elif begun != unfinished or keep_query_id != (query_id == progress.query_id):
        raise _refusal(begun, unfinished, location)
    restore = _Restore(savepoint, spark_files, location, job, unfinished, Moves(paths or {}))
    if restored is not None:
        restore.check_done(restored)
    else:
        if job is not None:
            job.is_restored(unfinished)  # for its error, before anything is written
        attempt = (restore.finished_before() if begun else None) or restore.anew()
        if shuffle_partitions is not None and _last_batch(location) == progress.batch_id:
            sessions.spreads_state()(location, shuffle_partitions)
            check_newest(location, attempt)
        note_restored(location, Restored(restore=unfinished, paths=dict(restore.moves.paths)))
    if unfinished_in(location) == unfinished:
        forget(location)
    _log.info(
        "%s %s behind batch %d at %s",
        "had restored" if restored else "restored",
        savepoint.location.external_pointer,
        progress.batch_id,
        location,
    )
    return RestoredQuery(
        query_id=unfinished.query_id,
        checkpoint_location=location,
        batch_id=progress.batch_id + (shuffle_partitions is not None),
        job_id=job.job_id if job else None,
        settings=spark_files.settings | (job.settings if job else {}),
        restored_before=restored is not None,
    )


@dataclass(frozen=True, slots=True)
class _Restore:
    """What is restored, and where to."""

    savepoint: CompletedCheckpoint
    spark_files: SparkFiles
    location: str
    job: RestoredJob | None
    unfinished: Unfinished
    moves: Moves

    def finished_before(self) -> Attempt | None:
        """The attempt that has come to its end here; None if all is to be made anew.

        Raises:
            InvalidRequestError: It had other paths, or the query has been started since.
        """
        finish_what_is_done(self.location, self.unfinished)
        batch_id = progress_of(self.savepoint.metadata).batch_id
        if not _is_materialised(self.location, self.unfinished, batch_id):
            return None
        attempt = newest_attempt(self.location)
        if attempt is not None:
            self._check_paths(attempt.paths)
        if self.job is not None:
            self.job.restore(self.savepoint, self.unfinished, self.location)
        return attempt

    def check_done(self, restored: Restored) -> None:
        """See that all is there still, as it was restored; a checkpoint that is gone is made again.

        Raises:
            InvalidRequestError: It had other paths, or is not there as it was.
        """
        batch_id = progress_of(self.savepoint.metadata).batch_id
        if not _is_materialised(self.location, self.unfinished, batch_id):
            message = "the restored query was changed since; name a new directory"
            raise InvalidRequestError(message, self.location)
        self._check_paths(restored.paths)
        if self.job is not None:
            self.job.restore(self.savepoint, self.unfinished, self.location)

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
        attempt = begin(self.location, self.unfinished, paths=self.moves.paths)
        _clear(self.location, attempt)
        if self.job is not None:
            self.job.restore(self.savepoint, self.unfinished, self.location)
        sizes = _materialise(self.spark_files, self.location, self.moves)
        if self.job is not None:
            link = encode_link(self.job.link).encode()
            write(f"{self.location}/{LINK_FILE}", link)
            sizes[LINK_FILE] = len(link)
        _check_whole(self.location, sizes)
        return finish(self.location, self.unfinished, attempt)


def _shown(paths: Mapping[str, str]) -> dict[str, str]:
    return {shown(old): shown(new) for old, new in paths.items()}


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
    if offsets.pinned.get(SHUFFLE_PARTITIONS) == str(shuffle_partitions):
        message = f"state is over {shuffle_partitions} partitions already; leave the number out"
        raise InvalidRequestError(message, pointer)
    provider = offsets.pinned.get(PROVIDER_CLASS, "")
    if not provider.endswith("RocksDBStateStoreProvider"):
        message = (
            f"Spark can spread only state in RocksDB, and this is in {provider or 'none'}; leave "
            "shuffle_partitions out"
        )
        raise InvalidRequestError(message, pointer)


def _query_id(savepoint: CompletedCheckpoint, *, keep_query_id: bool) -> str:
    """Spark's id of the query that a restore makes."""
    return progress_of(savepoint.metadata).query_id if keep_query_id else str(uuid.uuid4())


def _metadata(spark_files: SparkFiles, query_id: str) -> str:
    """What Spark's `metadata` file will say."""
    (handle,) = (one.handle for one in spark_files.files if one.path == METADATA)
    with handle.open_input_stream() as stream:
        content = stream.read()
    try:
        found = msgspec.json.decode(content, type=dict[str, object])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        message = f"Spark's file {METADATA!r} can't be read ({error})"
        raise CheckpointCorruptedError(message) from error
    return msgspec.json.encode(found | {"id": query_id}).decode()


def _check_empty(location: str) -> None:
    """Refuse a place where something is."""
    if names_in(location):
        message = "something is there already; name a new directory, or delete this one if nobody needs it"
        raise InvalidRequestError(message, location)


def _refusal(begun: Unfinished, wanted: Unfinished, location: str) -> InvalidRequestError:
    """Why what was begun, or done, is not gone on with."""
    if begun.kind != _RESTORE:
        message = f"a {begun.kind} was begun here and is not finished; repeat that"
        return InvalidRequestError(message, location)
    where = f", job {begun.job_id} in {begun.checkpoint_dir}" if begun.job_id else ""
    how = f"query {begun.query_id}{where}, shuffle_partitions {begun.shuffle_partitions}"
    if is_finished(location, begun):
        other = "with other arguments" if begun.to == wanted.to else "from another savepoint"
        message = f"a restored query is here, {other} ({how}); name a new directory"
    else:
        message = (
            f"another restore was begun here ({how}) and is not finished; repeat it with the same "
            "arguments, or delete the directory"
        )
    return InvalidRequestError(message, location)


def _is_materialised(location: str, unfinished: Unfinished, batch_id: int) -> bool:
    """Whether all is there but what Spark does itself, and the note.

    Raises:
        InvalidRequestError: The query has been started since.
    """
    if not is_finished(location, unfinished):
        return False
    last = _last_batch(location)
    if last == batch_id:
        return True
    if last == batch_id + 1 and unfinished.shuffle_partitions is not None:
        uri = f"{location}/offsets/{last}"
        pinned = decode_offsets(read_text(uri), uri=uri).pinned
        if pinned.get(SHUFFLE_PARTITIONS) == str(unfinished.shuffle_partitions):
            # If Spark has not come to the end of spreading, all is made anew.
            return str(last) in names_in(f"{location}/commits")
    message = "the restored query has gone on already; name a new directory"
    raise InvalidRequestError(message, location)


def _last_batch(location: str) -> int:
    names = names_in(f"{location}/offsets")
    return max(numbers((f"offsets/{name}" for name in names), "offsets"), default=-1)


def _is_note(path: str) -> bool:
    """Whether a file says what is being done here, and is no part of it."""
    return path in (UNFINISHED_FILE, METADATA) or is_attempt(path)


def _clear(location: str, attempt: Attempt) -> None:
    """Delete what former attempts have left."""
    left = [f"{location}/{path}" for path in tree(location) if not _is_note(path)]
    check_newest(location, attempt)
    delete(left)


def _check_whole(location: str, sizes: Mapping[str, int]) -> None:
    """Refuse to go on unless just these files are there: others may clear away, or write, the same.

    Args:
        location: The checkpointLocation.
        sizes: Length in bytes of each file that was written, by its path.
    """
    found = {
        path: size
        for path, size in tree(location).items()
        if not (_is_note(path) or is_hidden(path))
    }
    wrong = sorted(path for path, _ in found.items() ^ sizes.items())
    if wrong:
        message = (
            f"{wrong[0]!r} is not there as it was restored: somebody else changes this directory too; "
            "repeat the restore once nobody does"
        )
        raise CheckpointConflictError(message, location, kind="contended")


def _materialise(spark_files: SparkFiles, location: str, moves: Moves) -> dict[str, int]:
    """Write Spark's files; its logs come last, as Spark itself writes them. Returns their lengths."""
    files = [one for one in spark_files.files if one.path != METADATA]
    for directory in sorted({uripath.parent(uripath.join(location, one.path)) for one in files}):
        file_system_for(directory).prepare_directory(directory)
    write_one = partial(_write, location=location, moves=moves)
    sizes = in_parallel(write_one, [one for one in files if not _is_log(one)])
    if moves.unused:
        message = (
            f"no input file that the savepoint knows begins with {[shown(one) for one in moves.unused]}, "
            "of paths; repeat it with what they begin with"
        )
        raise InvalidRequestError(message, location)
    sizes += in_parallel(write_one, [one for one in files if _is_log(one)])
    return dict(sizes)


def _is_log(one: SparkFile) -> bool:
    return one.path.startswith(("offsets/", "commits/"))


def _write(one: SparkFile, *, location: str, moves: Moves) -> tuple[str, int]:
    """Write a file; its path and length."""
    uri = f"{location}/{one.path}"
    if not has_paths(one.path, sources=bool(moves.paths)):
        materialised(one.handle, uri)
        return one.path, one.handle.size
    with one.handle.open_input_stream() as stream:
        content = b"".join(chunks(stream))
    content = rewritten(one.path, content, checkpoint_location=location, moves=moves)
    write(uri, content)
    return one.path, len(content)
