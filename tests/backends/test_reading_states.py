"""States of checkpoints as Arrow tables, read without the classes and the job that wrote them."""

import datetime as dt
import math
import pickle
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any
from unittest.mock import ANY

import msgspec
import pyarrow as pa
import pytest
from contracts.checkpoints import Checkpoint, one_state
from contracts.elements import (
    NOON,
    PYTHON_VALUES,
    VALUES,
    Circle,
    Color,
    Plain,
    Point,
    Square,
    broadcast_state,
    list_state,
    union_state,
)
from contracts.values import EXCLUSIVE

import holdfast
from holdfast.backends import ListStateDescriptor, OperatorStateBackend, Pickled, check_restore
from holdfast.backends.inspection import readable_state, state_parts
from holdfast.backends.inspection.state_parts import SectionPart
from holdfast.backends.keys import KeyGroupRange
from holdfast.backends.snapshot import (
    Compression,
    KeyedStateCheckpointOutputStream,
    OperatorStateCheckpointOutputStream,
)
from holdfast.errors import (
    CheckpointCorruptedError,
    CheckpointNotFoundError,
    InvalidRequestError,
    StateMigrationError,
)
from holdfast.locations import StoredOperator, StoredSubtask
from holdfast.locations.adapters import ByteStreamStateHandle
from holdfast.locations.coordination import find_checkpoint
from holdfast.locations.handles import RawOperatorStateHandle


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(f"file://{tmp_path}")


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_elements_of_an_arrow_type_come_as_they_are(
    checkpoint: Checkpoint, kind: str, compression: Compression | None
) -> None:
    element_type, values = VALUES[kind]
    checkpoint.add(
        "op",
        lambda backend, _: list_state(backend, "s", element_type).add_all(values),
        parallelism=2,
        compression=compression,
    )
    read = holdfast.read_state(checkpoint.complete(), "op", "s")
    assert read.schema == pa.schema([("subtask", pa.int32()), ("value", element_type)])
    assert read["value"].to_pylist() == pa.array(values * 2, element_type).to_pylist()
    assert read["subtask"].to_pylist() == [0] * len(values) + [1] * len(values)
    read.validate(full=True)


@pytest.mark.parametrize("levels", [1, 2], ids=["of the job", "of checkpoints"])
def test_newest_checkpoint_below_a_directory_is_read(checkpoint: Checkpoint, levels: int) -> None:
    checkpoint.add("op", lambda backend, _: list_state(backend, "s", pa.int64()).add(7))
    pointer = checkpoint.complete()
    directory = pointer.rsplit("/", levels)[0]
    descriptors = {"op": [ListStateDescriptor("s", pa.int64())]}
    assert holdfast.read_state(directory, "op", "s") == holdfast.read_state(pointer, "op", "s")
    assert holdfast.states(directory) == holdfast.states(pointer)
    assert holdfast.subtasks(directory) == holdfast.subtasks(pointer)
    assert check_restore(directory, descriptors) == check_restore(pointer, descriptors)


class Parcel(msgspec.Struct):
    weight: float
    tag: str | None = None


class Shipment(msgspec.Struct):
    day: dt.date
    at: Annotated[dt.datetime, msgspec.Meta(tz=True)]
    local: Annotated[dt.datetime, msgspec.Meta(tz=False)]
    took: dt.timedelta
    price: Decimal
    when: dt.datetime
    picture: bytes = b"\xff"
    parcels: list[Parcel] = []
    by_place: dict[tuple[int, int], float] = {}


SHIPMENT = Shipment(
    dt.date(2024, 1, 2),
    NOON,
    NOON.replace(tzinfo=None),
    dt.timedelta(seconds=1.5),
    Decimal("1.10"),
    NOON,
    parcels=[Parcel(1.5), Parcel(2.5, "fragile")],
    by_place={(1, 2): 0.5},
)


def required_field(name: str, element_type: pa.DataType) -> pa.Field:
    return pa.field(name, element_type, nullable=False)


