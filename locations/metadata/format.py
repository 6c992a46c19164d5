"""The bytes of `_metadata`. Pure, no I/O.

It has a `Frame` with the magic HOLDFAST. `READERS` has a reader for each version that ever existed. The body of
version 1:

    offset  length  meaning
    12      8       length m of the map, unsigned, big-endian
    20      m       CheckpointMetadata as a MessagePack map by field names

Readers skip map keys that they don't know. A change that a reader must not skip gets a new version number: the present
reader stays in the table for the records as they were, and converts them to the present records.

Files near `_metadata` have relative URIs, so that directories can be moved:

    name                 a file next to `_metadata`
    ../savepoint-x/name  a file of another savepoint in the same directory as this one
    s3://bucket/name     any other file
"""

import struct
from collections.abc import Callable

import msgspec

from holdfast.common import Frame, message_pack_decoder, uripath
from holdfast.errors import (
    CheckpointCorruptedError,
    InvalidRequestError,
    UnsupportedFormatError,
)
from holdfast.locations.handles import (
    FileStateHandle,
    PlaceholderStreamStateHandle,
    StreamStateHandle,
)
from holdfast.locations.metadata.records import CheckpointMetadata
from holdfast.redaction import redact

_FRAME = Frame(b"HOLDFAST", version=1, name="holdfast metadata file")
_LENGTH = struct.Struct(">Q")

_PARENT = "../"
_SAVEPOINT = "savepoint-"


def encode_metadata(metadata: CheckpointMetadata, directory: str) -> bytes:
    """Return the bytes of a `_metadata` file in `directory`.

    Raises:
        InvalidRequestError: The metadata has a placeholder, which leads to no bytes.
    """

    def relative(handle: StreamStateHandle) -> StreamStateHandle:
        if isinstance(handle, PlaceholderStreamStateHandle):
            message = (
                f"metadata can't be stored with a placeholder, of shared stream {handle.name!r}"
            )
            raise InvalidRequestError(message, directory)
        if not isinstance(handle, FileStateHandle):
            return handle
        return msgspec.structs.replace(handle, uri=relative_uri(handle.uri, directory))

    body = msgspec.msgpack.encode(metadata.with_streams(relative))
    return _FRAME.encode(_LENGTH.pack(len(body)) + body)


def decode_metadata(content: bytes, directory: str, *, uri: str) -> CheckpointMetadata:
    """Decode the bytes of a `_metadata` file of any version.

    Args:
        content: The whole file.
        directory: The file's directory, which relative names are resolved against.
        uri: The file, for errors.

    Raises:
        CheckpointCorruptedError: The file is of another format, was cut off or changed, or has invalid numbers.
        UnsupportedFormatError: The file is intact and of a newer version.
    """
    version, body = _FRAME.open(content, uri)
    if version not in READERS:
        raise _version_error(version, uri)
    try:
        metadata = READERS[version](body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, struct.error) as error:
        raise CheckpointCorruptedError(f"metadata can't be decoded ({error})", uri) from error
    for uid, operator in metadata.operators.items():
        inconsistency = operator.find_inconsistency()
        if inconsistency is not None:
            message = f"metadata can't be right: operator {uid!r} has {inconsistency}"
            raise CheckpointCorruptedError(message, uri)

    def absolute(handle: StreamStateHandle) -> StreamStateHandle:
        if isinstance(handle, PlaceholderStreamStateHandle):
            message = f"metadata can't be right: it has a placeholder, of {handle.name!r}"
            raise CheckpointCorruptedError(message, uri)
        if isinstance(handle, FileStateHandle):
            return msgspec.structs.replace(handle, uri=absolute_uri(handle.uri, directory))
        return handle

    return metadata.with_streams(absolute)


def relative_uri(uri: str, directory: str) -> str:
    """Return a file's URI as the `_metadata` of a directory has it."""
    parent = uripath.parent(uri)
    if parent == directory:
        return uripath.name(uri)
    siblings = (uripath.name(parent), uripath.name(directory))
    if uripath.parent(parent) == uripath.parent(directory) and all(
        name.startswith(_SAVEPOINT) for name in siblings
    ):
        return f"{_PARENT}{uripath.name(parent)}/{uripath.name(uri)}"
    return uri


def absolute_uri(uri: str, directory: str) -> str:
    """Resolve the URI of a file in the `_metadata` of a directory.

    Raises:
        CheckpointCorruptedError: The URI has another form than `relative_uri` writes, such as one with `..` in the
            middle, which would lead elsewhere.
    """
    parent, _, name = uri.removeprefix(_PARENT).rpartition("/")
    if uri == name:
        resolved = uripath.join(directory, name)
    elif uri.startswith(f"{_PARENT}{_SAVEPOINT}") and "/" not in parent:
        resolved = uripath.join(uripath.parent(directory), parent, name)
    else:
        resolved = uri
    if not name or not uripath.is_normalized(resolved):
        message = f"metadata names a file {redact(uri)!a}, which is not a valid location of a file"
        raise CheckpointCorruptedError(message, directory)
    return resolved


def _read_version_1(body: memoryview) -> CheckpointMetadata:
    (length,) = _LENGTH.unpack_from(body)
    records = body[_LENGTH.size :]
    if length != len(records):
        raise msgspec.DecodeError(f"body of {len(records)} bytes, expected {length}")
    return _DECODER.decode(records)


def _version_error(version: int, uri: str) -> UnsupportedFormatError:
    oldest, newest = min(READERS), max(READERS)
    readable = f"versions {oldest} to {newest}" if oldest < newest else f"version {newest}"
    message = f"written in format version {version}; this Holdfast reads {readable}"
    way_out = ": upgrade Holdfast" if version > newest else ""
    return UnsupportedFormatError(message + way_out, uri)


READERS: dict[int, Callable[[memoryview], CheckpointMetadata]] = {1: _read_version_1}
"""Reader of the body by format version. It leaves URIs relative, and raises the errors of msgspec or struct if the body
is invalid."""

_DECODER = message_pack_decoder(CheckpointMetadata)
