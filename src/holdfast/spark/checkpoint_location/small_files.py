"""Small files of a checkpointLocation, by Holdfast's own file systems."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from holdfast.common import uripath
from holdfast.errors import CheckpointCorruptedError
from holdfast.locations.file_systems import file_system_for


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
            uripath.join(uripath.parent(one), f".{uripath.name(one)}.crc")
            for one in files
            if uripath.scheme(one) == "file"
        ]
        file_system_for(files[0]).delete([*files, *beside])
