"""Files of a directory: list them all, open and write them."""

from collections.abc import Callable
from functools import partial
from typing import BinaryIO

from holdfast.locations.coordination import chunks
from holdfast.locations.file_systems import file_system_for
from holdfast.locations.handles import StreamStateHandle
from holdfast.locations.storages import list_all
from holdfast.spark.checkpoint_location.small_files import created


def tree(directory: str) -> dict[str, int]:
    """Length in bytes of every file below a directory, by its path relative to that."""
    sizes: dict[str, int] = {}
    level = [directory]
    while level:
        entries = list_all(level)
        level = [entry.uri for entry in entries if entry.is_directory]
        files = (entry for entry in entries if not entry.is_directory)
        sizes.update((entry.uri.removeprefix(f"{directory}/"), entry.size) for entry in files)
    return sizes


def opened(uri: str) -> Callable[[], BinaryIO]:
    """Returns a function that opens a file without a checksum of ours."""
    return partial(file_system_for(uri).open, uri)


def materialised(handle: StreamStateHandle, uri: str) -> None:
    """Write the bytes behind a handle, verified, into a file under a free name."""
    with handle.open_input_stream() as source, created(uri) as append:
        for chunk in chunks(source):
            append(chunk)
