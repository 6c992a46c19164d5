"""Savepoints that real jobs of Flink 2.3 and 1.20 have written; what is in them follows formulas."""

from datetime import date
from typing import Any

import pytest
from contracts.flink_archives import extract

from holdfast import flink
from holdfast.backends.keys import flink_key_groups
from holdfast.flink.serializers.hash_codes import of_longs

KEYS = range(-3, 17)
FORMS = [
    "heap/canonical",
    "heap/native",
    "rocks/canonical",
    "rocks/native",
    "f120-heap/canonical",
    "f120-heap/native",
    "heap-snappy/canonical",
    "heap-snappy/native",
]
UIDS = ["numbers", "keyed-long", "all-types", "ttl", "tumbling", "rules"]


@pytest.fixture(scope="module")
def savepoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, flink.FlinkSavepoint]:
    directory = tmp_path_factory.mktemp("flink")
    extract(directory, *sorted({form.partition("/")[0] for form in FORMS}))
    open_job = {}
    for form in FORMS:
        [savepoint] = (directory / form).iterdir()
        open_job[form] = flink.open_savepoint(savepoint, uids=UIDS)
    return open_job


@pytest.fixture(params=FORMS)
def savepoint(
    savepoints: dict[str, flink.FlinkSavepoint], request: pytest.FixtureRequest
) -> flink.FlinkSavepoint:
    return savepoints[request.param]


def by_key(savepoint: flink.FlinkSavepoint, operator: str, state: str) -> dict[Any, Any]:
    """The value of each key."""
    table = savepoint.read_state(operator, state)
    return dict(zip(*(table.column(name).to_pylist() for name in ("key", "value")), strict=True))


def number(key: str) -> int:
    """The number in a key, such as -3 in `key--3`."""
    return int(key.split("-", 1)[1].partition("-é")[0])


def test_keyed_state_is_read(savepoint: flink.FlinkSavepoint) -> None:
    def read(state: str) -> dict[Any, Any]:
        return by_key(savepoint, "keyed-long", state)

    assert read("value") == {key: 10 * key for key in KEYS}
    assert read("list") == {key: [key, key + 1, 44, 0x2C2C2C2C] for key in KEYS if key != 5}
    pairs = {key: sorted(value) for key, value in read("map").items()}
    assert pairs == {key: [("a", key), (f"b{key}", 2 * key)] for key in KEYS if key != 5}
    assert read("reducing") == {key: key + 5 for key in KEYS}
    assert read("aggregating") == {key: {"f0": 2 * key + 1, "f1": 2} for key in KEYS}


def test_key_groups_are_those_of_the_keys(savepoint: flink.FlinkSavepoint) -> None:
    rows = savepoint.read_state("keyed-long", "value")
    codes = of_longs(rows["key"].combine_chunks())
    assert rows["key_group"].to_pylist() == flink_key_groups(codes, 128).tolist()


def test_operator_state_is_read(savepoint: flink.FlinkSavepoint) -> None:
    strings = savepoint.read_state("numbers", "strings").to_pylist()
    assert strings[:2] == [{"subtask": 0, "value": f"s0-{number}é中😀\0"} for number in range(2)]
    rows = savepoint.read_state("numbers", "rows", subtask=0).column("value").to_pylist()
    assert rows == [{"kind": "+U", "f0": 7, "f1": None}, {"kind": "+I", "f0": None, "f1": "r0"}]
    own = savepoint.read_state("numbers", "own-broadcast").to_pylist()
    assert sorted(own, key=lambda row: row["value"]) == [
        {"key": "one", "value": 1},
        {"key": "two", "value": 2},
    ]
    kinds = {row["state"]: row["kind"] for row in savepoint.states("numbers").to_pylist()}
    assert (kinds["union"], kinds["longs"]) == ("union", "list")


def test_values_with_ttl_have_time_of_last_use(
    savepoint: flink.FlinkSavepoint,
) -> None:
    values = by_key(savepoint, "ttl", "ttl-value")
    assert {number(key): value["value"] for key, value in values.items()} == {k: k for k in KEYS}
    assert all(value["last_access"].year >= 2025 for value in values.values())
    lists = by_key(savepoint, "ttl", "ttl-list")
    assert {number(key): [part["value"] for part in value] for key, value in lists.items()} == {
        k: [f"p{k}", "q"] for k in KEYS
    }


def test_windows_are_read_with_their_timers(savepoint: flink.FlinkSavepoint) -> None:
    for row in savepoint.read_state("tumbling", "window-contents").to_pylist():
        key = number(row["key"])
        start = 5000 * (key // 5)
        assert row["namespace"] == {"start": start, "end": start + 5000}
        assert row["value"] == key
    timers = savepoint.timers("tumbling").to_pylist()
    assert len(timers) == len(KEYS)
    for timer in timers:
        assert (timer["domain"], timer["service"]) == ("event", "window-timers")
        assert timer["timestamp"] == timer["namespace"]["end"] - 1


def test_timers_of_a_function_are_read(savepoint: flink.FlinkSavepoint) -> None:
    timers = savepoint.timers("keyed-long").to_pylist()
    of = {domain: {} for domain in ("event", "processing")}  # type: dict[str, dict[int, set[int]]]
    for timer in timers:
        of[timer["domain"]].setdefault(timer["key"], set()).add(timer["timestamp"])
    assert of["processing"] == {key: {4102444800000 + key} for key in KEYS}
    assert all({1000000 + key} < of["event"][key] for key in KEYS)


TYPES = {
    "v-long": lambda k: k * 1000000000000007,
    "v-double": lambda k: k / 8,
    "v-bytes": lambda k: bytes([k % 256, 255, 0]),
    "v-string": lambda k: {0: "", 1: "x" * 300}.get(k, f"v{k}é中😀"),
    "v-boolean": lambda k: k % 2 == 0,
    "v-enum": None,
    "v-localdate": lambda k: date(2000 + k, 2, 28),
    "v-either": lambda k: (
        {"left": f"l{k}", "right": None} if k % 2 == 0 else {"left": None, "right": k}
    ),
    "v-strings": lambda k: [f"s{k}", "", None],
}


def test_values_of_many_types_are_read(savepoint: flink.FlinkSavepoint) -> None:
    for state, value in TYPES.items():
        values = by_key(savepoint, "all-types", state)
        assert len(values) == len(KEYS)
        for key, read in values.items():
            assert read in {"RED", "GREEN", "BLUE"} if value is None else read == value(number(key))


def test_all_formats_have_equal_states(
    savepoints: dict[str, flink.FlinkSavepoint],
) -> None:
    def content(form: str) -> dict[Any, Any]:
        read = {}
        savepoint = savepoints[form]
        for listed in savepoint.states().to_pylist():
            operator, state, kind = listed["operator"], listed["state"], listed["kind"]
            if kind.startswith("keyed") and not operator.startswith("ttl"):
                rows = savepoint.read_state(operator, state, kind=kind).to_pylist()
                for row in rows:
                    if kind == "keyed map":  # whose order is that of Java's hashes
                        row["value"] = sorted(row["value"], key=repr)
                if rows:
                    read[operator, state] = sorted(map(repr, rows))
        return read

    heap = content("heap/native")
    assert len(heap) > 50
    assert content("rocks/canonical") == heap
    assert content("rocks/native") == heap


def test_nothing_is_unreadable_but_classes_of_the_job(savepoint: flink.FlinkSavepoint) -> None:
    assert savepoint.states().column("failure").null_count == savepoint.states().num_rows
    assert savepoint.operators().num_rows == 33
