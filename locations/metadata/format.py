"""The bytes of `_metadata`. Pure, no I/O.

    offset  length  meaning
    0       8       magic, "HOLDFAST" in ASCII
    8       4       format version, unsigned, big-endian
    12      n       what the version says
    12+n    4       CRC-32C of all bytes before it, big-endian

Every version has magic, version and checksum at these places, so that a damaged file can be told from a newer
one. `READERS` has a reader for each version that there ever was. Version 1:

    offset  length  meaning
    12      8       length m of the body, unsigned, big-endian
    20      m       body: CheckpointMetadata as a MessagePack map by field names

Readers skip map keys that they don't know. A change that a reader must not skip gets a new version number: today's
reader stays in the table, for records as they were, and makes today's records of them.
"""

import struct
from collections.abc import Callable

import msgspec

from holdfast.common import crc32c, message_pack_decoder
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
from holdfast.locations.metadata.relative_uris import absolute_uri, relative_uri

MAGIC = b"HOLDFAST"
VERSION = 1
"""The version that is written."""

_HEADER = struct.Struct(">8sI")
_LENGTH = struct.Struct(">Q")
_TRAILER = struct.Struct(">I")


def encode_metadata(metadata: CheckpointMetadata, directory: str) -> bytes:
    """The bytes of a `_metadata` file in `directory`.

    The names of files in the directory become relative. In the `_metadata` of a savepoint the names
    of files in savepoints beside it do, too: they can be moved together.

    Raises:
        InvalidRequestError: The metadata has a placeholder, whose bytes nobody would find.
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
    content = _HEADER.pack(MAGIC, VERSION) + _LENGTH.pack(len(body)) + body
    return content + _TRAILER.pack(crc32c(content))


def decode_metadata(content: bytes, directory: str, *, uri: str) -> CheckpointMetadata:
    """Read the bytes of a `_metadata` file, of any version that there ever was.

    Args:
        content: The whole file.
        directory: The file's directory, which relative names are resolved against.
        uri: The file, for errors.

    Raises:
        CheckpointCorruptedError: The file is of another kind, was cut or changed, or has numbers
            that can't be.
        UnsupportedFormatError: The file is whole, and of a newer version.
    """
    version, rest = _opened(content, uri)
    if version not in READERS:
        raise UnsupportedFormatError(_unreadable(version), uri)
    try:
        metadata = READERS[version](rest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, struct.error) as error:
        raise CheckpointCorruptedError(f"metadata can't be decoded ({error})", uri) from error
    for uid, operator in metadata.operators.items():
        flaw = operator.flaw()
        if flaw is not None:
            message = f"metadata can't be right: operator {uid!r} has {flaw}"
            raise CheckpointCorruptedError(message, uri)

    def absolute(handle: StreamStateHandle) -> StreamStateHandle:
        if isinstance(handle, PlaceholderStreamStateHandle):
            message = f"metadata can't be right: it has a placeholder, of {handle.name!r}"
            raise CheckpointCorruptedError(message, uri)
        if isinstance(handle, FileStateHandle):
            return msgspec.structs.replace(handle, uri=absolute_uri(handle.uri, directory))
        return handle

    return metadata.with_streams(absolute)


def _read_version_1(rest: memoryview) -> CheckpointMetadata:
    (length,) = _LENGTH.unpack_from(rest)
    body = rest[_LENGTH.size :]
    if length != len(body):
        raise msgspec.DecodeError(f"body of {len(body)} bytes, expected {length}")
    return _DECODER.decode(body)


READERS: dict[int, Callable[[memoryview], CheckpointMetadata]] = {1: _read_version_1}
"""For each format version what makes records of the bytes between version and checksum. Names of files may
still be relative. A reader raises what msgspec or struct do, if the bytes make no sense."""


def _opened(content: bytes, uri: str) -> tuple[int, memoryview]:
    """The version of a file that is whole, and what stands between it and the checksum."""
    if not content.startswith(MAGIC):
        raise CheckpointCorruptedError("not a holdfast metadata file", uri)
    if len(content) < _HEADER.size + _TRAILER.size:
        raise CheckpointCorruptedError(f"metadata file is cut off at {len(content)} bytes", uri)
    end = len(content) - _TRAILER.size
    (expected,) = _TRAILER.unpack_from(content, end)
    actual = crc32c(memoryview(content)[:end])
    if actual != expected:
        message = (
            f"metadata file is damaged or cut off: its {len(content)} bytes have checksum "
            f"{actual:08x}, expected {expected:08x} (crc32c)"
        )
        raise CheckpointCorruptedError(message, uri)
    _, version = _HEADER.unpack_from(content)
    return version, memoryview(content)[_HEADER.size : end]


def _unreadable(version: int) -> str:
    oldest, newest = min(READERS), max(READERS)
    readable = f"versions {oldest} to {newest}" if oldest < newest else f"version {newest}"
    message = f"written in format version {version}; this Holdfast reads {readable}"
    return f"{message}: upgrade Holdfast" if version > newest else message


_DECODER = message_pack_decoder(CheckpointMetadata)
