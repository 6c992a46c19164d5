"""The manifest of a stored database: its files and tables. Pure, no I/O.

Its bytes are a MessagePack map by field names in a `Frame` with the magic "HOLDRKDB".
"""

import re

import msgspec
import pyarrow as pa

from holdfast.backends.keyed.segments import ROCKSDB_MAGIC, StoredSpec
from holdfast.common import Frame, KeyGroup, message_pack_decoder, raise_shortage
from holdfast.errors import CheckpointCorruptedError

_FRAME = Frame(ROCKSDB_MAGIC, version=1, name="manifest of a database")
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
    return _FRAME.encode(msgspec.msgpack.encode(manifest))


def decode_native(content: bytes, location: str = "") -> NativeManifest:
    """Decode a manifest.

    Raises:
        CheckpointCorruptedError: The bytes are not a manifest, or are truncated or changed.
        UnsupportedFormatError: The bytes are intact, but of another version.
    """
    body = _FRAME.decode(content, location)
    try:
        manifest = _DECODER.decode(body)
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
