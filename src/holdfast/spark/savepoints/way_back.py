"""Where a stopped query can be rolled back to, and what that would take. Changes nothing."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from typing import TypeAlias

from holdfast.common import checkpoint_directory, in_parallel
from holdfast.errors import CheckpointCorruptedError, CheckpointNotFoundError, InvalidRequestError
from holdfast.locations.storages import CompletedCheckpoint, load_checkpoint, resolve_pointer
from holdfast.spark import sessions
from holdfast.spark.checkpoint_location import (
    Batch,
    batch_at,
    beyond,
    numbers,
    opened,
    parts_of,
    select,
    state_versions,
    tree,
)
from holdfast.spark.savepoints.origin import (
    GONE_WAY_OUT,
    Origin,
    configuration_of,
    origin_of,
    use_stores,
)
from holdfast.spark.savepoints.unfinished import Unfinished, is_finished, unfinished_in
from holdfast.spark_progress import SPARK_FILES, progress_of

ROLL_BACK = "roll back"

Place: TypeAlias = str | PathLike[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RollBackPoint:
    """A place that a query can be rolled back to.

    Attributes:
        checkpoint: Id of the checkpoint of its operators; None of a query without.
        batch_id: The last batch that would count.
        begun_ms: When Spark began that batch, milliseconds since 1970 UTC; None if it doesn't say.
    """

    checkpoint: int | None
    batch_id: int
    begun_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RollBackPreview:
    """What a roll back would do.

    Attributes:
        query_id: Spark's id of the query.
        batch_id: The last batch that would count.
        files: URIs of files of Spark's that would go.
        checkpoints: URIs of the checkpoints of operators that would go, the oldest first.
    """

    query_id: str
    batch_id: int
    files: tuple[str, ...]
    checkpoints: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WayBack:
    """All that a roll back needs is there.

    Attributes:
        location: The checkpointLocation.
        origin: The query.
        begun: The same roll back, begun before and not finished; None if there is none.
        is_left_over: Whether the note of one that is finished is still there.
        batch: The last batch that is to count.
        last: The checkpoint of the query's operators behind it; None if they don't go back.
    """

    location: str
    origin: Origin
    begun: Unfinished | None
    is_left_over: bool
    batch: Batch
    last: CompletedCheckpoint | None

    @classmethod
    def find(
        cls,
        checkpoint_location: Place,
        *,
        checkpoint: int | Place | None,
        batch_id: int | None,
        checkpoint_dir: Place | None,
        job_id: str | None,
        operators: bool,
        configuration: Mapping[str, str] | None,
    ) -> "WayBack":
        """That of `roll_back`, with its arguments and errors."""
        if (checkpoint is None) == (batch_id is None):
            raise InvalidRequestError("name a checkpoint, or a batch with batch_id, and not both")
        begun, is_left_over, origin = _query(
            checkpoint_location,
            checkpoint_dir=checkpoint_dir,
            job_id=job_id,
            operators=operators,
            configuration=configuration,
        )
        location = origin.checkpoint_location
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
        if begun is not None and begun.to != str(target):
            raise _refusal(begun, location)
        return cls(
            location=location,
            origin=origin,
            begun=begun,
            is_left_over=is_left_over,
            batch=batch,
            last=last,
        )


def preview_roll_back(
    checkpoint_location: Place,
    *,
    checkpoint: int | Place | None = None,
    batch_id: int | None = None,
    checkpoint_dir: Place | None = None,
    job_id: str | None = None,
    operators: bool = True,
    configuration: Mapping[str, str] | None = None,
) -> RollBackPreview:
    """What `roll_back` would do with the same arguments. Changes nothing.

    Raises:
        CheckpointError: What `roll_back` would raise before it touches anything.
    """
    way = WayBack.find(
        checkpoint_location,
        checkpoint=checkpoint,
        batch_id=batch_id,
        checkpoint_dir=checkpoint_dir,
        job_id=job_id,
        operators=operators,
        configuration=configuration,
    )
    kept = way.origin.access.completed_checkpoints() if way.origin.access is not None else {}
    return RollBackPreview(
        query_id=way.origin.query_id,
        batch_id=way.batch.batch_id,
        files=tuple(f"{way.location}/{path}" for path in beyond(tree(way.location), way.batch)),
        checkpoints=tuple(
            str(kept[one].external_pointer)
            for one in sorted(kept)
            if way.last is not None and one > way.last.checkpoint_id
        ),
    )


def roll_back_points(
    checkpoint_location: Place,
    *,
    checkpoint_dir: Place | None = None,
    job_id: str | None = None,
    operators: bool = True,
    configuration: Mapping[str, str] | None = None,
) -> list[RollBackPoint]:
    """Where a query could be rolled back to, oldest first, as far as names of files tell.

    Of a query with operators these are checkpoints that are kept, of any other one batches. While a
    roll back is begun and not finished it is only the place where that goes.

    Args:
        checkpoint_location: URI of the query's checkpointLocation.
        checkpoint_dir: Where its operators have their checkpoints, if not where its
            checkpointLocation says.
        job_id: The same for their job.
        operators: Whether its operators would go back too.
        configuration: As for `roll_back`.

    Raises:
        InvalidRequestError: An argument can't be used, or a restore is not finished here.
        CheckpointCorruptedError: Spark's logs can't be read.
        StorageUnavailableError: Something could not be read.
    """
    begun, _, origin = _query(
        checkpoint_location,
        checkpoint_dir=checkpoint_dir,
        job_id=job_id,
        operators=operators,
        configuration=configuration,
    )
    location = origin.checkpoint_location
    files = tree(location)

    def point(candidate: tuple[int | None, int]) -> RollBackPoint | None:
        checkpoint, batch_id = candidate
        if begun is not None and begun.to != str(batch_id):
            return None
        try:
            batch = batch_at(location, files, batch_id)
            select(files, batch)
        except CheckpointNotFoundError:
            return None
        return RollBackPoint(
            checkpoint=checkpoint, batch_id=batch_id, begun_ms=batch.offsets.begun_ms
        )

    candidates = list(_candidates(origin, files))
    return [one for one in in_parallel(point, candidates) if one is not None]


def _candidates(origin: Origin, files: Mapping[str, int]) -> Iterator[tuple[int | None, int]]:
    """Checkpoints and their batches, or batches alone."""
    if origin.access is None:
        yield from ((None, batch_id) for batch_id in numbers(files, "commits"))
        return
    for checkpoint_id, pointer in sorted(origin.access.completed_checkpoints().items()):
        try:
            completed = load_checkpoint(pointer)
        except (CheckpointNotFoundError, CheckpointCorruptedError):
            continue  # deleted since it was listed, or nothing to go back to
        origin.check_owns(completed)
        yield checkpoint_id, progress_of(completed.metadata).batch_id


def _query(
    checkpoint_location: Place,
    *,
    checkpoint_dir: Place | None,
    job_id: str | None,
    operators: bool,
    configuration: Mapping[str, str] | None,
) -> tuple[Unfinished | None, bool, Origin]:
    """The query, with the roll back that was begun, and whether only its note is left."""
    location = checkpoint_directory(checkpoint_location)
    use_stores(configuration_of(configuration), location)
    begun = unfinished_in(location)
    is_left_over = begun is not None and is_finished(location, begun)
    if is_left_over:
        begun = None  # it ended right before the note went
    if begun is not None and begun.kind != ROLL_BACK:
        raise _refusal(begun, location)
    origin = origin_of(
        location,
        checkpoint_dir=checkpoint_dir,
        job_id=job_id,
        operators=operators,
        configuration=configuration,
        query_id=begun.query_id if begun else None,
    )
    if begun is not None and not _is_job_of(origin, begun):
        raise _refusal(begun, location)
    if origin.query_id in sessions.active_query_ids():
        raise InvalidRequestError("query is running; stop it first", location)
    return begun, is_left_over, origin


def _is_job_of(origin: Origin, begun: Unfinished) -> bool:
    """Whether the job of operators that was to go back goes back now, if there was one."""
    if begun.job_id is None:
        return True  # or it was begun by a version that didn't note it
    return (
        origin.access is not None
        and origin.job_id == begun.job_id
        and origin.checkpoint_dir == begun.checkpoint_dir
    )


def _refusal(begun: Unfinished, location: str) -> InvalidRequestError:
    to = f" to batch {begun.to}" if begun.kind == ROLL_BACK else ""
    if begun.job_id is not None:
        to += f" with job {begun.job_id} in {begun.checkpoint_dir}"
    message = f"a {begun.kind}{to} was begun here and is not finished; repeat that first"
    return InvalidRequestError(message, location)


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
    if sessions.is_application_alive() and any(
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
