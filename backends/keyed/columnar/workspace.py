"""Files and memory that a worker keeps from one batch to the next, for all subtasks that it runs."""

import os
from collections import OrderedDict

import numpy as np
import numpy.typing as npt

from holdfast.backends.keyed.segments import Segment

_LEAST_BYTES = 8 << 20
_ALIGNMENT = 64
_MAX_OWNERS = 1024
"""Owners whose segments are known; a worker has few at a time, and sees more when a cluster moves subtasks."""


class Arena:
    """Memory that merges write to, used again by the next snapshot: new pages cost more than merging.

    What a large merge has needed is given back when no other large one comes.

    Args:
        most_bytes: Where more is needed, it is new.
    """

    def __init__(self, most_bytes: int = 64 << 20) -> None:
        self._most_bytes = most_bytes
        self._buffer = np.empty(0, np.uint8)
        self._end = 0
        self._needed = 0  # lately: what was needed long ago counts less

    @property
    def size(self) -> int:
        """Bytes that it holds."""
        return len(self._buffer)

    def reset(self) -> None:
        """Make all memory free again: nobody may use what was given out before."""
        self._needed = max(self._end, self._needed - self._needed // 16)
        if self.size > max(_LEAST_BYTES, 4 * self._needed):
            self._buffer = np.empty(0, np.uint8)
        self._end = 0

    def array(self, length: int, dtype: npt.DTypeLike) -> npt.NDArray[np.generic]:
        """An array with anything in it."""
        dtype = np.dtype(dtype)
        size = -(-length * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        if self._end + size > self._most_bytes:
            return np.empty(length, dtype)
        if self._end + size > len(self._buffer):
            wanted = max(_LEAST_BYTES, 2 * (self._end + size))
            self._buffer = np.empty(
                min(self._most_bytes, wanted), np.uint8
            )  # arrays keep the old memory
            self._end = 0
        part = self._buffer[self._end : self._end + length * dtype.itemsize]
        self._end += size
        return part.view(dtype)

    def release(self) -> None:
        """Give all memory back; arrays that were given out keep theirs."""
        self._buffer = np.empty(0, np.uint8)
        self._end = 0


class Workspace:
    """Open segments, and memory for merging. Used by one thread at a time.

    A segment that is opened again by its name is as verified as it was before.

    Args:
        most_segments: How many segments stay open; those that were used longest ago are let go.
    """

    def __init__(self, most_segments: int = 4096) -> None:
        self.arena = Arena()
        self._most_segments = most_segments
        self._segments: OrderedDict[str, Segment] = OrderedDict()
        self._needed: OrderedDict[str, frozenset[str]] = OrderedDict()  # by owner

    def segment(self, name: str) -> Segment | None:
        """An open segment by its name; None if it isn't there."""
        segment = self._segments.get(name)
        if segment is not None:
            self._segments.move_to_end(name)
        return segment

    def keep(self, segment: Segment) -> None:
        """Keep a segment open."""
        self._segments[segment.name] = segment
        while len(self._segments) > self._most_segments:
            self.forget(next(iter(self._segments)))

    def forget(self, name: str) -> None:
        """Let go of a segment, if it is there."""
        segment = self._segments.pop(name, None)
        if segment is not None:
            segment.let_go()

    def keep_only(self, owner: str, names: frozenset[str]) -> None:
        """Let go of what an owner needed up to now, and does not any longer.

        Small segments have no file whose deletion would tell.

        Args:
            owner: A subtask of an operator.
            names: The segments that it may be restored from.
        """
        for name in self._needed.get(owner, frozenset()) - names:
            self.forget(name)
        self._needed[owner] = names
        self._needed.move_to_end(owner)
        if len(self._needed) > _MAX_OWNERS:
            self._needed.popitem(last=False)

    @property
    def memory_bytes(self) -> int:
        """Bytes that segments in memory and the arena take. A segment in a file takes pages that the system can drop."""
        return self.arena.size + sum(segment.size for segment in self._in_memory())

    def limit(self, max_bytes: int) -> None:
        """Keep at most so many bytes in memory: the arena goes if it does not fit, then the oldest segments."""
        if self.arena.size > max_bytes:
            self.arena.release()
        excess = self.memory_bytes - max_bytes
        for segment in self._in_memory():
            if excess <= 0:
                return
            excess -= segment.size
            self.forget(segment.name)

    def _in_memory(self) -> list[Segment]:
        """The segments that are in no file, the oldest first."""
        return [each for each in self._segments.values() if not os.path.isabs(each.location)]

    def forget_deleted(self) -> None:
        """Let go of segments whose files were deleted: as long as they are mapped they take room on disk."""
        mapped = [segment for segment in self._segments.values() if os.path.isabs(segment.location)]
        for segment in mapped:
            if not os.path.exists(segment.location):
                self.forget(segment.name)
