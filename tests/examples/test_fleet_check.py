"""The comparison of the demo's second job with a plain query finds all damage."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from examples.demo.fleet_check import expected_results, fleet_differences, read_results
from examples.demo.places import FLEET, Places

BEGIN = datetime(2013, 1, 1, tzinfo=UTC)
FLIGHT = {"flight": 1, "origin": "JFK", "dest": "LAX", "distance": 2475}
SCHEMA = pa.schema(
    [
        ("tailnum", pa.string()),
        ("time_hour", pa.timestamp("s", "UTC")),
        ("dep_time", pa.int64()),
        ("dep_delay", pa.int64()),
        ("flight", pa.int64()),
        ("origin", pa.string()),
        ("dest", pa.string()),
        ("distance", pa.int64()),
    ]
)


def flights(*of_aircraft: tuple[str, int, int | None]) -> pa.Table:
    """Return flights, given by aircraft, hour and delay; a flight without delay was cancelled."""
    return pa.Table.from_pylist(
        [
            {
                **FLIGHT,
                "tailnum": tailnum,
                "time_hour": BEGIN + timedelta(hours=hour),
                "dep_time": None if delay is None else 517,
                "dep_delay": delay,
            }
            for tailnum, hour, delay in of_aircraft
        ],
        SCHEMA,
    )


DAY = 24
FLOWN = flights(
    ("N1", 0, 10),
    ("N1", 3 * DAY, 20),  # just in the same session
    ("N1", 3 * DAY + 1, None),
    ("N1", 6 * DAY + 1, 30),
    ("N2", 0, -5),
    ("N2", 20 * DAY, 0),
    ("N3", 8 * DAY, 1),
    ("N3", 22 * DAY, 1),
    ("N4", 25 * DAY, 2),  # the watermark is at day 23
)


def rows(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in table.to_pylist())


def at(days: float) -> datetime:
    return BEGIN + timedelta(days=days)


def test_plain_query_computes_the_expected_results() -> None:
    expected = expected_results(FLOWN)
    assert rows(expected["delays"]) == [
        ("N1", "JFK", "LAX", 3, 20.0, 30),
        ("N2", "JFK", "LAX", 2, -2.5, 0),
        ("N3", "JFK", "LAX", 2, 1.0, 1),
        ("N4", "JFK", "LAX", 1, 2.0, 2),
    ]
    assert rows(expected["sessions"]) == [
        ("N1", at(0), at(6), 2, 4950),
        ("N1", at(6 + 1 / 24), at(9 + 1 / 24), 1, 2475),
        ("N2", at(0), at(3), 1, 2475),
        ("N2", at(20), at(23), 1, 2475),
        ("N3", at(8), at(11), 1, 2475),
    ]
    assert rows(expected["grounded"]) == [("N1", at(6 + 1 / 24)), ("N2", at(0))]


def test_expected_results_do_not_differ() -> None:
    assert fleet_differences(expected_results(FLOWN), expected_results(FLOWN)) == []


@pytest.mark.parametrize("name", ["delays", "sessions", "grounded"])
@pytest.mark.parametrize("damage", ["lost", "doubled", "another"])
def test_lost_duplicate_and_wrong_rows_are_named(name: str, damage: str) -> None:
    expected = expected_results(FLOWN)
    others = expected_results(flights(("N9", 0, 3), ("N9", 30 * DAY, 3)))
    table = expected[name]
    damaged = {
        "lost": table.slice(1),
        "doubled": pa.concat_tables([table, table.slice(0, 1)]),
        "another": pa.concat_tables([table.slice(1), others[name].slice(0, 1)]),
    }[damage]
    wrong = fleet_differences(expected, {**expected, name: damaged})
    assert wrong
    assert all(sentence.startswith(f"{name}: ") for sentence in wrong)


def test_newest_delays_are_read_with_duplicate_rows(tmp_path: Path) -> None:
    places = Places(tmp_path, FLEET)
    expected = expected_results(FLOWN)
    older = expected_results(FLOWN.slice(0, 1))
    for batch, results in ((9, older), (10, expected)):
        for name, output in zip(FLEET.outputs, places.outputs, strict=True):
            rows_out = results[name] if name == "delays" else expected[name].slice(batch - 9, 1)
            write(rows_out, output, batch)
    read = read_results(places)
    assert rows(read["delays"]) == rows(expected["delays"])
    assert rows(read["grounded"]) == rows(expected["grounded"])
    doubled = expected["delays"].slice(0, 1)
    write(pa.concat_tables([doubled, doubled]), places.outputs[0], 11)
    assert len(read_results(places)["delays"]) == len(expected["delays"]) + 1


def write(table: pa.Table, output: Path, batch: int) -> None:
    directory = output / f"batch={batch}"
    directory.mkdir(parents=True)
    pyarrow.parquet.write_table(table, directory / "part.parquet")
