"""Files of a checkpointLocation, read, written and listed with the file systems of Holdfast.

Directly in the directory are:

    metadata                     {"id":"6d5f…"}: Spark's id of the query. While a restore or a rollback is not
                                 finished there is no id, which keeps Spark from starting the query.
    holdfast.json                {"checkpoint_dir":"s3://bucket/holdfast","job_id":"totals","storage":"filesystem"}
    holdfast-application.json    {"application_id":"6d5f…-91c0…"}, of a query that was rolled back or restored
    holdfast-unfinished.json     a restore or a rollback in progress, see `savepoints`

Sinks such as Delta skip a batch whose id they have already seen from an application. A rollback and a restore run
batch ids again with other rows, so each of them writes the application id before Spark may start the query. A query
without that file has its query id as application id. Savepoints copy neither the application id nor the last file.

A snapshot of Spark's RocksDB state store is a zip that refers to more files:

    <version>.zip
        metadata       v1, then a line {"sstFiles":[{"dfsSstFileName":…,"sizeBytes":…},…],"logFiles":[…],…}
        …              small files of RocksDB
    SSTs/<dfsSstFileName>, logs/<dfsLogFileName>    next to the zip; several zips may refer to the same file
"""

import zipfile
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, BinaryIO, TypeVar

import msgspec

from holdfast.common import chunks, json_decoder, uripath
from holdfast.errors import CheckpointCorruptedError, InvalidRequestError
from holdfast.locations.file_systems import create_file, file_system_for
from holdfast.locations.handles import StreamStateHandle
from holdfast.locations.storages import list_all

METADATA = "metadata"
LINK_FILE = "holdfast.json"
APPLICATION_FILE = "holdfast-application.json"
UNFINISHED_FILE = "holdfast-unfinished.json"

_T = TypeVar("_T")

_ZIP_METADATA = "metadata"
_MAX_ZIP_METADATA_BYTES = 64 << 20
"""Some 100 bytes for each file: enough for a partition of many terabytes."""

_ZIP_PARTS = (("sstFiles", "SSTs", "dfsSstFileName"), ("logFiles", "logs", "dfsLogFileName"))


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """The location of a query's checkpoints.

    Attributes:
        checkpoint_dir: URI of the directory with the jobs' directories; None if there is no such directory.
        storage: `filesystem` or `memory`.
    """

    checkpoint_dir: str | None
    job_id: str
    storage: str


class _Metadata(msgspec.Struct):
    """The part of `metadata` that is read; Spark may store more."""

    id: str


class _Application(msgspec.Struct, frozen=True):
    application_id: str


_METADATA_DECODER = json_decoder(_Metadata)
_APPLICATION_DECODER = json_decoder(_Application)


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
    with create_file(file_system_for(uri), uri) as append:
        append(content)


def write_stream(handle: StreamStateHandle, uri: str) -> None:
    """Copy the bytes of a handle, verified, to a file that does not exist yet."""
    with handle.open_input_stream() as source, create_file(file_system_for(uri), uri) as append:
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


def encode_link(link: Link) -> str:
    """Return the text of `holdfast.json`."""
    return msgspec.json.encode(link).decode()


def read_link(checkpoint_location: str) -> Link | None:
    """Read the link to a query's checkpoints; None if the query has had no operators."""
    return read_json_in(
        checkpoint_location, LINK_FILE, Link, description="link to the query's checkpoints"
    )


def has_link(checkpoint_location: str) -> bool:
    """Return whether a query has had operators, according to its checkpointLocation."""
    return LINK_FILE in names_in(checkpoint_location)


def query_id_of(checkpoint_location: str) -> str:
    """Return Spark's id of the query that a checkpointLocation belongs to.

    Raises:
        InvalidRequestError: The directory is not the checkpointLocation of a query.
        CheckpointCorruptedError: The file has no id: a restore or a rollback is not finished.
    """
    if METADATA not in names_in(checkpoint_location):
        message = "no query has its checkpointLocation here: there is no 'metadata' file"
        raise InvalidRequestError(message, checkpoint_location, kind="no-query")
    uri = f"{checkpoint_location}/{METADATA}"
    try:
        return _METADATA_DECODER.decode(read(uri)).id
    except msgspec.MsgspecError as error:
        message = (
            "query's id can't be read; if a restore or a rollback was interrupted here, repeat it "
            f"first ({error})"
        )
        raise CheckpointCorruptedError(message, uri, kind="unfinished") from error


def with_query_id(content: bytes, query_id: str) -> str:
    """Return the content of `metadata` with another query id. Raises `CheckpointCorruptedError`."""
    try:
        metadata = json_decoder(dict[str, object]).decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        message = f"Spark's file {METADATA!r} can't be read ({error})"
        raise CheckpointCorruptedError(message) from error
    return msgspec.json.encode(metadata | {"id": query_id}).decode()


def encode_application(query_id: str, token: str) -> bytes:
    """Return the content of `holdfast-application.json`, with an application id that no query has had.

    The token is random, but the same when an interrupted rollback or restore is repeated.
    """
    return msgspec.json.encode(_Application(f"{query_id}-{token}"))


def decode_application(content: bytes | str, *, uri: str) -> str:
    """Return the application id in the content of `holdfast-application.json`. Raises `CheckpointCorruptedError`."""
    try:
        return _APPLICATION_DECODER.decode(content).application_id
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CheckpointCorruptedError(f"application id can't be read ({error})", uri) from error


def zip_parts(path: str, open_zip: Callable[[], BinaryIO]) -> dict[str, int]:
    """Return the length in bytes of each file that a RocksDB snapshot refers to, by its path, or `CheckpointCorruptedError`."""
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


def _read_zip_metadata(open_zip: Callable[[], BinaryIO]) -> dict[str, Any]:
    with (
        open_zip() as stream,
        zipfile.ZipFile(stream) as archive,
        archive.open(_ZIP_METADATA) as metadata,
    ):
        content = metadata.read(_MAX_ZIP_METADATA_BYTES + 1)
    if len(content) > _MAX_ZIP_METADATA_BYTES:
        raise ValueError(f"its description has more than {_MAX_ZIP_METADATA_BYTES} bytes")
    _, _, text = content.decode().partition("\n")
    return json_decoder(dict[str, Any]).decode(text)
