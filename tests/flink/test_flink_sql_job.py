"""State of queries of SQL that a real Flink has run: `infra/flink/SqlJob.java`."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from contracts.flink_archives import extract

from holdfast import flink

FORMS = ["hashmap-canonical", "hashmap-native", "rocksdb-canonical", "rocksdb-native"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return extract(tmp_path_factory.mktemp("flink"), "sql") / "sql"


@pytest.fixture(scope="module", params=FORMS)
def savepoint(request: pytest.FixtureRequest, directory: Path) -> flink.FlinkSavepoint:
    return flink.open_savepoint(directory / request.param)


def of_key(savepoint: flink.FlinkSavepoint, name: str, part: str = "") -> dict[int, Any]:
    """The values of a state by the key's only field: of the operator that has it, with this in its type."""
    states = savepoint.states().to_pylist()
    [state] = [row for row in states if row["state"] == name and part in row["value"]]
    rows = savepoint.read_state(state["operator"], name).to_pylist()
    return {row["key"]["f0"]: row["value"] for row in rows}


def numbers(key: int) -> Sequence[int]:
    return range(key, 20, 5)


def test_every_state_of_sql_can_be_read(savepoint: flink.FlinkSavepoint) -> None:
    states = savepoint.states().to_pylist()
    assert not [state["failure"] for state in states if state["failure"]]
    assert {state["state"] for state in states if state["value"] == "binary"} == {
        "SourceReaderState"
    }


def test_aggregates_are_rows_of_their_accumulators(savepoint: flink.FlinkSavepoint) -> None:
    sums = of_key(savepoint, "accState", "f1: int64")
    for key in range(5):
        row = sums[key]
        assert (row["f0"], row["f1"]) == (4, 4)
        assert row["f2"] == sum(number + Decimal("0.25") for number in numbers(key))
        assert row["f3"] == max(f"name-{number}é" for number in numbers(key))


def test_counted_values_are_strings(savepoint: flink.FlinkSavepoint) -> None:
    counted = of_key(savepoint, "distinctAcc_0")
    assert {key: dict(names) for key, names in counted.items()} == {
        key: {f"name-{number}é": 1 for number in numbers(key)} for key in range(5)
    }


def test_rows_of_a_join_are_counted(savepoint: flink.FlinkSavepoint) -> None:
    for side in ("left-records", "right-records"):
        records = of_key(savepoint, side)
        assert {
            key: sorted((row["f1"], count) for row, count in pairs)
            for key, pairs in records.items()
        } == {key: sorted((f"name-{number}é", 1) for number in numbers(key)) for key in range(5)}


def test_first_rows_of_rank_are_kept_by_sort_key(
    savepoint: flink.FlinkSavepoint,
) -> None:
    ranked = of_key(savepoint, "data-state-with-append")
    midnight = datetime(2024, 1, 1)  # noqa: DTZ001  # SQL's TIMESTAMP has no zone
    for key in range(5):
        best = sorted(ranked[key], key=lambda pair: pair[0]["f0"], reverse=True)[:2]
        assert [rows[0]["f3"] for _, rows in best] == [
            midnight + timedelta(seconds=number) for number in sorted(numbers(key))[:-3:-1]
        ]
        assert [price["f0"] for price, _ in best] == [
            number + Decimal("0.25") for number in sorted(numbers(key))[:-3:-1]
        ]


def test_arrays_maps_and_rows_in_rows_are_read_with_their_types(
    savepoint: flink.FlinkSavepoint,
) -> None:
    nested = of_key(savepoint, "Top1-Rank-State")
    for key in range(5):
        number = numbers(key)[-1]
        name = f"name-{number}é"
        midnight = datetime(2024, 1, 1)  # noqa: DTZ001  # SQL's TIMESTAMP has no zone
        second = midnight + timedelta(seconds=number)
        row = nested[key]
        kind = {"kind": "+I"}
        assert row.pop("f6") == {
            **kind,
            "f0": number,
            "f1": {**kind, "f0": name, "f1": [{**kind, "f0": number / 2}]},
        }
        assert row == {
            **kind,
            "f0": key,
            "f1": number,
            "f2": [key, None, key * 10**12],
            "f3": [name, None, "é"],
            "f4": [number > 16, True],
            "f5": [(name, number + Decimal("0.25")), ("none", None)],
            "f7": [(number, [name, "more than seven"])],
            "f8": midnight.date(),
            "f9": second.time(),
            "f10": second.replace(tzinfo=UTC),
            "f11": [second],
            "f12": name.encode(),
            "f13": [midnight.date()],
        }


def test_accumulated_values_are_read(savepoint: flink.FlinkSavepoint) -> None:
    names = of_key(savepoint, "agg0$map")
    assert {key: dict(counts) for key, counts in names.items()} == {
        key: {f"name-{number}é": 1 for number in numbers(key)} for key in range(5)
    }
    lists = of_key(savepoint, "accState", "list")
    assert {key: row["f1"]["f0"] for key, row in lists.items()} == {
        key: [number + Decimal("0.25") for number in numbers(key)] for key in range(5)
    }
