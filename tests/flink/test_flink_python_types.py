"""State of PyFlink: what its coders write, read by types that the user names."""

import datetime as dt
import pickle
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from contracts.flink_kinds import (
    LONG,
    NO_NAMESPACE,
    SIMPLE,
    STRING,
    Kind,
    composite,
    each,
    i2,
    i4,
    i8,
    list_of,
    snapshot,
)
from contracts.flink_savepoints import (
    Subtask,
    canonical_group,
    entry_key,
    keyed_description,
    keyed_info,
    keyed_stream,
    metadata,
)
from hypothesis import given
from hypothesis import strategies as st

from holdfast import flink, read_state
from holdfast.backends.descriptors import ValueStateDescriptor
from holdfast.errors import CheckpointCorruptedError, CheckpointError, InvalidRequestError

WRAPPER = "org.apache.flink.streaming.api.utils.ByteArrayWrapperSerializer"
BYTES = next(kind for kind in SIMPLE if kind.type == pa.binary())
KEY_GROUP = 113  # of a long 7 in 128
EPOCH = dt.datetime.fromisoformat("1970-01-01")
Encode = Callable[[Any], bytes]


def length_prefixed(data: bytes) -> bytes:
    return i4(len(data)) + data


def text(value: str) -> bytes:
    return length_prefixed(value.encode())


def with_flag(encode: Encode) -> Encode:
    return lambda values: each([b"\0" if v is None else b"\1" + encode(v) for v in values])


def row(*encoders: Encode) -> Encode:
    """Rows of fewer than seven fields, of kind +I."""

    def encode(values: Mapping[str, Any]) -> bytes:
        fields = [values[f"f{number}"] for number in range(len(encoders))]
        mask = sum(0x20 >> number for number, value in enumerate(fields) if value is None)
        there = zip(encoders, fields, strict=True)
        return bytes([mask]) + b"".join(e(value) for e, value in there if value is not None)

    return encode


def pairs(key: Encode, value: Encode) -> Encode:
    return lambda entries: each(
        [key(k) + (b"\1" if v is None else b"\0" + value(v)) for k, v in entries]
    )


CASES: list[tuple[str, Encode, Any]] = [
    ("long", i8, -5),
    ("bigint", i8, 1 << 40),
    ("int", i4, -5),
    ("short", i2, 7),
    ("tinyint", lambda value: struct.pack(">b", value), -7),
    ("boolean", lambda value: bytes([value]), True),
    ("double", lambda value: struct.pack(">d", value), 0.5),
    ("float", lambda value: struct.pack(">f", value), 0.5),
    ("string", text, "é中😀"),
    ("decimal", text, "12.50"),
    ("bytes", length_prefixed, b"\0\1"),
    ("pickled", length_prefixed, pickle.dumps({"a": 1})),
    (
        "date",
        lambda value: i4((value - dt.date(1970, 1, 1)).days),
        dt.date(1969, 7, 20),
    ),
    (
        "time",
        lambda value: i4((value.hour * 60 + value.minute) * 60_000),
        dt.time(12, 30),
    ),
    (
        "timestamp",
        lambda value: i8(round((value - EPOCH).total_seconds() * 1000)),
        dt.datetime.fromisoformat("2026-11-23T01:02:03.004"),
    ),
    ("list<string>", with_flag(text), ["a", None, ""]),
    ("primitive_array<long>", lambda values: each([i8(v) for v in values]), [1, 2]),
    ("map<string, long>", pairs(text, i8), [("a", 1), ("b", None)]),
    (
        "tuple<long, list<string>>",
        lambda value: i8(value["f0"]) + with_flag(text)(value["f1"]),
        {"f0": 1, "f1": ["x"]},
    ),
    (
        " row < long,string > ",
        row(i8, text),
        {"kind": "+I", "f0": None, "f1": "x"},
    ),
]


def savepoint_of(
    directory: Path, type: str, value: bytes, entries: Sequence[tuple[bytes, bytes]]
) -> flink.FlinkSavepoint:
    """A savepoint of a keyed state `python-state-v` of key 7."""
    described = keyed_description(LONG.snapshot, [keyed_info("python-state-v", type, value)])
    key = entry_key(KEY_GROUP, LONG, 7, NO_NAMESPACE, None)
    groups = [b""] * 128
    groups[KEY_GROUP] = canonical_group({0: [(key + name, data) for name, data in entries]})
    content = metadata({"job": {0: Subtask(keyed=keyed_stream(described, groups))}})
    (directory / "_metadata").write_bytes(content)
    return flink.open_savepoint(directory)


