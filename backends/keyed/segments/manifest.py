"""Which rows of which segments count: what a subtask's tables are. Pure, no I/O.

    table   runs, newest first; the last run is the bottom
    run     slices that don't overlap, ascending by sort key
    slice   the rows of a section whose sort key is in a range

The bytes of a manifest:

    offset  length  meaning
    0       8       magic, "HOLDTBLS" in ASCII
    8       4       format version, unsigned, big-endian
    12      n       a MessagePack map by field names
    12+n    4       CRC-32C of all bytes before it, big-endian
"""

import struct
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Annotated

import msgspec
import pyarrow as pa

from holdfast.backends.keyed.segments.stored_specs import StoredSpec
from holdfast.backends.keyed.table import TableSpec
from holdfast.common import (
    MAX_INT64,
    Count,
    ProcessLock,
    crc32c,
    message_pack_decoder,
    raise_shortage,
)
from holdfast.errors import CheckpointCorruptedError, UnsupportedFormatError

MAGIC = b"HOLDTBLS"
ROCKSDB_MAGIC = b"HOLDRKDB"
"""Begins what stands in a manifest's place where rows are in RocksDB's own files."""

ROCKSDB = "rocksdb"
"""The kind of the error for such files."""

VERSION = 1
"""The version that is written, and the only one that is read."""

END = 1 << 63
"""Above all sort keys."""

NEVER = -(1 << 63)
"""Before all times."""

_HEADER = struct.Struct(">8sI")
_CHECKSUM = struct.Struct(">I")

_SortKey = Annotated[int, msgspec.Meta(ge=0, le=MAX_INT64)]
_Edge = Annotated[int, msgspec.Meta(ge=0)]
_Time = Annotated[int, msgspec.Meta(ge=NEVER, le=MAX_INT64)]
_Amount = Annotated[float, msgspec.Meta(ge=0, le=float(1 << 62))]


# A batch makes hundreds of slices, none of which can lead to itself: `gc=False` spares the collector the walk through them.


