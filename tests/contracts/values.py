"""Scopes and content of state in tests of storages."""

from holdfast.locations.adapters import CheckpointedStateScope, StreamStateHandle

EXCLUSIVE = CheckpointedStateScope.EXCLUSIVE
SHARED = CheckpointedStateScope.SHARED


def read(handle: StreamStateHandle) -> bytes:
    """Return all bytes of a handle."""
    with handle.open_input_stream() as stream:
        return stream.read()
