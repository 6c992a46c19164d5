"""Handles: small immutable values that lead to bytes of state, wherever those are."""

import io
from enum import IntEnum
from typing import BinaryIO, cast

import msgspec

from holdfast.common import MOST, Count, KeyGroup, uripath
from holdfast.errors import CheckpointCorruptedError
from holdfast.locations.file_systems import BytesLike, file_system_for
from holdfast.locations.handles.checksum import Checksum, ChecksumBuilder, VerifyingInputStream


class ByteStreamStateHandle(msgspec.Struct, frozen=True, tag="bytes"):
    """State that is small enough to travel in the handle itself."""

    data: bytes

    @property
    def size(self) -> int:
        """Length in bytes."""
        return len(self.data)

    def __repr__(self) -> str:
        # Without the bytes: they are rows of somebody's stream, and this ends up in logs.
        return f"{type(self).__name__}({self.size} bytes)"

    def open_input_stream(self) -> BinaryIO:
        """A seekable stream of the bytes."""
        return io.BytesIO(self.data)

    def discard_state(self) -> None:
        """Nothing to do: the bytes go with the handle."""


class FileStateHandle(msgspec.Struct, frozen=True, tag="file"):
    """State in a file of its own.

    Attributes:
        uri: Normalized URI of the file. Inside a `_metadata` file, where it is the name of a file
            in the same directory, only that name.
        size: Length in bytes.
        checksum: What the bytes add up to; None for `_metadata` alone, which carries its own.
    """

    uri: str
    size: Count
    checksum: Checksum | None = None

    def open_input_stream(self) -> BinaryIO:
        """A seekable, unbuffered stream that verifies what it reads.

        Raises:
            CheckpointNotFoundError: The file is gone.
            CheckpointCorruptedError: Its length differs; while reading: a block's checksum.
        """
        raw = file_system_for(self.uri).open(self.uri)
        if self.checksum is None:
            return raw
        stream = VerifyingInputStream(raw, uri=self.uri, size=self.size, checksum=self.checksum)
        return cast("BinaryIO", stream)

    def check(self, data: BytesLike) -> None:
        """See whether bytes from somewhere else are those of the file.

        Raises:
            CheckpointCorruptedError: They are others.
        """
        size = memoryview(data).nbytes
        if size != self.size:
            raise CheckpointCorruptedError(f"{size} bytes, expected {self.size}", self.uri)
        if self.checksum is not None:
            found = ChecksumBuilder(self.checksum.block_bytes)
            found.update(data)
            if found.finish() != self.checksum:
                message = f"not all bytes have the expected checksum ({self.checksum.algorithm})"
                raise CheckpointCorruptedError(message, self.uri)

    def discard_state(self) -> None:
        """Delete the file; one that is gone already counts as deleted. Looks at nothing else."""
        file_system_for(self.uri).delete([self.uri])


StreamStateHandle = ByteStreamStateHandle | FileStateHandle
"""Either kind, told apart by its tag when stored."""


class OperatorStateMode(IntEnum):
    """How a state's elements are spread over subtasks when a job is restored.

    The numbers are stored and never change.

    Source:
        Flink, OperatorStateHandle.Mode: the same names and ordinals.
    """

    SPLIT_DISTRIBUTE = 0
    UNION = 1
    BROADCAST = 2


class StatePartitions(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where one named state lies in its stream, and which of its elements belong to a subtask.

    Elements are counted, not listed by offset: a range of rows can be cut at any element
    without an entry for each.

    Attributes:
        mode: How elements are spread when restored.
        offset: First byte of the state's section in the stream.
        length: Length of the section in bytes.
        first: Index of the first element that counts.
        count: Number of elements that count.
        is_copy: Whether the elements belong to another subtask, which stores them: this subtask
            has them only if it asks for the state. So are parts of union states that a restart
            has given to every subtask; never those in a checkpoint.
    """

    mode: OperatorStateMode
    offset: Count
    length: Count
    first: Count
    count: Count
    is_copy: bool = False


class OperatorStateHandle(msgspec.Struct, frozen=True):
    """One subtask's snapshot of its operator state: the states by name, all in one stream."""

    states: dict[str, StatePartitions]
    stream: StreamStateHandle

    @property
    def size(self) -> int:
        """Length of the stream in bytes."""
        return self.stream.size

    def discard_state(self) -> None:
        """Delete the bytes behind the handle."""
        self.stream.discard_state()


class RawOperatorStateHandle(msgspec.Struct, frozen=True):
    """One subtask's raw operator state: bytes of the user's own, cut into partitions.

    A partition is the unit that is spread over subtasks, always by `SPLIT_DISTRIBUTE`.

    Attributes:
        partitions: Offset and length in the stream, in bytes, of each partition that counts.
        stream: Where they are.
    """

    partitions: tuple[tuple[Count, Count], ...]
    stream: StreamStateHandle

    @property
    def size(self) -> int:
        """Length of the stream in bytes."""
        return self.stream.size

    def discard_state(self) -> None:
        """Delete the bytes behind the handle."""
        self.stream.discard_state()


class KeyGroupsStateHandle(msgspec.Struct, frozen=True):
    """State of a range of key groups, managed or raw, all in one stream.

    Attributes:
        key_groups: First and last key group of the range; both belong to it.
        partitions: For each key group of the range, in order, offset and length of its state in
            the stream, in bytes; None for one that was never begun.
        stream: Where they are.

    Source:
        Flink, KeyGroupsStateHandle and KeyGroupRangeOffsets, which have no lengths.
    """

    key_groups: tuple[KeyGroup, KeyGroup]
    partitions: tuple[tuple[Count, Count] | None, ...]
    stream: StreamStateHandle

    @property
    def size(self) -> int:
        """Length of the stream in bytes."""
        return self.stream.size

    def discard_state(self) -> None:
        """Delete the bytes behind the handle."""
        self.stream.discard_state()


def flaw_in(
    handle: OperatorStateHandle | RawOperatorStateHandle | KeyGroupsStateHandle,
) -> str | None:
    """How numbers of a handle contradict each other, or its stream; None if they don't."""
    if isinstance(handle, OperatorStateHandle):
        for one in handle.states.values():
            if one.first + one.count > MOST:
                return f"elements {one.first} to {one.first + one.count}"
        parts = [(one.offset, one.length) for one in handle.states.values()]
    elif isinstance(handle, KeyGroupsStateHandle):
        first, last = handle.key_groups
        if first > last or len(handle.partitions) != last - first + 1:
            return f"{len(handle.partitions)} partitions for key groups {first} to {last}"
        parts = [one for one in handle.partitions if one is not None]
    else:
        parts = list(handle.partitions)
    for offset, length in parts:
        if offset + length > handle.size:
            return f"bytes {offset} to {offset + length} of a stream of {handle.size}"
    return None


def is_inside(handle: StreamStateHandle, directory: str) -> bool:
    """Whether the handle's file lies directly in that directory."""
    return isinstance(handle, FileStateHandle) and uripath.parent(handle.uri) == directory
