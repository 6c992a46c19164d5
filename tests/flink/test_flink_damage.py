"""Savepoints with damaged bytes: errors of Holdfast or other values, but nothing else, and in little memory."""

import struct
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pytest
from contracts.flink_kinds import (
    LONG,
    STRING,
    Kind,
    each,
    i2,
    i4,
    i8,
    list_of,
    map_of,
    pojo_of,
    row_of,
    snapshot,
    string,
    tuple_of,
    utf,
)
from contracts.flink_savepoints import (
    Subtask,
    canonical_group,
    inline,
    key_groups,
    keyed_description,
    keyed_info,
    keyed_stream,
    list_states,
    metadata,
    snappy,
)
from hypothesis import given
from hypothesis import strategies as st

from holdfast import flink
from holdfast.errors import CheckpointError

NESTED = tuple_of(list_of(STRING), map_of(STRING, pojo_of(LONG, row_of(STRING, LONG))))
CONTENT = {
    "f0": ["a", "é"],
    "f1": [("k", {"f0": 1, "f1": {"kind": "+I", "f0": None, "f1": 2}}), ("l", None)],
}
INFOS = [
    keyed_info("nested", "VALUE", NESTED.snapshot),
    keyed_info("list", "LIST", list_of(LONG).snapshot),
    keyed_info("map", "MAP", map_of(STRING, LONG).snapshot),
]
KEY = b"\0" + i8(3) + b"\0"
CANONICAL = canonical_group(
    {
        0: [(KEY, NESTED.encode(CONTENT))],
        1: [(KEY, i8(1) + b"," + i8(2))],
        2: [(KEY + string("a"), b"\0" + i8(7))],
    }
)
HEAP = (
    i4(0)
    + i2(0)
    + each([b"\0" + i8(3) + NESTED.encode(CONTENT)])
    + i2(1)
    + each([b"\0" + i8(3) + each([i8(1), i8(2)])])
    + i2(2)
    + each([b"\0" + i8(3) + each([string("a") + b"\0" + i8(7)])])
)


def whole(form: str) -> bytes:
    compressed = form == "snappy"
    description = keyed_description(LONG.snapshot, INFOS, is_compressed=compressed)
    groups = [HEAP, i4(1)] if form == "heap" else [CANONICAL, b""]
    if compressed:
        groups = [snappy(CANONICAL), b""]
    states = list_states(
        {"texts": (STRING, ["a", "b"]), "n": (NESTED, [CONTENT])}, compressed=compressed
    )
    return metadata({"job": {0: Subtask(operator=states, keyed=keyed_stream(description, groups))}})


def raw_timers() -> bytes:
    """Timers on the heap of jobs on RocksDB, of two services."""
    services = [
        utf(name) + LONG.snapshot + STRING.snapshot + each([i8(5) + string("a") + i8(9)] * 2) * 2
        for name in ("user-timers", "w")
    ]
    group = struct.pack(">I", 0xF1CD859F) + i4(2) + each(services)
    return metadata({"job": {0: Subtask(raw_keyed=key_groups(3, 4, [0, -1], inline(group)))}})


SQL = "org.apache.flink.table.runtime.typeutils."
JAVA = b"\xac\xed\0\5sr\0\x2dorg.apache.flink.table.types.logical.BigIntType\0\0"
TEXT_DATA = snapshot(f"{SQL}StringDataSerializer$StringDataSerializerSnapshot")
DECIMAL_DATA = snapshot(f"{SQL}DecimalDataSerializer$DecimalSerializerSnapshot", 3, i4(30) + i4(5))
TIMESTAMP_DATA = snapshot(f"{SQL}TimestampDataSerializer$TimestampDataSerializerSnapshot", 1, i4(9))


def row_data(*fields: bytes) -> bytes:
    """Return the snapshot of SQL rows with these fields."""
    content = i4(len(fields)) + JAVA * len(fields) + i4(1333245) + i4(1) + each(fields)
    return snapshot(f"{SQL}RowDataSerializer$RowDataSerializerSnapshot", 3, content)


def sql() -> bytes:
    """A row of a number, strings inside and outside of their slots, a decimal, a time, and a row of a number."""
    slots = struct.pack("<q", 7) + b"short\0\0\x85" + struct.pack("<II", 12, 56)
    slots += struct.pack("<IIII", 13, 72, 17, 88) + struct.pack("<II", 16, 96)
    variable_part = b"a longer one".ljust(16) + bytes(13).ljust(16) + i8(0) + b"\0" * 8 + i8(1)
    row = bytes(8) + slots + variable_part
    fields = (LONG.snapshot, TEXT_DATA, TEXT_DATA, DECIMAL_DATA, TIMESTAMP_DATA)
    kind = Kind(row_data(*fields, row_data(LONG.snapshot)), pa.null(), lambda data: data, st.none())
    rows = [i4(len(row)) + row] * 2
    return metadata({"job": {0: Subtask(operator=list_states({"rows": (kind, rows)}))}})


