"""Paths of checkpointLocations: compared with each other, and rewritten inside of Spark's files. Pure.

These files of Spark contain absolute paths, which change when a checkpointLocation or its sources move:

    state/<operator>/_metadata/v2/<batch>    v2, then a line {"stateStoreInfo":[{"stateSchemaFilePaths":[<URI>,…]},…]}
    sources/<source>/<k>[.compact]           v1, then a line {"path":<URI>,…} for each input file
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote

import msgspec

from holdfast.common import json_decoder, uripath
from holdfast.errors import CheckpointCorruptedError, InvalidRequestError
from holdfast.locations.storages import without_marker
from holdfast.redaction import redact

_OPERATOR = re.compile(r"state/[^/]+/_metadata/v2/[0-9]+")
_SOURCE_LOG = re.compile(r"sources/[^/]+/[0-9]+(?:\.compact)?")
_SCHEMA = re.compile(r".*(/state/[^/]+/_stateSchema/.*)")

_SCHEMA_PATHS = "stateSchemaFilePaths"

_S3 = ("s3", "s3a")

_SAME_STORE = {"s3a": "s3", "abfss": "abfs"}

_JAVA_SAFE = "/;:@&=+$,_-!.~'()*"
"""The characters that Java's URIs don't escape, in addition to letters, digits, and everything that is not ASCII."""


def check_disjoint(checkpoint_location: str, checkpoint_dir: str | None, job_id: str) -> None:
    """Refuse to keep checkpoints of operators among Spark's files, or Spark's files among checkpoints.

    A savepoint, a restore or a rollback copies and deletes everything of one side without the other. The
    checkpointLocation is spelled by Spark or Holdfast, the URI of the jobs' directories is normalized.

    Raises:
        InvalidRequestError: One directory is inside of the other.
    """
    if checkpoint_dir is None:
        return
    directory = without_marker(checkpoint_dir)
    try:
        location = uripath.normalize(checkpoint_location)
    except InvalidRequestError:
        return  # Spark accepts it; a checkpoint directory can't be spelled like that
    if is_within(directory, location) or is_within(location, uripath.join(directory, job_id)):
        message = (
            f"checkpoint directory {redact(checkpoint_dir)} and the query's checkpointLocation overlap; "
            "set a checkpoint directory outside of the checkpointLocation"
        )
        raise InvalidRequestError(message, checkpoint_location, kind="overlap")


def is_within(uri: str, directory: str) -> bool:
    """Return whether a URI is a directory or anywhere below it; both normalized."""
    return f"{_client_independent(uri)}/".startswith(f"{_client_independent(directory)}/")


def spark_uri(checkpoint_location: str, sibling: str = "") -> str:
    """Return a URI with a scheme that Spark can open: for S3 that of a sibling, which Spark wrote."""
    location = checkpoint_location.removeprefix("fsspec+")
    scheme, separator, rest = location.partition("://")
    if scheme not in _S3:
        return location
    known = sibling.partition("://")[0]
    # Hadoop has only s3a; where Spark wrote another scheme it supports that one, too.
    return f"{known if known in _S3 else 's3a'}{separator}{rest}"


@dataclass(frozen=True, slots=True)
class Moves:
    """Prefixes of the paths of input files, and their replacements.

    Attributes:
        paths: The new prefix by the old; URIs as Holdfast writes them, with nothing escaped.
        used: Old prefixes that some path had.

    Raises:
        InvalidRequestError: A URI contains a password.
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
        """Old prefixes that no path had."""
        return sorted(self.paths.keys() - self.used)

    def apply(self, file: str) -> str:
        """Replace the longest prefix of the URI of a file, which is escaped as Spark does."""
        ends = [match.start() for match in re.finditer("/", file)]
        for old in sorted(self.paths, key=len, reverse=True):
            for end in ends:
                if _with_three_slashes(unquote(file[:end])) == _with_three_slashes(old.rstrip("/")):
                    self.used.add(old)
                    return _escape_like_java(self.paths[old].rstrip("/")) + file[end:]
        return file


def has_paths(path: str, *, sources: bool) -> bool:
    """Return whether a file of that name may contain paths to rewrite; with `sources` also those of input files."""
    return bool(_OPERATOR.fullmatch(path) or (sources and _SOURCE_LOG.fullmatch(path)))


def rewrite_paths(path: str, content: bytes, *, checkpoint_location: str, moves: Moves) -> bytes:
    """Rewrite the paths in a file, which is relative to the new checkpointLocation. Raises `CheckpointCorruptedError`."""
    try:
        version, *lines = content.decode().split("\n")
    except UnicodeDecodeError as error:
        raise CheckpointCorruptedError(f"Spark's file {path!r} is not text ({error})") from error
    if _OPERATOR.fullmatch(path):
        changed = [_rewrite_schemas(line, checkpoint_location, path) for line in lines]
    else:
        changed = [_rewrite_entry(line, moves, path) for line in lines]
    return "\n".join([version, *changed]).encode()


def _client_independent(uri: str) -> str:
    """Return the same spelling for all clients of a store."""
    scheme = uripath.scheme(uri).removeprefix("fsspec+")
    rest = uri.partition("://")[2]
    return f"{_SAME_STORE.get(scheme, scheme)}://{rest}"


def _rewrite_schemas(line: str, checkpoint_location: str, path: str) -> str:
    operator = _decode(line, path)
    for store in operator.get("stateStoreInfo", []):
        old = store.get(_SCHEMA_PATHS) or []
        store[_SCHEMA_PATHS] = [
            _SCHEMA.sub(lambda match: spark_uri(checkpoint_location, match[0]) + match[1], schema)
            for schema in old
        ]
    return msgspec.json.encode(operator).decode()


def _rewrite_entry(line: str, moves: Moves, path: str) -> str:
    if not line.startswith("{"):
        return line
    entry = _decode(line, path)
    if isinstance(entry.get("path"), str):
        entry["path"] = moves.apply(entry["path"])
    return msgspec.json.encode(entry).decode()


def _escape_like_java(uri: str) -> str:
    """Escape a URI as Spark does: it takes another spelling of a file for a new file."""
    return "".join(
        character if ord(character) > 127 else quote(character, safe=_JAVA_SAFE)  # 127: ASCII
        for character in uri
    )


def _with_three_slashes(uri: str) -> str:
    """Return a local URI with three slashes; Hadoop writes some with one."""
    scheme, separator, rest = uri.partition(":")
    return f"{scheme}:///{rest.lstrip('/')}" if separator and scheme == "file" else uri


def _decode(line: str, path: str) -> dict[str, Any]:
    try:
        return json_decoder(dict[str, Any]).decode(line)
    except msgspec.MsgspecError as error:
        raise CheckpointCorruptedError(f"Spark's file {path!r} can't be read ({error})") from error
