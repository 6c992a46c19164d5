"""Small files of a checkpointLocation, by Holdfast's own file systems."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import msgspec

from holdfast.common import json_decoder, uripath
from holdfast.errors import CheckpointCorruptedError
from holdfast.locations.file_systems import file_system_for

_T = TypeVar("_T")


def names_in(directory: str) -> frozenset[str]:
    """Names of what is directly in a directory."""
    entries = file_system_for(directory).list(directory)
    return frozenset(uripath.name(entry.uri) for entry in entries)


def read(uri: str) -> bytes:
    """A small file. Raises `CheckpointNotFoundError`."""
    with file_system_for(uri).open(uri) as stream:
        return stream.read()


def read_text(uri: str) -> str:
    """A small file of text. Raises `CheckpointNotFoundError`, `CheckpointCorruptedError`."""
    try:
        return read(uri).decode()
    except UnicodeDecodeError as error:
        raise CheckpointCorruptedError(f"file is no text ({error})", uri) from error


def read_json(uri: str, kind: type[_T], *, what: str) -> _T:
    """A small file of JSON, as a value of that type.

    Args:
        uri: The file.
        kind: The type.
        what: Says in an error what the file is.

    Raises:
        CheckpointNotFoundError: There is no such file.
        CheckpointCorruptedError: The file is no such JSON.
    """
    try:
        return json_decoder(kind).decode(read(uri))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CheckpointCorruptedError(f"{what} can't be read ({error})", uri) from error


def read_json_in(directory: str, name: str, kind: type[_T], *, what: str) -> _T | None:
    """A small file of JSON in a directory, as `read_json` gives it; None if there is no such file."""
    if name not in names_in(directory):
        return None
    return read_json(f"{directory}/{name}", kind, what=what)


def write(uri: str, content: bytes) -> None:
    """Write a small file under a free name."""
    with created(uri) as append:
        append(content)


@contextmanager
def created(uri: str) -> Iterator[Callable[[bytes], None]]:
    """A new file, whole once the block is left without an error; nothing is left of it else."""
    stream = file_system_for(uri).create(uri)
    try:
        yield stream.write
        stream.commit()
    finally:
        stream.abort()


def replace(uri: str, content: bytes) -> None:
    """Write a small file anew. For a moment there is none."""
    delete([uri])
    write(uri, content)


def delete(uris: Iterable[str]) -> None:
    """Delete files, and the checksums that Hadoop keeps beside them on local disks."""
    files = list(uris)
    if files:
        beside = [
            uripath.join(uripath.parent(file), f".{uripath.name(file)}.crc")
            for file in files
            if uripath.scheme(file) == "file"
        ]
        file_system_for(files[0]).delete([*files, *beside])
