"""Operator states that were written and are still in memory, so that the next batch need not read them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from holdfast.backends.snapshot.section import Compression, SectionStream, write_section
from holdfast.locations.checksums import ChecksumBuilder
from holdfast.locations.file_systems import BytesLike
from holdfast.locations.handles import (
    FileStateHandle,
    OperatorStateHandle,
    OperatorStateMode,
    StatePartitions,
)


@dataclass(frozen=True, slots=True)
class WrittenState:
    """One state with the content of its section.

    Attributes:
        mode: The way in which elements are redistributed.
        rows: The elements or entries.
    """

    mode: OperatorStateMode
    rows: pa.Table

    @property
    def memory_bytes(self) -> int:
        """Size of the memory that the rows keep."""
        return int(self.rows.get_total_buffer_size())


class WrittenStates(Mapping[str, WrittenState]):
    """All states of a snapshot by name, in the order in which they were written.

    They are immutable columns, without objects of the user.
    """

    def __init__(self, states: Mapping[str, WrittenState]) -> None:
        self._states = dict(states)

    def __getitem__(self, name: str) -> WrittenState:
        return self._states[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._states)

    def __len__(self) -> int:
        return len(self._states)

    @property
    def memory_bytes(self) -> int:
        """Size of the memory that all states keep."""
        return sum(state.memory_bytes for state in self._states.values())

    def write(
        self, stream: SectionStream, compression: Compression | None = None
    ) -> dict[str, StatePartitions]:
        """Append a section for each state; returns the places of the sections."""
        partitions = {}
        for name, state in self._states.items():
            offset = stream.tell()
            length = write_section(stream, state.rows, compression)
            count = len(state.rows)
            partitions[name] = StatePartitions(state.mode, offset, length, first=0, count=count)
        return partitions

    def matches(self, handle: OperatorStateHandle) -> bool:
        """Return whether these states, written without compression, have exactly the bytes of the handle's file.

        The comparison takes as long as a checksum of the states. It also fails if user code has changed memory that it
        has passed, such as that of a NumPy array.
        """
        stream = _Sum()
        partitions = self.write(stream)
        file = handle.stream
        return (
            isinstance(file, FileStateHandle)
            and partitions == handle.states
            and stream.tell() == file.size
            and stream.checksum.finish() == file.checksum
        )


class _Sum:
    """A stream that keeps only the checksum of the written bytes."""

    def __init__(self) -> None:
        self.checksum = ChecksumBuilder()
        self._size = 0

    def write(self, data: BytesLike, /) -> int:
        self.checksum.update(data)
        length = memoryview(data).nbytes
        self._size += length
        return length

    def tell(self) -> int:
        return self._size
