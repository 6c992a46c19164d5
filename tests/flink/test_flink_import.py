"""Import of Flink savepoints: all state is imported, or reported as lost."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from contracts.flink_archives import extract
from contracts.flink_kinds import (
    BYTES,
    LONG,
    NO_NAMESPACE,
    SIMPLE,
    STRING,
    Kind,
    each,
    i2,
    i4,
    i8,
    kafka_split,
    map_of,
    pojo_snapshot,
    row_of,
    snapshot,
    string,
    tuple_of,
)
from contracts.flink_savepoints import (
    Subtask,
    canonical_group,
    channel,
    entry_key,
    info,
    keyed_description,
    keyed_info,
    keyed_stream,
    list_states,
    metadata,
    operator_handle,
)
from hypothesis import given
from hypothesis import strategies as st

from holdfast import flink, read_state, states
from holdfast.backends.descriptors import ReducingStateDescriptor
from holdfast.backends.inspection import KeyedDescriptor
from holdfast.backends.keyed import ColumnarStateTables, KeyedStateBackend
from holdfast.backends.keys import KeyGroupRange, flink_key_groups, java_hash
from holdfast.errors import (
    CheckpointCorruptedError,
    CheckpointError,
    InvalidRequestError,
    UnreadableStateError,
)
from holdfast.flink.binary import DataInput
from holdfast.flink.serializers import read_snapshot
from holdfast.locations.storages import load_checkpoint, resolve_pointer

KEYS = range(-3, 17)
Import = Callable[..., str]


@pytest.fixture(scope="module")
def of_real_job(tmp_path_factory: pytest.TempPathFactory) -> dict[str, flink.FlinkSavepoint]:
    """Savepoints of Flink 2.3, of heap and RocksDB, and of 1.20."""
    directory = extract(tmp_path_factory.mktemp("flink"), "heap", "rocks", "f120-heap")
    uids = ["numbers", "keyed-long", "ttl", "by-tuple", "rules"]
    return {
        form: flink.open_savepoint(next((directory / form).iterdir()), uids=uids)
        for form in ("heap/canonical", "heap/native", "rocks/native", "f120-heap/canonical")
    }


@pytest.fixture(params=["heap/canonical", "rocks/native", "f120-heap/canonical"])
def savepoint(
    of_real_job: dict[str, flink.FlinkSavepoint], request: pytest.FixtureRequest
) -> flink.FlinkSavepoint:
    return of_real_job[request.param]


@pytest.fixture
def target(tmp_path: Path) -> str:
    return f"file://{tmp_path}/imported"


def by_key(pointer: str, operator: str, state: str, key: str = "key") -> dict[Any, Any]:
    table = read_state(pointer, operator, state)
    return dict(zip(*(table.column(name).to_pylist() for name in (key, "value")), strict=True))


def test_keyed_state_of_real_job_equals_operator_state(
    savepoint: flink.FlinkSavepoint, target: str
) -> None:
    names = ["value", "list", "map", "reducing", "aggregating"]
    moved = {("keyed-long", name): ("totals", name) for name in names}
    pointer = flink.import_savepoint(savepoint, target, moved, key={"totals": "customer"})

    def read(state: str) -> dict[Any, Any]:
        return by_key(pointer, "totals", state, "customer")

    kinds = {row["state"]: row["kind"] for row in states(pointer).to_pylist()}
    assert {name: kinds[name] for name in names} == {name: f"keyed {name}" for name in names}
    assert read("value") == {key: 10 * key for key in KEYS}
    assert read("list") == {key: [key, key + 1, 44, 0x2C2C2C2C] for key in KEYS if key != 5}
    assert read("reducing") == {key: key + 5 for key in KEYS}
    assert read("aggregating") == {key: {"f0": 2 * key + 1, "f1": 2} for key in KEYS}
    entries = {
        (row["customer"], row["key"]): row["value"]
        for row in read_state(pointer, "totals", "map").to_pylist()
    }
    expected = {(key, "a"): key for key in KEYS} | {(key, f"b{key}"): 2 * key for key in KEYS}
    assert entries == {place: value for place, value in expected.items() if place[0] != 5}


def test_rows_are_in_groups_of_sparks_hash(
    of_real_job: dict[str, flink.FlinkSavepoint], target: str
) -> None:
    moved = {("keyed-long", "value"): ("totals", "value")}
    pointer = flink.import_savepoint(of_real_job["heap/native"], target, moved)
    for key in KEYS:
        rows = read_state(pointer, "totals", "value", key={"key": key})
        assert rows.column("value").to_pylist() == [10 * key]


def test_timers_of_a_function_fire(savepoint: flink.FlinkSavepoint, target: str) -> None:
    moved = {("keyed-long", "value"): ("totals", "value")}
    pointer = flink.import_savepoint(savepoint, target, moved)
    operator = load_checkpoint(resolve_pointer(pointer)).metadata.operators["totals"]
    event, processing = [], []
    for subtask in operator.subtasks.values():
        [handle] = subtask.managed_keyed
        groups = KeyGroupRange(*handle.key_groups)
        tables = ColumnarStateTables(groups, [handle])  # type: ignore[list-item]  # segments
        backend = KeyedStateBackend(tables, pa.schema([("key", pa.int64())]), 128, groups)
        event.append(backend.event_time_timers().columns.fire(1 << 60))
        processing.append(backend.processing_time_timers().columns.fire(1 << 60))
        backend.close()

    def fired_keys(timers: Sequence[Any]) -> set[tuple[int, int]]:
        return {
            (key, time)
            for each in timers
            for key, time in zip(each.key[0].to_pylist(), each.times_ms.tolist(), strict=True)
        }

    stored = savepoint.timers("keyed-long").to_pylist()
    for domain, timers in (("event", event), ("processing", processing)):
        rows = [row for row in stored if row["domain"] == domain]
        assert fired_keys(timers) == {(row["key"], row["timestamp"]) for row in rows}


def test_state_with_a_time_to_live_keeps_when_it_was_used(
    savepoint: flink.FlinkSavepoint, target: str
) -> None:
    names = ["ttl-value", "ttl-list", "ttl-map", "ttl-reducing"]
    moved = {("ttl", name): ("ttl", name) for name in names}
    with pytest.raises(InvalidRequestError, match="which Flink does not store"):
        flink.import_savepoint(savepoint, target, moved)
    century = 100 * 365 * 86_400_000
    without_expiry = ("ttl", "ttl-reducing")
    ttl_ms = {place: None if place == without_expiry else century for place in moved}
    pointer = flink.import_savepoint(savepoint, target, moved, ttl_ms=ttl_ms)
    before = {
        row["key"]: row["value"] for row in savepoint.read_state("ttl", "ttl-value").to_pylist()
    }
    for row in read_state(pointer, "ttl", "ttl-value").to_pylist():
        assert row["value"] == before[row["key"]]["value"]
        assert row["changed"] == before[row["key"]]["last_access"]
    [first, *_] = read_state(pointer, "ttl", "ttl-list").to_pylist()
    assert [element["element"] for element in first["value"]][1] == "q"
    assert max(element["ts"] for element in first["value"]) == first["changed"].timestamp() * 1000
    assert read_state(pointer, "ttl", "ttl-map").column("changed").null_count == 0
    assert "changed" not in read_state(pointer, "ttl", "ttl-reducing").column_names


def test_operator_state_of_a_real_job_is_as_it_was(
    savepoint: flink.FlinkSavepoint, target: str
) -> None:
    moved = {
        ("numbers", name): ("numbers", name)
        for name in ("longs", "union", "own-broadcast", "rows", "empty")
    }
    pointer = flink.import_savepoint(savepoint, target, moved)
    kinds = {row["state"]: row["kind"] for row in states(pointer).to_pylist()}
    assert (kinds["longs"], kinds["union"], kinds["own-broadcast"]) == (
        "list",
        "union",
        "broadcast",
    )
    for name in ("longs", "union", "rows"):
        imported = read_state(pointer, "numbers", name)
        assert imported.select(["subtask", "value"]).to_pylist() == (
            savepoint.read_state("numbers", name).to_pylist()
        )
    shown = read_state(pointer, "numbers", "own-broadcast").select(["key", "value"]).to_pylist()
    assert {row["key"]: row["value"] for row in shown} == {"one": 1, "two": 2}


def test_operators_with_uid_are_imported_except_windows_and_sources(
    of_real_job: dict[str, flink.FlinkSavepoint], target: str
) -> None:
    planned = flink.FlinkStateImport.of(
        of_real_job["rocks/native"],
        ttl_ms={
            ("ttl", name): None for name in ("ttl-value", "ttl-list", "ttl-map", "ttl-reducing")
        },
        allow_loss=True,
    )
    states_read = planned.read()
    lost = "\n".join(states_read.lost)
    assert "window state tumbling/window-contents" in lost
    assert "what the source sequence has read" in lost
    assert "watermarks" in lost
    pointer = states_read.write(target)
    uids = {row["operator"] for row in states(pointer).to_pylist()}
    assert {"numbers", "keyed-long", "all-types", "ttl", "by-tuple", "by-pojo", "rules"} <= uids
    counts = read_state(pointer, "by-tuple", "count")
    assert {"f0", "f1"} < set(counts.column_names)


def test_operators_without_a_uid_are_named_as_lost(
    of_real_job: dict[str, flink.FlinkSavepoint],
) -> None:
    of_flink_1 = of_real_job["f120-heap/canonical"]
    by_id = flink.open_savepoint(of_flink_1.pointer)
    with pytest.raises(InvalidRequestError, match="operators with an unknown uid"):
        flink.FlinkStateImport.of(by_id)
    planned = flink.FlinkStateImport.of(by_id, {("rules", "rules"): ("rules", "rules")})
    assert planned.kept == ["rules/rules as rules/rules: broadcast, string to int64"]


def test_known_function_continues_reducing_state(
    of_real_job: dict[str, flink.FlinkSavepoint], target: str
) -> None:
    place = ("totals", "sum")
    descriptors: Mapping[tuple[str, str], KeyedDescriptor] = {
        place: ReducingStateDescriptor("sum", "sum", pa.int64())
    }
    moved = {("keyed-long", "reducing"): place}
    pointer = flink.import_savepoint(
        of_real_job["heap/canonical"], target, moved, descriptors=descriptors, timers=False
    )
    assert by_key(pointer, "totals", "sum") == {key: key + 5 for key in KEYS}


def test_keys_of_real_jobs_are_in_groups_of_their_hashes(
    of_real_job: dict[str, flink.FlinkSavepoint],
) -> None:
    checked: set[str] = set()
    for savepoint in of_real_job.values():
        for row in savepoint.states().to_pylist():
            if row["has_known_hash"]:
                batches = savepoint.iter_state(
                    row["operator"], row["state"], kind=row["kind"], check_keys=True
                )
                try:
                    checked.update(row["key"] for batch in batches if len(batch))
                except UnreadableStateError:
                    continue  # after a class of the job
    assert checked == {"int32", "int64", "string", "struct<f0: string, f1: int64>"}


def open_job(directory: Path, *subtasks: Subtask) -> flink.FlinkSavepoint:
    content = metadata({"job": dict(enumerate(subtasks))})
    (directory / "_metadata").write_bytes(content)
    return flink.open_savepoint(directory)


def keyed_subtask(
    type: str, value: Kind, group: int, entries: Sequence[tuple[Any, Any]], key: Kind = LONG
) -> Subtask:
    """Keyed state `v` in one key group."""
    infos = [keyed_info("v", type, value.snapshot)]
    rows = [
        (entry_key(group, key, name, NO_NAMESPACE, None) + rest[0], rest[1])
        for name, rest in ((name, _split(data)) for name, data in entries)
    ]
    groups = [b""] * 128
    groups[group] = canonical_group({0: rows})
    return Subtask(keyed=keyed_stream(keyed_description(key.snapshot, infos), groups))


def _split(data: bytes | tuple[bytes, bytes]) -> tuple[bytes, bytes]:
    return data if isinstance(data, tuple) else (b"", data)


def long_hash_code(number: int) -> int:
    """Return the code of Java's `Long.hashCode`."""
    code = number ^ number >> 32
    return (code + (1 << 31)) % (1 << 32) - (1 << 31)


