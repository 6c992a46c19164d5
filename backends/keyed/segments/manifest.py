"""The manifest of a subtask's tables: the rows of segments that count, and the tables' specifications. Pure, no I/O.

    table   runs, newest first; the last run is the bottom
    run     slices that don't overlap, ascending by sort key
    slice   the rows of a section whose sort key is in a range

Its bytes are a MessagePack map by field names in a `Frame` with the magic "HOLDTBLS".
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cached_property, lru_cache
from typing import Annotated, Any

import msgspec
import pyarrow as pa

from holdfast.backends.keyed.compatibility import check_ttl, has_same_folds
from holdfast.backends.keyed.table import (
    MIN_TIME_MS,
    Fold,
    Migration,
    StateKind,
    TableSpec,
    plain_schema,
)
from holdfast.common import (
    MAX_INT64,
    Count,
    Frame,
    ProcessLock,
    message_pack_decoder,
    raise_shortage,
)
from holdfast.errors import CheckpointCorruptedError, StateMigrationError, UnsupportedFormatError

FRAME = Frame(b"HOLDTBLS", 1, "manifest of tables")
ROCKSDB_MAGIC = b"HOLDRKDB"
"""The first bytes of the manifest of a RocksDB database, which a handle has instead of a manifest of tables."""

END = 1 << 63
"""Greater than every sort key."""

_SortKey = Annotated[int, msgspec.Meta(ge=0, le=MAX_INT64)]
_Edge = Annotated[int, msgspec.Meta(ge=0)]
_Time = Annotated[int, msgspec.Meta(ge=MIN_TIME_MS, le=MAX_INT64)]
_Amount = Annotated[float, msgspec.Meta(ge=0, le=float(1 << 62))]


class RocksDBManifestError(UnsupportedFormatError):
    """The manifest is that of a RocksDB database."""


class StoredSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """A `TableSpec` with each schema as the bytes of an Arrow IPC schema message."""

    name: str
    kind: StateKind
    key: bytes
    values: bytes
    namespace: bytes = b""
    sub_key: bytes = b""
    folds: tuple[Fold, ...] = ()
    ttl_ms: int | None = None
    is_struct: bool = False

    @classmethod
    def of(cls, spec: TableSpec) -> "StoredSpec":
        """Return the stored form of a specification."""
        values: dict[str, Any] = {
            field.name: _to_bytes(value) if isinstance(value, pa.Schema) else value
            for field in fields(spec)
            for value in [getattr(spec, field.name)]
        }
        return cls(**values)

    def spec(self) -> TableSpec:
        """Return the specification. Raises `pa.ArrowException`, `ValueError` or `OSError` if it is invalid."""
        return _decode_spec(self)


@lru_cache(maxsize=256)
def _decode_spec(stored: StoredSpec) -> TableSpec:
    if stored.ttl_ms is not None and not 0 < stored.ttl_ms <= MAX_INT64:
        raise ValueError(f"table {stored.name!r} has a TTL of {stored.ttl_ms} ms")
    values = {
        name: _to_schema(value) if isinstance(value, bytes) else value
        for name, value in msgspec.structs.asdict(stored).items()
    }
    spec = TableSpec(**values)
    names = [field.name for field in spec.stored_fields]
    if len(set(names)) < len(names) or not len(spec.key):
        raise ValueError(f"table {stored.name!r} has columns {names}")
    if spec.folds and len(spec.folds) != len(spec.values):
        message = f"table {stored.name!r} has {len(spec.folds)} folds for {len(spec.values)} values"
        raise ValueError(message)
    return spec


def _to_bytes(schema: pa.Schema) -> bytes:
    return schema.serialize().to_pybytes() if len(schema) else b""


def _to_schema(data: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(data)) if data else pa.schema([])


# A batch makes hundreds of slices, which can't be part of a cycle: `gc=False` keeps the collector from traversing them.


class Slice(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The rows of a section with `first` <= sort key < `end`.

    Attributes:
        segment: The segment's name.
        section: The section's number in the segment.
        first: The first sort key.
        end: The end of the sort keys, exclusive.
        rows: Estimated number of rows.
        row_bytes: Estimated bytes per row.
        spec: The index, among the table's specs, of the one that the section was written with.
        deleted_up_to_ms: Timers up to this time, inclusive, are deleted; only in tables of timers.
        tail_bytes: Length of the segment's tail: see `trailer`.
    """

    segment: str
    section: Count
    first: _SortKey
    end: _Edge
    rows: Count
    row_bytes: _Amount
    spec: Count
    deleted_up_to_ms: _Time = MIN_TIME_MS
    tail_bytes: Count = 0

    def within(self, first: int, end: int) -> "Slice | None":
        """Restrict the slice to a range of sort keys; None if nothing is left."""
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
        """Estimated bytes."""
        return self.rows * self.row_bytes