class Slice(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The rows of a section with `first` <= sort key < `end`.

    Attributes:
        segment: The segment's name.
        section: The section's number in the segment.
        first: Least sort key.
        end: Least sort key above it.
        rows: About how many rows.
        row_bytes: About how many bytes a row.
        spec: Which of the table's specs the section was written with.
        dead_up_to_ms: Rows of a table of timers whose time is at most this don't count.
    """

    segment: str
    section: Count
    first: _SortKey
    end: _Edge
    rows: Count
    row_bytes: _Amount
    spec: Count
    dead_up_to_ms: _Time = NEVER

    def within(self, first: int, end: int) -> "Slice | None":
        """The part whose sort keys are in a range; None if there is none."""
        low, high = max(self.first, first), min(self.end, end)
        if low >= high:
            return None
        if (low, high) == (self.first, self.end):
            return self
        share = (high - low) / (self.end - self.first)
        rows = max(1, round(self.rows * share))
        return msgspec.structs.replace(self, first=low, end=high, rows=rows)

    @property
    def size(self) -> float:
        """About how many bytes."""
        return self.rows * self.row_bytes


class Run(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Slices that don't overlap, ascending.

    Attributes:
        level: How large the run was when it was made, by steps of the merging policy.
        slices: The slices of segments that it consists of.
    """

    level: Count
    slices: tuple[Slice, ...]

    @property
    def size(self) -> float:
        """About how many bytes."""
        return sum(part.size for part in self.slices)

    @property
    def rows(self) -> int:
        """About how many rows."""
        return sum(part.rows for part in self.slices)

    def within(self, first: int, end: int) -> "Run | None":
        """The part whose sort keys are in a range; None if there is none."""
        parts = (part.within(first, end) for part in self.slices)
        slices = tuple(part for part in parts if part is not None)
        return Run(self.level, slices) if slices else None


class TableManifest(msgspec.Struct, frozen=True, gc=False):
    """A table in a manifest.

    Attributes:
        specs: Every spec that sections of the table were written with; the last is the newest.
        runs: Newest first.
        cursor: Sort key that the sweep has come to.
        credit: Bytes that the sweep may merge.
        flush_bytes: About how many bytes a batch changes.
    """

    specs: tuple[StoredSpec, ...]
    runs: tuple[Run, ...] = ()
    cursor: _Edge = 0
    credit: _Amount = 0.0
    flush_bytes: _Amount = 0.0

    @property
    def spec(self) -> TableSpec:
        """What the table holds."""
        return self.specs[-1].spec()

    def slices(self) -> Iterator[Slice]:
        """All slices, of newer runs first."""
        for run in self.runs:
            yield from run.slices

    def within(self, first: int, end: int) -> "TableManifest":
        """The rows whose sort keys are in a range. Touches no segment.

        Where that is all of them the sweep goes on from where it is: it would begin anew with each batch otherwise.
        """
        if all(
            first <= run.slices[0].first and run.slices[-1].end <= end
            for run in self.runs
            if run.slices
        ):
            return self
        parts = (run.within(first, end) for run in self.runs)
        runs = tuple(part for part in parts if part is not None)
        return TableManifest(self.specs, runs, flush_bytes=self.flush_bytes)

    def with_spec(self, spec: StoredSpec) -> "TableManifest":
        """The same rows, with other columns or types of the table from now on."""
        if self.specs[-1] == spec:
            return self
        specs = [*(stored for stored in self.specs if stored != spec), spec]
        return msgspec.structs.replace(
            self, specs=tuple(specs), runs=tuple(_renumbered(self, specs))
        )

    @classmethod
    def union(cls, parts: Sequence["TableManifest"]) -> "TableManifest":
        """A table of the rows of all parts, no two of which have rows of one key group.

        The last run of a part lies beside the last of the others, and so on: the table is as deep as the
        deepest part.
        """
        if len(parts) == 1:
            return parts[0]
        older = [spec for part in parts for spec in part.specs[:-1]]
        newest = [part.specs[-1] for part in parts]
        # A part without older rows has the newest spec alone, and may come first.
        last = next((spec for spec in newest if spec not in older), newest[-1])
        specs: list[StoredSpec] = []
        for spec in [*older, *newest]:
            if spec not in specs and spec != last:
                specs.append(spec)
        specs.append(last)
        numbered = [_renumbered(part, specs) for part in parts]
        runs: list[Run] = []
        for depth in range(max(len(part.runs) for part in parts), 0, -1):
            beside = [part[-depth] for part in numbered if len(part) >= depth]
            slices = [piece for run in beside for piece in run.slices]
            slices.sort(key=lambda piece: piece.first)
            runs.append(Run(max(run.level for run in beside), tuple(slices)))
        return cls(tuple(specs), tuple(runs), flush_bytes=sum(part.flush_bytes for part in parts))


def _renumbered(part: TableManifest, specs: list[StoredSpec]) -> Sequence[Run]:
    """The part's runs, with slices that name the same specs among others."""
    numbers = [specs.index(spec) for spec in part.specs]
    if numbers == [*range(len(numbers))]:
        return part.runs
    return [
        Run(
            run.level,
            tuple(msgspec.structs.replace(piece, spec=numbers[piece.spec]) for piece in run.slices),
        )
        for run in part.runs
    ]


class Manifest(msgspec.Struct, frozen=True, dict=True):
    """All tables of a subtask, by name."""

    tables: dict[str, TableManifest]

    @cached_property
    def segments(self) -> frozenset[str]:
        """The names of all segments that count."""
        return frozenset(
            piece.segment
            for table in self.tables.values()
            for run in table.runs
            for piece in run.slices
        )

    def within(self, first: int, end: int) -> "Manifest":
        """The rows whose sort keys are in a range. Touches no segment."""
        tables = {name: table.within(first, end) for name, table in self.tables.items()}
        if all(table is self.tables[name] for name, table in tables.items()):
            return self
        return Manifest(tables)

    @classmethod
    def union(cls, parts: Sequence["Manifest"]) -> "Manifest":
        """The tables of all parts, no two of which have rows of one key group. Touches no segment."""
        if len(parts) == 1:
            return parts[0]
        names = dict.fromkeys(name for part in parts for name in part.tables)
        return cls(
            {
                name: TableManifest.union(
                    [part.tables[name] for part in parts if name in part.tables]
                )
                for name in names
            }
        )


def encode_manifest(manifest: Manifest) -> bytes:
    """The bytes of a manifest."""
    content = _HEADER.pack(MAGIC, VERSION) + msgspec.msgpack.encode(manifest)
    content += _CHECKSUM.pack(crc32c(content))
    _KNOWN.add(content, manifest)
    return content


def decode_manifest(content: bytes, location: str = "") -> Manifest:
    """Read the bytes of a manifest. Bytes that this process has written or read lately are known already.

    Args:
        content: All bytes.
        location: Where they came from, for errors.

    Raises:
        CheckpointCorruptedError: The bytes are no manifest, were cut or changed, or have numbers that
            can't be.
        UnsupportedFormatError: They are whole, and of a newer version; or they are of RocksDB's files, and
            the kind is `ROCKSDB`.
    """
    manifest = _KNOWN.get(content)
    if manifest is None:
        manifest = _decoded(content, location)
        _KNOWN.add(content, manifest)
    return manifest


def _decoded(content: bytes, location: str) -> Manifest:
    if content.startswith(ROCKSDB_MAGIC):
        message = "keyed state is in files of RocksDB's, which RocksDB alone reads"
        raise UnsupportedFormatError(message, location, ROCKSDB)
    if len(content) < _HEADER.size + _CHECKSUM.size or not content.startswith(MAGIC):
        raise CheckpointCorruptedError(f"{len(content)} bytes are no manifest of tables", location)
    end = len(content) - _CHECKSUM.size
    (expected,) = _CHECKSUM.unpack_from(content, end)
    actual = crc32c(memoryview(content)[:end])
    if actual != expected:
        message = f"manifest of tables has checksum {actual:08x}, expected {expected:08x} (crc32c)"
        raise CheckpointCorruptedError(message, location)
    _, version = _HEADER.unpack_from(content)
    if version != VERSION:
        message = (
            f"manifest of tables of format version {version}; this Holdfast reads version {VERSION}"
        )
        raise UnsupportedFormatError(f"{message}: upgrade Holdfast", location)
    try:
        manifest = _DECODER.decode(memoryview(content)[_HEADER.size : end])
        for name, table in manifest.tables.items():
            _check(name, table)
    except (
        msgspec.MsgspecError,
        pa.ArrowException,
        OSError,
        ValueError,
        RecursionError,
    ) as error:
        raise_shortage(error, location)
        message = f"manifest of tables can't be decoded ({error})"
        raise CheckpointCorruptedError(message, location) from error
    return manifest


_DECODER = message_pack_decoder(Manifest)


class _KnownManifests:
    """Manifests by their bytes, the last ones that were encoded or decoded.

    A task opens what the batch before has written, as a rule in the process that wrote it. Any thread may use it.

    Args:
        most_bytes: The known manifests have at most so many bytes; what was added longest ago goes first.
    """

    def __init__(self, most_bytes: int = 1 << 20) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._manifests: dict[bytes, Manifest] = {}
        self._lock = ProcessLock()

    def get(self, content: bytes) -> Manifest | None:
        """The manifest of these bytes; None if it is not known."""
        return self._manifests.get(content)

    def add(self, content: bytes, manifest: Manifest) -> None:
        """Know a manifest by its bytes."""
        with self._lock.current:
            if content in self._manifests:
                return
            self._manifests[content] = manifest
            self._bytes += len(content)
            while self._bytes > self._most_bytes:
                oldest = next(iter(self._manifests))
                del self._manifests[oldest]
                self._bytes -= len(oldest)


_KNOWN = _KnownManifests()


def _check(name: str, table: TableManifest) -> None:
    """Raise `ValueError` if the table's numbers contradict each other."""
    if not table.specs or any(spec.name != name for spec in table.specs):
        message = f"table {name!r} has specs of {[spec.name for spec in table.specs]}"
        raise ValueError(message)
    for spec in table.specs:
        spec.spec()
    specs, has_timers = len(table.specs), table.specs[0].kind == "timers"
    for run in table.runs:
        before = 0
        for piece in run.slices:
            first, end = piece.first, piece.end
            if not before <= first < end <= END:
                message = f"table {name!r} has a slice from {first} to {end}"
                raise ValueError(message)
            if piece.spec >= specs:
                message = f"table {name!r} has {specs} specs, and no spec {piece.spec}"
                raise ValueError(message)
            if piece.dead_up_to_ms != NEVER and not has_timers:
                message = f"table {name!r} has no timers, and a slice without some"
                raise ValueError(message)
            before = end
