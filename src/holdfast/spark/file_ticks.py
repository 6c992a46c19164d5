"""Idle ticks of PySpark 3.5, which has no data sources in Python: requests are files that Spark's source of files finds.

A request is an empty file in a directory of its query, on the driver's host. This process creates the file when the
batch is due. Spark lists the directory between batches, and runs a batch when there is a new file. Tasks never read
an empty file, so executors don't need the directory.

    <temporary directory>/holdfast-ticks-…/<name>/<unique id>

Spark logs the names of the files in the checkpointLocation, one line for each batch, and never forgets one. That is
why later versions of PySpark have `pyspark_holdfast_ticks` instead.
"""

import threading
import uuid
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StructType

from holdfast.common import SYSTEM_CLOCK

_MAX_WAIT_S = 60.0
"""Threads wait by the monotonic clock; a change of the wall clock is noticed after this time."""

_timers: dict[str, threading.Timer] = {}
"""Requests that are not due yet, by the name of their query."""


@cache
def _own_directory() -> TemporaryDirectory[str]:
    """Return the directory of this process, which is deleted when the process ends."""
    return TemporaryDirectory(prefix="holdfast-ticks-", ignore_cleanup_errors=True)


def request_file(name: str) -> Path:
    """Return the path of requests to the source of that name: a directory."""
    return Path(_own_directory().name, name)


def load(session: SparkSession, name: str, columns: StructType) -> DataFrame:
    """Return a stream of these columns without rows. It begins with a batch. Raises `OSError`."""
    request_file(name).mkdir(exist_ok=True)
    request_batch(name, 0)
    # By default Spark's memory keeps the names of seven days.
    reader = session.readStream.option("maxFileAge", "1d")
    # Of a pattern, not a directory: a batch may also have files of an earlier run, from another directory.
    files = reader.text(f"file://{request_file(name)}/*")
    # The columns of a source of files are all nullable; these keep theirs.
    no_rows = F.array().cast(ArrayType(columns, containsNull=False))
    return files.select(F.inline(no_rows))


def request_batch(name: str, at_ms: int) -> None:
    """Request a batch from the source of that name, replacing an earlier request. Raises `OSError`."""
    cancel_request(name)
    wait_s = (at_ms - SYSTEM_CLOCK.now_ms()) / 1000
    if wait_s <= 0:
        (request_file(name) / uuid.uuid4().hex).touch(exist_ok=False)
        return
    timer = threading.Timer(min(wait_s, _MAX_WAIT_S), request_batch, (name, at_ms))
    timer.daemon = True
    _timers[name] = timer
    timer.start()


def cancel_request(name: str) -> None:
    """Delete the request to the source of that name. Raises `OSError`."""
    if timer := _timers.pop(name, None):
        timer.cancel()
    for file in request_file(name).iterdir():
        file.unlink(missing_ok=True)


def find_source(name: str, execution: Any) -> int | None:
    """Return the index of the source of that name in a query of Spark's JVM, or None."""
    sources = execution.sources()
    for index in range(sources.size()):
        if str(request_file(name)) in sources.apply(index).toString():
            return index
    return None