class Run(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Slices that don't overlap, ascending.

    Attributes:
        level: The size level that the run had when it was made: see `MergePolicy`.
        slices: Its slices.
    """

    level: Count
    slices: tuple[Slice, ...]

    @property
    def size(self) -> float:
        """Estimated bytes."""
        return sum(slice_.size for slice_ in self.slices)

    @property
    def rows(self) -> int:
        """Estimated number of rows."""
        return sum(slice_.rows for slice_ in self.slices)

    def within(self, first: int, end: int) -> "Run | None":
        """Restrict the run to a range of sort keys; None if nothing is left."""
        restricted = (slice_.within(first, end) for slice_ in self.slices)
        slices = tuple(filter(None, restricted))
        return Run(self.level, slices) if slices else None

    def with_specs(self, numbers: Sequence[int]) -> "Run":
        """Return the run with other indices of specs; `numbers` has the new index for each old one."""
        return Run(
            self.level,
            tuple(
                msgspec.structs.replace(slice_, spec=numbers[slice_.spec]) for slice_ in self.slices
            ),
        )


class TableManifest(msgspec.Struct, frozen=True, gc=False):
    """A table in a manifest.

    Attributes:
        specs: Every spec that sections of the table were written with; the last is the newest.
        runs: Newest first.
        cursor: Sort key where the sweep continues.
        credit: Bytes that the sweep may merge.
        flush_bytes: Estimated bytes that a batch changes.
    """

    specs: tuple[StoredSpec, ...]
    runs: tuple[Run, ...] = ()
    cursor: _Edge = 0
    credit: _Amount = 0.0
    flush_bytes: _Amount = 0.0

    @property
    def spec(self) -> TableSpec:
        """The table's newest specification."""
        return self.specs[-1].spec()

    def slices(self) -> Iterator[Slice]:
        """Iterate over all slices, those of newer runs first."""
        for run in self.runs:
            yield from run.slices

    def within(self, first: int, end: int) -> "TableManifest":
        """Restrict the table to a range of sort keys, without reading a segment.

        If the range contains all rows the sweep's progress is kept: otherwise it would start over with each batch.
        """
        if all(
            first <= run.slices[0].first and run.slices[-1].end <= end
            for run in self.runs
            if run.slices
        ):
            return self
        runs = tuple(filter(None, (run.within(first, end) for run in self.runs)))
        return TableManifest(self.specs, runs, flush_bytes=self.flush_bytes)

    def with_tails(self, tails: Mapping[str, int]) -> "TableManifest":
        """Return the table with the lengths of the tails of segments that were finished."""

        def with_tail(slice_: Slice) -> Slice:
            length = tails.get(slice_.segment)
            if length is None:
                return slice_
            return msgspec.structs.replace(slice_, tail_bytes=length)

        runs = (Run(run.level, tuple(map(with_tail, run.slices))) for run in self.runs)
        return msgspec.structs.replace(self, runs=tuple(runs)) if tails else self

    def with_spec(self, spec: StoredSpec) -> "TableManifest":
        """Return the same rows in a table with other columns or types."""
        if self.specs[-1] == spec:
            return self
        return self._with_specs([*(stored for stored in self.specs if stored != spec), spec])

    @classmethod
    def union(cls, tables: Sequence["TableManifest"]) -> "TableManifest":
        """Unite tables that have no key group in common.

        The last run of each table becomes one run, and so on: the result has as many runs as the table with the most.
        """
        if len(tables) == 1:
            return tables[0]
        older = [spec for table in tables for spec in table.specs[:-1]]
        newest = [table.specs[-1] for table in tables]
        # A table without older rows has only the newest spec, and may be first.
        last = next((spec for spec in newest if spec not in older), newest[-1])
        specs = [*(spec for spec in dict.fromkeys([*older, *newest]) if spec != last), last]
        renumbered = [table._with_specs(specs).runs for table in tables]  # noqa: SLF001  # its own class
        runs: list[Run] = []
        for depth in range(max(map(len, renumbered)), 0, -1):
            united = [of_table[-depth] for of_table in renumbered if len(of_table) >= depth]
            slices = [slice_ for run in united for slice_ in run.slices]
            slices.sort(key=lambda slice_: slice_.first)
            runs.append(Run(max(run.level for run in united), tuple(slices)))
        flush_bytes = sum(table.flush_bytes for table in tables)
        return cls(tuple(specs), tuple(runs), flush_bytes=flush_bytes)

    def without_unused_specs(self) -> "TableManifest":
        """Drop the specs that no slice was written with, except the newest."""
        used = sorted({slice_.spec for slice_ in self.slices()} | {len(self.specs) - 1})
        if len(used) == len(self.specs):
            return self
        return self._with_specs([self.specs[number] for number in used])

    def _with_specs(self, specs: Sequence[StoredSpec]) -> "TableManifest":
        """Return the table with the specs of another list, which has those of all slices."""
        numbers = [specs.index(spec) if spec in specs else -1 for spec in self.specs]
        runs = self.runs
        if numbers != [*range(len(numbers))]:
            runs = tuple(run.with_specs(numbers) for run in runs)
        return msgspec.structs.replace(self, specs=tuple(specs), runs=runs)


class Manifest(msgspec.Struct, frozen=True, dict=True):
    """All tables of a subtask, by name."""

    tables: dict[str, TableManifest]

    @cached_property
    def tails(self) -> dict[str, int]:
        """The lengths of the tails of all segments that have rows of the tables, by name."""
        return {
            slice_.segment: slice_.tail_bytes
            for table in self.tables.values()
            for slice_ in table.slices()
        }

    @cached_property
    def segments(self) -> frozenset[str]:
        """The names of all segments that have rows of the tables."""
        return frozenset(self.tails)

    def within(self, first: int, end: int) -> "Manifest":
        """Restrict the tables to a range of sort keys, without reading a segment."""
        tables = {name: table.within(first, end) for name, table in self.tables.items()}
        if all(table is self.tables[name] for name, table in tables.items()):
            return self
        return Manifest(tables)

    @classmethod
    def union(cls, manifests: Sequence["Manifest"]) -> "Manifest":
        """Unite tables of manifests that have no key group in common, without reading a segment."""
        if len(manifests) == 1:
            return manifests[0]
        names = dict.fromkeys(name for manifest in manifests for name in manifest.tables)
        return cls(
            {
                name: TableManifest.union(
                    [manifest.tables[name] for manifest in manifests if name in manifest.tables]
                )
                for name in names
            }
        )


def encode_manifest(manifest: Manifest) -> bytes:
    content = FRAME.encode(msgspec.msgpack.encode(manifest))
    _CACHE.add(content, manifest)
    return content


def decode_manifest(content: bytes, location: str = "") -> Manifest:
    """Decode a manifest, from the cache if this process has recently encoded or decoded these bytes.

    Raises `CheckpointCorruptedError`, or `UnsupportedFormatError`: a `RocksDBManifestError` for the manifest of a
    RocksDB database.
    """
    manifest = _CACHE.get(content)
    if manifest is None:
        manifest = _decode(content, location)
        _CACHE.add(content, manifest)
    return manifest


def _decode(content: bytes, location: str) -> Manifest:
    if content.startswith(ROCKSDB_MAGIC):
        message = "keyed state is in RocksDB files, which only the RocksDB backend reads"
        raise RocksDBManifestError(message, location)
    body = FRAME.decode(content, location)
    try:
        manifest = _DECODER.decode(body)
        for name, table in manifest.tables.items():
            _check(name, table)
    except (msgspec.MsgspecError, pa.ArrowException, OSError, ValueError, RecursionError) as error:
        raise_shortage(error, location)
        message = f"manifest of tables can't be decoded ({error})"
        raise CheckpointCorruptedError(message, location) from error
    return manifest


_DECODER = message_pack_decoder(Manifest)


_MAX_CACHED_BYTES = 1 << 20


class _ManifestCache:
    """The manifests that were encoded or decoded last, by their bytes; the oldest are evicted first. Safe for threads.

    A task opens the manifest that the previous batch wrote, usually in the process that wrote it.
    """

    def __init__(self) -> None:
        self._bytes = 0
        self._manifests: dict[bytes, Manifest] = {}
        self._lock = ProcessLock()

    def get(self, content: bytes) -> Manifest | None:
        return self._manifests.get(content)

    def add(self, content: bytes, manifest: Manifest) -> None:
        with self._lock.current:
            if content in self._manifests:
                return
            self._manifests[content] = manifest
            self._bytes += len(content)
            while self._bytes > _MAX_CACHED_BYTES:
                oldest = next(iter(self._manifests))
                del self._manifests[oldest]
                self._bytes -= len(oldest)


_CACHE = _ManifestCache()


def _check(name: str, table: TableManifest) -> None:
    """Raise `ValueError` if the table's numbers contradict each other."""
    if not table.specs or any(spec.name != name for spec in table.specs):
        raise ValueError(f"table {name!r} has specs of {[spec.name for spec in table.specs]}")
    for spec in table.specs:
        spec.spec()
    specs, has_timers = len(table.specs), table.specs[0].kind == "timers"
    for run in table.runs:
        before = 0
        for slice_ in run.slices:
            first, end = slice_.first, slice_.end
            if not before <= first < end <= END:
                raise ValueError(f"table {name!r} has a slice from {first} to {end}")
            if slice_.spec >= specs:
                message = f"table {name!r} has {specs} specs, but a slice with spec {slice_.spec}"
                raise ValueError(message)
            if slice_.deleted_up_to_ms != MIN_TIME_MS and not has_timers:
                raise ValueError(f"table {name!r} has no timers, but a slice with deleted timers")
            before = end


def resolve_migration(
    stored: TableSpec, spec: TableSpec, migration: Migration | None
) -> Migration | None:
    """Return the migration of stored values to the table's present types; None if they have these already.

    Raises `StateMigrationError` if the kind, the keys or the folds differ, a TTL was added, or the values differ
    and there is no migration.
    """
    for aspect, before, now in (
        ("kind", stored.kind, spec.kind),
        ("keys", plain_schema(stored.key), plain_schema(spec.key)),
        ("namespaces", plain_schema(stored.namespace), plain_schema(spec.namespace)),
        ("sub keys", _to_bytes(stored.sub_key), _to_bytes(spec.sub_key)),
        ("folds", has_same_folds(stored, spec), True),
    ):
        if before != now:
            message = (
                f"state {spec.name!r} was stored with other {aspect}: {stored}; requested: {spec}"
            )
            raise StateMigrationError(message)
    check_ttl(stored, spec)
    is_stored_alike = stored.folds == spec.folds and stored.is_struct == spec.is_struct
    if is_stored_alike and _to_bytes(stored.values) == _to_bytes(spec.values):
        return None
    if migration is None:
        message = f"state {spec.name!r} was stored with values {stored.values}, but requested with {spec.values}"
        raise StateMigrationError(message)
    return migration
