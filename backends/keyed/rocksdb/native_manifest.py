"""The manifest of a stored database: its files and tables. Pure, no I/O.

offset  length  meaning
0       8       magic, "HOLDRKDB" in ASCII
8       4       format version, unsigned, big-endian
12      n       a MessagePack map by field names
12+n    4       CRC-32C of all bytes before it, big-endian
"""

import re
import struct

import msgspec
import pyarrow as pa

from holdfast.backends.keyed.segments import ROCKSDB_MAGIC, StoredSpec
from holdfast.common import KeyGroup, crc32c, message_pack_decoder, raise_shortage
from holdfast.errors import CheckpointCorruptedError, UnsupportedFormatError

VERSION = 1
"""The only version that is written and read."""

_HEADER = struct.Struct(">8sI")
_CHECKSUM = struct.Struct(">I")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,63}")


class NativeManifest(msgspec.Struct, frozen=True):
    """A stored database.

    Attributes:
        key_groups: The first and last key group of its rows.
        specs: The columns and types of the tables.
        files: The name of each sorted file among the handle's shared files, by its name in the database.
        private: The bytes of all other files, by their names.
        cursors: For tables with a time to live, the key up to which expired rows were deleted last.
    """

    key_groups: tuple[KeyGroup, KeyGroup]
    specs: tuple[StoredSpec, ...]
    files: dict[str, str]
    private: dict[str, bytes]
    cursors: dict[str, bytes]


def encode_native(manifest: NativeManifest) -> bytes:
    """Encode a manifest."""
    content = _HEADER.pack(ROCKSDB_MAGIC, VERSION) + msgspec.msgpack.encode(manifest)
    return content + _CHECKSUM.pack(crc32c(content))


def decode_native(content: bytes, location: str = "") -> NativeManifest:
    """Decode a manifest; the bytes must begin with its magic.

    Raises:
        CheckpointCorruptedError: The bytes are truncated or changed.
        UnsupportedFormatError: The bytes are intact, but of a newer version.
    """
    end = len(content) - _CHECKSUM.size
    if end < _HEADER.size:
        message = f"{len(content)} bytes are too short for the manifest of a database"
        raise CheckpointCorruptedError(message, location)
    (expected,) = _CHECKSUM.unpack_from(content, end)
    actual = crc32c(memoryview(content)[:end])
    if actual != expected:
        message = (
            f"manifest of a database has checksum {actual:08x}, expected {expected:08x} (crc32c)"
        )
        raise CheckpointCorruptedError(message, location)
    _, version = _HEADER.unpack_from(content)
    if version != VERSION:
        message = f"manifest of a database of format version {version}; this Holdfast reads version {VERSION}"
        raise UnsupportedFormatError(f"{message}: upgrade Holdfast", location)
    try:
        manifest = _DECODER.decode(memoryview(content)[_HEADER.size : end])
        _check(manifest)
    except (msgspec.MsgspecError, pa.ArrowException, OSError, ValueError) as error:
        raise_shortage(error, location)
        message = f"manifest of a database can't be decoded ({error})"
        raise CheckpointCorruptedError(message, location) from error
    return manifest


_DECODER = message_pack_decoder(NativeManifest)


def _check(manifest: NativeManifest) -> None:
    """Raise `ValueError` for invalid tables, file names that leave the directory, or a missing CURRENT file."""
    for stored in manifest.specs:
        stored.spec()
    for name in (*manifest.files, *manifest.private):
        if not _FILE.fullmatch(name):
            message = f"invalid file name {name!r}"
            raise ValueError(message)
    if "CURRENT" not in manifest.private:
        raise ValueError("missing file CURRENT, without which RocksDB creates a new database")
