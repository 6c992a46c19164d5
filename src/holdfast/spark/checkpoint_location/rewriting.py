"""Absolute paths inside Spark's files, made to fit another place. Pure.

state/<operator>/_metadata/v2/<batch>    v2, then a line {"stateStoreInfo":[{"stateSchemaFilePaths":[<URI>,…]},…]}
sources/<source>/<k>[.compact]           v1, then a line {"path":<URI>,…} for each input file
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote

import msgspec

from holdfast.common import json_decoder
from holdfast.errors import CheckpointCorruptedError, InvalidRequestError
from holdfast.redaction import redact

_OPERATOR = re.compile(r"state/[^/]+/_metadata/v2/[0-9]+")
_SOURCE_LOG = re.compile(r"sources/[^/]+/[0-9]+(?:\.compact)?")
_SCHEMA = re.compile(r".*(/state/[^/]+/_stateSchema/.*)")

_SCHEMA_PATHS = "stateSchemaFilePaths"

_S3 = ("s3", "s3a")

_LEFT_BY_JAVA = "/;:@&=+$,_-!.~'()*"
"""The characters that Java's URIs don't escape, beside letters, digits, and all that is not ASCII."""


@dataclass(frozen=True, slots=True)
class Moves:
    """Beginnings of the paths of input files, and what they are now.

    Attributes:
        paths: The new beginning by the old; URIs as Holdfast writes them, with nothing escaped.
        used: Old beginnings that some path had.

    Raises:
        InvalidRequestError: A URI has a password in it.
    """

    paths: Mapping[str, str]
    used: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for uri in (*self.paths.keys(), *self.paths.values()):
            if "@" in uri and redact(uri) != uri:
                message = "paths have a password in them, and would be written into Spark's log"
                raise InvalidRequestError(message, uri)

    @property
    def unused(self) -> list[str]:
        """Old beginnings that no path had."""
        return sorted(self.paths.keys() - self.used)

    def moved(self, file: str) -> str:
        """The URI of a file, escaped as Spark has it, below the longest beginning that it has."""
        ends = [match.start() for match in re.finditer("/", file)]
        for old in sorted(self.paths, key=len, reverse=True):
            for end in ends:
                if _plain(unquote(file[:end])) == _plain(old.rstrip("/")):
                    self.used.add(old)
                    return _as_java(self.paths[old].rstrip("/")) + file[end:]
        return file


def has_paths(path: str, *, sources: bool) -> bool:
    """Whether a file of that name may hold paths that have to be changed.

    Args:
        path: The file, relative to the checkpointLocation.
        sources: Whether paths of input files, in logs of sources, have to be changed.
    """
    return bool(_OPERATOR.fullmatch(path) or (sources and _SOURCE_LOG.fullmatch(path)))


def rewritten(path: str, content: bytes, *, checkpoint_location: str, moves: Moves) -> bytes:
    """The content of a file whose paths fit its new place.

    Args:
        path: The file, relative to the checkpointLocation.
        content: The content of the file.
        checkpoint_location: URI of the new checkpointLocation.
        moves: Where what logs of sources name has moved.

    Raises:
        CheckpointCorruptedError: The file holds something else.
    """
    try:
        version, *lines = content.decode().split("\n")
    except UnicodeDecodeError as error:
        raise CheckpointCorruptedError(f"Spark's file {path!r} is no text ({error})") from error
    if _OPERATOR.fullmatch(path):
        changed = [_with_schemas_in(line, checkpoint_location, path) for line in lines]
    else:
        changed = [_with_moved(line, moves, path) for line in lines]
    return "\n".join([version, *changed]).encode()


def _with_schemas_in(line: str, checkpoint_location: str, path: str) -> str:
    described = _json(line, path)
    for store in described.get("stateStoreInfo", []):
        old = store.get(_SCHEMA_PATHS) or []
        store[_SCHEMA_PATHS] = [
            _SCHEMA.sub(lambda match: for_spark(checkpoint_location, match[0]) + match[1], schema)
            for schema in old
        ]
    return msgspec.json.encode(described).decode()


def for_spark(checkpoint_location: str, old: str = "") -> str:
    """The URI as Spark can open it, which has not all schemes that Holdfast has.

    Args:
        checkpoint_location: The URI.
        old: A URI that Spark wrote itself, whose scheme for S3 it has.
    """
    location = checkpoint_location.removeprefix("fsspec+")
    scheme, separator, rest = location.partition("://")
    if scheme not in _S3:
        return location
    before = old.partition("://")[0]
    # Hadoop itself has s3a only; where Spark wrote another scheme it has that too.
    return f"{before if before in _S3 else 's3a'}{separator}{rest}"


def _with_moved(line: str, moves: Moves, path: str) -> str:
    if not line.startswith("{"):
        return line
    entry = _json(line, path)
    if isinstance(entry.get("path"), str):
        entry["path"] = moves.moved(entry["path"])
    return msgspec.json.encode(entry).decode()


def _as_java(uri: str) -> str:
    """The URI escaped as Spark does, which takes a file that is spelled otherwise for a new one."""
    return "".join(
        character if ord(character) > 127 else quote(character, safe=_LEFT_BY_JAVA)  # 127: ASCII
        for character in uri
    )


def _plain(uri: str) -> str:
    """One spelling for a local URI, which Hadoop writes sometimes with one slash, sometimes with three."""
    scheme, separator, rest = uri.partition(":")
    return f"{scheme}:///{rest.lstrip('/')}" if separator and scheme == "file" else uri


def _json(line: str, path: str) -> dict[str, Any]:
    try:
        return json_decoder(dict[str, Any]).decode(line)
    except msgspec.MsgspecError as error:
        message = f"Spark's file {path!r} can't be read ({error})"
        raise CheckpointCorruptedError(message) from error
