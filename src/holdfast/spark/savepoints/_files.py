"""Files of a directory, many at a time: list them all, copy them, write and delete them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from typing import BinaryIO, TypeVar

from holdfast.locations import (
    ByteStreamStateHandle,
    CheckpointedStateScope,
    CheckpointStorageLocation,
    StreamStateHandle,
    file_system_for,
)
from holdfast.locations.storages import list_all

_AT_A_TIME = 8
_CHUNK_BYTES = 1 << 20

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def tree(directory: str) -> dict[str, int]:
    """Length in bytes of every file below a directory, by its path relative to that."""
    found: dict[str, int] = {}
    level = [directory]
    while level:
        entries = list_all(level)
        level = [entry.uri for entry in entries if entry.is_directory]
        files = (entry for entry in entries if not entry.is_directory)
        found.update((entry.uri.removeprefix(f"{directory}/"), entry.size) for entry in files)
    return found


def names_in(directory: str) -> frozenset[str]:
    """Names of what is directly in a directory."""
    entries = file_system_for(directory).list(directory)
    return frozenset(entry.uri.rpartition("/")[2] for entry in entries)


def read(uri: str) -> bytes:
    """A small file. Raises `CheckpointNotFoundError`."""
    with file_system_for(uri).open(uri) as stream:
        return stream.read()


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
        beside = [f"{one.rpartition('/')[0]}/.{one.rpartition('/')[2]}.crc" for one in files]
        file_system_for(files[0]).delete([*files, *beside])


def opened(uri: str) -> Callable[[], BinaryIO]:
    """What opens a file that has no checksum of ours."""
    return partial(file_system_for(uri).open, uri)


def stored(opens: Callable[[], BinaryIO], location: CheckpointStorageLocation) -> StreamStateHandle:
    """Copy bytes into a checkpoint or savepoint that is being made."""
    with (
        opens() as source,
        location.create_checkpoint_state_output_stream(CheckpointedStateScope.EXCLUSIVE) as target,
    ):
        for chunk in chunks(source):
            target.write(chunk)
        return target.close_and_get_handle() or ByteStreamStateHandle(b"")


def materialised(handle: StreamStateHandle, uri: str) -> None:
    """Write the bytes behind a handle, verified, into a file under a free name."""
    with handle.open_input_stream() as source, created(uri) as append:
        for chunk in chunks(source):
            append(chunk)


def chunks(stream: BinaryIO) -> Iterator[bytes]:
    """The rest of a stream, at most a MiB at a time."""
    while chunk := stream.read(_CHUNK_BYTES):
        yield chunk


def in_parallel(action: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
    """Do it with every item, some at a time; the results in order, or the first failure."""
    pool = ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="holdfast-savepoint")
    try:
        # In a copy of the context: the deadline of retries is in it.
        running = [pool.submit(copy_context().run, action, item) for item in items]
        return [one.result() for one in running]
    finally:
        pool.shutdown(cancel_futures=True)  # after a failure the rest is of no use
