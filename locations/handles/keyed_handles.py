"""Handles to keyed state: a range of key groups each."""

import re
from collections.abc import Mapping
from typing import Self

import msgspec

from holdfast.common import Count, KeyGroup
from holdfast.locations.handles.state_handle import InOneStream, StreamChange, flaw_of_parts
from holdfast.locations.handles.stream_handles import (
    PlaceholderStreamStateHandle,
    StreamStateHandle,
)

_SEGMENT_NAME = re.compile(r"[0-9a-f]{32}")


class KeyGroupsStateHandle(InOneStream, frozen=True, tag="key-groups"):
    """State of a range of key groups, managed or raw, all in one stream.

    Attributes:
        key_groups: First and last key group of the range; both belong to it.
        partitions: For each key group of the range, in order, offset and length of its state in
            the stream, in bytes; None for a key group that was never begun.
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

    def flaw(self) -> str | None:
        first, last = self.key_groups
        if first > last or len(self.partitions) != last - first + 1:
            return f"{len(self.partitions)} partitions for key groups {first} to {last}"
        begun = (partition for partition in self.partitions if partition is not None)
        return flaw_of_parts(begun, self.size)


class SegmentsStateHandle(msgspec.Struct, frozen=True, tag="segments"):
    """Managed keyed state of a range of key groups: tables of sorted rows, in segments.

    Segments are files that several checkpoints refer to; the manifest belongs to this checkpoint alone, and
    says which rows of which segments count.

    Attributes:
        key_groups: First and last key group of the range; both belong to it. Rows of other key groups in the
            manifest or the segments don't count.
        segments: The segments that the manifest names, by their names: 32 hex digits, which are drawn
            at random and never used twice. In a task's report placeholders stand for segments that the
            checkpoint has from which the task was restored.
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
        """The manifest, and the segments."""
        return (self.manifest, *self.segments.values())

    def with_streams(self, change: StreamChange, /) -> Self:
        """A copy whose streams went through `change`."""
        segments = {name: change(stream) for name, stream in self.segments.items()}
        return msgspec.structs.replace(self, manifest=change(self.manifest), segments=segments)

    def shared_streams(self) -> Mapping[str, StreamStateHandle]:
        """The segments, by their names."""
        return self.segments

    def discard_state(self) -> None:
        """Delete the manifest and the segments that are no placeholders."""
        for stream in self.streams():
            stream.discard_state()

    def intersection(self, first: int, last: int, /) -> Self | None:
        start, end = max(self.key_groups[0], first), min(self.key_groups[1], last)
        return msgspec.structs.replace(self, key_groups=(start, end)) if start <= end else None

    def flaw(self) -> str | None:
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
"""Every kind of managed keyed state, told apart by its tag when stored. A new kind is added here, with `|`."""
