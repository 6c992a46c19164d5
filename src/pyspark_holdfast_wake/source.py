"""The data source: how Spark learns that a batch was asked for."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_holdfast_wake.asking import forget, request_of

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:  # PySpark 4.1 has no such triggers for sources in Python

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Stands for what is missing."""

    SUPPORTS_AVAILABLE_NOW = False
else:
    SUPPORTS_AVAILABLE_NOW = True


FORMAT = "holdfast-wake"
"""What is given to `format`."""

NAME = "name"
"""The option for the name by which a query asks its own source."""

DIRECTORY = "directory"
"""The option for the directory with what is asked for; without it the source's process has the right one."""

_OFFSET = "holdfast-wake"


BEGINNING = json.dumps({_OFFSET: 0})
"""The offset at which a new query begins, as Spark's log has it."""


def is_of_wake_ups(offset: str) -> bool:
    """Whether an offset in Spark's log, JSON, is one of such a source."""
    return offset.startswith(f'{{"{_OFFSET}":')


def _now_ms() -> int:
    return time.time_ns() // 1_000_000  # noqa: TID251  # Spark makes the reader: nobody hands in a clock


class WakeUpReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Has no rows, and a new offset whenever a batch was asked for.

    Spark makes a reader for each run of a query, and polls it between batches. With the first poll a batch comes
    in any case: what was asked for before can be lost, with the host. Offsets are the times of polls that had a
    batch follow, because PySpark 4.1 does not tell the reader where a run begins.

    Args:
        name: What the query asks by.
        directory: Where it asks; None is the directory for temporary files of this process.
        now_ms: Says what time it is, in milliseconds since 1970.
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
        """Where a new query begins."""
        return dict(json.loads(BEGINNING))

    def latestOffset(self, *start_and_limit: Any) -> dict[str, int]:  # noqa: N802
        """The same offset as before, unless a batch is due. PySpark 4.1 gives no arguments."""
        start = start_and_limit[0][_OFFSET] if start_and_limit else 0
        now = self._now_ms()
        request = request_of(self._name, self._directory)
        is_new = request is not None and request.request != self._granted and request.at_ms <= now
        if self._offset is None or is_new:
            self._granted = request.request if is_new and request else self._granted
            self._offset = max(now, start + 1, (self._offset or 0) + 1)
        return {_OFFSET: self._offset}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Nothing: what is asked for while the query runs is still to come in that run."""

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """None: there are no rows."""
        del start, end
        return []

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """No rows. Spark never calls it."""
        del partition
        return iter(())

    def stop(self) -> None:
        """Leave nothing behind."""
        forget(self._name, self._directory)


class DefaultSource(DataSource):
    """A stream without rows that has Spark run a batch when it is asked to."""

    @classmethod
    def name(cls) -> str:
        """What is given to `format`."""
        return FORMAT

    def schema(self) -> str:
        """A column, because Spark wants some; its place is taken by those of the rows beside it."""
        return "nothing boolean"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """The reader of one run of a query."""
        del schema
        return WakeUpReader(self.options[NAME], self.options.get(DIRECTORY))
