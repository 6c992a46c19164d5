"""Files of a checkpointLocation, read, written and listed with the file systems of Holdfast.

A snapshot of Spark's RocksDB state store is a zip that refers to more files:

    <version>.zip
        metadata       v1, then a line {"sstFiles":[{"dfsSstFileName":…,"sizeBytes":…},…],"logFiles":[…],…}
        …              small files of RocksDB
    SSTs/<dfsSstFileName>, logs/<dfsLogFileName>    next to the zip; several zips may refer to the same file
"""

import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, BinaryIO, TypeVar

import msgspec

from holdfast.common import chunks, json_decoder, uripath
from holdfast.errors import CheckpointCorruptedError
from holdfast.locations.file_systems import file_system_for
from holdfast.locations.handles import StreamStateHandle
from holdfast.locations.storages import list_all

_T = TypeVar("_T")

_ZIP_METADATA = "metadata"
_MAX_ZIP_METADATA_BYTES = 64 << 20
"""Some 100 bytes for each file: enough for a partition of many terabytes."""

_ZIP_PARTS = (("sstFiles", "SSTs", "dfsSstFileName"), ("logFiles", "logs", "dfsLogFileName"))


def names_in(directory: str) -> frozenset[str]:
    """Return the names of the entries of a directory."""
    entries = file_system_for(directory).list(directory)
    return frozenset(uripath.name(entry.uri) for entry in entries)


def tree(directory: str) -> dict[str, int]:
    """Return the length in bytes of every file below a directory, by its path relative to the directory."""
    sizes: dict[str, int] = {}
    level = [directory]
    while level:
        entries = list_all(level)
        level = [entry.uri for entry in entries if entry.is_directory]
        files = (entry for entry in entries if not entry.is_directory)
        sizes.update((entry.uri.removeprefix(f"{directory}/"), entry.size) for entry in files)
    return sizes


def opener(uri: str) -> Callable[[], BinaryIO]:
    """Return a function that opens a file, without a checksum to verify it."""
    return partial(file_system_for(uri).open, uri)


def read(uri: str) -> bytes:
    """Read a small file. Raises `CheckpointNotFoundError`."""
    with file_system_for(uri).open(uri) as stream:
        return stream.read()


def read_text(uri: str) -> str:
    """Read a small text file. Raises `CheckpointNotFoundError`, `CheckpointCorruptedError`."""
    try:
        return read(uri).decode()
    except UnicodeDecodeError as error:
        raise CheckpointCorruptedError(f"file is not text ({error})", uri) from error


def read_json(uri: str, type: type[_T], *, description: str) -> _T:
    """Read a small JSON file. Raises `CheckpointNotFoundError`, `CheckpointCorruptedError` with the description."""
    try:
        return json_decoder(type).decode(read(uri))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CheckpointCorruptedError(f"{description} can't be read ({error})", uri) from error


def read_json_in(directory: str, name: str, type: type[_T], *, description: str) -> _T | None:
    """Read a small JSON file in a directory as `read_json` does; None if there is no such file."""
    if name not in names_in(directory):
        return None
    return read_json(f"{directory}/{name}", type, description=description)


def write(uri: str, content: bytes) -> None:
    """Write a small file that does not exist yet."""
    with _create(uri) as append:
        append(content)


def write_stream(handle: StreamStateHandle, uri: str) -> None:
    """Copy the bytes of a handle, verified, to a file that does not exist yet."""
    with handle.open_input_stream() as source, _create(uri) as append:
        for chunk in chunks(source):
            append(chunk)


def replace(uri: str, content: bytes) -> None:
    """Delete a small file, if it exists, and write it again. Readers may find no file in between."""
    delete([uri])
    write(uri, content)


def delete(uris: Iterable[str]) -> None:
    """Delete files, and the checksum files that Hadoop keeps next to them on local disks."""
    files = list(uris)
    if files:
        checksums = [
            uripath.join(uripath.parent(file), f".{uripath.name(file)}.crc")
            for file in files
            if uripath.scheme(file) == "file"
        ]
        file_system_for(files[0]).delete([*files, *checksums])


def zip_parts(path: str, open_zip: Callable[[], BinaryIO]) -> dict[str, int]:
    """Return the length in bytes of each file that a RocksDB snapshot refers to, by its path.

    Raises:
        CheckpointCorruptedError: The file is not such a zip.
    """
    directory = path.rpartition("/")[0]
    try:
        metadata = _read_zip_metadata(open_zip)
        parts = {
            f"{directory}/{folder}/{part[name]}": int(part["sizeBytes"])
            for key, folder, name in _ZIP_PARTS
            for part in metadata.get(key) or []
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


@contextmanager
def _create(uri: str) -> Iterator[Callable[[bytes], None]]:
    """Create a file that appears as a whole when the block ends, and not at all if the block fails."""
    stream = file_system_for(uri).create(uri)
    try:
        yield stream.write
        stream.commit()
    finally:
        stream.abort()


def _read_zip_metadata(open_zip: Callable[[], BinaryIO]) -> dict[str, Any]:
    with (
        open_zip() as stream,
        zipfile.ZipFile(stream) as archive,
        archive.open(_ZIP_METADATA) as metadata,
    ):
        content = metadata.read(_MAX_ZIP_METADATA_BYTES + 1)
    if len(content) > _MAX_ZIP_METADATA_BYTES:
        message = f"its description has more than {_MAX_ZIP_METADATA_BYTES} bytes"
        raise ValueError(message)
    _, _, text = content.decode().partition("\n")
    return json_decoder(dict[str, Any]).decode(text)
