"""Absolute paths inside Spark's files, made to fit another place. Pure."""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from holdfast.errors import CheckpointCorruptedError

_OPERATOR = re.compile(r"state/[^/]+/_metadata/v2/[0-9]+")
_SOURCE_LOG = re.compile(r"sources/[^/]+/[0-9]+(?:\.compact)?")
_SCHEMA = re.compile(r".*(/state/[^/]+/_stateSchema/.*)")

_SCHEMA_PATHS = "stateSchemaFilePaths"


def has_paths(path: str, *, sources: bool) -> bool:
    """Whether a file of that name may hold paths that have to be changed.

    Args:
        path: The file, relative to the checkpointLocation.
        sources: Whether those of sources have to be.
    """
    return bool(_OPERATOR.fullmatch(path) or (sources and _SOURCE_LOG.fullmatch(path)))


def rewritten(
    path: str, content: bytes, *, checkpoint_location: str, paths: Mapping[str, str]
) -> bytes:
    """The content of a file whose paths fit its new place.

    Args:
        path: The file, relative to the checkpointLocation.
        content: What is in it.
        checkpoint_location: URI of the new checkpointLocation.
        paths: For beginnings of paths inside logs of sources, what is there instead.

    Raises:
        CheckpointCorruptedError: It holds something else.
    """
    version, *lines = content.decode().split("\n")
    if _OPERATOR.fullmatch(path):
        changed = [_with_schemas_in(line, checkpoint_location, path) for line in lines]
    else:
        changed = [_with_prefixes(line, paths, path) for line in lines]
    return "\n".join([version, *changed]).encode()


def _with_schemas_in(line: str, checkpoint_location: str, path: str) -> str:
    described = _json(line, path)
    for store in described.get("stateStoreInfo", []):
        old = store.get(_SCHEMA_PATHS) or []
        store[_SCHEMA_PATHS] = [
            _SCHEMA.sub(rf"{_escaped(checkpoint_location)}\1", one) for one in old
        ]
    return msgspec.json.encode(described).decode()


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\")


def _with_prefixes(line: str, paths: Mapping[str, str], path: str) -> str:
    if not line.startswith("{"):
        return line
    entry = _json(line, path)
    if isinstance(entry.get("path"), str):
        entry["path"] = _moved(entry["path"], paths)
    return msgspec.json.encode(entry).decode()


def _moved(file: str, paths: Mapping[str, str]) -> str:
    """The file below the longest of the beginnings that it has; Spark escapes what URIs do."""
    for old in sorted(paths, key=len, reverse=True):
        for spelled in (_plain(old), quote(_plain(old), safe="/:@!$&'()*+,;=~")):
            rest = _plain(file).removeprefix(spelled.rstrip("/"))
            if rest != _plain(file) and rest.startswith("/"):
                return quote(paths[old].rstrip("/"), safe="%/:@!$&'()*+,;=~") + rest
    return file


def _plain(uri: str) -> str:
    """A local URI with one slash, as Hadoop sometimes writes it, or three: one of them."""
    scheme, separator, rest = uri.partition(":")
    return f"{scheme}:///{rest.lstrip('/')}" if separator and scheme == "file" else uri


def _json(line: str, path: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        message = f"Spark's file {path!r} can't be read ({error})"
        raise CheckpointCorruptedError(message) from error
