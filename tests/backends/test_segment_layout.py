"""Segments and manifests as `docs/file-format.md` has them, read with only Arrow and MessagePack."""

import itertools
import struct
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from contracts.values import read

from holdfast.backends.descriptors import MapStateDescriptor, ValueStateDescriptor
from holdfast.backends.keyed import KeyedStateBackend
from holdfast.backends.keyed.segments import (
    ColumnarStateTables,
    MergePolicy,
    write_canonical_tables,
)
from holdfast.backends.keyed.table import Identities, Operation, TableSpec
from holdfast.backends.keys import KeyGroupRange, key_hash, xxhash64
from holdfast.backends.snapshot import SnapshotStreams
from holdfast.common import crc32c
from holdfast.locations import FileSystemCheckpointStorage
from holdfast.locations.handles import SegmentsStateHandle

ROWS = 10_000
KEY = pa.schema([("k", pa.string())])
SUMS = TableSpec(
    "sums",
    "reducing",
    KEY,
    pa.schema([("count", pa.int64()), ("note", pa.list_(pa.int8()))]),
    folds=("sum", "concatenate"),
    is_struct=True,
)
LAST = TableSpec("last", "value", KEY, pa.schema([("value", pa.float32())]), ttl_ms=1000)


def identities(numbers: range) -> Identities:
    sort_keys = np.array(numbers, np.uint64) * np.uint64((8 << 48) // ROWS)
    return Identities(sort_keys, (pa.array([f"key {n}" for n in numbers]),))


@pytest.fixture
def handle(memory_directory: str) -> SegmentsStateHandle:
    """Two runs of two tables: what was put first, then appended, put and deleted."""
    access = FileSystemCheckpointStorage(memory_directory).create_checkpoint_storage("job")
    access.initialize_base_locations_for_checkpoint()
    never = MergePolicy(rewrite_factor=0, fan_in=100)
    tables = ColumnarStateTables(KeyGroupRange(0, 7), policy=never)
    sums, last = tables.table(SUMS), tables.table(LAST)
    tables.advance_time(500)
    sums.write(
        identities(range(ROWS)),
        [pa.array(range(ROWS)), pa.array([[1]] * ROWS, pa.list_(pa.int8()))],
    )
    last.write(identities(range(ROWS)), [pa.array(range(ROWS), pa.float32())])
    tables.snapshot(1, access.initialize_location_for_checkpoint(1)).run()
    tables.advance_time(900)
    lists = pa.array([[2]] * 5000, pa.list_(pa.int8()))
    added = pa.array([10] * 5000)
    sums.write(identities(range(0, ROWS, 2)), [added, lists], Operation.APPEND)
    sums.write(identities(range(3)), [added[:3], lists[:3]], Operation.DELETE)
    last.write(identities(range(7)), [pa.array([0.5] * 7, pa.float32())])
    part = tables.snapshot(2, access.initialize_location_for_checkpoint(2))
    (stored,) = part.run().state.managed_keyed
    assert isinstance(stored, SegmentsStateHandle)
    return stored


def manifest_of(handle: SegmentsStateHandle) -> dict[str, Any]:
    content = read(handle.manifest)
    assert struct.unpack_from(">8sI", content) == (b"HOLDTBLS", 1)
    assert struct.unpack(">I", content[-4:]) == (crc32c(content[:-4]),)
    body: dict[str, Any] = msgspec.msgpack.decode(content[12:-4])
    return body


def trailer_of(segment: bytes) -> dict[str, Any]:
    assert struct.unpack_from(">8sI52s", segment) == (b"HOLDSEGM", 1, bytes(52))
    length, version, magic, checksum = struct.unpack(">II8sI", segment[-20:])
    assert (version, magic) == (1, b"HOLDSEGM")
    end = len(segment) - 20 - length
    assert checksum == crc32c(segment[end:-4])
    trailer: dict[str, Any] = msgspec.msgpack.decode(segment[end:-20])
    size = trailer["block_bytes"]
    blocks = [crc32c(segment[at : min(at + size, end)]) for at in range(0, end, size)]
    assert struct.pack(f">{len(blocks)}I", *blocks) == trailer["blocks"]
    return trailer


def section_of(segment: bytes, section: dict[str, Any]) -> pa.Table:
    offset, length = section["place"]
    assert offset % 64 == 0
    return pa.ipc.open_file(pa.py_buffer(segment[offset : offset + length])).read_all()


def slices_of(handle: SegmentsStateHandle, name: str) -> Iterator[list[dict[str, Any]]]:
    """The rows of each run, newest first."""
    for _, slices in manifest_of(handle)["tables"][name]["runs"]:
        rows: list[dict[str, Any]] = []
        for segment, number, first, end, *_ in slices:
            content = read(handle.segments[segment])
            section = trailer_of(content)["sections"][number]
            assert section["table"] == name
            table = section_of(content, section)
            assert table.num_rows == section["rows"]
            assert table.column_names == [column["name"] for column in section["columns"]]
            rows += [row for row in table.to_pylist() if first <= row["hi"] < end]
        yield rows


def test_table_has_the_documented_layout(handle: SegmentsStateHandle) -> None:
    rows = {}
    ended = set()
    operands: dict[str, list[dict[str, Any]]] = {}
    for run in slices_of(handle, "sums"):
        for row in run:
            key = row["key.k"]
            if key in ended:
                continue
            operation = row.get("op", 0)
            if operation != 2:
                operands.setdefault(key, []).append(row)
            if operation != 1:
                ended.add(key)
    for key, newest_first in operands.items():
        rows[key] = (
            sum(row["value.count"] for row in newest_first),
            [item for row in reversed(newest_first) for item in row["value.note"]],
        )
    assert rows == {
        f"key {n}": (n, [1]) if n % 2 else (n + 10, [1, 2]) for n in range(ROWS) if n > 2
    }


def test_sort_keys_are_made_of_hashes_as_documented(memory_directory: str) -> None:
    access = FileSystemCheckpointStorage(memory_directory).create_checkpoint_storage("job")
    access.initialize_base_locations_for_checkpoint()
    backend = KeyedStateBackend(ColumnarStateTables(KeyGroupRange(0, 7)), KEY, 8)
    windows = pa.schema([("window", pa.int64())])
    keys = backend.keys([pa.array([f"key {n}" for n in range(100)])])
    numbers = np.arange(100)
    in_windows = backend.in_namespaces(keys, [pa.array(numbers % 3)])
    backend.get_state(ValueStateDescriptor("plain", int)).columns.put(keys, pa.array(numbers))
    counts = backend.get_state(ValueStateDescriptor("windows", int), windows)
    counts.columns.put(in_windows, pa.array(numbers))
    entries = backend.get_map_state(MapStateDescriptor("entries", int, int), windows)
    entries.columns.put(in_windows, pa.array(numbers), pa.array(numbers))
    times = [0, -1, 1023, 1024, -(1 << 60), 1 << 60, 1_790_000_000_000] * 14 + [5, 6]
    backend.event_time_timers().columns.register(keys, times)
    part = backend.snapshot(1, access.initialize_location_for_checkpoint(1))
    (stored,) = part.run().state.managed_keyed
    assert isinstance(stored, SegmentsStateHandle)
    kinds = set()
    for content, section in sections(stored):
        rows = section_of(content, section)
        columns = {name: rows[name].combine_chunks() for name in rows.column_names}
        key = columns["key.k"]
        parts = [column for name, column in columns.items() if name.startswith("namespace.")]
        parts += [column for name, column in columns.items() if name.startswith("sub.")]
        key_hashes = xxhash64([key]).tolist()
        if manifest_of(stored)["tables"][section["table"]]["specs"][-1]["kind"] == "timers":
            (time,) = parts
            steps = [min(max((t >> 10) + 2**31, 0), 2**32 - 1) for t in time.to_pylist()]
            low = [step << 16 | h >> 48 for step, h in zip(steps, key_hashes, strict=True)]
        elif parts:
            subs = xxhash64(parts).tolist()
            low = [h >> 40 << 24 | s >> 40 for h, s in zip(key_hashes, subs, strict=True)]
        else:
            low = [h >> 16 for h in key_hashes]
        groups = [number % 8 for number in key_hash([key]).to_pylist()]
        expected = [group << 48 | bits for group, bits in zip(groups, low, strict=True)]
        assert columns["hi"].to_pylist() == expected
        kinds.add((section["table"], len(parts)))
    assert sorted(count for _, count in kinds) == [0, 1, 1, 2]


def test_times_and_values_are_separate_columns(handle: SegmentsStateHandle) -> None:
    newest, oldest = slices_of(handle, "last")
    assert [(row["ts"], row["key.k"], row["value"]) for row in newest] == [
        (900, f"key {n}", 0.5) for n in range(7)
    ]
    assert {row["ts"] for row in oldest} == {500}
    (spec,) = manifest_of(handle)["tables"]["last"]["specs"]
    assert spec["ttl_ms"] == 1000
    assert pa.ipc.read_schema(pa.py_buffer(spec["values"])) == LAST.values
    assert pa.ipc.read_schema(pa.py_buffer(spec["key"])) == KEY


def sections(handle: SegmentsStateHandle) -> Iterator[tuple[bytes, dict[str, Any]]]:
    for stream in handle.segments.values():
        content = read(stream)
        for section in trailer_of(content)["sections"]:
            yield content, section


def test_buffers_are_at_the_places_in_the_trailer(handle: SegmentsStateHandle) -> None:
    kinds = set()
    for content, section in sections(handle):
        table = section_of(content, section)
        for column in section["columns"]:
            kind, buffers = column["kind"], column["buffers"]
            kinds.add(kind)
            parts = [content[offset : offset + length] for offset, length in buffers]
            expected = table[column["name"]].to_pylist()
            if kind == "string":
                offsets = np.frombuffer(parts[0], "<i4")
                edges = itertools.pairwise(offsets)
                assert [parts[1][first:end].decode() for first, end in edges] == expected
            elif kind != "arrow":
                assert np.frombuffer(parts[0], kind).tolist() == expected
    assert kinds == {"<u8", "|u1", "<i8", "<f4", "string", "arrow"}


def test_side_tables_find_the_rows(handle: SegmentsStateHandle) -> None:
    directories = samples = filters = 0
    for content, section in sections(handle):
        keys = section_of(content, section)["hi"].to_numpy()
        directory, filter_ = section.get("directory"), section.get("filter")
        sampled = section.get("samples")
        assert (directory is None) == (sampled is not None or len(keys) < 4096)
        if sampled is not None:
            samples += 1
            offset, length = sampled["place"]
            stored = np.frombuffer(content[offset : offset + length], "<u8")
            assert stored.tolist() == keys[:: sampled["step"]].tolist()
        if directory is not None:
            directories += 1
            offset, length = directory["place"]
            starts = np.frombuffer(content[offset : offset + length], "<u4")
            prefixes = (keys - np.uint64(directory["first"])) >> np.uint64(directory["shift"])
            for row, prefix in enumerate(prefixes.tolist()):
                assert starts[prefix] <= row < starts[prefix + 1]
        if filter_ is not None:
            filters += 1
            offset, length = filter_["place"]
            bits = np.unpackbits(
                np.frombuffer(content[offset : offset + length], np.uint8), bitorder="little"
            )
            prefixes = (keys >> np.uint64(filter_["shift"])).astype(np.int64)
            assert set((prefixes - 8 * filter_["first_byte"]).tolist()) == set(
                bits.nonzero()[0].tolist()
            )
    assert directories
    assert samples
    assert filters


def check_tails(handle: SegmentsStateHandle) -> None:
    """Check that each slice has the length of its segment's tail, which begins in a block with all side tables."""
    for table in manifest_of(handle)["tables"].values():
        for _, slices in table["runs"]:
            for segment, *_, tail in slices:
                content = read(handle.segments[segment])
                trailer = trailer_of(content)
                (length,) = struct.unpack(">I", content[-20:-16])
                start = len(content) - 20 - length
                side_tables = [
                    section[kind]["place"][0]
                    for kind in ("directory", "samples", "filter")
                    for section in trailer["sections"]
                    if kind in section
                ]
                ends = [sum(section["place"]) for section in trailer["sections"]]
                order = [*ends, *side_tables, start]
                assert order == sorted(order)
                first = order[len(ends)]
                if first < start:
                    first -= first % trailer["block_bytes"]
                assert tail == len(content) - first


def test_tails_are_kept_by_restored_rescaled_and_canonical_tables(
    handle: SegmentsStateHandle, memory_directory: str
) -> None:
    access = FileSystemCheckpointStorage(memory_directory).create_checkpoint_storage("other")
    access.initialize_base_locations_for_checkpoint()
    numbers = itertools.count(1)

    def stored_again(groups: KeyGroupRange, *handles: SegmentsStateHandle) -> SegmentsStateHandle:
        tables = ColumnarStateTables(groups, handles, may_refer=False)
        location = access.initialize_location_for_checkpoint(next(numbers))
        (stored,) = tables.snapshot(1, location).run().state.managed_keyed
        assert isinstance(stored, SegmentsStateHandle)
        return stored

    halves = [stored_again(KeyGroupRange(*groups), handle) for groups in ((0, 3), (4, 7))]
    whole = stored_again(KeyGroupRange(0, 7), *halves)
    location = access.initialize_location_for_checkpoint(next(numbers))
    canonical = write_canonical_tables(whole, SnapshotStreams(location), now_ms=0)
    for stored in (handle, *halves, whole, canonical):
        check_tails(stored)


def test_large_rows_are_in_smaller_blocks(memory_directory: str) -> None:
    access = FileSystemCheckpointStorage(memory_directory).create_checkpoint_storage("job")
    access.initialize_base_locations_for_checkpoint()
    texts = TableSpec("texts", "value", KEY, pa.schema([("value", pa.string())]))
    sizes = []
    for number, length in enumerate([900, 1100], 1):
        tables = ColumnarStateTables(KeyGroupRange(0, 7))
        tables.table(texts).write(identities(range(50)), [pa.array(["x" * length] * 50)])
        part = tables.snapshot(number, access.initialize_location_for_checkpoint(number))
        (stored,) = part.run().state.managed_keyed
        assert isinstance(stored, SegmentsStateHandle)
        sizes += [trailer_of(read(stream))["block_bytes"] for stream in stored.segments.values()]
    assert sizes == [65_536, 16_384]


def test_rows_of_more_than_a_segment_are_cut_at_sort_keys(
    memory_directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("compaction", "table_writer"):
        monkeypatch.setattr(f"holdfast.backends.keyed.segments.{module}.MAX_SEGMENT_BYTES", 100_000)
    access = FileSystemCheckpointStorage(memory_directory).create_checkpoint_storage("job")
    access.initialize_base_locations_for_checkpoint()
    texts = TableSpec("texts", "value", KEY, pa.schema([("value", pa.string())]))
    expected = [f"text {n}" * (n % 9) for n in range(ROWS)]
    sort_keys = np.array(range(ROWS), np.uint64) // np.uint64(1000) << np.uint64(47)
    tables = ColumnarStateTables(KeyGroupRange(0, 7))
    rows = Identities(sort_keys, identities(range(ROWS)).columns)
    tables.table(texts).write(rows, [pa.array(expected)])
    part = tables.snapshot(1, access.initialize_location_for_checkpoint(1))
    (stored,) = part.run().state.managed_keyed
    assert isinstance(stored, SegmentsStateHandle)
    streams = SnapshotStreams(access.initialize_location_for_checkpoint(2))
    for handle in (stored, write_canonical_tables(stored, streams, now_ms=0)):
        ((_, slices),) = manifest_of(handle)["tables"]["texts"]["runs"]
        edges = [(first, end) for _, _, first, end, *_ in slices]
        assert len(edges) == len(handle.segments) == 6  # rows with a sort key stay together
        assert [end for _, end in edges] == [*(first for first, _ in edges[1:]), 8 << 48]
        (rows_of_run,) = slices_of(handle, "texts")
        assert sorted(row["value"] for row in rows_of_run) == sorted(expected)
        kinds = [column["kind"] for _, section in sections(handle) for column in section["columns"]]
        assert kinds == ["<u8", "string", "string"] * 6
        check_tails(handle)