def group_of(code: int) -> int:
    return int(flink_key_groups(pa.array([code], pa.int32()).to_numpy(), 128)[0])


def test_a_key_in_the_group_of_others_is_damage_and_nothing_is_written(
    tmp_path: Path,
) -> None:
    group = group_of(long_hash_code(7))
    savepoint = open_job(tmp_path, keyed_subtask("VALUE", LONG, group, [(7, i8(1)), (8, i8(2))]))
    assert savepoint.read_state("job", "v").num_rows == 2
    with pytest.raises(CheckpointCorruptedError, match="1 of 2 keys in key group"):
        savepoint.read_state("job", "v", check_keys=True)
    with pytest.raises(CheckpointCorruptedError, match="belong to other groups"):
        flink.import_savepoint(savepoint, f"file://{tmp_path}/imported")
    assert not (tmp_path / "imported").exists()


HASHED = [kind for kind in SIMPLE if kind.type in {pa.int64(), pa.int32(), pa.int16(), pa.int8()}]


@given(st.data())
def test_hash_codes_of_columns_are_those_of_their_keys(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from([*HASHED, STRING]))
    pairs = tuple_of(kind, STRING)
    values = data.draw(st.lists(pairs.values, min_size=1, max_size=5))
    serializer = read_snapshot(DataInput(pairs.snapshot))
    assert serializer.hash_codes is not None
    codes = serializer.hash_codes(pa.array(values, pairs.type)).tolist()
    hash_code: Callable[[Any], int] = int
    if kind is STRING:
        hash_code = java_hash
    elif kind is LONG:
        hash_code = long_hash_code
    mixed = [hash_code(value["f0"]) * 31 + java_hash(value["f1"]) for value in values]
    assert codes == [(code + (1 << 31)) % (1 << 32) - (1 << 31) for code in mixed]


