"""When a file was last changed, from the many ways in which fsspec's stores say it."""

from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from holdfast.common import Clock

_KEYS = [
    "mtime",
    "LastModified",
    "last_modified",
    "modified",
    "modificationTime",
    "modification_time",
    "last_write_time",
    "modify",
    "updated",
    "created",
    "creation_time",
]
"""The names that fsspec's implementations have for the time of the last change, best first."""


def modified_ms(store: Any, entry: dict[str, Any], clock: Clock) -> int:
    """Last change by the store's clock; now, where it can't say, for who deletes what is old."""
    for key in _KEYS:
        changed_ms = milliseconds(entry.get(key))
        if changed_ms is not None:
            return changed_ms
    changed_ms = None
    if entry["type"] != "directory":
        with suppress(NotImplementedError, FileNotFoundError):
            changed_ms = milliseconds(store.modified(entry["name"]))
    return clock.now_ms() if changed_ms is None else changed_ms


def milliseconds(moment: object) -> int | None:
    """Milliseconds since 1970 UTC of any form in which fsspec gives a time."""
    if isinstance(moment, str):
        with suppress(ValueError):
            # FTP's is 20261231235959, with or without a fraction
            if moment[:14].isdecimal():
                moment = datetime.strptime(moment[:14], "%Y%m%d%H%M%S").replace(tzinfo=UTC)
            else:
                moment = datetime.fromisoformat(moment)
    if isinstance(moment, datetime):
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return int(moment.timestamp() * 1000)
    if isinstance(moment, int | float):
        # WebHDFS counts milliseconds; as seconds they would be after the year 5000.
        return int(moment if moment > 1e11 else moment * 1000)
    return None
