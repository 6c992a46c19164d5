"""Which files of a checkpointLocation a query needs to go on behind a batch. Pure.

`file_names` draws the directory. Of `offsets` and `commits` two entries are needed: Spark wants the one
before too. A file that is not known is refused by name: it can't be taken back, and left out it could be
what a query needs.
"""

from collections.abc import Collection, Iterable

from holdfast.errors import CheckpointNotFoundError, InvalidRequestError
from holdfast.spark.checkpoint_location.application import APPLICATION_FILE
from holdfast.spark.checkpoint_location.file_names import (
    batch_that_wrote,
    is_hidden,
    is_part_of_zip,
    log_entry,
    source_entry,
    state_file,
)
from holdfast.spark.checkpoint_location.link import LINK_FILE
from holdfast.spark.checkpoint_location.logs import LoggedBatch
from holdfast.spark.checkpoint_location.metadata_file import METADATA
from holdfast.spark.checkpoint_location.source_logs import last_entry, selected_entries
from holdfast.spark.checkpoint_location.state_selection import selected_state

UNFINISHED_FILE = "holdfast-unfinished.json"
"""The note of a restore or roll back that was begun; it is never copied."""

_OURS = {LINK_FILE, APPLICATION_FILE, UNFINISHED_FILE}
_TOP = {METADATA, *_OURS, "offsets", "commits", "sources", "state"}


def select(paths: Collection[str], batch: LoggedBatch) -> list[str]:
    """The files that are needed, but for parts of zips.

    Args:
        paths: All files of a checkpointLocation, relative to it.
        batch: The batch to go on behind.

    Raises:
        CheckpointNotFoundError: A file is missing: Spark deletes old ones while it runs.
        InvalidRequestError: Something is there that is not known.
    """
    listed = frozenset(path for path in paths if not is_hidden(path))
    for path in sorted(listed):
        if path.partition("/")[0] not in _TOP:
            message = (
                f"there is {path!r}, which this version doesn't know how to copy or take back; it is "
                "not Spark's own"
            )
            raise InvalidRequestError(message)
    return sorted(
        [
            *_log_entries(listed, batch),
            *selected_entries(listed, batch),
            *_operators(listed, batch.batch_id),
            *selected_state(listed, batch),
        ]
    )


def beyond(paths: Iterable[str], batch: LoggedBatch) -> list[str]:
    """All files of a checkpointLocation that only batches behind the given batch have made."""
    return sorted(path for path in paths if not is_hidden(path) and _is_beyond(path, batch))


def _is_beyond(path: str, batch: LoggedBatch) -> bool:
    for log in ("offsets", "commits"):
        if (number := log_entry(path, log)) is not None:
            return number > batch.batch_id
    if path.startswith("sources/") and (entry := source_entry(path)) is not None:
        return entry > last_entry(path.split("/")[1], batch)
    if (made_in := batch_that_wrote(path)) is not None:
        return made_in > batch.batch_id
    file = state_file(path)
    return file is not None and file.version > batch.batch_id + 1


def _log_entries(listed: frozenset[str], batch: LoggedBatch) -> list[str]:
    batches = [number for number in (batch.batch_id - 1, batch.batch_id) if number >= 0]
    offsets = [f"offsets/{number}" for number in batches]
    committed = batches if batch.is_committed else batches[:-1]
    return [
        METADATA,
        *_all_in(listed, offsets),
        *_all_in(listed, [f"commits/{number}" for number in committed]),
    ]


def _all_in(listed: frozenset[str], paths: list[str]) -> list[str]:
    for path in paths:
        if path not in listed:
            raise CheckpointNotFoundError("Spark's checkpointLocation lacks a file", path)
    return paths


def _operators(listed: frozenset[str], batch_id: int) -> list[str]:
    """The files about operators and the schemas of their state."""
    selected = []
    for path in listed:
        if not path.startswith("state/") or state_file(path) is not None or is_part_of_zip(path):
            continue
        made_in = batch_that_wrote(path)
        if made_in is None and "_metadata" not in path.split("/"):
            message = (
                f"state has {path!r}, which this version doesn't know how to copy or take back; it "
                "knows the state stores that Spark brings, in files of HDFS and in RocksDB"
            )
            raise InvalidRequestError(message)
        if made_in is None or made_in <= batch_id:
            selected.append(path)
    return selected