SHOWN: dict[str, tuple[pa.DataType, list[Any]]] = {
    "struct": (
        pa.struct([required_field("x", pa.int64()), required_field("y", pa.float64())]),
        [{"x": 1, "y": 0.5}, {"x": -(2**63), "y": 1e300}, {"x": 2**63 - 1, "y": 0.5}],
    ),
    "struct that is an array": (
        pa.struct([required_field("left", pa.int64()), required_field("right", pa.string())]),
        [{"left": 1, "right": "none"}, {"left": 2, "right": "two"}],
    ),
    "tagged union": (
        pa.string(),
        [
            '{"type":"Circle","radius":1.5}',
            '{"type":"Square","side":2,"color":"red"}',
            '{"type":"Circle","radius":0.0}',
        ],
    ),
    "struct that refers to itself": (
        pa.string(),
        [
            (
                '{"value":1,"next":{"value":2,"next":{"value":3,"next":null,"children":[]},"children":[]},'
                '"children":[{"value":4,"next":null,"children":[]},{"value":5,"next":null,"children":[]}]}'
            )
        ],
    ),
    "named tuple": (
        pa.struct([required_field("start", pa.int64()), required_field("stop", pa.int64())]),
        [{"start": 1, "stop": 0}, {"start": 2, "stop": 3}],
    ),
    "tuple": (
        pa.struct([required_field("_1", pa.int64()), required_field("_2", pa.string())]),
        [{"_1": 1, "_2": "a"}],
    ),
    "set": (pa.list_(required_field("item", pa.string())), [[], ANY]),
    "dict by number": (
        pa.map_(pa.int64(), required_field("value", pa.string())),
        [[], [(1, "a"), (-1, "")]],
    ),
    "enum": (pa.string(), ["red", "blue"]),
    "datetime": (
        pa.string(),
        ["2024-01-01T12:00:00Z", "2024-01-01T12:00:00.000001Z", "0001-01-01T00:00:00Z"],
    ),
    "date": (pa.date32(), [dt.date(1969, 12, 31)]),
    "timedelta": (pa.duration("us"), [dt.timedelta(days=-1, microseconds=1)]),
    "anything": (pa.string(), ["1", '"a"', '[1,{"b":null}]']),
}


@pytest.mark.parametrize("kind", [kind for kind in PYTHON_VALUES if "pickled" not in kind])
def test_elements_of_python_types_match_their_schema(checkpoint: Checkpoint, kind: str) -> None:
    element_type, values = PYTHON_VALUES[kind]
    pointer = one_state(checkpoint, element_type, values)
    read = holdfast.read_state(pointer, "op", "s")["value"]
    read.validate(full=True)
    assert len(read) == len(values)
    if kind in SHOWN:
        assert (read.type, read.to_pylist()) == SHOWN[kind]


def test_fields_of_a_class_are_columns(checkpoint: Checkpoint) -> None:
    pointer = one_state(checkpoint, Shipment, [SHIPMENT])
    read = holdfast.read_state(pointer)["value"]
    assert {field.name: str(field.type) for field in read.type} == {
        "day": "date32[day]",
        "at": "timestamp[us, tz=UTC]",
        "local": "timestamp[us]",
        "took": "duration[us]",
        "price": "string",
        "when": "string",
        "picture": "binary",
        "parcels": "list<item: struct<weight: double not null, tag: string> not null>",
        "by_place": "map<struct<_1: int64 not null, _2: int64 not null>, double>",
    }
    assert read.to_pylist() == [
        {
            "day": SHIPMENT.day,
            "at": SHIPMENT.at,
            "local": SHIPMENT.local,
            "took": SHIPMENT.took,
            "price": "1.10",
            "when": "2024-01-01T12:00:00Z",
            "picture": b"\xff",
            "parcels": [{"weight": 1.5, "tag": None}, {"weight": 2.5, "tag": "fragile"}],
            "by_place": [({"_1": 1, "_2": 2}, 0.5)],
        }
    ]


def test_numbers_beyond_64_bits_are_not_cut(checkpoint: Checkpoint) -> None:
    pointer = one_state(checkpoint, int | str, [2**64 - 1])
    assert holdfast.read_state(pointer)["value"].to_pylist() == ["18446744073709551615"]


