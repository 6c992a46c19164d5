"""Savepoints for Flink: our reader finds in them what was in ours. `integration_tests/test_flink.py` has Flink read them."""

from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from contracts.flink_archives import extract
from contracts.flink_kinds import (
    LONG,
    NO_NAMESPACE,
    SIMPLE,
    STRING,
    Kind,
    list_of,
    map_of,
    pojo_of,
    row_of,
    tuple_of,
)
from contracts.flink_savepoints import (
    Subtask,
    canonical_group,
    entry_key,
    keyed_description,
    keyed_info,
    keyed_stream,
    list_states,
    metadata,
)
from contracts.flink_windows import TIME_WINDOW, write_windows
from hypothesis import given
from hypothesis import strategies as st

from holdfast import flink
from holdfast.backends.keys import flink_key_groups
from holdfast.errors import InvalidRequestError
from holdfast.flink.binary import DataInput
from holdfast.flink.serializers import plain_type, read_snapshot, written_type

STATES = [
    *(("keyed-long", name) for name in ("value", "list", "map", "reducing", "aggregating")),
    *(("numbers", name) for name in ("longs", "strings", "union", "own-broadcast", "tuples")),
    ("by-tuple", "count"),
    ("ttl", "ttl-value"),
    ("ttl", "ttl-list"),
    ("ttl", "ttl-map"),
]
UIDS = ["numbers", "keyed-long", "ttl", "by-tuple", "tumbling"]


@pytest.fixture(scope="module")
def savepoint(tmp_path_factory: pytest.TempPathFactory) -> flink.FlinkSavepoint:
    directory = extract(tmp_path_factory.mktemp("flink"), "heap")
    return flink.open_savepoint(next((directory / "heap" / "canonical").iterdir()), uids=UIDS)


@pytest.fixture(scope="module")
def ours(savepoint: flink.FlinkSavepoint, tmp_path_factory: pytest.TempPathFactory) -> str:
    """State of a real job, as a Holdfast savepoint."""
    ttl_ms = {place: 10**13 for place in STATES if place[0] == "ttl"}
    target = f"file://{tmp_path_factory.mktemp('ours')}"
    return flink.import_savepoint(
        savepoint, target, {place: place for place in STATES}, ttl_ms=ttl_ms
    )


def content(savepoint: flink.FlinkSavepoint, operator: str, state: str) -> list[str]:
    rows = savepoint.read_state(operator, state).to_pylist()
    for row in rows:
        if isinstance(row["value"], list) and state.endswith("map"):
            row["value"].sort(key=repr)  # whose order is that of hashes
    return sorted(map(repr, rows))


def test_export_of_imported_state_is_unchanged(
    savepoint: flink.FlinkSavepoint, ours: str, tmp_path: Path
) -> None:
    back = flink.open_savepoint(flink.export_savepoint(ours, f"file://{tmp_path}"), uids=UIDS)
    for operator, state in STATES:
        assert (
            back.read_state(operator, state).schema == savepoint.read_state(operator, state).schema
        )
        assert content(back, operator, state) == content(savepoint, operator, state)
    for operator in ("keyed-long", "by-tuple"):
        timers = [
            sorted(map(repr, each.timers(operator).to_pylist())) for each in (savepoint, back)
        ]
        assert timers[0] == timers[1]


def test_keys_are_in_groups_of_flinks_hash_and_subtask(ours: str, tmp_path: Path) -> None:
    back = flink.open_savepoint(flink.export_savepoint(ours, f"file://{tmp_path}"), uids=UIDS)
    for operator, state in STATES:
        if operator != "numbers":
            rows = back.read_state(operator, state, check_keys=True)
            assert rows.num_rows
    subtasks = [back.read_state("keyed-long", "value", subtask=number) for number in range(2)]
    first, second = (set(table.column("key_group").to_pylist()) for table in subtasks)
    assert max(first) < 64 <= min(second)


