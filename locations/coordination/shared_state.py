"""Files that several checkpoints refer to: who still does, and when they can go."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.errors import InvalidRequestError
from holdfast.locations.handles import FileStateHandle


@dataclass(slots=True)
class _Entry:
    handle: FileStateHandle
    created_by: int
    last_used: int
    lies_in_checkpoint: bool


class SharedStateRegistry:
    """Knows the last checkpoint that refers to each shared file, and deletes those of none.

    Args:
        delete: Deletes a file that no checkpoint refers to; it may do that later.

    Source:
        Flink, SharedStateRegistryImpl; a file is known by its URI, which is never used twice.
    """

    def __init__(self, delete: Callable[[FileStateHandle], None]) -> None:
        self._delete = delete
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        self._highest_not_claimed = -1
        self._closed = False

    def register(
        self, handle: FileStateHandle, checkpoint_id: int, *, lies_in_checkpoint: bool = False
    ) -> FileStateHandle:
        """Note that a checkpoint refers to a file.

        Args:
            handle: The file.
            checkpoint_id: The checkpoint.
            lies_in_checkpoint: Whether the file is in that checkpoint's own directory, which then
                has to stay as long as the file is referred to.

        Returns:
            The handle that was registered first.

        Raises:
            InvalidRequestError: Another handle has that URI, or the registry is closed.
        """
        with self._lock:
            self._check_open()
            entry = self._entries.setdefault(
                handle.uri, _Entry(handle, checkpoint_id, checkpoint_id, lies_in_checkpoint)
            )
            if entry.handle != handle:
                message = "shared file is registered already with another length or checksum"
                raise InvalidRequestError(message, handle.uri)
            entry.last_used = max(entry.last_used, checkpoint_id)
            return entry.handle

    def reuse(self, uri: str, checkpoint_id: int) -> FileStateHandle:
        """Note that a checkpoint refers to a file that an earlier one has registered.

        Raises:
            InvalidRequestError: It is not known, or the registry is closed.
        """
        with self._lock:
            self._check_open()
            entry = self._entries.get(uri)
            if entry is None:
                raise InvalidRequestError("shared file is not known to any checkpoint", uri)
            entry.last_used = max(entry.last_used, checkpoint_id)
            return entry.handle

    def knows(self, uri: str) -> bool:
        """Whether a checkpoint refers to the file."""
        with self._lock:
            return uri in self._entries

    def protect_up_to(self, checkpoint_id: int) -> None:
        """Never delete what checkpoints up to this one created: they belong to somebody else."""
        with self._lock:
            self._highest_not_claimed = max(self._highest_not_claimed, checkpoint_id)

    def unregister_unused(self, lowest_id: int) -> frozenset[int]:
        """Delete what no checkpoint from an id on refers to.

        Returns:
            Ids of older checkpoints whose own directories hold files that are still in use.
        """
        with self._lock:
            self._check_open()
            unused = [
                entry
                for entry in self._entries.values()
                if entry.last_used < lowest_id and entry.created_by > self._highest_not_claimed
            ]
            for entry in unused:
                del self._entries[entry.handle.uri]
            in_use = frozenset(
                entry.created_by
                for entry in self._entries.values()
                if entry.lies_in_checkpoint and entry.created_by < lowest_id
            )
        for entry in unused:
            if not entry.lies_in_checkpoint:  # else it goes with its directory
                self._delete(entry.handle)
        return in_use

    def close(self) -> None:
        """Refuse everything from now on; deletes nothing."""
        with self._lock:
            self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidRequestError("registry of shared state is closed")
