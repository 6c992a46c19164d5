"""Roll a stopped query back: Spark's log, its state and the state of operators together. Also previews of that.

1. everything that it needs is there, and no process can add to it; otherwise nothing is changed;
2. the job is claimed: an old driver that still runs can't commit;
3. a note of the operation, and a `metadata` file that keeps Spark away;
4. files of later batches are deleted, and later checkpoints of operators;
5. a new application id, under which sinks accept batches with the same ids again;
6. Spark's `metadata`; then the note is deleted.

Executors keep the state of a stopped query in memory, and store whole versions of it at any time
while their application lives: in format 1 under names that the query will use again.
"""

import logging
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

from holdfast.common import map_in_parallel
from holdfast.errors import CheckpointCorruptedError, CheckpointNotFoundError, InvalidRequestError
from holdfast.locations.coordination import check_not_claimed, check_not_revoked
from holdfast.locations.storages import (
    CheckpointStorageAccess,
    CompletedCheckpoint,
    JobOwnership,
    load_checkpoint,
    resolve_pointer,
)
from holdfast.spark import sessions
from holdfast.spark.checkpoint_location import (
    APPLICATION_FILE,
    METADATA,
    LoggedBatch,
    batch_at,
    delete,
    encode_application,
    files_after,
    logged_batches,
    opener,
    read_text,
    replace,
    select,
    state_files,
    tree,
    zip_parts,
)
from holdfast.spark.savepoints.change_notes import (
    RESTORED_FILE,
    ROLLBACK,
    Change,
    ChangeNote,
    check_newest,
)
from holdfast.spark.savepoints.stored_query import (
    NO_OPERATORS_HINT,
    Place,
    QueryAddress,
    StoppedQuery,
    StoredQuery,
    unfinished_error,
)
from holdfast.spark_progress import SPARK_FILES, progress_of

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackPoint:
    """A batch that a query can be rolled back to.

    Attributes:
        checkpoint: Id of the checkpoint of its operators; None for a query without operators.
        batch_id: The batch, which would be the last.
        started_ms: The start of that batch, milliseconds since 1970 UTC; None if Spark didn't log it.
    """

    checkpoint: int | None
    batch_id: int
    started_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackPreview:
    """The files and checkpoints that a rollback would delete.

    Attributes:
        query_id: Spark's id of the query.
        batch_id: The batch that would be the last.
        newest_batch_id: The newest batch that Spark has begun. The sink may have output of the batches after
            `batch_id` up to this one, and would get these batch ids again with other rows.
        files: URIs of Spark's files to delete.
        checkpoints: URIs of the checkpoints of operators to delete, the oldest first.
    """

    query_id: str
    batch_id: int
    newest_batch_id: int
    files: tuple[str, ...]
    checkpoints: tuple[str, ...]


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
    """Roll a stopped query back to an earlier checkpoint, in place; later state and progress are deleted.

    Started again, the query repeats the later batches: with the same rows if its sources still have
    them. The sink is not rolled back: it must replace its rows of a batch. A sink that skips batch ids
    that it has seen, such as Delta by `txnAppId`, would lose the rows of the later batches; give it
    `application_id()`, which changes with each rollback, and delete the rows of the later batches. An
    interrupted rollback is finished by repeating it; until then Spark can't start the query.

    If the query has state of Spark, except in checkpoint format 2, end the whole Spark application that ran
    the query first, and call this in a process without one: the application would still store
    state of the later batches.

    Args:
        checkpoint_location: URI of the query's checkpointLocation.
        checkpoint: For a query with operators: id of a retained checkpoint, or the URI of its
            directory.
        batch_id: For any other query: the batch to roll back to.
        checkpoint_dir: The directory of its operators' checkpoints; by default that noted in its
            checkpointLocation.
        job_id: The job of its operators, likewise.
        operators: Whether to roll its operators back too. False for a query that had operators once and has
            continued without them.
        configuration: Spark settings (`spark.holdfast.*`, `spark.hadoop.*`) for its stores;
            by default those of the session, if there is one.

    Returns:
        The batch that is now the last.

    Raises:
        InvalidRequestError: The query runs in this process, or Spark lives in it and could still store
            state; or an argument can't be used.
        CheckpointNotFoundError: A file for it is gone; nothing was changed.
        CheckpointConflictError: Another driver takes the job, another job has claimed a checkpoint of it, or
            another process has begun the same rollback.
        StorageUnavailableError: Something could not be read or written; repeat the rollback.
    """
    address = QueryAddress(checkpoint_location, checkpoint_dir, job_id, operators, configuration)
    plan = _RollbackPlan.of(address, checkpoint=checkpoint, batch_id=batch_id)
    location, last = plan.location, plan.last
    if plan.query.finished is not None:
        plan.query.finished.forget()
    change = plan.query.rollback or plan.new_change()
    ownership = None
    if plan.stored.access is not None and last is not None:
        _discard_corrupted(plan.stored.access, last)
        ownership = plan.stored.access.claim_job()
        check_not_claimed(each.location for each in ownership.completed.values())
        check_not_revoked(last)
    delete([f"{location}/{RESTORED_FILE}"])
    attempt = change.begin()
    later = files_after(tree(location), plan.batch)  # not before: an old driver may have continued
    check_newest(location, attempt)
    delete(f"{location}/{path}" for path in later)
    if ownership is not None and last is not None:
        _discard_later(ownership, last)
    application = encode_application(plan.stored.query_id, change.note.token)
    replace(f"{location}/{APPLICATION_FILE}", application)
    change.finish(attempt)
    change.forget()
    _log.info(
        "rolled query %s back to batch %d: %d files of Spark deleted",
        plan.stored.query_id,
        plan.batch.batch_id,
        len(later),
    )
    return plan.batch.batch_id