def test_operators_are_named_as_in_the_job(ours: str, tmp_path: Path) -> None:
    pointer = flink.export_savepoint(ours, f"file://{tmp_path}", {"numbers": "counted"})
    back = flink.open_savepoint(pointer)
    assert back.operators().column("id").to_pylist() == [flink.operator_id("counted")]
    for operators in ({"number": "a"}, {"numbers": "a", "ttl": "a"}):
        with pytest.raises(InvalidRequestError):
            flink.export_savepoint(ours, f"file://{tmp_path}", operators)


TYPES = {
    *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.float32(), pa.float64(), pa.binary()),
}
WRITTEN = [STRING, *(kind for kind in SIMPLE if kind.type in TYPES)]


def nested_kinds(kinds: st.SearchStrategy[Kind]) -> st.SearchStrategy[Kind]:
    return st.one_of(
        st.builds(list_of, kinds),
        st.builds(map_of, st.sampled_from([LONG, STRING]), kinds),
        st.builds(tuple_of, kinds, kinds),
    )


@given(kind=st.recursive(st.sampled_from(WRITTEN), nested_kinds, max_leaves=4), data=st.data())
def test_any_value_is_read_as_it_was_written(kind: Kind, data: st.DataObject) -> None:
    value = data.draw(kind.values)
    written = written_type(kind.type)
    encoded = written.encode(value)
    assert encoded == kind.encode(value)
    serializer = read_snapshot(DataInput(written.snapshot))
    assert serializer.type == kind.type
    assert serializer.read(encoded, 0) == (value, len(encoded))


@pytest.mark.parametrize(
    "type",
    [
        pa.duration("s"),
        pa.date64(),
        pa.uint8(),
        pa.struct([]),
        pa.struct([(f"f{number}", pa.int64()) for number in range(26)]),
        pa.list_(pa.large_string()),
    ],
)
def test_types_without_flink_class_are_refused(type: pa.DataType) -> None:
    with pytest.raises(InvalidRequestError, match="can't be exported to Flink"):
        written_type(type)


def import_subtask(directory: Path, subtask: Subtask) -> str:
    """A Holdfast savepoint of a Flink operator."""
    (directory / "_metadata").write_bytes(metadata({"job": {0: subtask}}))
    return flink.import_savepoint(flink.open_savepoint(directory), f"file://{directory}/ours")


TIMES = {
    date(2024, 2, 29): pa.date32(),
    date(1, 1, 1): pa.date32(),
    time(23, 59, 1, 250): pa.time64("us"),
    time(0, 0, 7): pa.time32("s"),
    datetime(1969, 12, 31, 23, 59, 59, 999_999): pa.timestamp("us"),  # noqa: DTZ001  # local
    datetime(1900, 3, 1, tzinfo=UTC): pa.timestamp("ms", "UTC"),
    Decimal("-340.28"): pa.decimal128(9, 2),
    Decimal("0.00"): pa.decimal128(9, 2),
    Decimal("12345678901234567890123456789.123456789"): pa.decimal128(38, 9),
}


@pytest.mark.parametrize(("value", "type"), TIMES.items())
def test_times_and_decimals_are_written_as_javas(value: Any, type: pa.DataType) -> None:
    written = written_type(type)
    [plain] = pa.array([value], type).cast(plain_type(type)).to_pylist()
    encoded = written.encode(plain)
    serializer = read_snapshot(DataInput(written.snapshot))
    read, end = serializer.read(encoded, 0)
    assert end == len(encoded)
    if isinstance(value, Decimal):
        assert Decimal(read) == value
    else:
        assert pa.array([read], serializer.type).cast(type).to_pylist() == [value]


def test_states_unsupported_by_flink_are_refused_or_omitted(tmp_path: Path) -> None:
    many = pojo_of(*[LONG] * 26)
    lists: dict[str, tuple[Kind, list[Any]]] = {
        "wide": (many, [{f"f{number}": number for number in range(26)}]),
        "texts": (STRING, ["a"]),
    }
    ours = import_subtask(tmp_path, Subtask(operator=list_states(lists)))
    target = f"file://{tmp_path}/back"
    with pytest.raises(InvalidRequestError, match="state job/wide: values of type struct"):
        flink.export_savepoint(ours, target)
    assert not (tmp_path / "back").exists()
    planned = flink.FlinkExport.of(ours, allow_loss=True)
    assert planned.kept == ["job/texts as job: list, string"]
    assert [lost for lost in planned.lost if "job/wide" in lost]
    back = flink.open_savepoint(planned.write(target))
    assert back.read_state("job", "texts").column("value").to_pylist() == ["a"]