def kryo() -> bytes:
    """A map of lists, sets and numbers that Flink 1 serializes with Kryo, with references."""
    java_class = utf("java.util.Map") + (i8(0x4F2C69A3D70) + i4(0)) * 3
    name = "org.apache.flink.api.java.typeutils.runtime.kryo.KryoSerializerSnapshot"
    kind = Kind(snapshot(name, 2, java_class), pa.string(), lambda data: data, st.none())
    value = b"\1\0java.util.HashMa\xf0\1\2" + b"\3\1\x82k" + b"\x09\x0d" + b"\3\1\x82l"
    value += b"\1\1java.util.ArrayLis\xf4\1\3" + b"\3\1\x83\xc3\xa9x" + b"\3\3" + b"\2\6"
    states = list_states({"values": (kind, [value, value])})
    return metadata({"job": {0: Subtask(operator=states)}}, version=4)


WHOLE = {form: whole(form) for form in ("canonical", "heap", "snappy")}
WHOLE |= {"raw timers": raw_timers(), "sql": sql(), "kryo": kryo()}
STATES = {"raw timers": 4, "sql": 1, "kryo": 1}


def read_all(directory: Path, content: bytes) -> int:
    """Read all that can be read; returns how many states could."""
    (directory / "_metadata").write_bytes(content)
    readable = 0
    try:
        savepoint = flink.open_savepoint(directory)
        rows = [row for row in savepoint.states().to_pylist() if row["state"] is not None]
        savepoint.warnings()
    except CheckpointError:
        return 0
    for row in rows:
        try:
            savepoint.read_state(row["operator"], row["state"], kind=row["kind"])
            readable += 1
        except CheckpointError:
            continue
    return readable


@pytest.mark.parametrize("form", WHOLE)
def test_all_states_are_read_from_intact_savepoint(form: str, tmp_path: Path) -> None:
    assert read_all(tmp_path, WHOLE[form]) == STATES.get(form, 5)


@given(form=st.sampled_from(sorted(WHOLE)), data=st.data())
def test_other_bytes_raise_only_holdfast_errors(
    form: str, data: st.DataObject, tmp_path: Path
) -> None:
    content = bytearray(WHOLE[form])
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(content) - 1))
        content[position] = data.draw(st.integers(0, 255))
    read_all(tmp_path, bytes(content))


@given(form=st.sampled_from(sorted(WHOLE)), part=st.floats(0, 1, exclude_max=True))
def test_truncated_file_raises_only_holdfast_errors(form: str, part: float, tmp_path: Path) -> None:
    read_all(tmp_path, WHOLE[form][: int(part * len(WHOLE[form]))])


@given(
    form=st.sampled_from(sorted(WHOLE)),
    position=st.floats(0, 1, exclude_max=True),
    number=st.sampled_from([-1, 0, 1, 1 << 16, 0x7FFFFFFF, -(1 << 31)]),
)
def test_oversized_counts_allocate_no_memory(
    form: str, position: float, number: int, tmp_path: Path
) -> None:
    at = int(position * (len(WHOLE[form]) - 4))
    content = WHOLE[form][:at] + struct.pack(">i", number) + WHOLE[form][at + 4 :]
    tracemalloc.start()
    try:
        read_all(tmp_path, content)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_serializers_in_each_other_without_end_are_refused(tmp_path: Path) -> None:
    kind = LONG
    for _ in range(100):
        kind = list_of(kind)
    states = list_states({"deep": (kind, []), "flat": (LONG, [1])})
    (tmp_path / "_metadata").write_bytes(metadata({"job": {0: Subtask(operator=states)}}))
    failures = flink.open_savepoint(tmp_path).states().column("failure").to_pylist()
    assert "nested too deeply" in failures[0]


def test_handles_in_each_other_without_end_are_refused(tmp_path: Path) -> None:
    head = b"\x0e" + i4(0) + i4(2) + i8(0) + i4(1)
    content = metadata({"job": {0: Subtask(keyed=head * 5000)}})
    (tmp_path / "_metadata").write_bytes(content)
    with pytest.raises(CheckpointError, match="nested too deeply"):
        flink.open_savepoint(tmp_path)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_lists_of_empty_elements_allocate_no_memory(size: int, tmp_path: Path) -> None:
    """An element of no bytes could be there any number of times."""
    empty = tuple_of()
    nested = list_of(list_of(empty))
    states = list_states({"v": (nested, [[[{}] * size] * size])})
    (tmp_path / "_metadata").write_bytes(metadata({"job": {0: Subtask(operator=states)}}))
    table = flink.open_savepoint(tmp_path).read_state("job", "v")
    assert table.column("value").to_pylist() == [nested.encode([[{}] * size] * size)]
