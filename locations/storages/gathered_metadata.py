"""The metadata stream of every storage: gathered in memory, then published at once."""

import threading
from abc import abstractmethod
from typing import Generic, TypeVar

from holdfast.errors import StreamClosedError
from holdfast.locations.file_systems import BytesLike
from holdfast.locations.storages.discarded_unless_kept import DiscardedUnlessKept

Completed = TypeVar("Completed")


class GatheredMetadataOutputStream(DiscardedUnlessKept, Generic[Completed]):
    """Metadata that is gathered in memory: it is small, and fits into one request to any store."""

    def __init__(self) -> None:
        self._content = bytearray()
        self._lock = threading.Lock()

    @abstractmethod
    def _publish(self, content: bytes) -> Completed:
        """Make the checkpoint exist."""

    def write(self, data: BytesLike, /) -> int:
        view = memoryview(data).cast("B")
        with self._lock:
            self._check_open()
            self._content += view
        return len(view)

    def close_and_finalize_checkpoint(self) -> Completed:
        with self._lock:
            self._check_open()
            self._finished = True
            content, self._content = bytes(self._content), bytearray()
        return self._publish(content)

    def close(self) -> None:
        with self._lock:
            self._finished = True
            self._content = bytearray()

    def _check_open(self) -> None:
        if self._finished:
            raise StreamClosedError("metadata stream is closed or discarded already")
