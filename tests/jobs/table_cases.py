"""Steps of tests of sinks for Delta and Iceberg, in the process of a Spark that has both."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from contracts.patience import wait_until
from jobs.tables import batch, table_of, this_spark
from pyspark.sql import DataFrame

from holdfast.spark.operators import Sink
from holdfast.spark.sinks import delta, iceberg
from holdfast.spark.sinks.batches import OnRollback

QUERY = "6d5f0d3a-91c0-4d5e-8f10-6c1a3b0e2f77"
ROLLED_BACK = f"{QUERY}-3b0e2f77"


def append_sink(kind: str, table: str, name: str = "", on_rollback: OnRollback = "restore") -> Sink:
    """Return a sink that appends."""
    if kind == "delta":
        return delta.append_once(table, name=name, on_rollback=on_rollback)
    return iceberg.append_once(table, name=name, on_rollback=on_rollback)


def merge_sink(kind: str, table: str, **arguments: Any) -> Sink:
    """Return a sink that merges."""
    return delta.merge(table, **arguments) if kind == "delta" else iceberg.merge(table, **arguments)


def ids(*values: int) -> DataFrame:
    """Return rows with these ids."""
    return this_spark().createDataFrame([(value,) for value in values], "id long")


def write(sink: Sink, rows: DataFrame, batch_id: int, application_id: str = QUERY) -> None:
    """Write a batch of the query."""
    with batch(application_id):
        sink(rows, batch_id)


def rows_in(kind: str, table: str) -> list[tuple[Any, ...]]:
    """Return the sorted rows of a table."""
    spark = this_spark()
    is_path = "/" in table
    frame = spark.read.format("delta").load(table) if is_path else spark.table(table)
    return sorted(tuple(row) for row in frame.collect())


def execute(statement: str) -> None:
    """Run a statement."""
    this_spark().sql(statement).collect()


def append_batches_repeatedly(kind: str, table: str) -> list[tuple[Any, ...]]:
    """Append three batches, each of them twice, and an older one again."""
    sink = append_sink(kind, table)
    for batch_id in (0, 0, 1, 1, 2, 2, 1):
        write(sink, ids(batch_id), batch_id)
    return rows_in(kind, table)


def append_after_rollback(
    kind: str, table: str, statement: str, on_rollback: OnRollback = "restore"
) -> list[tuple[Any, ...]]:
    """Append batches 0 to 2, run a statement on the table, and append batch 1 of the query that was rolled back."""
    before = append_sink(kind, table)
    for batch_id in range(3):
        write(before, ids(batch_id), batch_id)
    if statement:
        execute(statement)
    for _ in range(2):  # the second is a restarted driver
        after = append_sink(kind, table, on_rollback=on_rollback)
        write(after, ids(10), 1, ROLLED_BACK)
        write(after, ids(11), 2, ROLLED_BACK)
    return rows_in(kind, table)


def _rows_once_given(signal: Path, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    (signal.parent / f"{signal.name}-waits").touch()
    wait_until(signal.exists, "the other driver does not write")
    yield from batches


def write_by_two_drivers(kind: str, table: str, directory: Path) -> tuple[list[Any], str]:
    """Write a batch while another driver writes it and the next one; return the rows, and the error of the first."""
    write(append_sink(kind, table), ids(0), 0)
    signal = directory / "signal"
    # A separate driver has separate settings.
    late = this_spark().newSession().createDataFrame([(1,)], "id long")
    late = late.coalesce(1).mapInArrow(partial(_rows_once_given, signal), "id long")
    with batch(QUERY), ThreadPoolExecutor(1) as pool:
        written = pool.submit(append_sink(kind, table), late, 1)
        wait_until((directory / "signal-waits").exists, "the late driver does not write")
        append_sink(kind, table)(ids(1), 1)
        execute_others_append(kind, table)
        signal.touch()
        error = written.exception()
    return rows_in(kind, table), str(error or "")


def execute_others_append(kind: str, table: str) -> None:
    """Append a row as another program, which an Iceberg table must allow at any time."""
    reference = f"delta.`{table}`" if "/" in table else table
    execute(f"INSERT INTO {reference} VALUES (100)")


def write_twice_in_a_batch(kind: str, table: str, names: tuple[str, str]) -> list[Any]:
    """Write to one table by two sinks in one batch."""
    with batch(QUERY):
        for number, name in enumerate(names):
            append_sink(kind, table, name)(ids(number), 0)
    return rows_in(kind, table)


def merge_rows(
    kind: str, table: str, columns: str, batches: list[list[tuple[Any, ...]]], **arguments: Any
) -> list[tuple[Any, ...]]:
    """Merge batches of rows, each twice."""
    sink = merge_sink(kind, table, **arguments)
    for batch_id, rows in enumerate(batches):
        for _ in range(2):
            write(sink, this_spark().createDataFrame(rows, columns), batch_id)
    return rows_in(kind, table)


def new_table(kind: str, directory: Path) -> str:
    """Return the name of a table that doesn't exist."""
    return table_of(kind, directory, f"t_{directory.name}".replace("-", "_"))
