"""Snapshots of RocksDB: a zip that names the files which hold the data."""

import zipfile
from collections.abc import Callable
from typing import Any, BinaryIO

import msgspec

from holdfast.errors import CheckpointCorruptedError

_DESCRIPTION = "metadata"
_PARTS = (("sstFiles", "SSTs", "dfsSstFileName"), ("logFiles", "logs", "dfsLogFileName"))


def parts_of(path: str, opens: Callable[[], BinaryIO]) -> dict[str, int]:
    """Length in bytes of each file that a zip refers to, by its path.

    Args:
        path: The zip; what it refers to lies below the same directory.
        opens: Opens it.

    Raises:
        CheckpointCorruptedError: It is no such zip.
    """
    directory = path.rpartition("/")[0]
    try:
        with opens() as stream, zipfile.ZipFile(stream) as archive:
            _, _, text = archive.read(_DESCRIPTION).decode().partition("\n")
        described = msgspec.json.decode(text, type=dict[str, Any])
        return {
            f"{directory}/{folder}/{one[name]}": int(one["sizeBytes"])
            for kind, folder, name in _PARTS
            for one in described.get(kind) or []
        }
    except (zipfile.BadZipFile, KeyError, ValueError, TypeError, EOFError) as error:
        message = f"a snapshot of RocksDB can't be read ({error!r})"
        raise CheckpointCorruptedError(message, path) from error