def test_keys_of_job_classes_pass_and_are_reported_as_unchecked(tmp_path: Path) -> None:
    key = row_of(LONG)
    name = {"kind": "+I", "f0": 1}
    savepoint = open_job(tmp_path, keyed_subtask("VALUE", LONG, 3, [(name, i8(1))], key))
    planned = flink.FlinkStateImport.of(savepoint)
    assert planned.kept == [
        "job/v as job/v: keyed value, struct<kind: string, f0: int64> to int64; keys that can't be checked"
    ]
    pointer = planned.read().write(f"file://{tmp_path}/imported")
    assert read_state(pointer, "job", "v").select(["kind", "f0"]).to_pylist() == [name]


def test_null_values_of_a_map_are_refused_or_left_out(tmp_path: Path) -> None:
    group = group_of(long_hash_code(7))
    entries: list[tuple[Any, Any]] = [(7, (string("a"), b"\0" + i8(1))), (7, (string("b"), b"\1"))]
    savepoint = open_job(tmp_path, keyed_subtask("MAP", map_of(STRING, LONG), group, entries))
    target = f"file://{tmp_path}/imported"
    with pytest.raises(InvalidRequestError, match="1 null values"):
        flink.import_savepoint(savepoint, target)
    pointer = flink.import_savepoint(savepoint, target, allow_loss=True)
    [row] = read_state(pointer, "job", "v").to_pylist()
    assert row["value"] == 1