def preview_rollback(
    checkpoint_location: Place,
    *,
    checkpoint: int | Place | None = None,
    batch_id: int | None = None,
    checkpoint_dir: Place | None = None,
    job_id: str | None = None,
    operators: bool = True,
    configuration: Mapping[str, str] | None = None,
) -> RollbackPreview:
    """Return what `roll_back` would delete with the same arguments. Changes nothing.

    Raises:
        CheckpointError: An error that `roll_back` would raise before it changes anything.
    """
    address = QueryAddress(checkpoint_location, checkpoint_dir, job_id, operators, configuration)
    plan = _RollbackPlan.of(address, checkpoint=checkpoint, batch_id=batch_id)
    files = tree(plan.location)
    access = plan.stored.access
    kept = access.completed_checkpoints() if access is not None else {}
    return RollbackPreview(
        query_id=plan.stored.query_id,
        batch_id=plan.batch.batch_id,
        newest_batch_id=max(logged_batches(files, "offsets")),
        files=tuple(f"{plan.location}/{path}" for path in files_after(files, plan.batch)),
        checkpoints=tuple(
            str(kept[checkpoint_id].external_pointer)
            for checkpoint_id in sorted(kept)
            if plan.last is not None and checkpoint_id > plan.last.checkpoint_id
        ),
    )


