"""State streams that end up in handles."""

import io
import threading
from dataclasses import dataclass

from holdfast.errors import InvalidRequestError, StreamClosedError
from holdfast.locations.file_systems import BytesLike
from holdfast.locations.handles import ByteStreamStateHandle
from holdfast.locations.storages.contract import CheckpointedStateScope
from holdfast.locations.storages.discarded_unless_kept import DiscardedUnlessKept


class MemoryCheckpointOutputStream(DiscardedUnlessKept):
    """State gathered in memory, up to a limit.

    Source:
        Flink, MemCheckpointStreamFactory.MemoryCheckpointOutputStream. Ours fails at the first
        byte over the limit, refuses writes after `close`, and takes an empty write for nothing.
    """

    def __init__(self, max_state_bytes: int) -> None:
        self._max_state_bytes = max_state_bytes
        self._data = io.BytesIO()
        self._lock = threading.Lock()

    def write(self, data: BytesLike, /) -> int:
        view = memoryview(data).cast("B")
        with self._lock:
            self._check_open()
            if self._data.tell() + len(view) > self._max_state_bytes:
                message = (
                    f"state has more than the {self._max_state_bytes} bytes that memory storage "
                    "takes for one state; use a checkpoint directory"
                )
                raise InvalidRequestError(message)
            self._data.write(view)
        return len(view)

    def tell(self) -> int:
        return self._data.tell()

    def flush(self) -> None:
        """Nothing to hand on: memory has no files."""
        self._check_open()

    flush_to_file = flush
    sync = flush

    def close_and_get_handle(self) -> ByteStreamStateHandle | None:
        with self._lock:
            self._check_open()
            self._finished = True
            content = self._data.getvalue()  # shared, not copied
            return ByteStreamStateHandle(content) if content else None

    def close(self) -> None:
        with self._lock:
            self._finished = True
            self._data = io.BytesIO()

    def _check_open(self) -> None:
        if self._finished:
            raise StreamClosedError("state stream is closed or discarded already")


@dataclass(frozen=True, slots=True)
class MemoryCheckpointStreamFactory:
    """Makes streams that gather state in memory."""

    max_state_bytes: int

    def create_checkpoint_state_output_stream(
        self, _scope: CheckpointedStateScope, /
    ) -> MemoryCheckpointOutputStream:
        return MemoryCheckpointOutputStream(self.max_state_bytes)