def test_rows_in_flight_are_refused_unless_their_loss_is_allowed(tmp_path: Path) -> None:
    texts = list_states({"texts": (STRING, ["a"])})
    savepoint = open_job(tmp_path, Subtask(operator=texts, channels=[channel(9, version=6)]))
    target = f"file://{tmp_path}/imported"
    with pytest.raises(UnreadableStateError, match="9 bytes of rows are in flight"):
        flink.import_savepoint(savepoint, target)
    planned = flink.FlinkStateImport.of(savepoint, allow_loss=True)
    assert "in flight" in "\n".join(planned.read().lost)


def test_unreadable_state_is_refused_unless_loss_is_allowed(tmp_path: Path) -> None:
    unknown = snapshot("com.acme.Namespace", 1)
    described = keyed_description(LONG.snapshot, [keyed_info("v", "VALUE", LONG.snapshot, unknown)])
    texts = list_states({"texts": (STRING, ["a"])})
    subtask = Subtask(operator=texts, keyed=keyed_stream(described, [b"", b""]))
    savepoint = open_job(tmp_path, subtask)
    target = f"file://{tmp_path}/imported"
    with pytest.raises(UnreadableStateError, match=r"com\.acme\.Namespace"):
        flink.import_savepoint(savepoint, target)
    assert not (tmp_path / "imported").exists()
    pointer = flink.import_savepoint(savepoint, target, allow_loss=True)
    assert [row["state"] for row in states(pointer).to_pylist()] == ["texts"]


def test_values_of_classes_of_the_job_come_as_bytes(tmp_path: Path) -> None:
    unknown = Kind(snapshot("com.acme.Value", 1), pa.binary(), bytes, st.binary())
    subtask = keyed_subtask("VALUE", unknown, group_of(long_hash_code(7)), [(7, b"x")])
    pointer = flink.import_savepoint(open_job(tmp_path, subtask), f"file://{tmp_path}/imported")
    assert by_key(pointer, "job", "v") == {7: b"x"}