@pytest.mark.parametrize(
    ("element_type", "value", "expected"),
    [
        (
            Any,
            {None: 1, True: 2, "a": {(1, None): math.nan}},
            '{"null":1,"true":2,"a":{"[1,null]":NaN}}',
        ),
        (dict[int | None, int], {None: 1, 2: 3}, '{"null":1,"2":3}'),
        (int | float, math.nan, "NaN"),
        (list[float] | None, [math.inf], [math.inf]),
        (list[float] | int, [-math.inf], "[-Infinity]"),
    ],
    ids=str,
)
def test_values_without_a_json_form_become_texts(
    checkpoint: Checkpoint, element_type: Any, value: Any, expected: Any
) -> None:
    pointer = one_state(checkpoint, element_type, [value])
    assert holdfast.read_state(pointer)["value"].to_pylist() == [expected]


class Left(msgspec.Struct, omit_defaults=True):
    number: int = 7
    data: bytes = b"\1"
    when: dt.datetime = NOON


def test_omitted_defaults_are_read(checkpoint: Checkpoint) -> None:
    pointer = one_state(checkpoint, Left, [Left(), Left(8)])
    assert holdfast.read_state(pointer)["value"].to_pylist() == [
        {"number": number, "data": b"\1", "when": "2024-01-01T12:00:00Z"} for number in (7, 8)
    ]


def test_pickles_are_not_looked_into(checkpoint: Checkpoint) -> None:
    pointer = one_state(checkpoint, Pickled(), [Plain(1)])
    read = holdfast.read_state(pointer)
    assert read.schema.field("value").type == pa.binary()
    assert pickle.loads(read["value"][0].as_py()) == Plain(1)


def test_every_subtask_has_its_part_of_a_union_state(checkpoint: Checkpoint) -> None:
    checkpoint.add("op", lambda backend, subtask: union_state(backend).add(subtask), parallelism=3)
    read = holdfast.read_state(checkpoint.complete())
    assert read.to_pylist() == [{"subtask": i, "value": i} for i in range(3)]


def test_one_copy_of_a_broadcast_state_is_read(checkpoint: Checkpoint) -> None:
    checkpoint.add(
        "op",
        lambda backend, _: broadcast_state(backend, "b", (str, Point), {"a": Point(1)}),
        parallelism=3,
    )
    pointer = checkpoint.complete()
    assert holdfast.read_state(pointer).to_pylist() == [{"key": "a", "value": {"x": 1, "y": 0.5}}]
    (row,) = holdfast.states(pointer).to_pylist()
    assert (row["kind"], row["subtasks"], row["stored_elements"]) == ("broadcast", 3, 1)


def test_raw_states_are_rows_of_bytes(checkpoint: Checkpoint) -> None:
    with checkpoint.location.create_checkpoint_state_output_stream(EXCLUSIVE) as stream:
        raw = OperatorStateCheckpointOutputStream(stream)
        for content in (b"one", b"", b"three"):
            raw.start_new_partition()
            raw.write(content)
        operator = raw.close_and_get_handle()
    with checkpoint.location.create_checkpoint_state_output_stream(EXCLUSIVE) as stream:
        keyed = KeyedStateCheckpointOutputStream(stream, KeyGroupRange(4, 7))
        for key_group in (6, 4):
            keyed.start_new_key_group(key_group)
            keyed.write(b"of %d" % key_group)
        groups = keyed.close_and_get_handle()
    assert operator is not None
    assert groups is not None
    state = StoredSubtask(raw_operator=(operator,), raw_keyed=(groups,))
    checkpoint.operators["op"] = StoredOperator(2, 8, {1: state})
    pointer = checkpoint.complete()
    assert holdfast.read_state(pointer, raw="operator").to_pylist() == [
        {"subtask": 1, "partition": number, "value": content}
        for number, content in enumerate((b"one", b"", b"three"))
    ]
    assert holdfast.read_state(pointer, "op", raw="keyed").to_pylist() == [
        {"subtask": 1, "key_group": 6, "value": b"of 6"},
        {"subtask": 1, "key_group": 4, "value": b"of 4"},
    ]
    assert [
        (row["kind"], row["stored_elements"], row["bytes"], row["type"], row["arrow_type"])
        for row in rows(pointer)
    ] == [
        ("raw operator", 3, 8, "bytes", "binary"),
        ("raw keyed", 2, 8, "bytes", "binary"),
    ]
    with pytest.raises(InvalidRequestError, match="'operator' or 'keyed'"):
        holdfast.read_state(pointer, raw="list")  # type: ignore[arg-type]