def test_time_windows_are_exported_with_timers(
    tmp_path: Path,
) -> None:
    ours = write_windows(tmp_path, TIME_WINDOW, {"job": [("a", 0, 10, 9), ("a", 10, 20, 19)]})
    back = flink.open_savepoint(
        flink.export_savepoint(ours, f"file://{tmp_path}/back"), uids=["job"]
    )
    spans = [{"start": 0, "end": 10}, {"start": 10, "end": 20}]
    rows = back.read_state("job", "window-contents", check_keys=True).to_pylist()
    assert [(row["key"], row["namespace"], row["value"]) for row in rows] == [
        ("a", spans[0], 9),
        ("a", spans[1], 19),
    ]
    timers = back.timers("job", check_keys=True).to_pylist()
    assert [(row["service"], row["namespace"], row["timestamp"]) for row in timers] == [
        ("window-timers", spans[0], 9),
        ("window-timers", spans[1], 19),
    ]


def test_merging_windows_are_refused(tmp_path: Path) -> None:
    sessions = {"job": [("a", 1, 3), ("a", 2, 4)]}
    ours = write_windows(tmp_path, pa.schema([("session", pa.int64())]), sessions)
    with pytest.raises(InvalidRequestError, match="session windows"):
        flink.export_savepoint(ours, f"file://{tmp_path}/back")


def test_state_of_windows_is_refused(savepoint: flink.FlinkSavepoint, tmp_path: Path) -> None:
    place = ("tumbling", "window-contents")
    ours = flink.import_savepoint(savepoint, f"file://{tmp_path}/ours", {place: place})
    with pytest.raises(InvalidRequestError, match="without their timers"):
        flink.export_savepoint(ours, f"file://{tmp_path}/back")


def test_null_parts_are_refused(tmp_path: Path) -> None:
    nulls = list_states({"pairs": (map_of(STRING, LONG), [[("a", None)]])})
    ours = import_subtask(tmp_path, Subtask(operator=nulls))
    back = flink.open_savepoint(flink.export_savepoint(ours, f"file://{tmp_path}/back"))
    assert back.read_state("job", "pairs").column("value").to_pylist() == [[("a", None)]]
    rows = list_states({"rows": (row_of(LONG), [{"kind": "+I", "f0": None}])})
    ours = import_subtask(tmp_path, Subtask(operator=rows))
    with pytest.raises(InvalidRequestError, match="a part of a value is null"):
        flink.export_savepoint(ours, f"file://{tmp_path}/back")


def test_many_key_groups_take_two_bytes(tmp_path: Path) -> None:
    code = pa.array([7], pa.int32()).to_numpy()
    group = int(flink_key_groups(code, 1000)[0])
    groups = [b""] * 1000
    entry = entry_key(group, LONG, 7, NO_NAMESPACE, None, prefix=2), LONG.encode(70)
    groups[group] = canonical_group({0: [entry]})
    described = keyed_description(LONG.snapshot, [keyed_info("v", "VALUE", LONG.snapshot)])
    subtask = Subtask(keyed=keyed_stream(described, groups))
    data = metadata({"job": {0: subtask}}, max_parallelism=1000)
    (tmp_path / "_metadata").write_bytes(data)
    ours = flink.import_savepoint(flink.open_savepoint(tmp_path), f"file://{tmp_path}/ours")
    back = flink.open_savepoint(flink.export_savepoint(ours, f"file://{tmp_path}/back"))
    rows = back.read_state("job", "v", check_keys=True).to_pylist()
    assert rows == [{"key_group": group, "key": 7, "value": 70}]