def rollback_points(
    checkpoint_location: Place,
    *,
    checkpoint_dir: Place | None = None,
    job_id: str | None = None,
    operators: bool = True,
    configuration: Mapping[str, str] | None = None,
) -> list[RollbackPoint]:
    """Return the batches that a query can be rolled back to, oldest first, judged by names of files.

    For a query with operators these are the batches of retained checkpoints. During an unfinished rollback it is
    only the batch of that.

    Arguments are those of `roll_back`.

    Raises:
        InvalidRequestError: An argument can't be used, or a restore is not finished here.
        CheckpointCorruptedError: Spark's logs can't be read.
        StorageUnavailableError: Something could not be read.
    """
    query = StoppedQuery.at(
        QueryAddress(checkpoint_location, checkpoint_dir, job_id, operators, configuration)
    )
    location = query.stored.checkpoint_location
    files = tree(location)

    def point(candidate: tuple[int | None, int]) -> RollbackPoint | None:
        checkpoint, batch_id = candidate
        if query.rollback is not None and query.rollback.note.to != str(batch_id):
            return None
        try:
            batch = batch_at(location, files, batch_id)
            select(files, batch)
        except CheckpointNotFoundError:
            return None
        return RollbackPoint(
            checkpoint=checkpoint, batch_id=batch_id, started_ms=batch.offsets.start_ms
        )

    points = map_in_parallel(point, list(_candidates(query.stored, files)))
    return [possible for possible in points if possible is not None]


def _candidates(stored: StoredQuery, files: Mapping[str, int]) -> Iterator[tuple[int | None, int]]:
    """Yield checkpoints and their batches; or batches only, without operators."""
    if stored.access is None:
        yield from ((None, batch_id) for batch_id in logged_batches(files, "commits"))
        return
    for checkpoint_id, pointer in sorted(stored.access.completed_checkpoints().items()):
        try:
            completed = load_checkpoint(pointer)
        except (CheckpointNotFoundError, CheckpointCorruptedError):
            continue  # deleted since it was listed, or unusable
        stored.check_owns(completed)
        yield checkpoint_id, progress_of(completed.metadata).batch_id


@dataclass(frozen=True, slots=True, kw_only=True)
class _RollbackPlan:
    """A possible rollback of a stopped query to a batch: everything that it needs is there.

    `last` is the checkpoint of the query's operators after the batch; None if they are not rolled back.
    """

    query: StoppedQuery
    batch: LoggedBatch
    last: CompletedCheckpoint | None

    @classmethod
    def of(
        cls, address: QueryAddress, *, checkpoint: int | Place | None, batch_id: int | None
    ) -> Self:
        """Plan a rollback; arguments and errors of `roll_back`. Changes nothing."""
        if (checkpoint is None) == (batch_id is None):
            raise InvalidRequestError("pass either checkpoint or batch_id, and not both")
        query = StoppedQuery.at(address)
        stored = query.stored
        location = stored.checkpoint_location
        if stored.access is not None:
            check_not_claimed(stored.access.completed_checkpoints().values())
        last = _find_checkpoint(stored, checkpoint) if checkpoint is not None else None
        if last is None and stored.access is not None:
            message = (
                f"query has operators, job {stored.job_id}; name one of its checkpoints instead, or, "
                f"{NO_OPERATORS_HINT}"
            )
            raise InvalidRequestError(message, location, kind="without-operators")
        target = progress_of(last.metadata).batch_id if last is not None else int(batch_id or 0)
        files = tree(location)
        batch = batch_at(location, files, target)
        _check_files(location, files, batch, last)
        _check_no_late_state(location, files)
        if query.rollback is not None and query.rollback.note.to != str(target):
            raise unfinished_error(query.rollback)
        return cls(query=query, batch=batch, last=last)

    @property
    def stored(self) -> StoredQuery:
        return self.query.stored

    @property
    def location(self) -> str:
        return self.stored.checkpoint_location

    def new_change(self) -> Change:
        note = ChangeNote(
            kind=ROLLBACK,
            to=str(self.batch.batch_id),
            metadata=read_text(f"{self.location}/{METADATA}"),
            query_id=self.stored.query_id,
            token=uuid.uuid4().hex,
            job_id=self.stored.job_id if self.stored.access is not None else None,
            checkpoint_dir=self.stored.checkpoint_dir,
        )
        return Change(self.location, note)


