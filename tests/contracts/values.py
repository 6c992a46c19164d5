"""What several tests of storages need."""

from holdfast.locations.adapters import CheckpointedStateScope, StreamStateHandle

EXCLUSIVE = CheckpointedStateScope.EXCLUSIVE
SHARED = CheckpointedStateScope.SHARED


def read(handle: StreamStateHandle) -> bytes:
    """All bytes behind a handle."""
    with handle.open_input_stream() as stream:
        return stream.read()
