"""Local copies of segments are completed between batches: their missing blocks are fetched while no task runs."""

import logging
import os
import threading
from collections.abc import Iterable
from typing import NamedTuple

from holdfast.backends.keyed.segments.partial_segment import FetchPolicy, PartialSegment
from holdfast.common import map_in_parallel
from holdfast.errors import CheckpointError
from holdfast.locations.file_systems import retry_deadline
from holdfast.locations.handles import FileStateHandle

_log = logging.getLogger(__name__)

_MAX_RETRY_S = 5.0
"""A copy whose blocks can't be fetched for this time is left to the batches that need them."""

_TAIL_BYTES = 64 << 10
"""Bytes that contain most trailers. Manifests, which have the lengths of tails, are not read here."""

_POLICY = FetchPolicy(gap_bytes=0, part_bytes=2 << 20, max_requests=4)
"""Few and small requests at a time, because a task that starts waits for them."""


class MissingCopy(NamedTuple):
    """A segment, its file in storage, and the path of its complete local copy, which may be missing."""

    name: str
    handle: FileStateHandle
    path: str


class Completion:
    """The copies that a process completes, in a thread that ends with the process.

    A host has several processes. Each locks the copy that it completes, and the system unlocks it when the process
    ends. Then the copy stays partial, and the next task or process of the host continues from its blocks.

    A full disk, a deleted segment and an unavailable store only end the completion of that copy.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._copies: dict[str, MissingCopy] = {}
        self._checkpoint_id = 0
        self._room_bytes = 0
        self._is_paused = True
        self._thread: threading.Thread | None = None

    def pause(self) -> None:
        """Start no more requests, because a task starts."""
        with self._condition:
            self._is_paused = True

    def resume(self, checkpoint_id: int, copies: Iterable[MissingCopy], room_bytes: int) -> None:
        """Complete these copies, and those of other tasks of the same checkpoint, smallest first.

        Args:
            checkpoint_id: The checkpoint that a task has written. Copies of other checkpoints are forgotten.
            copies: Copies that the task's state needs.
            room_bytes: Maximum number of bytes to fetch.
        """
        with self._condition:
            if checkpoint_id != self._checkpoint_id:
                self._copies = {}
            self._checkpoint_id = checkpoint_id
            missing = [each for each in copies if not os.path.exists(each.path)]
            self._copies.update({each.name: each for each in missing})
            self._room_bytes = room_bytes
            self._is_paused = False
            if self._copies and self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="holdfast-completion", daemon=True
                )
                self._thread.start()
            self._condition.notify()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._copies and not self._is_paused)
                copy = min(self._copies.values(), key=lambda each: each.handle.size)
            is_done = True
            try:
                with retry_deadline(_MAX_RETRY_S):
                    is_done = self._complete(copy)
            except (CheckpointError, OSError) as error:
                _log.info("the local copy of segment %s stays partial: %s", copy.name, error)
            if is_done:
                with self._condition:
                    self._copies.pop(copy.name, None)

    def _complete(self, copy: MissingCopy) -> bool:
        """Fetch the missing blocks of a copy; return False if a task has started before it was complete."""
        segment = PartialSegment(copy.name, copy.handle, _TAIL_BYTES, copy.path, _POLICY)
        if not segment.lock():
            return True
        requests = segment.requests_for(segment.all_blocks)
        for at in range(0, len(requests), _POLICY.max_requests):
            step = requests[at : at + _POLICY.max_requests]
            with self._condition:
                if self._is_paused:
                    return False
                self._room_bytes -= sum(request.size for request in step)
                if self._room_bytes < 0:
                    self._copies = {}
                    return True
            map_in_parallel(lambda request: request.send(), step)
            if not segment.is_on_disk:
                return True
        segment.keep_if_complete()
        return True
