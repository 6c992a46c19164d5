"""The streams that a snapshot writes."""

import threading
from concurrent.futures import CancelledError

from holdfast.common import collect_failures
from holdfast.locations.handles import StreamStateHandle
from holdfast.locations.storages import (
    CheckpointedStateScope,
    CheckpointStateOutputStream,
    CheckpointStreamFactory,
)


class SnapshotStreams:
    """The streams of one snapshot. Streams that don't get into its result are discarded.

    Args:
        factory: Opens streams in the checkpoint's location.
    """

    def __init__(self, factory: CheckpointStreamFactory) -> None:
        self._factory = factory
        self._lock = threading.Lock()
        self._is_closed = False
        self._open: list[CheckpointStateOutputStream] = []
        self._finished: list[StreamStateHandle] = []

    def open(self, scope: CheckpointedStateScope) -> CheckpointStateOutputStream:
        """A stream for state of this checkpoint alone (exclusive), or of later ones too (shared).

        Raises:
            CancelledError: The snapshot was cancelled.
            StorageUnavailableError: The store did not take it.
        """
        stream = self._factory.create_checkpoint_state_output_stream(scope)
        with self._lock:
            if not self._is_closed:
                self._open.append(stream)
                return stream
        stream.close()
        raise CancelledError

    def finish(self, stream: CheckpointStateOutputStream) -> StreamStateHandle | None:
        """Close a stream successfully; None if nothing was written."""
        handle = stream.close_and_get_handle()
        if handle is not None:
            self._finished.append(handle)
        return handle

    def close(self) -> None:
        """Discard the streams that are open. Never raises."""
        with self._lock:
            self._is_closed = True
            streams, self._open = self._open, []
        for stream in streams:
            stream.close()

    def discard(self) -> None:
        """Discard the streams that are open, and delete the finished ones, as far as possible."""
        self.close()
        collect_failures(lambda handle: handle.discard_state(), self._finished)
