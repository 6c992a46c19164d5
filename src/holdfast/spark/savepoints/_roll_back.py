"""Roll a stopped query back: Spark's log, its state and that of operators go back together.

1. all that it needs is there, and nobody can add to it, or nothing is touched;
2. the job is claimed: a driver that was thought dead commits nothing any more;
3. a note of what is being done, and a `metadata` file that keeps Spark away;
4. whatever later batches have made by now is deleted, the checkpoints of operators too;
5. Spark's `metadata`; then the note goes.

Executors hold on to the state of a query that was stopped, and store whole versions of it when it suits
them, as long as their application lives: in format 1 under the names that the query will use again.
"""

import logging
import uuid
from collections.abc import Mapping
from os import PathLike

from holdfast.errors import (
    CheckpointCorruptedError,
    CheckpointNotFoundError,
    InvalidRequestError,
)
from holdfast.locations import (
    CheckpointStorageAccess,
    CompletedCheckpoint,
    JobOwnership,
    checkpoint_directory,
    load_checkpoint,
    resolve_pointer,
)
from holdfast.locations.coordination import in_parallel
from holdfast.spark import _sessions
from holdfast.spark._files import delete, read_text
from holdfast.spark.savepoints._batches import batch_at
from holdfast.spark.savepoints._files import opened, tree
from holdfast.spark.savepoints._origin import GONE_WAY_OUT, Origin, origin_of
from holdfast.spark.savepoints._selection import METADATA, Batch, beyond, select, state_versions
from holdfast.spark.savepoints._unfinished import (
    Unfinished,
    begin,
    finish,
    forget,
    is_finished,
    unfinished_in,
)
from holdfast.spark.savepoints._zips import parts_of
from holdfast.spark_side import SPARK_FILES, progress_of

_log = logging.getLogger(__name__)

_ROLL_BACK = "roll back"


def roll_back(
    checkpoint_location: str | PathLike[str],
    *,
    checkpoint: int | str | PathLike[str] | None = None,
    batch_id: int | None = None,
    checkpoint_dir: str | PathLike[str] | None = None,
    job_id: str | None = None,
    operators: bool = True,
) -> int:
    """Take a stopped query back to where it was, in place; what it did since is gone.

    Started again, it does the later batches anew: with the same rows if its sources still have
    them. The sink is not rolled back; it must replace what it wrote for a batch. An interrupted roll
    back is finished by repeating it; until then Spark can't start the query.

    With state of Spark's own, other than in checkpoint format 2, the whole Spark application that ran
    the query has to be ended first, and this called in a process without one: it would store
    state of the abandoned batches later.

    Args:
        checkpoint_location: URI of the query's checkpointLocation.
        checkpoint: For a query with operators: id of a checkpoint that is kept, or the URI of its
            directory.
        batch_id: For any other query: the last batch that is to count.
        checkpoint_dir: Where its operators have their checkpoints, if not where its
            checkpointLocation says.
        job_id: The same for their job.
        operators: Whether its operators go back too. False for a query that had some once and has
            gone on without.

    Returns:
        The last batch that counts now.

    Raises:
        InvalidRequestError: The query runs in this process, or Spark lives in it and could still store
            state; or an argument can't be used.
        CheckpointNotFoundError: What it would need is gone; nothing was touched.
        CheckpointConflictError: Another driver takes the job.
        StorageUnavailableError: Something could not be read or written; repeat it.
    """
    if (checkpoint is None) == (batch_id is None):
        raise InvalidRequestError("name a checkpoint, or a batch with batch_id, and not both")
    location = checkpoint_directory(checkpoint_location)
    unfinished = unfinished_in(location)
    if unfinished is not None and is_finished(location, unfinished):
        forget(location)  # it ended right before that
        unfinished = None
    origin = origin_of(
        location,
        checkpoint_dir=checkpoint_dir,
        job_id=job_id,
        operators=operators,
        query_id=unfinished.query_id if unfinished else None,
    )
    if origin.query_id in _sessions.active_query_ids():
        raise InvalidRequestError("query is running; stop it first", location)
    last = _checkpoint(origin, checkpoint) if checkpoint is not None else None
    if last is None and origin.access is not None:
        message = (
            f"query has operators, job {origin.job_id}; name one of its checkpoints instead, or, "
            f"{GONE_WAY_OUT}"
        )
        raise InvalidRequestError(message, location)
    target = progress_of(last.metadata).batch_id if last is not None else int(batch_id or 0)
    files = tree(location)
    batch = batch_at(location, files, target)
    _check_possible(location, files, batch, last)
    _check_nobody_stores_state(location, files)
    unfinished = _to_be_done(location, unfinished, origin.query_id, target)

    ownership = None
    if origin.access is not None and last is not None:
        _discard_damaged(origin.access, last)
        ownership = origin.access.claim_job()
    begin(location, unfinished)
    gone = beyond(tree(location), batch)  # not before: a driver thought dead may have gone on
    delete(f"{location}/{path}" for path in gone)
    if ownership is not None and last is not None:
        _discard_later(ownership, last)
    finish(location, unfinished)
    forget(location)
    _log.info(
        "rolled query %s back to batch %d: %d files of Spark deleted",
        origin.query_id,
        target,
        len(gone),
    )
    return target


