"""Files that several checkpoints refer to: who still does, and when they can go."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.errors import InvalidRequestError
from holdfast.locations.handles import FileStateHandle


@dataclass(slots=True)
class _Entry:
    handle: FileStateHandle
    last_used: int


class SharedStateRegistry:
    """Knows the last checkpoint that refers to each shared file, and deletes files that none refers to.

    Args:
        delete: Deletes a file that no checkpoint refers to; it may do that later.

    Source:
        Flink, SharedStateRegistryImpl; a file is known by its URI, which is never used twice.
    """

    def __init__(self, delete: Callable[[FileStateHandle], None]) -> None:
        self._delete = delete
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}

    def register(self, handle: FileStateHandle, checkpoint_id: int) -> None:
        """Note that a checkpoint refers to a file.

        Raises:
            InvalidRequestError: Another handle has that URI.
        """
        with self._lock:
            entry = self._entries.setdefault(handle.uri, _Entry(handle, checkpoint_id))
            if entry.handle != handle:
                message = "shared file is registered already with another length or checksum"
                raise InvalidRequestError(message, handle.uri)
            entry.last_used = max(entry.last_used, checkpoint_id)

    def unregister_unused(self, lowest_id: int) -> None:
        """Delete the files that no checkpoint from an id on refers to."""
        with self._lock:
            unused = [
                entry.handle for entry in self._entries.values() if entry.last_used < lowest_id
            ]
            for handle in unused:
                del self._entries[handle.uri]
        for handle in unused:
            self._delete(handle)
