"""Handles: small immutable values that lead to bytes of state.

    StreamStateHandle    one stream of bytes: in a file, in the handle itself, or by the name of a stream stored before
    StateHandle          one subtask's state of one type: its streams, its size, and how to delete it
    └─ KeyedStateHandle  knows its key groups and can be restricted to a range of them

A storage makes handles, `_metadata` stores them, backends read their streams. Copying, verifying, sweeping and rescaling use only these methods, so that a new type of state is one new class.
"""

import io
import re
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, BinaryIO, NoReturn, Protocol, Self, cast

import msgspec

from holdfast.common import MAX_INT64, Count, KeyGroup, uripath
from holdfast.errors import CheckpointCorruptedError, InvalidRequestError
from holdfast.locations.checksums import (
    Checksum,
    ChecksumBuilder,
    VerifyingInputStream,
    checksum_of,
)
from holdfast.locations.file_systems import BytesLike, file_system_for


class ByteStreamStateHandle(msgspec.Struct, frozen=True, tag="bytes"):
    """State that is small enough to be in the handle itself."""

    data: bytes

    @property
    def size(self) -> int:
        """Length in bytes."""
        return len(self.data)

    def __repr__(self) -> str:
        # Without the bytes: they are users' rows, and this ends up in logs.
        return f"{type(self).__name__}({self.size} bytes)"

    def open_input_stream(self) -> BinaryIO:
        """Open a seekable stream of the bytes."""
        return io.BytesIO(self.data)

    def discard_state(self) -> None:
        """Do nothing: the bytes are in the handle."""


class FileStateHandle(msgspec.Struct, frozen=True, tag="file"):
    """State in a file.

    Attributes:
        uri: Normalized URI of the file.
        size: Length in bytes.
        checksum: The checksum of the bytes. None only for `_metadata`, which ends with its checksum.
    """

    uri: str
    size: Count
    checksum: Checksum | None = None

    def open_input_stream(self) -> BinaryIO:
        """Open a seekable, unbuffered stream that verifies all bytes that it returns.

        Raises:
            CheckpointNotFoundError: The file is gone.
            CheckpointCorruptedError: Its length differs; or, while reading, a block's checksum does.
        """
        raw = file_system_for(self.uri).open(self.uri)
        if self.checksum is None:
            return raw
        stream = VerifyingInputStream(raw, uri=self.uri, size=self.size, checksum=self.checksum)
        return cast("BinaryIO", stream)

    def read_range(self, start: int, end: int) -> memoryview:
        """Return the bytes from `start` up to `end`, which are not verified, with one request if the store can do that.

        Raises:
            CheckpointNotFoundError: The file is gone.
            CheckpointCorruptedError: It is shorter.
        """
        data = file_system_for(self.uri).read_range(self.uri, start, end)
        if len(data) < end - start:
            raise CheckpointCorruptedError(f"file ends before {end} bytes", self.uri)
        return data

    def check(self, data: BytesLike) -> None:
        """Compare bytes from another source with those of the file, by length and checksum.

        Raises:
            CheckpointCorruptedError: The bytes differ.
        """
        size = memoryview(data).nbytes
        if size != self.size:
            raise CheckpointCorruptedError(f"{size} bytes, expected {self.size}", self.uri)
        if self.checksum is not None:
            actual = ChecksumBuilder(self.checksum.block_bytes)
            actual.update(data)
            if actual.finish() != self.checksum:
                message = f"not all bytes have the expected checksum ({self.checksum.algorithm})"
                raise CheckpointCorruptedError(message, self.uri)

    def discard_state(self) -> None:
        """Delete the file; a missing one counts as deleted."""
        file_system_for(self.uri).delete([self.uri])


class PlaceholderStreamStateHandle(msgspec.Struct, frozen=True, tag="placeholder"):
    """A shared stream of the checkpoint that a task was restored from, which the task did not write again.

    Only reports of tasks have placeholders: the driver replaces them by the handles of the streams before the
    checkpoint is completed. `_metadata` never has any.

    Attributes:
        name: The stream's name in its handle, such as the name of a segment.
        size: Length of the stream in bytes.

    Source:
        Flink, PlaceholderStreamStateHandle.
    """

    name: str
    size: Count

    def open_input_stream(self) -> NoReturn:
        """Raise `InvalidRequestError`: only the handle of the stream leads to its bytes."""
        message = f"placeholder of shared stream {self.name!r} has no bytes to read"
        raise InvalidRequestError(message)

    def discard_state(self) -> None:
        """Do nothing: the stream belongs to the restored checkpoint."""


StreamStateHandle = ByteStreamStateHandle | FileStateHandle | PlaceholderStreamStateHandle
"""Every type of stream handle; stored and sent handles have a tag."""


def files_of(streams: Iterable[StreamStateHandle]) -> list[FileStateHandle]:
    """Return the files among streams, each once."""
    return list(
        {stream.uri: stream for stream in streams if isinstance(stream, FileStateHandle)}.values()
    )


def without_place(stream: StreamStateHandle) -> StreamStateHandle:
    """Return a handle without its place, so that handles of the same bytes are equal, in files and in `_metadata`."""
    if isinstance(stream, ByteStreamStateHandle):
        return FileStateHandle("", stream.size, checksum_of(stream.data))
    if isinstance(stream, FileStateHandle) and stream.checksum is not None:
        return msgspec.structs.replace(stream, uri="")
    return stream


def is_inside(handle: StreamStateHandle, directory: str) -> bool:
    """Return whether the handle leads to a file directly in that directory."""
    return isinstance(handle, FileStateHandle) and uripath.parent(handle.uri) == directory


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
        return self.stream.size

    def streams(self) -> tuple[StreamStateHandle, ...]:
        return (self.stream,)

    def with_streams(self, change: StreamChange, /) -> Self:
        return msgspec.structs.replace(self, stream=change(self.stream))

    def shared_streams(self) -> Mapping[str, StreamStateHandle]:
        return {}  # the stream belongs to one checkpoint

    def discard_state(self) -> None:
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

    Elements are counted, not listed by offset: a range of rows can be cut at any element without an entry for each.

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
        return sum(stream.size for stream in self.streams())

    def streams(self) -> tuple[StreamStateHandle, ...]:
        return (self.manifest, *self.segments.values())

    def with_streams(self, change: StreamChange, /) -> Self:
        segments = {name: change(stream) for name, stream in self.segments.items()}
        return msgspec.structs.replace(self, manifest=change(self.manifest), segments=segments)

    def shared_streams(self) -> Mapping[str, StreamStateHandle]:
        return self.segments

    def discard_state(self) -> None:
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
