"""Tables written whole and read again, as heap snapshots and savepoints do."""

import datetime as dt
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from holdfast.backends.keyed.segments import read_tables, write_tables
from holdfast.backends.keyed.table import Identities, TableRows, TableSpec
from holdfast.backends.keys import KeyGroupRange
from holdfast.backends.snapshot import SnapshotStreams
from holdfast.common import crc32c
from holdfast.errors import (
    CheckpointCorruptedError,
    StateMigrationError,
    UnsupportedFormatError,
)
from holdfast.locations import FileSystemCheckpointStorage
from holdfast.locations.handles import ByteStreamStateHandle, SegmentsStateHandle

GROUPS = KeyGroupRange(0, 7)


@pytest.fixture
def streams(memory_directory: str) -> SnapshotStreams:
    storage = FileSystemCheckpointStorage(memory_directory, inline_threshold=1 << 20)
    access = storage.create_checkpoint_storage("job")
    access.initialize_base_locations_for_checkpoint()
    return SnapshotStreams(access.initialize_location_for_checkpoint(1))


def sort_keys(rows: int) -> np.ndarray:
    keys = np.random.default_rng(rows).integers(0, 8 << 48, rows, np.uint64)
    keys.sort()
    return keys


def rows_of(
    spec: TableSpec, columns: Sequence[pa.Array], times: np.ndarray | None = None
) -> TableRows:
    ids = len(spec.id_fields)
    keys = sort_keys(len(columns[0]))
    return TableRows(Identities(keys, tuple(columns[:ids])), tuple(columns[ids:]), times)


VALUES: dict[pa.DataType, list[Any]] = {
    pa.int8(): [1, -2, 3],
    pa.uint64(): [1, 2**64 - 1, 3],
    pa.float64(): [1.5, float("inf"), -0.0],
    pa.bool_(): [True, False, True],
    pa.string(): ["", "zwei", "drei"],
    pa.large_binary(): [b"", b"2", b"\xff"],
    pa.timestamp("us", "UTC"): [dt.datetime(2026, 1, n, tzinfo=dt.UTC) for n in (1, 2, 3)],
    pa.date32(): [dt.date(2026, 1, n) for n in (1, 2, 3)],
    pa.decimal128(9, 2): [1, 2, 3],
    pa.list_(pa.int64()): [[], [1, None], [2]],
    pa.string_view(): ["", "zwei", "drei" * 5],
    pa.dictionary(pa.int32(), pa.string()): ["a", "b", "a"],
    pa.run_end_encoded(pa.int32(), pa.int64()): [1, 1, 2],
    pa.uuid(): [bytes([n]) * 16 for n in (1, 2, 3)],
    pa.struct([("a", pa.string())]): [{"a": "x"}, {"a": None}, {"a": ""}],
    pa.map_(pa.string(), pa.int64()): [[], [("a", 1)], [("b", None)]],
}


@pytest.mark.parametrize("type", VALUES, ids=str)
@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize("cut", [False, True])
def test_values_of_every_type_are_read_as_written(
    streams: SnapshotStreams, type: pa.DataType, *, nulls: bool, cut: bool
) -> None:
    spec = TableSpec("s", "value", pa.schema([("k", pa.int64())]), pa.schema([("v", type)]))
    values = pa.array([*VALUES[type], None if nulls else VALUES[type][0]], type)
    keys = pa.array([1, 2, 3, 4])
    if cut:
        values, keys = (
            pa.concat_arrays([values, values]).slice(4),
            pa.array([0, 1, 2, 3, 4]).slice(1),
        )
    handle = write_tables([(spec, [rows_of(spec, [keys, values])])], GROUPS, streams)
    (table,) = read_tables([handle], GROUPS)
    assert table.spec == spec
    (read,) = table.rows()
    assert read.values[0].equals(values)
    assert read.values[0].type == type
    assert read.identities.columns[0].equals(keys)
    assert read.identities.sort_keys.tolist() == sort_keys(4).tolist()


MAP_SPEC = TableSpec(
    name="m",
    kind="map",
    key=pa.schema([("a", pa.string()), ("b", pa.int32())]),
    namespace=pa.schema([("n", pa.int64())]),
    sub_key=pa.schema([("k", pa.string())]),
    values=pa.schema([pa.field("x", pa.int64(), metadata={"kind": "x"}), ("y", pa.string())]),
    ttl_ms=1000,
    is_struct=True,
)


def map_rows(rows: int) -> TableRows:
    numbers = range(rows)
    columns = [
        pa.array([f"key {n}" for n in numbers]),
        pa.array(numbers, pa.int32()),
        pa.array(numbers, pa.int64()),
        pa.array([None if n % 7 == 0 else f"entry {n}" for n in numbers]),
        pa.array([n * n for n in numbers]),
        pa.array([None if n % 3 == 0 else f"value {n}" for n in numbers]),
    ]
    return rows_of(MAP_SPEC, columns, np.arange(rows))


