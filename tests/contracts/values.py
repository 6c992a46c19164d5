"""What several tests of storages need."""

from holdfast.locations.adapters import CheckpointedStateScope, StreamStateHandle, file_system_for

EXCLUSIVE = CheckpointedStateScope.EXCLUSIVE


def read(handle: StreamStateHandle) -> bytes:
    """All bytes behind a handle."""
    with handle.open_input_stream() as stream:
        return stream.read()


def files_below(directory: str) -> set[str]:
    """URIs of all files below a directory."""
    files = set()
    for entry in file_system_for(directory).list(directory):
        files |= files_below(entry.uri) if entry.is_directory else {entry.uri}
    return files
