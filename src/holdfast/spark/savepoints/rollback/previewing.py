"""Previews of roll backs: where a query could go back to, and what would be lost. Changes nothing."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from holdfast.common import map_in_parallel
from holdfast.errors import CheckpointCorruptedError, CheckpointNotFoundError
from holdfast.locations.storages import load_checkpoint
from holdfast.spark.checkpoint_location import batch_at, files_after, logged_batches, select, tree
from holdfast.spark.savepoints.rollback.way_back import WayBack
from holdfast.spark.savepoints.stopped_query import StoppedQuery
from holdfast.spark.savepoints.stored_query import Place, QueryAddress, StoredQuery
from holdfast.spark_progress import progress_of


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
    """The files and checkpoints that a roll back would delete.

    Attributes:
        query_id: Spark's id of the query.
        batch_id: The last batch that would count.
        newest_batch_id: The newest batch that Spark has begun. The sink may have output of the batches after
            `batch_id` up to this one, and would get these batch ids again with other rows.
        files: URIs of Spark's files that would go.
        checkpoints: URIs of the checkpoints of operators that would go, the oldest first.
    """

    query_id: str
    batch_id: int
    newest_batch_id: int
    files: tuple[str, ...]
    checkpoints: tuple[str, ...]


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
    files = tree(location)
    kept = stored.access.completed_checkpoints() if stored.access is not None else {}
    return RollBackPreview(
        query_id=stored.query_id,
        batch_id=way.batch.batch_id,
        newest_batch_id=max(logged_batches(files, "offsets")),
        files=tuple(f"{location}/{path}" for path in files_after(files, way.batch)),
        checkpoints=tuple(
            str(kept[checkpoint_id].external_pointer)
            for checkpoint_id in sorted(kept)
            if last is not None and checkpoint_id > last.checkpoint_id
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

    For a query with operators these are the checkpoints that are kept, for any other query batches. While
    a roll back is begun and not finished, it is only the place where that goes.

    Args:
        checkpoint_location: URI of the query's checkpointLocation.
        checkpoint_dir: Where its operators have their checkpoints, if not where its
            checkpointLocation says.
        job_id: The job of its operators, likewise.
        operators: Whether its operators would go back too.
        configuration: As for `roll_back`.

    Raises:
        InvalidRequestError: An argument can't be used, or a restore is not finished here.
        CheckpointCorruptedError: Spark's logs can't be read.
        StorageUnavailableError: Something could not be read.
    """
    query = StoppedQuery.at(
        QueryAddress(
            query=checkpoint_location,
            checkpoint_dir=checkpoint_dir,
            job_id=job_id,
            operators=operators,
            configuration=configuration,
        )
    )
    location = query.stored.checkpoint_location
    files = tree(location)

    def point(candidate: tuple[int | None, int]) -> RollBackPoint | None:
        checkpoint, batch_id = candidate
        if query.begun is not None and query.begun.note.to != str(batch_id):
            return None
        try:
            batch = batch_at(location, files, batch_id)
            select(files, batch)
        except CheckpointNotFoundError:
            return None
        return RollBackPoint(
            checkpoint=checkpoint, batch_id=batch_id, begun_ms=batch.offsets.start_ms
        )

    points = map_in_parallel(point, list(_candidates(query.stored, files)))
    return [possible for possible in points if possible is not None]


def _candidates(stored: StoredQuery, files: Mapping[str, int]) -> Iterator[tuple[int | None, int]]:
    """Checkpoints and their batches, or batches alone."""
    if stored.access is None:
        yield from ((None, batch_id) for batch_id in logged_batches(files, "commits"))
        return
    for checkpoint_id, pointer in sorted(stored.access.completed_checkpoints().items()):
        try:
            completed = load_checkpoint(pointer)
        except (CheckpointNotFoundError, CheckpointCorruptedError):
            continue  # deleted since it was listed, or nothing to go back to
        stored.check_owns(completed)
        yield checkpoint_id, progress_of(completed.metadata).batch_id