def _find_checkpoint(stored: StoredQuery, wanted: int | Place) -> CompletedCheckpoint:
    """Load a checkpoint of the query's job, by id or directory."""
    if stored.access is None:
        message = "query has no operators with known checkpoints; pass a batch as batch_id"
        raise InvalidRequestError(message, stored.checkpoint_location, kind="no-query")
    kept = stored.access.completed_checkpoints()
    if isinstance(wanted, int):
        if wanted not in kept:
            available = ", ".join(map(str, kept)) or "none"
            message = f"job {stored.job_id} has no checkpoint {wanted}; there are: {available}"
            raise CheckpointNotFoundError(message, stored.checkpoint_location, kind="no-checkpoint")
        # Only this one is read: a rollback may be the way out of a corrupt checkpoint.
        checkpoint = load_checkpoint(kept[wanted])
    else:
        checkpoint = load_checkpoint(resolve_pointer(wanted))
        pointer = checkpoint.location.external_pointer
        if SPARK_FILES in checkpoint.metadata.coordinator_states:
            message = (
                "can't roll back to a savepoint; create a new checkpointLocation from it with "
                "restore_savepoint or `holdfast restore`"
            )
            raise InvalidRequestError(message, pointer, kind="not-a-savepoint")
        known = kept.get(checkpoint.checkpoint_id)
        if known is None or known.external_pointer != pointer:
            message = f"checkpoint does not belong to job {stored.job_id}"
            raise InvalidRequestError(message, pointer, kind="other-query")
    stored.check_owns(checkpoint)
    return checkpoint


def _check_no_late_state(location: str, files: Mapping[str, int]) -> None:
    """Refuse to roll back while executors may still store state of later batches."""
    if sessions.is_application_alive() and any(
        file.state_id is None for store in state_files(files).values() for file in store
    ):
        message = (
            "can't roll back while Spark runs in this process: executors of the application that ran the "
            "query may still store Spark's state of later batches. Nothing was deleted. End the application, "
            "then run `holdfast rollback`, or this call in a process without Spark (format 2 of "
            "spark.sql.streaming.stateStore.checkpointFormatVersion has no such limit)"
        )
        raise InvalidRequestError(message, location, kind="running")


def _check_files(
    location: str, files: Mapping[str, int], batch: LoggedBatch, last: CompletedCheckpoint | None
) -> None:
    """Refuse to roll back to a batch if a file of it is missing."""
    if last is None and not batch.is_committed:
        message = f"batch {batch.batch_id} is not committed, so no query can resume after it"
        raise InvalidRequestError(message, location, kind="no-checkpoint")
    selected = select(files, batch)

    def parts(path: str) -> dict[str, int]:
        return zip_parts(path, opener(f"{location}/{path}"))

    zips = [path for path in selected if path.endswith(".zip")]
    for sizes in map_in_parallel(parts, zips):
        for part, size in sizes.items():
            if files.get(part) != size:
                message = "a state file is missing or truncated"
                raise CheckpointNotFoundError(message, f"{location}/{part}")
    if last is not None:
        map_in_parallel(lambda stream: stream.open_input_stream().close(), last.metadata.streams())


def _discard_corrupted(access: CheckpointStorageAccess, last: CompletedCheckpoint) -> None:
    """Delete later checkpoints that can't be read, the newest first.

    It happens before the job is claimed, because a claim notes all existing checkpoints. No query gets
    older state by that: one that starts at that moment finds that its batches don't match, or repeats the last.
    """
    locations = access.completed_checkpoints()
    for checkpoint_id in sorted(locations, reverse=True):
        if checkpoint_id > last.checkpoint_id:
            try:
                load_checkpoint(locations[checkpoint_id])
            except CheckpointCorruptedError:
                locations[checkpoint_id].dispose_storage_location()
            except CheckpointNotFoundError:
                continue  # its driver has deleted it


def _discard_later(ownership: JobOwnership, last: CompletedCheckpoint) -> None:
    for checkpoint_id in sorted(ownership.completed, reverse=True):
        if checkpoint_id > last.checkpoint_id:
            ownership.completed[checkpoint_id].discard()
