"""Sinks for tables and files without the jars of the formats: errors, files, and revoked batches in a history."""

from pathlib import Path

import pytest
from jobs.tables import batch
from pyspark.sql import SparkSession

from holdfast.errors import InvalidRequestError
from holdfast.spark.operators import Sink
from holdfast.spark.sinks import delta, files, iceberg
from holdfast.spark.sinks.batches import Batch, Commit, find_leftovers

QUERY = "6d5f0d3a-91c0-4d5e-8f10-6c1a3b0e2f77"
OTHER_QUERY = "00000000-91c0-4d5e-8f10-6c1a3b0e2f77"
FIRST, SECOND = f"{QUERY}-aa", f"{QUERY}-bb"


def commit(
    version: int, application_id: str = "", batch_id: int = 0, operation: str = "WRITE"
) -> Commit:
    """Return a commit of a batch; of another program without an application id."""
    return Commit(version, operation, Batch(application_id, batch_id) if application_id else None)


def test_batches_before_the_rollback_are_kept() -> None:
    history = [commit(2, QUERY, 1), commit(1), commit(0, QUERY, 0)]
    assert find_leftovers(history, Batch(FIRST, 2), ()) is None


def test_batches_of_other_queries_and_attempts_are_kept() -> None:
    history = [commit(1, FIRST, 5), commit(0, OTHER_QUERY, 5)]
    assert find_leftovers(history, Batch(FIRST, 5), ()) is None


def test_kept_batches_stay_in_later_runs() -> None:
    history = [commit(4, FIRST, 2), commit(3, QUERY, 4), commit(2, QUERY, 3), commit(1, QUERY, 2)]
    assert find_leftovers(history, Batch(FIRST, 3), ()) is None


def test_late_batch_of_the_old_driver_is_found() -> None:
    history = [commit(3, QUERY, 3), commit(2, FIRST, 2), commit(1, QUERY, 2)]
    leftovers = find_leftovers(history, Batch(FIRST, 3), ())
    assert leftovers is not None
    assert (leftovers.restore_to, list(leftovers.batches)) == (2, [3])


def test_version_before_the_oldest_revoked_batch_is_restored() -> None:
    history = [commit(3, QUERY, 3), commit(2, QUERY, 2), commit(1, QUERY, 1), commit(0)]
    leftovers = find_leftovers(history, Batch(FIRST, 2), ())
    assert leftovers is not None
    assert (leftovers.restore_to, list(leftovers.batches), leftovers.others) == (1, [2, 3], [])


def test_second_rollback_revokes_batches_of_the_first() -> None:
    # Version 2 was undone by version 3.
    history = [commit(4, FIRST, 1), commit(3, operation="RESTORE"), commit(1, QUERY, 0), commit(0)]
    leftovers = find_leftovers(history, Batch(SECOND, 0), {"RESTORE"})
    assert leftovers is not None
    assert (leftovers.restore_to, list(leftovers.batches)) == (0, [0, 1])
    assert leftovers.others == []


def test_commits_of_others_since_a_revoked_batch_are_reported() -> None:
    history = [
        commit(5),
        commit(4, QUERY, 2),
        commit(3, operation="OPTIMIZE"),
        commit(2),
        commit(1, QUERY, 1),
        commit(0),
    ]
    leftovers = find_leftovers(history, Batch(FIRST, 1), {"OPTIMIZE"})
    assert leftovers is not None
    assert [each.version for each in leftovers.others] == [5, 2]
    assert leftovers.restore_to == 0


def test_table_created_by_a_revoked_batch_has_no_version_to_restore() -> None:
    leftovers = find_leftovers([commit(0, QUERY, 1)], Batch(FIRST, 0), ())
    assert leftovers is not None
    assert leftovers.restore_to is None


@pytest.mark.parametrize(
    ("sink", "message"),
    [
        (delta.append_once("orders"), "Spark has no Delta"),
        (delta.append_once("/tmp/orders"), "io.delta:delta-spark_"),
        (delta.merge("/tmp/orders", on=["id"]), "Spark has no Delta"),
        (
            iceberg.append_once("lake.shop.orders"),
            "Spark has no Iceberg catalog for lake.shop.orders",
        ),
        (iceberg.merge("lake.shop.orders", on=["id"]), "iceberg-spark-runtime-"),
    ],
)
def test_spark_without_the_connector_is_an_error(
    spark: SparkSession, sink: Sink, message: str
) -> None:
    with batch(QUERY), pytest.raises(InvalidRequestError, match=message):
        sink(spark.range(1), 0)


def test_unusable_arguments_are_errors() -> None:
    with pytest.raises(InvalidRequestError, match=r"\['txnVersion'\] are set by the sink"):
        delta.append_once("orders", options={"txnVersion": "1"})
    with pytest.raises(InvalidRequestError, match="name is 'a b'"):
        delta.append_once("orders", name="a b")
    with pytest.raises(InvalidRequestError, match="on_rollback is 'undo'"):
        iceberg.append_once("orders", on_rollback="undo")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="on is 'id'; it must be a list"):
        iceberg.merge("orders", on="id")


def test_files_of_a_repeated_batch_are_replaced(spark: SparkSession, tmp_path: Path) -> None:
    sink = files.replace(str(tmp_path / "output"))
    sink(spark.range(3), 0)
    sink(spark.range(5), 7)
    sink(spark.range(2), 7)
    rows = spark.read.parquet(str(tmp_path / "output")).collect()
    assert sorted((row.batch, row.id) for row in rows) == [(0, 0), (0, 1), (0, 2), (7, 0), (7, 1)]


def test_rows_with_the_column_of_the_directories_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = spark.range(1).selectExpr("id AS BATCH")
    with pytest.raises(InvalidRequestError, match="pass another column="):
        files.replace(str(tmp_path))(rows, 0)
    files.replace(str(tmp_path), column="number", format="json")(rows, 0)
    assert [row.number for row in spark.read.json(str(tmp_path)).collect()] == [0]
