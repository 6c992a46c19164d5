"""Spark's `transformWithState` as its own test cases call it, run by Holdfast: a plugin of pytest.

The cases are run unchanged. While they run, `rows.groupBy("id").transformWithState(…)` is
`keyed(rows, "id", …).transformWithState(…)`, in both flavours.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest
from cases_of_spark.modules import module_of_cases
from contracts.patience import wait_until
from jobs.session import session_with
from jobs.stateful_processor import StatefulProcessor
from pyspark.sql import DataFrame, GroupedData, SparkSession
from pyspark.sql.types import StructType

from holdfast import keyed, stateful_query
from holdfast.spark.by_key import KeyedOutput, KeyedStreamWriter
from holdfast.testing import ProcessorTester

RunCase = Callable[[str, str, str], None]
"""Runs a case, given the names of its module, of its class and of the case. Raises what the case raises."""

SLEEPING = ("test_pandas_transform_with_state", "test_pandas_transform_with_state_state_variable")
"""Modules that sleep between files, so that Spark reads the older ones first."""

WHILE_RUNNING = "test_tws_tester"
"""A module that writes files while the query is running, which could read half of them."""

SINGLE_SUBTASK = "evolution"
"""Cases with this in their names check the first row, which is that of the first key only if there is one subtask."""


@pytest.fixture
def run_case(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RunCase]:
    """Run cases of Spark by Holdfast."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in SLEEPING:
        monkeypatch.setattr(module_of_cases(name), "time", SimpleNamespace(sleep=_later_files))

    monkeypatch.setattr(module_of_cases(WHILE_RUNNING), "open", _whole_file, raising=False)

    def run(module: str, cases: str, name: str) -> None:
        if cases == "TwsTesterTests":
            monkeypatch.setattr(module_of_cases(module), "TwsTester", ProcessorTester)
        case = getattr(module_of_cases(module), cases)(name)
        case.spark = spark
        parallelism = 1 if SINGLE_SUBTASK in name else 2
        for method in ("transformWithState", "transformWithStateInPandas"):
            monkeypatch.setattr(GroupedData, method, _by_holdfast(method, parallelism))
        getattr(case, name)()

    # The settings of the classes of the cases (`conf`), without those of Spark's own state.
    settings = {
        "spark.holdfast.checkpoint.dir": f"file://{tmp_path}/holdfast",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
    }
    with session_with(spark, settings):
        yield run
        for query in spark.streams.active:
            query.stop()


@dataclass(frozen=True)
class Output:
    """The output of a case's stream.

    Attributes:
        rows: The stream.
        output: Its output by key.
        has_timers: Whether there is a time mode.
        projection: The projection of the output rows, if there is one.
    """

    rows: DataFrame
    output: KeyedOutput
    has_timers: bool
    projection: Callable[[DataFrame], DataFrame] | None = None

    def select(self, *columns: Any) -> "Output":
        """Return the output with a projection, which is applied in the function of `foreachBatch`."""
        return replace(self, projection=lambda rows: rows.select(*columns))

    @property
    def writeStream(self) -> KeyedStreamWriter:  # noqa: N802  # Spark's name
        """The stream's writer.

        Cases with timers count batches, and expect no batches without data.
        """
        if not self.has_timers and self.projection is None:
            return self.output.writeStream
        operator = self.output.operator

        def query_with(sink: Callable[[DataFrame, int], object]) -> Any:
            def process(batch: DataFrame, batch_id: int) -> None:
                rows = operator.apply(batch)
                sink(rows if self.projection is None else self.projection(rows), batch_id)

            return stateful_query(process, operator)

        return KeyedStreamWriter(self.rows, query_with)


def _by_holdfast(method: str, parallelism: int) -> Callable[..., Any]:
    """Return the method of grouped rows that runs a processor on Holdfast."""

    def transform(  # noqa: PLR0917  # Spark's arguments
        grouped: GroupedData,
        statefulProcessor: StatefulProcessor,  # noqa: N803
        outputStructType: StructType | str,  # noqa: N803
        outputMode: str,  # noqa: N803
        timeMode: str,  # noqa: N803
        initialState: GroupedData | None = None,  # noqa: N803
        eventTimeColumnName: str = "",  # noqa: N803
    ) -> Output | DataFrame:
        key = grouped.count().columns[:-1]
        given = grouped._df  # noqa: SLF001  # the only access
        rows = given if given.isStreaming else _as_stream(given)
        # Checks of cases read the rows of a batch several times.
        by_key = keyed(rows, key, uid="case", parallelism=parallelism, persist=True)
        output = getattr(by_key, method)(
            statefulProcessor,
            outputStructType,
            outputMode,
            timeMode,
            initialState,
            eventTimeColumnName,
        )
        if not given.isStreaming:
            return _only_batch(output)
        return Output(rows, output, timeMode.lower() != "none")

    return transform


def _as_stream(rows: DataFrame) -> DataFrame:
    """Return the rows of a table as a stream of one batch."""
    directory = tempfile.mkdtemp()
    rows.coalesce(1).write.mode("overwrite").parquet(directory)
    return rows.sparkSession.readStream.schema(rows.schema).parquet(directory)


def _only_batch(output: KeyedOutput) -> DataFrame:
    """Return the whole output of a stream."""
    batches: list[DataFrame] = []

    def keep(rows: DataFrame, batch_id: int) -> None:
        batches.append(rows.sparkSession.createDataFrame(rows.collect(), rows.schema))

    writer = output.writeStream.foreachBatch(keep).trigger(availableNow=True)
    writer.start().awaitTermination()
    [batch] = batches
    return batch


@contextmanager
def _whole_file(path: str, mode: str) -> Iterator[IO[Any]]:
    """Open a file that Spark sees when it is closed."""
    folder, name = os.path.split(path)
    hidden = os.path.join(folder, f".{name}")
    with open(hidden, mode, encoding="utf-8") as file:
        yield file
    os.replace(hidden, path)


def _later_files(_: float) -> None:
    """Wait until new files are younger than earlier ones by Spark's clock, which counts milliseconds."""
    file = Path(tempfile.mkdtemp()) / "file"

    def written_ms() -> int:
        file.write_bytes(b"")
        return file.stat().st_mtime_ns // 1_000_000

    before = written_ms()
    wait_until(lambda: written_ms() > before, "files don't become younger")