def rows(pointer: str) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = holdfast.states(pointer).to_pylist()
    return listed


def test_overview_names_every_state(checkpoint: Checkpoint) -> None:
    def fill(backend: OperatorStateBackend, subtask: int) -> None:
        list_state(backend, "longs").add_all(range(subtask))
        list_state(backend, "points", Point)
        broadcast_state(backend, "rules", (str, Circle | Square))

    checkpoint.add("a", fill, parallelism=3)
    checkpoint.add("b", lambda backend, _: list_state(backend, "pickles", Pickled(Plain)))
    assert [
        [
            row[name]
            for name in (
                "operator",
                "state",
                "kind",
                "stored_elements",
                "type",
                "arrow_type",
                "stored_as",
            )
        ]
        for row in rows(checkpoint.complete())
    ] == [
        ["a", "longs", "list", 3, "int64", "int64", "arrow"],
        [
            "a",
            "points",
            "list",
            0,
            "contracts.elements.Point",
            "struct<x: int64 not null, y: double not null>",
            "arrow",
        ],
        [
            "a",
            "rules",
            "broadcast",
            0,
            "string to contracts.elements.Circle | contracts.elements.Square",
            "string to string",
            "arrow to messagepack",
        ],
        ["b", "pickles", "list", 0, "contracts.elements.Plain", "binary", "pickle"],
    ]


def test_state_without_elements_is_a_table_without_rows(checkpoint: Checkpoint) -> None:
    pointer = one_state(checkpoint, Color, [])
    read = holdfast.read_state(pointer)
    assert (len(read), read.schema.field("value").type) == (0, pa.string())
    assert list(holdfast.iter_state(pointer)) == []


def test_wrong_name_is_answered_with_the_right_ones(checkpoint: Checkpoint) -> None:
    checkpoint.add("op", lambda backend, _: (list_state(backend, "s"), list_state(backend, "t")))
    checkpoint.add("other", lambda backend, _: list_state(backend, "u"))
    pointer = checkpoint.complete()
    for wrong, right in [
        ((), r"\['op', 'other'\]"),
        (("none",), r"\['op', 'other'\]"),
        (("op",), r"\['s', 't'\]"),
        (("op", "u"), r"\['s', 't'\]"),
    ]:
        with pytest.raises(InvalidRequestError, match=right):
            holdfast.read_state(pointer, *wrong)
    with pytest.raises(InvalidRequestError, match="no raw keyed state"):
        holdfast.read_state(pointer, "op", raw="keyed")
    with pytest.raises(CheckpointNotFoundError):
        holdfast.read_state(f"{pointer}/none")


@pytest.mark.parametrize("compression", [None, "lz4"])
def test_large_state_comes_block_by_block_and_in_parts(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, compression: Compression | None
) -> None:
    chunks = [pa.array(range(i * 200_000, (i + 1) * 200_000)) for i in range(5)]
    checkpoint.add(
        "op",
        lambda backend, _: list_state(backend).add_all(pa.chunked_array(chunks)),
        compression=compression,
    )
    pointer = checkpoint.complete()
    batches = list(holdfast.iter_state(pointer))
    assert max(map(len, batches)) <= 1 << 16
    read = pa.Table.from_batches(batches)["value"]
    assert read.equals(pa.chunked_array(chunks))

    whole = readable_state(find_checkpoint(pointer).metadata)
    assert len(whole.split()) == 1
    monkeypatch.setattr("holdfast.backends.inspection.state_parts.PARALLEL_BYTES", 1 << 20)
    parts = whole.split()
    assert len(parts) > 2
    pieces = [
        pa.Table.from_batches(pickle.loads(pickle.dumps(whole)).batches([table])) for table in parts
    ]
    assert pa.concat_tables(pieces)["value"].equals(read)

    (part,) = whole.parts
    assert isinstance(part, SectionPart)
    fewer = replace(part, partitions=msgspec.structs.replace(part.partitions, count=300_000))
    assert replace(whole, parts=(fewer,)).split() == [fewer]
    assert sum(map(len, whole.batches([fewer]))) == 300_000