def _checkpoint(origin: Origin, wanted: int | str | PathLike[str]) -> CompletedCheckpoint:
    """The checkpoint of the query's job that is meant."""
    if origin.access is None:
        message = "query has no operators whose checkpoints are known; name a batch with batch_id"
        raise InvalidRequestError(message, origin.checkpoint_location)
    kept = origin.access.completed_checkpoints()
    if isinstance(wanted, int):
        if wanted not in kept:
            there = ", ".join(map(str, kept)) or "none"
            message = f"job {origin.job_id} has no checkpoint {wanted} any more; there are: {there}"
            raise CheckpointNotFoundError(message, origin.checkpoint_location)
        found = load_checkpoint(kept[wanted])  # no other: a damaged one can be what to go back from
    else:
        found = load_checkpoint(resolve_pointer(wanted))
        pointer = found.location.external_pointer
        if SPARK_FILES in found.metadata.coordinator_states:
            message = "this is a savepoint; restore_savepoint makes a new checkpointLocation of it"
            raise InvalidRequestError(message, pointer)
        known = kept.get(found.checkpoint_id)
        if known is None or known.external_pointer != pointer:
            raise InvalidRequestError(f"this is no checkpoint of job {origin.job_id}", pointer)
    origin.check_owns(found)
    return found


def _check_nobody_stores_state(location: str, files: Mapping[str, int]) -> None:
    """Refuse it while executors may still store state of later batches."""
    if _sessions.is_application_alive() and any(
        one.state_id is None for found in state_versions(files).values() for one in found
    ):
        message = (
            "query has state of Spark's own, which the executors of an application store even after "
            "the query was stopped, and Spark lives in this process; end the application that ran "
            "the query, then call this in a process without Spark (format 2 of "
            "spark.sql.streaming.stateStore.checkpointFormatVersion has no such limit)"
        )
        raise InvalidRequestError(message, location)


def _check_possible(
    location: str, files: Mapping[str, int], batch: Batch, last: CompletedCheckpoint | None
) -> None:
    """Refuse to go back to where something is missing."""
    if last is None and not batch.is_committed:
        message = f"batch {batch.batch_id} is not done, so nothing can go on behind it"
        raise InvalidRequestError(message, location)
    selected = select(files, batch)

    def parts(path: str) -> dict[str, int]:
        return parts_of(path, opened(f"{location}/{path}"))

    zips = [path for path in selected if path.endswith(".zip")]
    for part, size in (item for found in in_parallel(parts, zips) for item in found.items()):
        if files.get(part) != size:
            raise CheckpointNotFoundError(
                "a file of the state is gone or cut", f"{location}/{part}"
            )
    if last is not None:
        in_parallel(lambda one: one.open_input_stream().close(), last.metadata.streams())


def _to_be_done(
    location: str, unfinished: Unfinished | None, query_id: str, target: int
) -> Unfinished:
    """What this roll back is, new or repeated."""
    if unfinished is None:
        return Unfinished(
            kind=_ROLL_BACK,
            to=str(target),
            metadata=read_text(f"{location}/{METADATA}"),
            query_id=query_id,
            token=uuid.uuid4().hex,
        )
    if (unfinished.kind, unfinished.to) != (_ROLL_BACK, str(target)):
        message = (
            f"a {unfinished.kind} to {unfinished.to} was begun here and is not finished; repeat that "
            "first"
        )
        raise InvalidRequestError(message, location)
    return unfinished


def _discard_damaged(access: CheckpointStorageAccess, last: CompletedCheckpoint) -> None:
    """Delete later checkpoints that nobody can read, the newest first.

    Before the job is claimed, for a claim notes all that there are. It brings nobody back to older
    state: a query that starts meanwhile finds that its batches don't fit, or does the last one again.
    """
    locations = access.completed_checkpoints()
    for checkpoint_id in sorted(locations, reverse=True):
        if checkpoint_id > last.checkpoint_id:
            try:
                load_checkpoint(locations[checkpoint_id])
            except CheckpointCorruptedError:
                locations[checkpoint_id].dispose_storage_location()
            except CheckpointNotFoundError:
                continue  # whoever made it has deleted it


def _discard_later(ownership: JobOwnership, last: CompletedCheckpoint) -> None:
    for checkpoint_id in sorted(ownership.completed, reverse=True):
        if checkpoint_id > last.checkpoint_id:
            ownership.completed[checkpoint_id].discard()
