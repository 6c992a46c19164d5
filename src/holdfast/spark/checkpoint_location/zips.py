"""Snapshots of RocksDB: a zip that names the files which hold the data.

<version>.zip
metadata       v1, then a line {"sstFiles":[{"dfsSstFileName":…,"sizeBytes":…},…],"logFiles":[…],…}
…              small files of RocksDB's own
SSTs/<dfsSstFileName>, logs/<dfsLogFileName>    beside the zip; several zips may name the same file
"""

import zipfile
from collections.abc import Callable
from typing import Any, BinaryIO

from holdfast.common import json_decoder, uripath
from holdfast.errors import CheckpointCorruptedError

_DESCRIPTION = "metadata"
_MAX_DESCRIPTION_BYTES = 64 << 20
"""Some 100 bytes for each file: those of a partition of many terabytes."""

_PARTS = (("sstFiles", "SSTs", "dfsSstFileName"), ("logFiles", "logs", "dfsLogFileName"))


def parts_of(path: str, opens: Callable[[], BinaryIO]) -> dict[str, int]:
    """Length in bytes of each file that a zip refers to, by its path.

    Args:
        path: The zip; what it refers to lies below the same directory.
        opens: Opens the zip.

    Raises:
        CheckpointCorruptedError: The file is no such zip.
    """
    directory = path.rpartition("/")[0]
    try:
        described = _description(opens)
        parts = {
            f"{directory}/{folder}/{part[name]}": int(part["sizeBytes"])
            for kind, folder, name in _PARTS
            for part in described.get(kind) or []
        }
    except (zipfile.BadZipFile, KeyError, ValueError, TypeError, EOFError) as error:
        message = f"a snapshot of RocksDB can't be read ({error!r})"
        raise CheckpointCorruptedError(message, path) from error
    for part in parts:
        if not uripath.is_path_below(part):
            message = (
                f"a snapshot of RocksDB names a file {part!a}, which is not below its directory"
            )
            raise CheckpointCorruptedError(message, path)
    return parts


def _description(opens: Callable[[], BinaryIO]) -> dict[str, Any]:
    with (
        opens() as stream,
        zipfile.ZipFile(stream) as archive,
        archive.open(_DESCRIPTION) as description,
    ):
        content = description.read(_MAX_DESCRIPTION_BYTES + 1)
    if len(content) > _MAX_DESCRIPTION_BYTES:
        message = f"its description has more than {_MAX_DESCRIPTION_BYTES} bytes"
        raise ValueError(message)
    _, _, text = content.decode().partition("\n")
    return json_decoder(dict[str, Any]).decode(text)
