"""The data source `holdfast-ticks`, in a module where Spark finds it: it imports every module named `pyspark_…`.

The source has no rows. When a request is due it reports a new offset, so Spark plans a batch. Requests are small files
that the driver writes (`holdfast.spark.event_time`) and the source reads, in another process of the same host:

    {"request": str, "at_ms": int}

A file is replaced atomically. The writer holds a lock on it, so that the next driver on the host recognizes and deletes
the files of killed drivers.

Nothing here imports the rest of Holdfast, which takes a while: Spark reads the source in a separate process.
"""

import fcntl
import json
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql.types import StructType

try:
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
except ImportError:  # PySpark 3.5, where `holdfast.spark.file_ticks` replaces this source

    class DataSource:  # type: ignore[no-redef]  # imported elsewhere
        """Placeholder for the missing class."""

    class DataSourceStreamReader:  # type: ignore[no-redef]  # imported elsewhere
        """Placeholder for the missing class."""

    class InputPartition:  # type: ignore[no-redef]  # imported elsewhere
        """Placeholder for the missing class."""


try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:  # PySpark 4.1 has no such triggers for sources in Python

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Placeholder for the missing class."""

    SUPPORTS_AVAILABLE_NOW = False
else:
    SUPPORTS_AVAILABLE_NOW = True


FORMAT = "holdfast-ticks"
"""The name of the source for `format`."""

NAME = "name"
"""The option for the name of the query's requests."""

DIRECTORY = "directory"
"""The option for the directory of requests; by default the temporary directory of the source's process."""

_OFFSET = "holdfast-ticks"

BEGINNING = json.dumps({_OFFSET: 0})
"""The offset at which a new query begins, in the form of Spark's log."""


def is_tick_offset(offset: str) -> bool:
    """Return whether an offset in Spark's log, JSON, is of this source."""
    return offset.startswith(f'{{"{_OFFSET}":')


@dataclass(frozen=True, slots=True)
class Request:
    """A request for a batch.

    Attributes:
        request: A unique id.
        at_ms: When the batch is due, in milliseconds since 1970; the past means at once.
    """

    request: str
    at_ms: int


def request_file(name: str, directory: str | None = None) -> Path:
    """Return the path of requests to the source of that name; the default directory is this process's temporary one."""
    return Path(directory or tempfile.gettempdir(), f"holdfast-ticks-{name}.json")


_locks: dict[Path, int] = {}
"""The open descriptor of each file that this process wrote last, which holds its lock."""


def request_batch(name: str, at_ms: int) -> None:
    """Request a batch from the source of that name, replacing an earlier request. Raises `OSError`."""
    file = request_file(name)
    if file not in _locks:
        _delete_abandoned(file.parent)
    temporary = file.with_suffix(f".{uuid.uuid4().hex}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with suppress(OSError):  # without locks, files of killed drivers stay
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.write(descriptor, json.dumps({"request": uuid.uuid4().hex, "at_ms": at_ms}).encode())
        os.replace(temporary, file)
    except BaseException:
        os.close(descriptor)
        with suppress(OSError):
            temporary.unlink()
        raise
    _release(file)
    _locks[file] = descriptor


def cancel_request(name: str, directory: str | None = None) -> None:
    """Delete the request to the source of that name; arguments of `request_file`. Raises `OSError`."""
    file = request_file(name, directory)
    file.unlink(missing_ok=True)
    _release(file)


def _request_of(name: str, directory: str | None) -> Request | None:
    try:
        return Request(**json.loads(request_file(name, directory).read_bytes()))
    except FileNotFoundError:
        return None


def _release(file: Path) -> None:
    """Release the lock on the previous file of this name."""
    descriptor = _locks.pop(file, None)
    if descriptor is not None:
        os.close(descriptor)


def _delete_abandoned(directory: Path) -> None:
    """Delete the requests of killed drivers, on which no process holds a lock."""
    for file in directory.glob(request_file("*").name):
        with suppress(OSError):  # of another user, or locked
            descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Unless a driver has replaced it since it was opened.
                if os.path.samestat(os.fstat(descriptor), file.stat()):
                    file.unlink()
            finally:
                os.close(descriptor)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000  # noqa: TID251  # Spark makes the reader, without a clock


class TickReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream without rows that has a new offset whenever a batch was requested.

    Spark makes a reader for each run of a query, and polls it between batches. The first poll always returns a new
    offset: earlier requests may be lost, with the host. An offset is the time of the poll that returned it first,
    because PySpark 4.1 does not give the reader the offset at which a run begins.

    Args:
        name: The name of the query's requests.
        directory: The directory of requests; None is the temporary directory of this process.
        now_ms: The clock, in milliseconds since 1970.
    """

    def __init__(
        self, name: str, directory: str | None = None, now_ms: Callable[[], int] = _now_ms
    ) -> None:
        self._name = name
        self._directory = directory
        self._now_ms = now_ms
        self._granted: str | None = None
        self._offset: int | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return dict(json.loads(BEGINNING))

    def latestOffset(self, *start_and_limit: Any) -> dict[str, int]:  # noqa: N802
        """Return the previous offset, or a new one if a batch is due. PySpark 4.1 passes no arguments."""
        # The offset of a checkpointLocation of PySpark 3.5 is that of a source of files.
        start = start_and_limit[0].get(_OFFSET, 0) if start_and_limit else 0
        now = self._now_ms()
        request = _request_of(self._name, self._directory)
        is_new = request is not None and request.request != self._granted and request.at_ms <= now
        if self._offset is None or is_new:
            self._granted = request.request if is_new and request else self._granted
            self._offset = max(now, start + 1, (self._offset or 0) + 1)
        return {_OFFSET: self._offset}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Do nothing: batches that are requested during the run are part of it."""

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        del start, end
        return []  # there are no rows

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        del partition
        return iter(())  # Spark never calls it

    def stop(self) -> None:
        """Delete the request of this run."""
        cancel_request(self._name, self._directory)


class DefaultSource(DataSource):
    """The data source: a stream without rows, which has Spark run a batch on request."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return (
            "placeholder boolean"  # Spark requires a column; the query sets the schema of its rows
        )

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        del schema
        return TickReader(self.options[NAME], self.options.get(DIRECTORY))
