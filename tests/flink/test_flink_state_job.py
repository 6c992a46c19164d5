"""Savepoints and checkpoints of `infra/flink/StateJob.java`, made by `infra/flink/golden.py`; what is in them follows formulas."""

from pathlib import Path
from typing import Any

import pytest
from contracts.flink_archives import extract

from holdfast import flink

KEYS = range(20)
FORMS = ["hashmap-canonical", "hashmap-native", "rocksdb-canonical", "rocksdb-native"]
CHECKPOINTS = ["incremental", "compressed", "merged", "forst"]


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return extract(tmp_path_factory.mktemp("flink"), "state-job", "checkpoints")


def checkpoint(archives: Path, name: str) -> flink.FlinkSavepoint:
    """A retained checkpoint, which was moved since with all files of its job."""
    [directory] = (archives / "checkpoints" / name).glob("chk-*")
    return flink.open_savepoint(directory)


@pytest.fixture(params=FORMS + CHECKPOINTS)
def savepoint(archives: Path, request: pytest.FixtureRequest) -> flink.FlinkSavepoint:
    if request.param in CHECKPOINTS:
        return checkpoint(archives, request.param)
    return flink.open_savepoint(archives / "state-job" / request.param)


def test_changelog_keeps_other_states_readable(archives: Path) -> None:
    savepoint = checkpoint(archives, "changelog")
    failures = {
        row["operator"]: row["failure"] for row in savepoint.states().to_pylist() if row["failure"]
    }
    assert failures.keys() == {"by-long", "by-pair"}
    assert all("take a canonical savepoint" in failure for failure in failures.values())
    assert savepoint.read_state("numbers", "longs").num_rows == 10


def test_keyed_state_equals_written_state(savepoint: flink.FlinkSavepoint) -> None:
    def read(state: str) -> dict[Any, Any]:
        rows = savepoint.read_state("by-long", state, check_keys=True).to_pylist()
        return {row["key"]: row["value"] for row in rows}

    assert read("value") == {key: 10 * key for key in KEYS}
    assert read("list") == {key: [key, 44] for key in KEYS}
    entries = {key: dict(pairs) for key, pairs in read("map").items()}
    assert entries == {key: {"a": key, f"b{key}": 2 * key} for key in KEYS}
    assert read("reducing") == {key: key + 5 for key in KEYS}
    assert read("aggregating") == {key: {"f0": 2 * key + 1, "f1": 2} for key in KEYS}
    assert {key: value["value"] for key, value in read("seen").items()} == {
        key: key for key in KEYS
    }
    assert read("mixed") == {
        key: {"f0": key % 2 == 0, "f1": -key, "f2": key / 8, "f3": [f"x{key}", "é中😀"]}
        for key in KEYS
    }


def test_tuple_keys_equal_written_keys(
    savepoint: flink.FlinkSavepoint,
) -> None:
    rows = savepoint.read_state("by-pair", "count", check_keys=True).to_pylist()
    counts = {(row["key"]["f0"], row["key"]["f1"]): row["value"] for row in rows}
    assert counts == {(f"é{key % 3}", key): key + 1 for key in KEYS}


def test_operator_state_equals_written_state(savepoint: flink.FlinkSavepoint) -> None:
    def read(state: str) -> list[Any]:
        return [tuple(row.values()) for row in savepoint.read_state("numbers", state).to_pylist()]

    assert read("longs") == [(s, 100 * s + number) for s in range(2) for number in range(5)]
    assert read("union") == [(0, "u0"), (1, "u1")]
    assert sorted(read("rules")) == [("one", 1), ("two", 2)]


def test_timers_equal_registered_timers(savepoint: flink.FlinkSavepoint) -> None:
    rows = savepoint.timers("by-long", check_keys=True).to_pylist()
    timers = {(row["domain"], row["key"], row["timestamp"]) for row in rows}
    assert timers == {
        *(("event", key, 1_000_000 + key) for key in KEYS),
        *(("processing", key, 4_102_444_800_000 + key) for key in KEYS),
    }
