"""State that a real PyFlink 2.3 has written, of all its types: `infra/flink/python_job.py`."""

import datetime as dt
import pickle
from pathlib import Path
from typing import Any

import pytest
from contracts.flink_archives import extract

from holdfast import flink

FORMS = ["hashmap-canonical", "hashmap-native", "rocksdb-canonical", "rocksdb-native"]
KEYS = range(8)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return extract(tmp_path_factory.mktemp("flink"), "pyflink") / "pyflink"


@pytest.fixture(scope="module", params=FORMS)
def savepoint(request: pytest.FixtureRequest, directory: Path) -> flink.FlinkSavepoint:
    return flink.open_savepoint(directory / request.param)


def by_number(savepoint: flink.FlinkSavepoint, state: str, **types: str) -> dict[int, Any]:
    """The values of a state by the number in their key."""
    rows = savepoint.read_state("kept", f"python-state-{state}", types=types).to_pylist()
    return {int(row["key"]["f0"].removeprefix("k")): row["value"] for row in rows}


def values(key: int) -> dict[tuple[str, str], Any]:
    """Return the state of the job, by state and type."""
    return {
        ("long", "long"): 10 * key,
        ("text", "string"): f"t{key}é😀",
        ("row", "row<long, string, double>"): {
            "kind": "+I",
            "f0": key,
            "f1": None if key % 2 else f"r{key}",
            "f2": key / 2,
        },
        ("tuple", "tuple<int, float, boolean, byte, short>"): {
            "f0": key,
            "f1": key / 2,
            "f2": key % 2 == 0,
            "f3": key,
            "f4": -key,
        },
        ("dec", "decimal"): f"{key}.25",
        ("bigint", "bigint"): 10**15 + key,
        ("char", "string"): "x",
        ("date", "date"): dt.date(2024, 1, 1 + key),
        ("time", "time"): dt.time(1, 2, key, 5000),
        ("ts", "timestamp"): dt.datetime(2024, 1, 1, 2, 3, key, 6000),  # noqa: DTZ001  # has no zone
        ("larr", "primitive_array<long>"): [key, -key],
        ("bytes", "bytes"): bytes([key, 1]),
        ("oarr", "list<string>"): ["a", None, f"b{key}"],
        ("barr", "list<double>"): [key / 4],
        ("lt", "list<string>"): ["a", f"b{key}"],
        ("mt", "map<string, long>"): [("a", key), ("b", None)],
        ("red", "long"): key + 5,
        ("agg", "tuple<long, long>"): {"f0": 2 * key + 1, "f1": 2},
    }


def test_values_of_every_type_are_read(savepoint: flink.FlinkSavepoint) -> None:
    for state, type in values(0):
        assert by_number(savepoint, state, value=type) == {
            key: [values(key)[state, type]] for key in KEYS
        }


def test_lists_and_maps_have_added_elements(savepoint: flink.FlinkSavepoint) -> None:
    lists = by_number(savepoint, "list", value="long")
    assert lists == {key: [key, key + 1] for key in KEYS}
    maps = by_number(savepoint, "map", map_key="string", value="long")
    assert {key: dict(entries) for key, entries in maps.items()} == {
        key: {"a": key, f"b{key}": 2 * key} for key in KEYS
    }


def test_pickles_are_given_as_their_bytes(savepoint: flink.FlinkSavepoint) -> None:
    [pickled] = by_number(savepoint, "pickled", value="pickled")[3]
    assert pickle.loads(pickled) == {"k": 3, "l": [1, 2]}
    elements = by_number(savepoint, "plist", value="pickled")[3]
    assert [pickle.loads(element) for element in elements] == [("p", 3), None]
    [(name, content)] = by_number(savepoint, "pmap", map_key="pickled", value="pickled")[3]
    assert (pickle.loads(name), pickle.loads(content)) == (("k", 3), {"v": 3})


def test_values_with_a_time_to_live_have_the_time_of_their_last_use(
    savepoint: flink.FlinkSavepoint,
) -> None:
    for key, [value] in by_number(savepoint, "ttl", value="long").items():
        assert value["value"] == key
        assert value["last_access"].year == 2026
    for key, [(name, value)] in by_number(
        savepoint, "ttlmap", map_key="long", value="string"
    ).items():
        assert (name, value["value"]) == (key, f"v{key}")


def test_timers_have_the_keys_of_the_job(savepoint: flink.FlinkSavepoint) -> None:
    timers = savepoint.timers("kept").to_pylist()
    assert sorted((row["domain"], row["key"]["f0"], row["timestamp"]) for row in timers) == sorted(
        (domain, f"k{key}", 4102444800000 + key)
        for key in KEYS
        for domain in ("event", "processing")
    )
