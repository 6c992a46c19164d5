"""Roll a stopped query back: Spark's log, its state and that of operators go back together.

1. all that it needs is there, or nothing is touched;
2. the job is claimed: a driver that was thought dead commits nothing any more;
3. a note of what is being done, and a `metadata` file that keeps Spark away;
4. whatever later batches have made is deleted, the checkpoints of operators too;
5. Spark's `metadata`; then the note goes.
"""

import logging
import uuid
from collections.abc import Mapping
from os import PathLike

from holdfast.errors import CheckpointNotFoundError, InvalidRequestError
from holdfast.locations import (
    CompletedCheckpoint,
    JobOwnership,
    checkpoint_directory,
    load_checkpoint,
    load_checkpoints,
    resolve_pointer,
)
from holdfast.spark import _sessions
from holdfast.spark._coordinator import progress_of
from holdfast.spark.savepoints._batches import batch_at
from holdfast.spark.savepoints._content import SPARK_FILES
from holdfast.spark.savepoints._files import delete, in_parallel, opened, read, tree
from holdfast.spark.savepoints._origin import Origin, origin_of
from holdfast.spark.savepoints._selection import METADATA, Batch, beyond, select
from holdfast.spark.savepoints._unfinished import Unfinished, begin, finish, unfinished_in
from holdfast.spark.savepoints._zips import parts_of

_log = logging.getLogger(__name__)

_ROLL_BACK = "roll back"


def roll_back(
    checkpoint_location: str | PathLike[str],
    checkpoint: int | str | PathLike[str] | None = None,
    *,
    batch_id: int | None = None,
    checkpoint_dir: str | PathLike[str] | None = None,
    job_id: str | None = None,
) -> int:
    """Take a stopped query back to where it was, in place; what it did since is gone.

    Started again, it does the later batches anew: with the same rows if its sources still have
    them. The sink is not rolled back; it must replace what it wrote for a batch. An interrupted roll
    back is finished by repeating it; until then Spark can't start the query.

    Args:
        checkpoint_location: URI of the query's checkpointLocation.
        checkpoint: For a query with operators: id of a checkpoint that is kept, or the URI of its
            directory.
        batch_id: For any other query: the last batch that is to count.
        checkpoint_dir: Where its operators have their checkpoints. The checkpointLocation says it,
            unless the query last ran with an older version.
        job_id: The same for their job.

    Returns:
        The last batch that counts now.

    Raises:
        InvalidRequestError: The query runs in this process, or an argument can't be used.
        CheckpointNotFoundError: What it would need is gone; nothing was touched.
        CheckpointConflictError: Another driver takes the job.
        StorageUnavailableError: Something could not be read or written; repeat it.
    """
    if (checkpoint is None) == (batch_id is None):
        raise InvalidRequestError("name a checkpoint, or a batch with batch_id, and not both")
    location = checkpoint_directory(checkpoint_location)
    unfinished = unfinished_in(location)
    origin = origin_of(
        location,
        checkpoint_dir=checkpoint_dir,
        job_id=job_id,
        query_id=unfinished.query_id if unfinished else None,
    )
    if origin.query_id in _sessions.active_query_ids():
        raise InvalidRequestError("query is running; stop it first", location)
    last = _checkpoint(origin, checkpoint) if checkpoint is not None else None
    if last is None and origin.access is not None:
        message = f"query has operators, job {origin.job_id}; name one of its checkpoints instead"
        raise InvalidRequestError(message, location)
    target = progress_of(last.metadata).batch_id if last is not None else int(batch_id or 0)
    files = tree(location)
    batch = batch_at(location, files, target)
    _check_possible(location, files, batch, last)
    unfinished = _to_be_done(location, unfinished, origin.query_id, target)

    ownership = origin.access.claim_job() if origin.access is not None else None
    begin(location, unfinished)
    gone = beyond(files, batch)
    delete(f"{location}/{path}" for path in gone)
    if ownership is not None and last is not None:
        _discard_later(ownership, last)
    finish(location, unfinished)
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
    kept = {one.checkpoint_id: one for one in load_checkpoints(origin.access)}
    if isinstance(wanted, int):
        found = kept.get(wanted)
    else:
        named = load_checkpoint(resolve_pointer(wanted))
        if SPARK_FILES in named.metadata.coordinator_states:
            message = "this is a savepoint; restore_savepoint makes a new checkpointLocation of it"
            raise InvalidRequestError(message, named.location.external_pointer)
        found = kept.get(named.checkpoint_id)
        if found is None or found.metadata.commit_token != named.metadata.commit_token:
            message = f"this is no checkpoint of job {origin.job_id}"
            raise InvalidRequestError(message, named.location.external_pointer)
    if found is None:
        there = ", ".join(map(str, kept)) or "none"
        message = f"job {origin.job_id} has no checkpoint {wanted} any more; there are: {there}"
        raise CheckpointNotFoundError(message, origin.checkpoint_location)
    owner = progress_of(found.metadata).query_id
    if owner != origin.query_id:
        message = f"checkpoint belongs to another query, {owner}; this is {origin.query_id}"
        raise InvalidRequestError(message, found.location.external_pointer)
    return found


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
            metadata=read(f"{location}/{METADATA}").decode(),
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


def _discard_later(ownership: JobOwnership, last: CompletedCheckpoint) -> None:
    for checkpoint_id in sorted(ownership.completed, reverse=True):
        if checkpoint_id > last.checkpoint_id:
            ownership.completed[checkpoint_id].discard()