def of_list(directory: Path, *elements: bytes) -> flink.FlinkSavepoint:
    data = b",".join(length_prefixed(element) for element in elements)
    return savepoint_of(directory, "LIST", list_of(BYTES).snapshot, [(b"", data)])


@pytest.mark.parametrize(("name", "encode", "value"), CASES, ids=[case[0] for case in CASES])
def test_elements_are_read_by_the_given_type(
    tmp_path: Path, name: str, encode: Encode, value: Any
) -> None:
    savepoint = of_list(tmp_path, encode(value), encode(value))
    [read] = savepoint.read_state("job", "python-state-v", types={"value": name}).to_pylist()
    assert read["value"] == [value, value]


def test_elements_added_at_once_share_bytes(tmp_path: Path) -> None:
    """In PyFlink's format: each bundle of rows appends to the list once."""
    savepoint = of_list(tmp_path, i8(1) + i8(2), i8(3))
    [read] = savepoint.read_state("job", "python-state-v", types={"value": "long"}).to_pylist()
    assert read["value"] == [1, 2, 3]


def test_maps_are_read_by_the_types_of_their_keys_and_values(tmp_path: Path) -> None:
    wrapper = Kind(
        snapshot(f"{WRAPPER}$ByteArrayWrapperSerializerSnapshot"),
        pa.binary(),
        length_prefixed,
        st.binary(),
    )
    map_snapshot = composite(
        "org.apache.flink.api.common.typeutils.base.MapSerializerSnapshot",
        wrapper.snapshot,
        BYTES.snapshot,
    )
    entry = (length_prefixed(text("a")), b"\0" + length_prefixed(i8(5)))
    savepoint = savepoint_of(tmp_path, "MAP", map_snapshot, [entry])
    [row_read] = savepoint.read_state("job", "python-state-v").to_pylist()
    assert row_read["value"] == [(text("a"), i8(5))]
    types = {"map_key": "string", "value": "long"}
    [row_read] = savepoint.read_state("job", "python-state-v", types=types).to_pylist()
    assert row_read["value"] == [("a", 5)]


def test_a_value_of_pyflink_becomes_a_value(tmp_path: Path) -> None:
    place = ("job", "python-state-v")
    pointer = flink.import_savepoint(
        of_list(tmp_path, i8(5)),
        f"file://{tmp_path}/imported",
        {place: ("totals", "sum")},
        types={place: {"value": "long"}},
        descriptors={("totals", "sum"): ValueStateDescriptor("sum", pa.int64())},
    )
    [row_read] = read_state(pointer, "totals", "sum").to_pylist()
    assert (row_read["key"], row_read["value"]) == (7, 5)


def test_lists_of_several_elements_are_refused_as_values(tmp_path: Path) -> None:
    place = ("job", "python-state-v")
    planned = flink.FlinkStateImport.of(
        of_list(tmp_path, i8(5), i8(6)),
        types={place: {"value": "long"}},
        descriptors={place: ValueStateDescriptor("python-state-v", pa.int64())},
    )
    with pytest.raises(InvalidRequestError, match="lists of several elements"):
        planned.read()


def test_remaining_bytes_report_wrong_type(tmp_path: Path) -> None:
    savepoint = of_list(tmp_path, i8(5))
    with pytest.raises(CheckpointCorruptedError, match="may have another type"):
        savepoint.read_state("job", "python-state-v", types={"value": "string"})


@pytest.mark.parametrize(
    "types",
    [
        {"value": name}
        for name in ["longs", "row<>", "map<long>", "list<long", "long>", "long long", "list", "é"]
    ]
    + [{"value": "list<" * 100 + "long" + ">" * 100}, {"key": "long"}, {"map_key": "long"}],
)
def test_invalid_types_are_refused(tmp_path: Path, types: dict[str, str]) -> None:
    with pytest.raises(InvalidRequestError):
        of_list(tmp_path, i8(5)).read_state("job", "python-state-v", types=types)


def test_types_for_other_state_than_pyflinks_are_refused(tmp_path: Path) -> None:
    savepoint = savepoint_of(tmp_path, "LIST", list_of(STRING).snapshot, [(b"", b"\2a")])
    with pytest.raises(InvalidRequestError, match="only for PyFlink's byte arrays"):
        savepoint.read_state("job", "python-state-v", types={"value": "string"})


@given(name=st.sampled_from([case[0] for case in CASES]), data=st.binary(max_size=40))
def test_any_bytes_are_values_or_damage(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: bytes
) -> None:
    savepoint = of_list(tmp_path_factory.mktemp("bytes"), data)
    try:
        savepoint.read_state("job", "python-state-v", types={"value": name})
    except CheckpointError:
        return