def test_table_keeps_its_spec_times_and_field_metadata(
    streams: SnapshotStreams,
) -> None:
    handle = write_tables([(MAP_SPEC, [map_rows(20_000)])], GROUPS, streams)
    (table,) = read_tables([handle], GROUPS)
    assert table.spec.values.equals(MAP_SPEC.values, check_metadata=True)
    assert table.spec == MAP_SPEC
    parts = list(table.rows(step_rows=3_000))
    assert len(parts) > 3
    written = map_rows(20_000)
    assert written.times_ms is not None
    for number, column in enumerate(written.values):
        assert pa.chunked_array([part.values[number] for part in parts]).combine_chunks() == column
    for number, column in enumerate(written.identities.columns):
        parts_of_column = [part.identities.columns[number] for part in parts]
        assert pa.chunked_array(parts_of_column).combine_chunks() == column
    times = [part.times_ms for part in parts]
    assert np.array_equal(np.concatenate([t for t in times if t is not None]), written.times_ms)


def test_large_table_is_written_as_several_sections(
    streams: SnapshotStreams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.backends.keyed.segments.table_writer.STEP_ROWS", 1000)
    handle = write_tables(
        [
            (
                MAP_SPEC,
                [
                    map_rows(5_500),
                ],
            )
        ],
        GROUPS,
        streams,
    )
    (table,) = read_tables([handle], GROUPS)
    (read,) = table.rows()
    assert read.values[0] == map_rows(5_500).values[0]


def test_subtask_reads_its_key_groups_from_all_handles(
    streams: SnapshotStreams,
) -> None:
    spec = TableSpec("s", "value", pa.schema([("k", pa.int64())]), pa.schema([("v", pa.int64())]))
    keys = sort_keys(1000)
    numbers = pa.array(range(1000))
    handles = []
    for groups in (KeyGroupRange(0, 4), KeyGroupRange(5, 7)):
        first, end = keys.searchsorted(
            np.array([groups.start_key_group << 48, (groups.end_key_group + 1) << 48], np.uint64)
        )
        part = numbers.slice(first, end - first)
        rows = TableRows(Identities(keys[first:end], (part,)), (part,))
        handles.append(write_tables([(spec, [rows])], groups, streams))
    (table,) = read_tables(handles, KeyGroupRange(3, 5))
    (read,) = table.rows()
    wanted = (keys >> np.uint64(48)).astype(int)
    expected = np.flatnonzero((wanted >= 3) & (wanted <= 5)).tolist()
    assert read.values[0].to_pylist() == expected
    part = handles[0].intersection(4, 4)
    assert part is not None
    (table,) = read_tables([part], GROUPS)
    (read,) = table.rows()
    assert read.values[0].to_pylist() == np.flatnonzero(wanted == 4).tolist()


def test_table_without_rows_is_read(streams: SnapshotStreams) -> None:
    handle = write_tables([(MAP_SPEC, [])], GROUPS, streams)
    assert not handle.segments
    (table,) = read_tables([handle], GROUPS)
    assert table.spec == MAP_SPEC
    assert not list(table.rows())


def test_values_of_another_type_are_migrated_or_rejected(streams: SnapshotStreams) -> None:
    key = pa.schema([("k", pa.int64())])
    old = TableSpec("s", "value", key, pa.schema([("v", pa.int32())]))
    new = TableSpec("s", "value", key, pa.schema([("v", pa.int64())]))
    rows = rows_of(old, [pa.array([1, 2]), pa.array([3, 4], pa.int32())])
    (table,) = read_tables([write_tables([(old, [rows])], GROUPS, streams)], GROUPS)

    def widen(stored: TableSpec, values: Sequence[pa.Array]) -> tuple[pa.Array, ...]:
        assert stored == old
        return tuple(array.cast(pa.int64()) for array in values)

    (read,) = table.rows(new, widen)
    assert read.values[0] == pa.array([3, 4])
    with pytest.raises(StateMigrationError):
        table.rows(new)
    other_key = TableSpec("s", "value", pa.schema([("k", pa.int32())]), old.values)
    with pytest.raises(StateMigrationError, match="keys"):
        table.rows(other_key, widen)
    with pytest.raises(StateMigrationError, match="time to live"):
        table.rows(TableSpec("s", "value", key, old.values, ttl_ms=5), widen)


def segment_of(handle: SegmentsStateHandle) -> bytes:
    (stream,) = handle.segments.values()
    assert isinstance(stream, ByteStreamStateHandle)
    return stream.data


def with_segment(handle: SegmentsStateHandle, content: bytes) -> SegmentsStateHandle:
    (name,) = handle.segments
    return SegmentsStateHandle(
        handle.key_groups, {name: ByteStreamStateHandle(content)}, handle.manifest
    )


def read_all(handle: SegmentsStateHandle) -> list[list[object]]:
    return [
        [array.to_pylist() for rows in table.rows() for array in rows.values]
        for table in read_tables([handle], GROUPS)
    ]


def test_changed_byte_of_a_segment_raises_its_block(
    streams: SnapshotStreams,
) -> None:
    handle = write_tables([(MAP_SPEC, [map_rows(5_000)])], GROUPS, streams)
    content = segment_of(handle)
    expected = read_all(handle)
    rejected = 0
    for position in range(0, len(content), 997):
        damaged = bytearray(content)
        damaged[position] ^= 4
        try:
            assert read_all(with_segment(handle, bytes(damaged))) == expected
        except (CheckpointCorruptedError, UnsupportedFormatError) as error:
            rejected += 1
            if 64 <= position < len(content) // 2:
                assert f"block {position >> 16} " in str(error)  # noqa: PT017
                assert next(iter(handle.segments)) in str(error)  # noqa: PT017
    assert rejected > len(content) / 997 / 2


def test_truncated_segment_is_rejected(streams: SnapshotStreams) -> None:
    handle = write_tables([(MAP_SPEC, [map_rows(100)])], GROUPS, streams)
    content = segment_of(handle)
    for length in (1, 8, 63, 64, 100, len(content) - 1):
        with pytest.raises(CheckpointCorruptedError):
            read_all(with_segment(handle, content[:length]))


def trailer_of(content: bytes | bytearray) -> tuple[int, int]:
    length, _, _, _ = struct.unpack(">II8sI", content[-20:])
    return len(content) - 20 - length, length


def seal_trailer(content: bytearray) -> None:
    start, _ = trailer_of(content)
    struct.pack_into(">I", content, len(content) - 4, crc32c(content[start:-4]))


def test_trailer_with_contradicting_numbers_is_rejected(
    streams: SnapshotStreams,
) -> None:
    handle = write_tables([(MAP_SPEC, [map_rows(5_000)])], GROUPS, streams)
    content = segment_of(handle)
    start, length = trailer_of(content)
    refused = 0
    for position in range(start, start + length):
        for value in (0, 0x7F, 0xCF, 0xFF):
            hostile = bytearray(content)
            hostile[position] = value
            seal_trailer(hostile)
            try:
                read_all(with_segment(handle, bytes(hostile)))
            except (CheckpointCorruptedError, UnsupportedFormatError):
                refused += 1
    assert refused


def test_newer_version_is_reported(streams: SnapshotStreams) -> None:
    handle = write_tables([(MAP_SPEC, [map_rows(10)])], GROUPS, streams)
    newer = bytearray(segment_of(handle))
    struct.pack_into(">I", newer, len(newer) - 16, 2)
    with pytest.raises(CheckpointCorruptedError, match="trailer has checksum"):
        read_all(with_segment(handle, bytes(newer)))
    seal_trailer(newer)
    with pytest.raises(UnsupportedFormatError, match="version 2"):
        read_all(with_segment(handle, bytes(newer)))
    assert isinstance(handle.manifest, ByteStreamStateHandle)
    manifest = bytearray(handle.manifest.data)
    struct.pack_into(">I", manifest, 8, 2)
    struct.pack_into(">I", manifest, len(manifest) - 4, crc32c(manifest[:-4]))
    with pytest.raises(UnsupportedFormatError, match="version 2"):
        read_tables(
            [SegmentsStateHandle((0, 7), {}, ByteStreamStateHandle(bytes(manifest)))], GROUPS
        )


def hostile_manifests(content: bytes) -> Iterator[bytes]:
    for position in range(12, len(content) - 4):
        for value in (0, 0x7F, 0xCF, 0xFF):
            hostile = bytearray(content)
            hostile[position] = value
            struct.pack_into(">I", hostile, len(hostile) - 4, crc32c(hostile[:-4]))
            yield bytes(hostile)


def test_manifest_with_contradicting_numbers_is_rejected(
    streams: SnapshotStreams,
) -> None:
    handle = write_tables([(MAP_SPEC, [map_rows(50)])], GROUPS, streams)
    assert isinstance(handle.manifest, ByteStreamStateHandle)
    refused = 0
    for hostile in hostile_manifests(handle.manifest.data):
        manifest = ByteStreamStateHandle(hostile)
        try:
            read_all(SegmentsStateHandle((0, 7), handle.segments, manifest))
        except (CheckpointCorruptedError, UnsupportedFormatError, StateMigrationError):
            refused += 1
    assert refused
