"""The way back to an earlier batch of a stopped query, if all that it takes is there. Changes nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from holdfast.common import map_in_parallel
from holdfast.errors import CheckpointNotFoundError, InvalidRequestError
from holdfast.locations.coordination import check_not_claimed
from holdfast.locations.storages import CompletedCheckpoint, load_checkpoint, resolve_pointer
from holdfast.spark import sessions
from holdfast.spark.checkpoint_location import (
    LoggedBatch,
    batch_at,
    opener,
    select,
    state_files,
    tree,
    zip_parts,
)
from holdfast.spark.savepoints.stopped_query import StoppedQuery, refusal
from holdfast.spark.savepoints.stored_query import (
    GONE_WAY_OUT,
    Place,
    QueryAddress,
    StoredQuery,
)
from holdfast.spark_progress import SPARK_FILES, progress_of


@dataclass(frozen=True, slots=True, kw_only=True)
class WayBack:
    """Where a stopped query goes back to; all that this takes is there.

    Attributes:
        query: The query.
        batch: The last batch that is to count.
        last: The checkpoint of the query's operators behind it; None if they don't go back.
    """

    query: StoppedQuery
    batch: LoggedBatch
    last: CompletedCheckpoint | None

    @classmethod
    def of(
        cls, address: QueryAddress, *, checkpoint: int | Place | None, batch_id: int | None
    ) -> Self:
        """The way back to a checkpoint, or to a batch; arguments and errors are those of `roll_back`."""
        if (checkpoint is None) == (batch_id is None):
            raise InvalidRequestError("name a checkpoint, or a batch with batch_id, and not both")
        query = StoppedQuery.at(address)
        stored = query.stored
        location = stored.checkpoint_location
        if stored.access is not None:
            check_not_claimed(stored.access.completed_checkpoints().values())
        last = _checkpoint(stored, checkpoint) if checkpoint is not None else None
        if last is None and stored.access is not None:
            message = (
                f"query has operators, job {stored.job_id}; name one of its checkpoints instead, or, "
                f"{GONE_WAY_OUT}"
            )
            raise InvalidRequestError(message, location)
        target = progress_of(last.metadata).batch_id if last is not None else int(batch_id or 0)
        files = tree(location)
        batch = batch_at(location, files, target)
        _check_possible(location, files, batch, last)
        _check_nobody_stores_state(location, files)
        if query.begun is not None and query.begun.note.to != str(target):
            raise refusal(query.begun)
        return cls(query=query, batch=batch, last=last)


def _checkpoint(stored: StoredQuery, wanted: int | Place) -> CompletedCheckpoint:
    """The checkpoint of the query's job that is meant."""
    if stored.access is None:
        message = "query has no operators whose checkpoints are known; name a batch with batch_id"
        raise InvalidRequestError(message, stored.checkpoint_location)
    kept = stored.access.completed_checkpoints()
    if isinstance(wanted, int):
        if wanted not in kept:
            there = ", ".join(map(str, kept)) or "none"
            message = f"job {stored.job_id} has no checkpoint {wanted} any more; there are: {there}"
            raise CheckpointNotFoundError(message, stored.checkpoint_location)
        checkpoint = load_checkpoint(
            kept[wanted]
        )  # no other: going back may be the way out of a damaged one
    else:
        checkpoint = load_checkpoint(resolve_pointer(wanted))
        pointer = checkpoint.location.external_pointer
        if SPARK_FILES in checkpoint.metadata.coordinator_states:
            message = "this is a savepoint; restore_savepoint makes a new checkpointLocation of it"
            raise InvalidRequestError(message, pointer)
        known = kept.get(checkpoint.checkpoint_id)
        if known is None or known.external_pointer != pointer:
            raise InvalidRequestError(f"this is no checkpoint of job {stored.job_id}", pointer)
    stored.check_owns(checkpoint)
    return checkpoint


def _check_nobody_stores_state(location: str, files: Mapping[str, int]) -> None:
    """Refuse to roll back while executors may still store state of later batches."""
    if sessions.is_application_alive() and any(
        file.state_id is None for of_store in state_files(files).values() for file in of_store
    ):
        message = (
            "query has state of Spark's own, which the executors of an application store even after "
            "the query was stopped, and Spark lives in this process; end the application that ran "
            "the query, then call this in a process without Spark (format 2 of "
            "spark.sql.streaming.stateStore.checkpointFormatVersion has no such limit)"
        )
        raise InvalidRequestError(message, location)


def _check_possible(
    location: str, files: Mapping[str, int], batch: LoggedBatch, last: CompletedCheckpoint | None
) -> None:
    """Refuse to go back to where something is missing."""
    if last is None and not batch.is_committed:
        message = f"batch {batch.batch_id} is not done, so nothing can go on behind it"
        raise InvalidRequestError(message, location)
    selected = select(files, batch)

    def parts(path: str) -> dict[str, int]:
        return zip_parts(path, opener(f"{location}/{path}"))

    zips = [path for path in selected if path.endswith(".zip")]
    for sizes in map_in_parallel(parts, zips):
        for part, size in sizes.items():
            if files.get(part) != size:
                message = "a file of the state is gone or cut"
                raise CheckpointNotFoundError(message, f"{location}/{part}")
    if last is not None:
        map_in_parallel(lambda stream: stream.open_input_stream().close(), last.metadata.streams())
