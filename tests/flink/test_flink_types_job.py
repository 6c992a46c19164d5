"""Values that Flink leaves to Kryo, POJOs, and what joins keep: `infra/flink/TypesJob.java`, of Flink 1.20 and 2.3."""

import json
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from contracts.flink_archives import extract

from holdfast import flink

KEYS = range(8)
FORMS = ["types/hashmap-canonical", "types/rocksdb-native", "types/flink-1.20"]
UNALIGNED = "checkpoints/unaligned/chk-*"


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return extract(tmp_path_factory.mktemp("flink"), "types", "checkpoints")


def open_job(archives: Path, form: str) -> flink.FlinkSavepoint:
    [directory] = archives.glob(form)
    return flink.open_savepoint(directory, uids=["kept", "interval-join"])


@pytest.fixture(params=[*FORMS, UNALIGNED])
def savepoint(archives: Path, request: pytest.FixtureRequest) -> flink.FlinkSavepoint:
    return open_job(archives, request.param)


@pytest.fixture(params=FORMS)
def joins(archives: Path, request: pytest.FixtureRequest) -> flink.FlinkSavepoint:
    return open_job(archives, request.param)


def by_key(savepoint: flink.FlinkSavepoint, operator: str, state: str) -> dict[int, Any]:
    rows = savepoint.read_state(operator, state, check_keys=True).to_pylist()
    return {row["key"]: row["value"] for row in rows}


def parcel(key: int) -> dict[str, Any]:
    """A POJO of the job; what Kryo has written is JSON."""
    return {
        "address": {"number": key, "street": f"é{key}"} if key % 3 else None,
        "code": code(key, -key),
        "counts": {"c": [1, key]},
        "id": key,
        "sent": f"2024-01-{key + 1:02}",
        "size": "LARGE" if key % 2 else "SMALL",
        "stops": ["x", f"y{key}"],
        "tags": ["a", f"b{key}"],
        "weights": [key / 2],
    }


def code(high: int, low: int) -> str:
    mask = (1 << 64) - 1
    return str(uuid.UUID(int=(high & mask) << 64 | low & mask))


def plain(values: dict[str, Any], columns: Iterable[str]) -> dict[str, Any]:
    """The values with those columns decoded that are JSON."""
    return {
        name: json.loads(value) if name in columns and isinstance(value, str) else value
        for name, value in values.items()
    }


def test_every_state_of_the_job_can_be_read(savepoint: flink.FlinkSavepoint) -> None:
    states = savepoint.states().to_pylist()
    assert not [state["failure"] for state in states if state["failure"]]
    assert {state["state"] for state in states if "binary" in (state["value"] or "")} == {
        "SourceReaderState"
    }


def test_pojos_are_read_with_all_fields(savepoint: flink.FlinkSavepoint) -> None:
    columns = {"counts", "stops", "tags"}
    parcels = by_key(savepoint, "kept", "parcel")
    assert {key: plain(value, columns) for key, value in parcels.items()} == {
        key: parcel(key) for key in KEYS
    }
    lists = by_key(savepoint, "kept", "parcels")
    assert {key: [plain(value, columns) for value in values] for key, values in lists.items()} == {
        key: [parcel(key), parcel(key + 1)] for key in KEYS
    }


def test_collections_of_kryo_are_read_as_json(savepoint: flink.FlinkSavepoint) -> None:
    for key, pairs in by_key(savepoint, "kept", "kryo").items():
        values = {number: json.loads(value) for number, value in pairs}
        tree = {"a": key, "b": 2}
        assert [values[number] for number in sorted(values)] == [
            ["a", f"b{key}"],
            [1, key],
            ["é中😀", "x" * 70],
            [key],
            tree,
            {"nothing": None, "list": [1, "two", 3.5, True, key, None], "again": tree},
            {},
            [None, key, None],
            ["p", f"q{key}"],
            [key],
            code(key, -1 - key),
            [],
            [],
            ["i", f"j{key}"],
            {"k": key},
        ]


def test_rows_and_maps_of_pojos_are_read(savepoint: flink.FlinkSavepoint) -> None:
    assert by_key(savepoint, "kept", "row") == {
        key: {"kind": "+I", "f0": key, "f1": f"r{key}" if key % 2 else None} for key in KEYS
    }
    assert by_key(savepoint, "kept", "addresses") == {
        key: [("home", {"number": None, "street": f"s{key}"})] for key in KEYS
    }


def test_state_of_joins_is_read(joins: flink.FlinkSavepoint) -> None:
    assert by_key(joins, "interval-join", "LEFT_BUFFER") == {
        key: [(1000 * key, [{"value": key, "was_joined": False}])] for key in KEYS
    }
    assert by_key(joins, "interval-join", "RIGHT_BUFFER") == {
        key: [(1000 * key, [{"value": f"t{key}", "was_joined": False}])] for key in KEYS
    }
    [window] = [
        row["operator"] for row in joins.states().to_pylist() if row["state"] == "window-contents"
    ]
    values = by_key(joins, window, "window-contents")
    assert {key: sorted(map(str, both)) for key, both in values.items()} == {
        key: sorted(map(str, [{"one": key, "two": None}, {"one": None, "two": f"t{key}"}]))
        for key in KEYS
    }


def test_rows_in_flight_are_warned_of(archives: Path) -> None:
    savepoint = open_job(archives, UNALIGNED)
    assert [text for text in savepoint.warnings() if "bytes of rows in flight" in text]
    operators = savepoint.operators().to_pylist()
    assert [row for row in operators if row["operator"] == "kept" and row["in_flight_bytes"] > 0]
