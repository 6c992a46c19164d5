"""Reports of grounded_job aircraft are the same for any batches and order of flights."""

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from jobs.keyed import KeyedJob

from examples.grounded import Grounded

SCHEMA = pa.schema([("tailnum", pa.string()), ("time_hour", pa.timestamp("us", "UTC"))])
REPORT = pa.schema([("tailnum", pa.string()), ("last_flight", pa.timestamp("us", "UTC"))])
AFTER = timedelta(hours=10)
BEGIN = datetime(2013, 1, 1, tzinfo=UTC)
LATEST = 4
"""Maximum delay of a flight in the stream, in hours."""


def grounded_job(directory: str) -> KeyedJob:
    return KeyedJob(directory, Grounded(AFTER), schema=SCHEMA, output=REPORT, key=["tailnum"])


def at(hour: int) -> datetime:
    return BEGIN + timedelta(hours=hour)


def reports(job: KeyedJob, *flights: tuple[str, int], watermark: int) -> list[tuple[str, int]]:
    """Return the reports of a batch; times are in hours."""
    rows = [{"tailnum": tailnum, "time_hour": at(hour)} for tailnum, hour in flights]
    output = job.run(rows, times=(0, int(at(watermark).timestamp() * 1000)))
    hour = timedelta(hours=1)
    return sorted((row["tailnum"], (row["last_flight"] - BEGIN) // hour) for row in output)


def test_grounded_aircraft_is_reported_once_by_the_watermark(memory_directory: str) -> None:
    job = grounded_job(memory_directory)
    assert reports(job, ("N1", 0), ("N2", 3), watermark=0) == []
    assert reports(job, ("N2", 13), watermark=9) == []
    assert reports(job, watermark=10) == [("N1", 0)]
    assert reports(job, ("N1", 30), watermark=22) == []
    assert reports(job, watermark=100) == [("N1", 30), ("N2", 13)]
    assert reports(job, watermark=200) == []


def test_break_between_flights_of_one_batch_is_reported(memory_directory: str) -> None:
    job = grounded_job(memory_directory)
    assert reports(job, ("N1", 0), ("N1", 11), watermark=0) == []
    assert reports(job, watermark=11) == [("N1", 0)]


def test_flight_after_a_later_one_counts(memory_directory: str) -> None:
    job = grounded_job(memory_directory)
    assert reports(job, ("N1", 0), ("N1", 12), watermark=8) == []
    assert reports(job, ("N1", 9), watermark=11) == []


@pytest.mark.parametrize("seed", range(5))
def test_reports_equal_those_of_all_flights_at_once(seed: int, memory_directory: str) -> None:
    chance = random.Random(seed)
    flights = [(f"N{chance.randrange(5)}", chance.randrange(300)) for _ in range(120)]
    arrived = sorted(flights, key=lambda flight: flight[1] + chance.uniform(0, LATEST))
    job = grounded_job(memory_directory)
    seen: list[tuple[str, int]] = []
    watermark = 0
    while arrived:
        batch, arrived = arrived[: (size := chance.randrange(1, 40))], arrived[size:]
        seen += reports(job, *batch, watermark=watermark)
        watermark = max(watermark, *(hour - LATEST for _, hour in batch))
    seen += reports(job, watermark=watermark + 1000)
    assert sorted(seen) == sorted(set(_last_before_breaks(flights)))


def _last_before_breaks(flights: list[tuple[str, int]]) -> list[tuple[str, int]]:
    after: int = AFTER // timedelta(hours=1)

    def flew_soon(tailnum: str, hour: int) -> Any:
        return any(other == tailnum and hour < later <= hour + after for other, later in flights)

    return [flight for flight in flights if not flew_soon(*flight)]
