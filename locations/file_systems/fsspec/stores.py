"""Questions to an instance of fsspec, and the few things that its implementations do differently."""

from typing import Any

from holdfast.errors import InvalidRequestError


def kind(store: Any, path: str) -> str | None:
    """The type of a file or directory in fsspec's word, or None if nothing is there."""
    try:
        return str(store.info(path)["type"])
    except (FileNotFoundError, NotADirectoryError):
        return None


def size(store: Any, path: str) -> int | None:
    """Bytes of a file, or None if nothing is there."""
    try:
        return int(store.info(path)["size"])
    except (FileNotFoundError, NotADirectoryError):
        return None


def entries(store: Any, path: str) -> list[dict[str, Any]]:
    """Each entry of a directory as fsspec describes it; empty if there is no such directory."""
    try:
        listed = store.ls(path, detail=True)
    except (FileNotFoundError, NotADirectoryError):
        return []
    # A file, and a directory of some object stores, is listed as its own entry.
    return [entry for entry in listed if entry["name"].strip("/") != path.strip("/")]


def name(entry: dict[str, Any]) -> str:
    """The last part of an entry's path."""
    return str(entry["name"]).rstrip("/").rpartition("/")[2]


def is_link(entry: dict[str, Any]) -> bool:
    """Whether an entry leads elsewhere."""
    return bool(entry.get("islink")) or entry["type"] == "link"


def missing_directories(store: Any, path: str, uri: str) -> list[str]:
    """The directories that have to be made for a directory, the outermost first."""
    missing: list[str] = []
    while path.strip("/"):
        known_kind = kind(store, path)
        if known_kind == "directory":
            break
        if known_kind is not None:
            raise InvalidRequestError("not possible here (a file has that name)", uri)
        missing.insert(0, path)
        path = path.rpartition("/")[0]
    return missing


def remove(store: Any, path: str) -> bool:
    """Delete a file; False if it wasn't there."""
    try:
        store.rm_file(path)
    except FileNotFoundError:
        return False
    return True


def rename(store: Any, old: str, new: str) -> None:
    """Give a file another name; in many stores by a copy."""
    from fsspec import AbstractFileSystem  # noqa: PLC0415  # optional

    if getattr(store.mv, "__func__", None) is AbstractFileSystem.mv:
        # It does just this, but takes names with * for patterns.
        store.cp_file(old, new)
        store.rm_file(old)
    else:
        store.mv(old, new)
