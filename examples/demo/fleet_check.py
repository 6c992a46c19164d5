"""The expected output of the fleet job: its questions answered by plain queries over all flights."""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset

from examples.demo.check import blind_spots, row_differences
from examples.demo.places import Places
from examples.fleet_job import GROUNDED_AFTER, SESSION_GAP, WATERMARK_DELAY

_ROUTE = ["tailnum", "origin", "dest"]
_FIGURES = ["flights", "mean", "greatest"]
_COLUMN_TO_DAMAGE = {"delays": "mean", "sessions": "miles", "grounded": "last_flight"}


def read_results(places: Places) -> dict[str, pa.Table]:
    """Read the job's output by the names of its outputs; of delays only the newest of each key."""
    results = {
        name: read_batches(output)
        for name, output in zip(places.job.outputs, places.outputs, strict=True)
    }
    delays = results["delays"]
    newest = delays.group_by(_ROUTE).aggregate([("batch", "max")])
    results["delays"] = delays.join(
        newest, [*_ROUTE, "batch"], [*_ROUTE, "batch_max"], join_type="left semi"
    )
    return {name: table.drop_columns("batch") for name, table in results.items()}


def expected_results(flights: pa.Table) -> dict[str, pa.Table]:
    """Return the expected output for these flights, which does not depend on the batches."""
    flown = flights.filter(pc.is_valid(flights["dep_time"]))
    delays = flown.group_by(_ROUTE).aggregate(
        [("dep_delay", "count"), ("dep_delay", "mean"), ("dep_delay", "max")]
    )
    sessions = _without_breaks(flown, SESSION_GAP)
    grounded = _without_breaks(flown, GROUNDED_AFTER)
    return {
        "delays": delays.rename_columns([*_ROUTE, *_FIGURES]),
        "sessions": sessions.drop_columns("last_flight"),
        "grounded": grounded.select(["tailnum", "last_flight"]),
    }


def fleet_differences(
    expected: Mapping[str, pa.Table], results: Mapping[str, pa.Table]
) -> list[str]:
    """Return the differences from the expected output, as sentences; empty if it is equal."""
    return [
        f"{name}: {sentence}"
        for name, table in expected.items()
        for sentence in (
            *blind_spots(table, _COLUMN_TO_DAMAGE[name]),
            *row_differences(table, results[name]),
        )
    ]


def _without_breaks(flown: pa.Table, gap: timedelta) -> pa.Table:
    """The flights of each aircraft put together where they are not further apart than the gap.

    Sessions that are still open at the watermark after all flights are omitted.
    """
    flown = flown.sort_by([("tailnum", "ascending"), ("time_hour", "ascending")])
    aircraft = flown["tailnum"].combine_chunks().dictionary_encode().indices.to_numpy()
    times = flown["time_hour"].cast(pa.int64()).to_numpy()
    is_first = np.ones(len(flown), np.bool_)
    is_first[1:] = (np.diff(aircraft) != 0) | (np.diff(times) > gap.total_seconds())
    together = (
        flown.append_column("number", pa.array(np.cumsum(is_first)))
        .group_by(["tailnum", "number"])
        .aggregate(
            [("time_hour", "min"), ("time_hour", "max"), ("flight", "count"), ("distance", "sum")]
        )
        .drop_columns("number")
        .rename_columns(["tailnum", "window_start", "last_flight", "flights", "miles"])
    )
    ends = pc.add(together["last_flight"], _seconds(gap))
    watermark = pc.subtract(pc.max(flown["time_hour"]), _seconds(WATERMARK_DELAY))
    together = together.add_column(2, "window_end", ends)
    return together.filter(pc.less_equal(ends, watermark))


def read_batches(directory: Path) -> pa.Table:
    """Read an output, with the number of the batch that wrote each row."""
    partitioning = pyarrow.dataset.partitioning(pa.schema([("batch", pa.int64())]), flavor="hive")
    return pyarrow.dataset.dataset(
        directory, format="parquet", partitioning=partitioning
    ).to_table()


def _seconds(duration: timedelta) -> pa.Scalar:
    return pa.scalar(duration, pa.duration("s"))
