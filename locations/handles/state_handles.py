"""Handles to a subtask's state: the protocol of all of them, and one class per type of state.

    StateHandle          one subtask's state of one type: its streams, its size, and how to delete it
    └─ KeyedStateHandle  knows its key groups and can be restricted to a range of them

Copying, verifying, sweeping and rescaling use only these methods, so that a new type of state is one new class.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol, Self

import msgspec

from holdfast.common import MAX_INT64, Count, KeyGroup
from holdfast.locations.handles.stream_handles import (
    PlaceholderStreamStateHandle,
    StreamStateHandle,
)

StreamChange = Callable[[StreamStateHandle], StreamStateHandle]
"""Replaces the handle of a stream by another handle, such as one to a copy of its bytes."""

_SEGMENT_NAME = re.compile(r"[0-9a-f]{32}")


class StateHandle(Protocol):
    """One subtask's state of one type, in any number of streams.

    Source:
        Flink, StateObject.
    """

    @property
    def size(self) -> int:
        """Length of all streams in bytes."""
        ...

    def streams(self) -> tuple[StreamStateHandle, ...]:
        """Return every stream that the state is in, always in the same order."""
        ...

    def with_streams(self, change: StreamChange, /) -> Self:
        """Return a copy in which `change` replaced every stream."""
        ...

    def shared_streams(self) -> Mapping[str, StreamStateHandle]:
        """Return the streams that later checkpoints may refer to, by names that are never used twice."""
        ...

    def discard_state(self) -> None:
        """Delete the bytes that a task has written for this handle, before it has reported it.

        Only this handle may lead to them. Streams of placeholders are left untouched.
        """
        ...

    def find_inconsistency(self) -> str | None:
        """Describe numbers that contradict each other or the streams; None if they are consistent."""
        ...


class KeyedStateHandle(StateHandle, Protocol):
    """Keyed state, managed or raw, of a range of key groups.

    Source:
        Flink, KeyedStateHandle.
    """

    @property
    def key_groups(self) -> tuple[KeyGroup, KeyGroup]:
        """First and last key group of the range, both inclusive."""
        ...

    def intersection(self, first: int, last: int, /) -> Self | None:
        """Return the part of the state in key groups `first` to `last`; None if the handle has none of them.

        The part has the same streams: discarding it discards all of the state.
        """
        ...


class SingleStreamHandle(msgspec.Struct, frozen=True):
    """Methods of a handle whose only stream is its field `stream`."""

    if TYPE_CHECKING:  # the order of fields is stored, so each handle declares it itself

        @property
        def stream(self) -> StreamStateHandle: ...

    @property
    def size(self) -> int:
        """Length of the stream in bytes."""
        return self.stream.size

    def streams(self) -> tuple[StreamStateHandle, ...]:
        """Return the only stream."""
        return (self.stream,)

    def with_streams(self, change: StreamChange, /) -> Self:
        """Return a copy in which `change` replaced the stream."""
        return msgspec.structs.replace(self, stream=change(self.stream))

    def shared_streams(self) -> Mapping[str, StreamStateHandle]:
        """Return an empty mapping: the stream belongs to one checkpoint."""
        return {}

    def discard_state(self) -> None:
        """Delete the bytes of the stream."""
        self.stream.discard_state()

    def _find_overrun(self, parts: Iterable[tuple[int, int]]) -> str | None:
        """Describe the first part, given by offset and length, that ends after the stream."""
        for offset, length in parts:
            if offset + length > self.size:
                return f"bytes {offset} to {offset + length} of a stream of {self.size}"
        return None


class OperatorStateMode(IntEnum):
    """Distribution of a state's elements over subtasks when a job is restored.

    The numbers are stored and never change.

    Source:
        Flink, OperatorStateHandle.Mode: the same names and ordinals.
    """

    SPLIT_DISTRIBUTE = 0
    UNION = 1
    BROADCAST = 2


class StatePartitions(msgspec.Struct, frozen=True, omit_defaults=True):
    """Position of a named state in its stream, and the range of its elements that belong to a subtask.

    Elements are counted, not listed by offset: a range of rows can be cut at any element
    without an entry for each.

    Attributes:
        mode: Distribution of the elements when restored.
        offset: First byte of the state's section in the stream.
        length: Length of the section in bytes.
        first: Index of the first element that counts.
        count: Number of elements that count.
        is_copy: Whether another subtask stores the elements: this subtask reads them only if it uses the state.
            A restart gives every subtask such copies of union states; a checkpoint has no copies.
    """

    mode: OperatorStateMode
    offset: Count
    length: Count
    first: Count
    count: Count
    is_copy: bool = False


class OperatorStateHandle(SingleStreamHandle, frozen=True):
    """One subtask's managed operator state.

    Attributes:
        states: Position of each state, by its name.
        stream: The bytes of all states.
    """

    states: dict[str, StatePartitions]
    stream: StreamStateHandle

    def find_inconsistency(self) -> str | None:
        for state in self.states.values():
            if state.first + state.count > MAX_INT64:
                return f"elements {state.first} to {state.first + state.count}"
        return self._find_overrun((state.offset, state.length) for state in self.states.values())


class RawOperatorStateHandle(SingleStreamHandle, frozen=True):
    """One subtask's raw operator state: bytes in the user's own format, cut into partitions.

    A partition is the unit that is distributed over subtasks, always by `SPLIT_DISTRIBUTE`.

    Attributes:
        partitions: Offset and length in the stream, in bytes, of each partition that counts.
        stream: The bytes of all partitions.
    """

    partitions: tuple[tuple[Count, Count], ...]
    stream: StreamStateHandle

    def find_inconsistency(self) -> str | None:
        return self._find_overrun(self.partitions)


class KeyGroupsStateHandle(SingleStreamHandle, frozen=True, tag="key-groups"):
    """State of a range of key groups, managed or raw, all in one stream.

    Attributes:
        key_groups: First and last key group of the range, both inclusive.
        partitions: For each key group of the range, in order, offset and length of its state in
            the stream, in bytes; None for a key group without state.
        stream: The bytes of all key groups.

    Source:
        Flink, KeyGroupsStateHandle and KeyGroupRangeOffsets, which have no lengths.
    """

    key_groups: tuple[KeyGroup, KeyGroup]
    partitions: tuple[tuple[Count, Count] | None, ...]
    stream: StreamStateHandle

    def intersection(self, first: int, last: int, /) -> Self | None:
        start, end = max(self.key_groups[0], first), min(self.key_groups[1], last)
        if start > end:
            return None
        skipped = start - self.key_groups[0]
        partitions = self.partitions[skipped : skipped + end - start + 1]
        return msgspec.structs.replace(self, key_groups=(start, end), partitions=partitions)

    def find_inconsistency(self) -> str | None:
        first, last = self.key_groups
        if first > last or len(self.partitions) != last - first + 1:
            return f"{len(self.partitions)} partitions for key groups {first} to {last}"
        return self._find_overrun(
            partition for partition in self.partitions if partition is not None
        )


class SegmentsStateHandle(msgspec.Struct, frozen=True, tag="segments"):
    """Managed keyed state of a range of key groups: tables of sorted rows, in segments.

    Segments are files that several checkpoints refer to. The manifest belongs to one checkpoint and lists the rows
    that count.

    Attributes:
        key_groups: First and last key group of the range, both inclusive. Rows of other key groups in the
            manifest or the segments don't count.
        segments: The segments that the manifest names, by their names: 32 random hex digits, never used twice. A
            task reports placeholders instead of segments of the checkpoint that it was restored from.
        manifest: The manifest.

    Source:
        Flink, IncrementalRemoteKeyedStateHandle.
    """

    key_groups: tuple[KeyGroup, KeyGroup]
    segments: dict[str, StreamStateHandle]
    manifest: StreamStateHandle

    @property
    def size(self) -> int:
        """Length of the manifest and all segments in bytes."""
        return sum(stream.size for stream in self.streams())

    def streams(self) -> tuple[StreamStateHandle, ...]:
        """Return the manifest and the segments."""
        return (self.manifest, *self.segments.values())

    def with_streams(self, change: StreamChange, /) -> Self:
        """Return a copy in which `change` replaced the manifest and the segments."""
        segments = {name: change(stream) for name, stream in self.segments.items()}
        return msgspec.structs.replace(self, manifest=change(self.manifest), segments=segments)

    def shared_streams(self) -> Mapping[str, StreamStateHandle]:
        """Return the segments, by their names."""
        return self.segments

    def discard_state(self) -> None:
        """Delete the manifest and the segments, except for placeholders."""
        for stream in self.streams():
            stream.discard_state()

    def intersection(self, first: int, last: int, /) -> Self | None:
        start, end = max(self.key_groups[0], first), min(self.key_groups[1], last)
        return msgspec.structs.replace(self, key_groups=(start, end)) if start <= end else None

    def find_inconsistency(self) -> str | None:
        first, last = self.key_groups
        if first > last:
            return f"key groups {first} to {last}"
        for name, stream in self.segments.items():
            if not _SEGMENT_NAME.fullmatch(name):
                return f"a segment of the name {name!r}"
            if isinstance(stream, PlaceholderStreamStateHandle) and stream.name != name:
                return f"a placeholder of segment {stream.name!r} in the place of {name!r}"
        return None


ManagedKeyedStateHandle = KeyGroupsStateHandle | SegmentsStateHandle
"""Every type of managed keyed state; stored handles have a tag. A new type is added here, with `|`."""
