"""Which entries of the logs of sources a query needs. Pure."""

from collections import defaultdict

from holdfast.errors import CheckpointNotFoundError, InvalidRequestError
from holdfast.spark.checkpoint_location.file_names import is_compact, source_entry
from holdfast.spark.checkpoint_location.logs import LoggedBatch


def selected_entries(listed: frozenset[str], batch: LoggedBatch) -> list[str]:
    """Entries of sources that a query needs to go on behind a batch.

    Args:
        listed: All files of a checkpointLocation, relative to it.
        batch: The batch.

    Raises:
        CheckpointNotFoundError: An entry, or a whole log, is gone.
        InvalidRequestError: A source keeps files that are not known.
    """
    logs: dict[str, list[str]] = defaultdict(list)
    for path in listed:
        if path.startswith("sources/"):
            if source_entry(path) is None:
                message = (
                    f"a source keeps {path!r}, which this version doesn't know how to copy; "
                    "it knows logs such as those of files, Kafka and Iceberg"
                )
                raise InvalidRequestError(message)
            logs[path.split("/")[1]].append(path)
    for source, offset in batch.offsets.log_offsets.items():
        if offset.is_certain and source not in logs:
            message = (
                f"the log of source {source} is gone, without which all would be read again; bring "
                "its directory back"
            )
            raise CheckpointNotFoundError(message, f"sources/{source}")
    return [path for source in logs for path in _selected(source, logs[source], batch)]


def last_entry(source: str, batch: LoggedBatch) -> int:
    """Number of the last entry of a source's log that the batch knows, or may know."""
    offset = batch.offsets.log_offsets.get(source)
    if offset is None:
        return batch.batch_id
    # An entry too many does no harm: Spark reads it with the next batch.
    return offset.last if offset.least >= 0 else max(offset.last, batch.batch_id)


def _selected(source: str, paths: list[str], batch: LoggedBatch) -> list[str]:
    last = last_entry(source, batch)
    entries = {path: entry for path in paths if (entry := source_entry(path)) is not None}
    before = {path: entry for path, entry in entries.items() if entry <= last}
    compacted = max((entry for path, entry in before.items() if is_compact(path)), default=-1)
    needed = [
        path
        for path, entry in before.items()
        if (entry == compacted if is_compact(path) else entry > compacted)
    ]
    offset = batch.offsets.log_offsets.get(source)
    if offset is not None:
        missing = set(range(compacted + 1, offset.least + 1)) - {before[path] for path in needed}
        if missing:
            later = [path for path, entry in entries.items() if is_compact(path) and entry > last]
            message = f"source {source} has no entry {min(missing)} any more"
            if later:
                message += f"; it was compacted into {min(later)!r}, with later ones"
            raise CheckpointNotFoundError(message, f"sources/{source}")
    return needed
