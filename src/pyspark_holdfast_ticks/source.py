"""The data source that makes Spark run requested batches."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_holdfast_ticks.tick_requests import cancel_request, request_of

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
        """Return the offset at which a new query begins."""
        return dict(json.loads(BEGINNING))

    def latestOffset(self, *start_and_limit: Any) -> dict[str, int]:  # noqa: N802
        """Return the previous offset, or a new one if a batch is due. PySpark 4.1 passes no arguments."""
        start = start_and_limit[0][_OFFSET] if start_and_limit else 0
        now = self._now_ms()
        request = request_of(self._name, self._directory)
        is_new = request is not None and request.request != self._granted and request.at_ms <= now
        if self._offset is None or is_new:
            self._granted = request.request if is_new and request else self._granted
            self._offset = max(now, start + 1, (self._offset or 0) + 1)
        return {_OFFSET: self._offset}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Do nothing: batches that are requested during the run are part of it."""

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Return no partitions: there are no rows."""
        del start, end
        return []

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Return no rows. Spark never calls it."""
        del partition
        return iter(())

    def stop(self) -> None:
        """Delete the request of this run."""
        cancel_request(self._name, self._directory)


class DefaultSource(DataSource):
    """The data source: a stream without rows, which has Spark run a batch on request."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the source for `format`."""
        return FORMAT

    def schema(self) -> str:
        """Return a placeholder column, which Spark requires; the query sets the schema of its rows."""
        return "placeholder boolean"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader of one run of a query."""
        del schema
        return TickReader(self.options[NAME], self.options.get(DIRECTORY))