def test_large_array_is_stored_in_blocks(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.backends.snapshot.section.BLOCK_BYTES", 1 << 16)
    elements = pa.array(range(100_000))
    pointer = one_state(checkpoint, pa.int64(), elements)
    monkeypatch.setattr("holdfast.backends.inspection.state_parts.PARALLEL_BYTES", 1 << 18)
    state = readable_state(find_checkpoint(pointer).metadata)
    parts = state.split()
    assert len(parts) > 2
    read = pa.Table.from_batches(state.batches(parts))["value"]
    assert read.combine_chunks().equals(elements)


def flip_bit(file: Path, position: int) -> Iterator[None]:
    content = bytearray(file.read_bytes())
    content[position] ^= 1
    file.write_bytes(content)
    yield
    content[position] ^= 1
    file.write_bytes(content)


def test_damage_is_found_wherever_it_is(checkpoint: Checkpoint, tmp_path: Path) -> None:
    pointer = one_state(checkpoint, pa.int64(), list(range(1000)))
    (file,) = (
        path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size > 8000
    )
    size = file.stat().st_size
    for position in (0, 9, size // 2, size - 20, size - 1):
        for _ in flip_bit(file, position):
            with pytest.raises(CheckpointCorruptedError, match="checksum"):
                holdfast.read_state(pointer)
    assert len(holdfast.read_state(pointer)) == 1000
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointCorruptedError, match="bytes"):
        holdfast.states(pointer)
    file.unlink()
    with pytest.raises(CheckpointNotFoundError):
        holdfast.read_state(pointer)


def test_different_types_of_subtasks_are_an_error(checkpoint: Checkpoint) -> None:
    types = [pa.int64(), pa.int32()]
    checkpoint.add(
        "op",
        lambda backend, subtask: list_state(backend, "s", types[subtask]).add(1),
        parallelism=2,
    )
    pointer = checkpoint.complete()
    with pytest.raises(StateMigrationError, match="subtask 1"):
        holdfast.read_state(pointer)


def test_subtasks_may_have_a_class_in_different_modules(checkpoint: Checkpoint) -> None:
    types = [
        msgspec.defstruct("Moved", [("x", int)], module=module) for module in ("before", "now")
    ]
    checkpoint.add(
        "op",
        lambda backend, subtask: list_state(backend, "s", types[subtask]).add(
            types[subtask](subtask)
        ),
        parallelism=2,
    )
    assert holdfast.read_state(checkpoint.complete()).to_pylist() == [
        {"subtask": 0, "value": {"x": 0}},
        {"subtask": 1, "value": {"x": 1}},
    ]


class _Counted(bytes):
    lengths_asked = 0

    def as_stream(self) -> SimpleNamespace:
        return SimpleNamespace(read=lambda: self)

    def __len__(self) -> int:
        type(self).lengths_asked += 1
        return super().__len__()


def test_raw_state_is_cut_into_batches_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    contents = [_Counted(b"x" * 10) for _ in range(500)]
    monkeypatch.setattr(state_parts, "MAX_BYTES", 1000)
    monkeypatch.setattr(
        state_parts, "raw_operator_partitions", lambda _: map(_Counted.as_stream, contents)
    )
    part = state_parts.RawPart(0, RawOperatorStateHandle((), ByteStreamStateHandle(b"")))
    batches = part.batches(part.stored_schema())
    assert [len(batch) for batch in batches if len(batch)] == [100] * 5
    assert _Counted.lengths_asked < 10 * len(contents)


def test_subtasks_have_their_statistics(checkpoint: Checkpoint) -> None:
    checkpoint.add("op", lambda backend, _: list_state(backend).add(1), parallelism=2)
    listed = holdfast.subtasks(checkpoint.complete()).to_pylist()
    assert [(row["operator"], row["subtask"], row["batch"]) for row in listed] == [
        ("op", 0, 0),
        ("op", 1, 0),
    ]
    assert all(row["stored_bytes"] > 0 and row["rows_in"] is None for row in listed)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        holdfast.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_descriptors_need_not_be_known(checkpoint: Checkpoint) -> None:
    assert ListStateDescriptor("s", Point).name == "s"
    pointer = one_state(checkpoint, Point, [Point(1)])
    assert holdfast.read_state(pointer).to_pandas()["value"].tolist() == [{"x": 1, "y": 0.5}]
