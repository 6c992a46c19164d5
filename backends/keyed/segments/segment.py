"""A segment that is read where it lies: in memory, or in a file that is mapped.

Nothing is read when a segment is opened but its trailer. A block is verified when the first column that lies
in it is touched, and then never again by the same `Segment`.
"""

from collections.abc import Callable
from typing import Self

import pyarrow as pa

from holdfast.backends.keyed.segments.section import Section
from holdfast.backends.keyed.segments.segment_bytes import SegmentBytes
from holdfast.errors import CheckpointCorruptedError
from holdfast.locations.handles import Checksum
from holdfast.locations.storages import CheckpointStateOutputStream


class Segment:
    """One segment.

    Args:
        source: The segment's bytes.
        name: The segment's name.
    """

    def __init__(self, source: SegmentBytes, name: str) -> None:
        self.name = name
        self.source = source
        self._sections: dict[int, Section] = {}
        self._fetch: Callable[[str], Segment] | None = None

    @classmethod
    def open(cls, path: str, name: str, written: Checksum | None = None) -> Self:
        """Map a file.

        Args:
            path: The file.
            name: The segment's name.
            written: The checksums of the bytes, if this process has just written them there.

        Raises:
            CheckpointNotFoundError: The file is gone.
            CheckpointCorruptedError: The bytes are no segment, or the trailer is damaged.
            UnsupportedFormatError: A newer Holdfast wrote it.
        """
        return cls(SegmentBytes.mapped(path, written), name)

    @classmethod
    def of_bytes(cls, data: bytes | bytearray | pa.Buffer, name: str, location: str = "") -> Self:
        """Over bytes in memory: a copy at a better address, if that is needed. Raises what `open` does."""
        buffer = pa.py_buffer(data)
        if buffer.address % 8:
            copy = pa.allocate_buffer(len(buffer))
            memoryview(copy).cast("B")[:] = memoryview(buffer).cast("B")
            buffer = copy
        return cls(SegmentBytes(buffer, location or f"segment {name}"), name)

    @property
    def location(self) -> str:
        """Where the bytes came from."""
        return self.source.location

    @property
    def size(self) -> int:
        """Length in bytes."""
        return len(self.source.view)

    @property
    def sections(self) -> int:
        """Number of sections."""
        return len(self.source.trailer.sections)

    def section(self, number: int) -> "Section":
        """A section by its number. Raises `CheckpointCorruptedError` if there is none of that number."""
        section = self._sections.get(number)
        if section is None:
            if not 0 <= number < self.sections:
                message = (
                    f"segment {self.name} has {self.sections} sections, and no section {number}"
                )
                raise CheckpointCorruptedError(message, self.location)
            section = self._sections[number] = Section(self, self.source.trailer.sections[number])
        return section

    def fetch_if_damaged(self, fetch: Callable[[str], "Segment"]) -> None:
        """When a block turns out to be damaged, go on with the bytes of another copy.

        Args:
            fetch: Gives the same segment from where it is kept safe. It is told what is wrong with these bytes,
                and raises what that place does.
        """
        self._fetch = fetch

    def is_changed(self) -> bool:
        """Whether somebody has written to the file since it was mapped, or put another one in its place."""
        return self.source.is_changed()

    def expect(self, *, most: bool) -> None:
        """Most pages of a section will be touched, or here and there some.

        For few pages no neighbours are read along, which would drive others out of a memory that is too small
        for all. Most pages are left to the system: to read them in one go beforehand was slower.
        """
        self.source.expect(most=most)

    def write_to(self, stream: CheckpointStateOutputStream) -> None:
        """Let a stream have all bytes: as the file that they are in, if it can do with that, else as a copy.

        Raises:
            CheckpointCorruptedError: A block is damaged.
            StorageUnavailableError: The store did not take it.
        """
        written = self.source.written
        is_adopted = (
            written is not None
            and not self.is_changed()
            and stream.adopt(self.location, self.size, written)
        )
        if is_adopted:
            self.source.note_own_change()
        else:
            stream.write(self.content())

    def let_go(self) -> None:
        """Let go of the sections: whoever uses one goes on, and the memory is free when nobody does."""
        self._sections = {}

    def content(self) -> memoryview:
        """All bytes, verified. Raises `CheckpointCorruptedError`."""
        return self._verified(0, self.source.end).view

    def verified(self, offset: int, length: int) -> pa.Buffer:
        """So many bytes. Raises `CheckpointCorruptedError` if a block that they lie in is damaged."""
        return self._verified(offset, length).buffer.slice(offset, length)

    def corrupted(self, message: str) -> CheckpointCorruptedError:
        """An error that names the segment."""
        return CheckpointCorruptedError(f"segment {self.name}: {message}", self.location)

    def _verified(self, offset: int, length: int) -> SegmentBytes:
        """The segment's bytes, of which these are as they were written."""
        source = self.source
        flaw = source.flaw(offset, length)
        if flaw is not None and self._fetch is not None:
            source = self.source = self._fetch(flaw).source
            flaw = source.flaw(offset, length)
        if flaw is not None:
            raise CheckpointCorruptedError(f"segment {self.name}, {flaw}", source.location)
        return source
