"""The outputs of `operators_job` compared with plain Python over all flights, whatever their batches were."""

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa

from examples.demo.fleet_check import read_batches
from examples.demo.places import Places
from integration_tests.operators_job import AIRPORTS, DELAY, GAP, TOP, name_of

Row = dict[str, Any]


class Flight(NamedTuple):
    """A flight of an aircraft."""

    at: datetime
    flight: int


def check_operators(flights: pa.Table, places: Places) -> None:
    """Check all outputs. Raises `AssertionError`."""
    first, second = (_by_aircraft(flights, airport) for airport in AIRPORTS)
    watermark = min(max(f.at for each in side.values() for f in each) for side in (first, second))
    watermark -= DELAY
    outputs = {
        name: read_batches(output).to_pylist()
        for name, output in zip(places.job.outputs, places.outputs, strict=True)
    }
    _check_equal(outputs["pairs"], _pairs(first, second, watermark))
    _check_equal(outputs["asof"], _latest(first, second, watermark))
    newest = {tailnum: max(flown) for tailnum, flown in first.items()}
    _check_newest(outputs["newest"], {tailnum: [flight] for tailnum, flight in newest.items()})
    top = {tailnum: sorted(flown, reverse=True)[:TOP] for tailnum, flown in first.items()}
    _check_newest(outputs["top"], top)
    _check_changes(outputs["changes"], newest)

    counts = {
        tailnum: (len(first.get(tailnum, [])), len(second.get(tailnum, [])))
        for tailnum in {*first, *second}
    }
    counted: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for row in outputs["counts"]:
        counted[row["tailnum"]] = max(counted[row["tailnum"]], (row["first"], row["second"]))
    assert counted == counts

    every = [(name, *flight, name_of(name)) for name, flown in first.items() for flight in flown]
    looked_up = [(r["tailnum"], r["at"], r["flight"], r["name"]) for r in outputs["looked_up"]]
    assert sorted(looked_up) == sorted(every)


def _by_aircraft(flights: pa.Table, airport: str) -> dict[str, list[Flight]]:
    """Return the flights from an airport by their aircraft."""
    aircraft: dict[str, list[Flight]] = defaultdict(list)
    for row in flights.select(["tailnum", "time_hour", "flight", "origin", "dep_time"]).to_pylist():
        if row["origin"] == airport and row["dep_time"] is not None:
            at = row["time_hour"] + timedelta(seconds=row["flight"])
            aircraft[row["tailnum"]].append(Flight(at, row["flight"]))
    for flown in aircraft.values():
        assert len({flight.at for flight in flown}) == len(flown)
    return dict(aircraft)


def _pairs(
    first: dict[str, list[Flight]], second: dict[str, list[Flight]], watermark: datetime
) -> Iterable[tuple[Any, ...]]:
    for tailnum, flown in first.items():
        for flight in flown:
            others = second.get(tailnum, [])
            near = [other for other in others if timedelta(0) <= other.at - flight.at <= GAP]
            for other in near:
                yield tailnum, *flight, *other
            if not near and flight.at + GAP <= watermark:
                yield tailnum, *flight, None, None


def _latest(
    first: dict[str, list[Flight]], second: dict[str, list[Flight]], watermark: datetime
) -> Iterable[tuple[Any, ...]]:
    for tailnum, flown in first.items():
        for flight in flown:
            earlier = [other for other in second.get(tailnum, []) if other.at <= flight.at]
            if flight.at <= watermark:
                yield tailnum, *flight, *max(earlier, default=(None, None))


def _check_equal(rows: list[Row], expected: Iterable[tuple[Any, ...]]) -> None:
    columns = ["tailnum", "at", "flight", "other_at", "other_flight"]
    wanted = sorted(expected, key=str)
    assert wanted
    assert sorted((tuple(row[name] for name in columns) for row in rows), key=str) == wanted


def _check_newest(rows: list[Row], expected: dict[str, list[Flight]]) -> None:
    """Check the rows of each aircraft in the last batch that has some."""
    batches: dict[str, dict[int, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        batches[row["tailnum"]][row["batch"]].append(row)
    newest = {
        tailnum: sorted((Flight(row["at"], row["flight"]) for row in of[max(of)]), reverse=True)
        for tailnum, of in batches.items()
    }
    assert newest == expected


def _check_changes(rows: list[Row], newest: dict[str, Flight]) -> None:
    """Check that each change of an aircraft begins with the row that the one before has left."""
    changes: dict[str, list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["batch"]):
        changes[row["tailnum"]].append(row)
    for each in changes.values():
        assert [row["change"] for row in each] == ["insert"] + ["update"] * (len(each) - 1)
        assert each[0]["before"] is None
        assert all(row["after"] == later["before"] for row, later in pairwise(each))
    last = {tailnum: each[-1]["after"] for tailnum, each in changes.items()}
    assert {name: Flight(row["at"], row["flight"]) for name, row in last.items()} == newest
