"""Roll a stopped query back: Spark's log, its state and the state of operators go back together.

1. all that it needs is there, and nobody can add to it, or nothing is touched;
2. the job is claimed: a driver that was thought dead commits nothing any more;
3. a note of what is being done, and a `metadata` file that keeps Spark away;
4. whatever later batches have made by now is deleted, the checkpoints of operators too;
5. a new application id, under which sinks accept batches with the same ids again;
6. Spark's `metadata`; then the note goes.

Executors hold on to the state of a query that was stopped, and store whole versions of it when it suits
them, as long as their application lives: in format 1 under the names that the query will use again.
"""

import logging
import uuid
from collections.abc import Mapping

from holdfast.errors import CheckpointCorruptedError, CheckpointNotFoundError
from holdfast.locations.coordination import check_not_claimed, check_still_there
from holdfast.locations.storages import (
    CheckpointStorageAccess,
    CompletedCheckpoint,
    JobOwnership,
    load_checkpoint,
)
from holdfast.spark.checkpoint_location import (
    APPLICATION_FILE,
    METADATA,
    delete,
    encode_application,
    files_after,
    read_text,
    replace,
    tree,
)
from holdfast.spark.savepoints.notes import Change, Unfinished, check_newest, forget_restored
from holdfast.spark.savepoints.rollback.way_back import WayBack
from holdfast.spark.savepoints.stopped_query import ROLL_BACK
from holdfast.spark.savepoints.stored_query import Place, QueryAddress

_log = logging.getLogger(__name__)


def roll_back(
    checkpoint_location: Place,
    *,
    checkpoint: int | Place | None = None,
    batch_id: int | None = None,
    checkpoint_dir: Place | None = None,
    job_id: str | None = None,
    operators: bool = True,
    configuration: Mapping[str, str] | None = None,
) -> int:
    """Take a stopped query back to an earlier checkpoint, in place; what the query did since is gone.

    Started again, it does the later batches anew: with the same rows if its sources still have
    them. The sink is not rolled back: it must replace what it wrote for a batch. A sink that skips batch ids
    that it has seen, such as Delta by `txnAppId`, would lose the rows of the later batches; give it
    `application_id()`, which is a new one after each roll back, and delete the rows of the later batches. An
    interrupted roll back is finished by repeating it; until then Spark can't start the query.

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
        job_id: The job of its operators, likewise.
        operators: Whether its operators go back too. False for a query that had operators once and has
            gone on without them.
        configuration: Settings of Spark (`spark.holdfast.*`, `spark.hadoop.*`) that say how its stores
            are reached; by default those of the session, if there is one.

    Returns:
        The last batch that counts now.

    Raises:
        InvalidRequestError: The query runs in this process, or Spark lives in it and could still store
            state; or an argument can't be used.
        CheckpointNotFoundError: What it would need is gone; nothing was touched.
        CheckpointConflictError: Another driver takes the job, another job has claimed a checkpoint of it, or
            somebody else has begun the same roll back meanwhile.
        StorageUnavailableError: Something could not be read or written; repeat it.
    """
    address = QueryAddress(
        query=checkpoint_location,
        checkpoint_dir=checkpoint_dir,
        job_id=job_id,
        operators=operators,
        configuration=configuration,
    )
    way = WayBack.of(address, checkpoint=checkpoint, batch_id=batch_id)
    stored, last = way.query.stored, way.last
    location = stored.checkpoint_location
    if way.query.left_over is not None:
        way.query.left_over.forget()
    change = way.query.begun or Change(
        location,
        Unfinished(
            kind=ROLL_BACK,
            to=str(way.batch.batch_id),
            metadata=read_text(f"{location}/{METADATA}"),
            query_id=stored.query_id,
            token=uuid.uuid4().hex,
            job_id=stored.job_id if stored.access is not None else None,
            checkpoint_dir=stored.checkpoint_dir,
        ),
    )

    ownership = None
    if stored.access is not None and last is not None:
        _discard_damaged(stored.access, last)
        ownership = stored.access.claim_job()
        check_not_claimed(each.location for each in ownership.completed.values())
        check_still_there(last)
    forget_restored(location)
    attempt = change.begin()
    gone = files_after(
        tree(location), way.batch
    )  # not before: a driver thought dead may have gone on
    check_newest(location, attempt)
    delete(f"{location}/{path}" for path in gone)
    if ownership is not None and last is not None:
        _discard_later(ownership, last)
    application = encode_application(stored.query_id, change.note.token)
    replace(f"{location}/{APPLICATION_FILE}", application)
    change.finish(attempt)
    change.forget()
    _log.info(
        "rolled query %s back to batch %d: %d files of Spark deleted",
        stored.query_id,
        way.batch.batch_id,
        len(gone),
    )
    return way.batch.batch_id


def _discard_damaged(access: CheckpointStorageAccess, last: CompletedCheckpoint) -> None:
    """Delete later checkpoints that nobody can read, the newest first.

    It is done before the job is claimed, for a claim notes all checkpoints that there are. Nobody gets
    older state by that: a query that starts meanwhile finds that its batches don't fit, or repeats the last.
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
