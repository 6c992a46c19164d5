"""Queries and changes of files through an instance of fsspec, and the times of its entries."""

from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from holdfast.common import Clock
from holdfast.errors import InvalidRequestError


def kind(store: Any, path: str) -> str | None:
    """Return fsspec's type of a file or directory, or None if it does not exist."""
    try:
        return str(store.info(path)["type"])
    except (FileNotFoundError, NotADirectoryError):
        return None


def size(store: Any, path: str) -> int | None:
    """Return the size of a file in bytes, or None if it does not exist."""
    try:
        return int(store.info(path)["size"])
    except (FileNotFoundError, NotADirectoryError):
        return None


def entries(store: Any, path: str) -> list[dict[str, Any]]:
    """Return fsspec's entries of a directory; a missing one has no entries."""
    try:
        listed = store.ls(path, detail=True)
    except (FileNotFoundError, NotADirectoryError):
        return []
    # A file, and a directory on some object stores, is listed as its own entry.
    return [entry for entry in listed if entry["name"].strip("/") != path.strip("/")]


def name(entry: dict[str, Any]) -> str:
    """Return the last part of an entry's path."""
    return str(entry["name"]).rstrip("/").rpartition("/")[2]


def is_link(entry: dict[str, Any]) -> bool:
    """Return whether an entry is a link."""
    return bool(entry.get("islink")) or entry["type"] == "link"


def missing_directories(store: Any, path: str, uri: str) -> list[str]:
    """Return the missing directories of a path, the outermost first."""
    missing: list[str] = []
    while path.strip("/"):
        known_kind = kind(store, path)
        if known_kind == "directory":
            break
        if known_kind is not None:
            raise InvalidRequestError("directory can't be created (a file has its name)", uri)
        missing.insert(0, path)
        path = path.rpartition("/")[0]
    return missing


def remove(store: Any, path: str) -> bool:
    """Delete a file; returns False if it does not exist."""
    try:
        store.rm_file(path)
    except FileNotFoundError:
        return False
    return True


def rename(store: Any, old: str, new: str) -> None:
    """Rename a file, which is a copy and a deletion in many stores."""
    from fsspec import AbstractFileSystem  # noqa: PLC0415  # optional

    if getattr(store.mv, "__func__", None) is AbstractFileSystem.mv:
        # fsspec's method does the same, but treats names with * as patterns.
        store.cp_file(old, new)
        store.rm_file(old)
    else:
        store.mv(old, new)


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
"""Names of the modification time in fsspec's implementations, the best first."""


def modified_ms(store: Any, entry: dict[str, Any], clock: Clock) -> int:
    """Return an entry's modification time by the store's clock.

    Without one it is the present, so that a cleanup of old files spares it.
    """
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
    """Convert any form of a time in fsspec to milliseconds since 1970 UTC."""
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
        # WebHDFS uses milliseconds; as seconds they would be after the year 5000.
        return int(moment if moment > 1e11 else moment * 1000)
    return None
