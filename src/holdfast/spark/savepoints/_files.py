"""Files of a directory, many at a time: list them all and copy them."""

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from typing import BinaryIO, TypeVar

from holdfast.errors import OutcomeUnknownError
from holdfast.locations import (
    ByteStreamStateHandle,
    CheckpointedStateScope,
    CheckpointMetadata,
    CheckpointStorageLocation,
    FileStateHandle,
    StreamStateHandle,
    file_system_for,
    with_streams,
)
from holdfast.locations.storages import list_all
from holdfast.spark._files import created

_log = logging.getLogger(__name__)

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


def with_copies(
    metadata: CheckpointMetadata, copy: Callable[[FileStateHandle], StreamStateHandle]
) -> tuple[CheckpointMetadata, dict[str, StreamStateHandle]]:
    """The same with copies of all files of state, each copied once; and the copies by old URI."""
    files = {one.uri: one for one in metadata.streams() if isinstance(one, FileStateHandle)}
    copied = dict(zip(files, in_parallel(copy, list(files.values())), strict=True))

    def change(handle: StreamStateHandle) -> StreamStateHandle:
        return copied[handle.uri] if isinstance(handle, FileStateHandle) else handle

    return with_streams(metadata, change), copied


@contextmanager
def disposed_on_failure(location: CheckpointStorageLocation) -> Iterator[None]:
    """Leave nothing of a checkpoint or savepoint that can't be completed, unless it may exist."""
    try:
        yield
    except OutcomeUnknownError:
        raise  # it may exist
    except BaseException:
        try:
            location.dispose_on_failure()
        except Exception:  # noqa: BLE001  # the user has to see why there is none
            _log.warning("could not clean up %s", location.external_pointer, exc_info=True)
        raise


def chunks(stream: BinaryIO) -> Iterator[bytes]:
    """The rest of a stream, at most a MiB at a time."""
    while chunk := stream.read(_CHUNK_BYTES):
        yield chunk


def in_parallel(action: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
    """Do it with every item, some at a time; the results in order, or a failure at once."""
    pool = ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="holdfast-savepoint")
    try:
        # In a copy of the context: the deadline of retries is in it.
        running = [pool.submit(copy_context().run, action, item) for item in items]
        done, _ = wait(running, return_when=FIRST_EXCEPTION)
        failure = next((error for one in done if (error := one.exception())), None)
        if failure is not None:
            raise failure
        return [one.result() for one in running]
    finally:
        pool.shutdown(cancel_futures=True)  # after a failure the rest is of no use