def test_different_copies_of_broadcast_state_are_reported(tmp_path: Path) -> None:
    def copy(value: int) -> Subtask:
        options = {"OPERATOR_STATE_DISTRIBUTION_MODE": "BROADCAST"}
        serializers = {"KEY_SERIALIZER": STRING.snapshot, "VALUE_SERIALIZER": LONG.snapshot}
        described = info("rules", 2, options=options, serializers=serializers)
        element = each([string("a") + i8(value)])
        head = i4(5) + i2(0) + i2(1) + described
        return Subtask(operator=operator_handle(head, {"rules": (2, [element])}))

    alike = flink.FlinkStateImport.of(open_job(tmp_path, copy(1), copy(1)))
    assert not [lost for lost in alike.read().lost if "broadcast" in lost]
    unlike = flink.FlinkStateImport.of(open_job(tmp_path, copy(1), copy(2))).read()
    assert [lost for lost in unlike.lost if "broadcast state job/rules" in lost]


def test_unreadable_broadcast_state_is_the_only_loss(tmp_path: Path) -> None:
    options = {"OPERATOR_STATE_DISTRIBUTION_MODE": "BROADCAST"}
    unknown = pojo_snapshot("a.Rule", {"f": snapshot("com.acme.Field", 1)})
    serializers = {"KEY_SERIALIZER": STRING.snapshot, "VALUE_SERIALIZER": unknown}
    described = i4(5) + i2(0) + i2(1) + info("rules", 2, options=options, serializers=serializers)
    rules = operator_handle(described, {"rules": (2, [each([string("a") + b"\2"])])})
    group = group_of(long_hash_code(7))
    [keyed_state] = [keyed_subtask("VALUE", LONG, group, [(7, i8(1))]).keyed]
    savepoint = open_job(tmp_path, Subtask(operator=rules, keyed=keyed_state))
    target = f"file://{tmp_path}/imported"
    with pytest.raises(UnreadableStateError, match=r"'rules': values of com\.acme.*--allow-loss"):
        flink.import_savepoint(savepoint, target)
    pointer = flink.import_savepoint(savepoint, target, allow_loss=True)
    assert [row["state"] for row in states(pointer).to_pylist()] == ["v"]


def test_named_timers_are_imported_once(
    of_real_job: dict[str, flink.FlinkSavepoint],
) -> None:
    names = ["value", "_timer_state/event_user-timers"]
    moved = {("keyed-long", name): ("totals", name) for name in names}
    planned = flink.FlinkStateImport.of(of_real_job["heap/canonical"], moved)
    assert sum("event time" in kept for kept in planned.kept) == 1


def test_all_states_without_given_ttl_are_named(
    of_real_job: dict[str, flink.FlinkSavepoint],
) -> None:
    savepoint = of_real_job["heap/canonical"]
    states_of = savepoint.states("ttl").to_pylist()
    names = [row["state"] for row in states_of if row["has_ttl"]]
    moved = {("ttl", name): ("ttl", name) for name in names}
    assert len(names) > 1
    with pytest.raises(InvalidRequestError, match=", ".join(f"ttl/{name}" for name in names)):
        flink.FlinkStateImport.of(savepoint, moved)


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    group = group_of(long_hash_code(7))
    savepoint = open_job(tmp_path, keyed_subtask("VALUE", LONG, group, [(7, i8(1))]))
    refused: list[tuple[dict[str, Any], str]] = [
        ({"states": {("job", "w"): ("job", "w")}}, "unknown states"),
        ({"key": {"jobs": "k"}}, "key names"),
        ({"ttl_ms": {("job", "v"): 1}}, "ttl_ms names"),
        ({"descriptors": {("job", "w"): None}}, "descriptors names"),
    ]
    for arguments, message in refused:
        with pytest.raises(InvalidRequestError, match=message):
            flink.FlinkStateImport.of(savepoint, **arguments)
    planned = flink.FlinkStateImport.of(savepoint, key={"job": ["a", "b"]})
    with pytest.raises(InvalidRequestError, match="so it needs"):
        planned.read()


@given(data=st.data())
def test_damaged_savepoints_are_imported_or_refused_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    group = group_of(long_hash_code(7))
    subtask = keyed_subtask("MAP", map_of(STRING, LONG), group, [(7, (string("a"), b"\0" + i8(1)))])
    texts = list_states(
        {"texts": (STRING, ["a"]), "SourceReaderState": (BYTES, [kafka_split("t", 0, 1)])}
    )
    content = bytearray(metadata({"job": {0: Subtask(operator=texts, keyed=subtask.keyed)}}))
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] = data.draw(st.integers(0, 255))
    directory = tmp_path_factory.mktemp("damaged")
    (directory / "_metadata").write_bytes(bytes(content))
    try:
        flink.FlinkStateImport.of(flink.open_savepoint(directory), allow_loss=True).read()
    except CheckpointError:
        return
