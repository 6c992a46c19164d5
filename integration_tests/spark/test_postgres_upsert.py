"""Rows in a table of PostgreSQL that replace those with the same key."""

import uuid
from functools import partial
from typing import Any

import psycopg
import pytest
from jobs.job import Job
from jobs.operators import Groups
from pyspark.errors import PythonException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from servers.postgres import PostgresServer

from holdfast.errors import InvalidRequestError
from holdfast.spark.operators import Sink
from holdfast.spark.sinks import postgres as postgres_sinks

COLUMNS = "key long, value long, gone boolean"


@pytest.fixture
def table(postgres: PostgresServer) -> str:
    name = f"totals_{uuid.uuid4().hex[:8]}"
    postgres.execute(f"CREATE TABLE {name} (key bigint PRIMARY KEY, value bigint)")
    return name


def upsert(postgres: PostgresServer, table: str, **arguments: Any) -> Sink:
    return postgres_sinks.upsert(
        partial(psycopg.connect, postgres.dsn), table, **({"key": ["key"]} | arguments)
    )


def rows_in(postgres: PostgresServer, table: str) -> list[tuple[object, ...]]:
    return postgres.execute(f"SELECT * FROM {table} ORDER BY key")


def test_rows_are_inserted_updated_and_deleted(
    spark: SparkSession, postgres: PostgresServer, table: str
) -> None:
    sink = upsert(postgres, f"public.{table}", deletes="gone", latest="value")
    first = [(key, key, False) for key in range(20)]
    second = [(1, 10, False), (1, 11, False), (2, 3, True), (30, 1, None), (31, 1, True)]
    for batch_id, rows in enumerate((first, second)):
        for _ in range(2):
            sink(spark.createDataFrame(rows, COLUMNS), batch_id)
    expected = {key: key for key in range(20)} | {1: 11, 30: 1}
    del expected[2]
    assert rows_in(postgres, table) == sorted(expected.items())


def test_batch_repeated_after_a_failure_is_there_once(
    job: Job, postgres: PostgresServer, table: str
) -> None:
    sink = upsert(postgres, table)

    def write(rows: DataFrame, batch_id: int, *, fails_in: int = -1) -> None:
        sink(rows.selectExpr("id AS key", "id * 2 AS value"), batch_id)
        if batch_id == fails_in:
            raise OSError("as planned")

    job.feed(3)
    with pytest.raises(StreamingQueryException, match="as planned"):
        job.run(job.operator(Groups(1), sink=partial(write, fails_in=1)))
    job.run(job.operator(Groups(1), sink=write))
    assert rows_in(postgres, table) == [(key, 2 * key) for key in job.ids_fed]


def test_several_rows_of_a_key_are_an_error(
    spark: SparkSession, postgres: PostgresServer, table: str
) -> None:
    rows = spark.createDataFrame([(1, 1), (1, 2)], "key long, value long")
    with pytest.raises(PythonException, match="several rows of one key; pass latest="):
        upsert(postgres, table)(rows, 0)
    assert rows_in(postgres, table) == []


def test_unsuitable_table_is_an_error(
    spark: SparkSession, postgres: PostgresServer, table: str
) -> None:
    rows = spark.createDataFrame([(1, 1)], "key long, value long")
    with pytest.raises(InvalidRequestError, match="table nowhere doesn't exist"):
        upsert(postgres, "nowhere")(rows, 0)
    with pytest.raises(InvalidRequestError, match="no unique constraint on the key"):
        upsert(postgres, table, key=["value"])(rows, 0)
    with pytest.raises(InvalidRequestError, match=r"columns \['other'\] are not in table"):
        upsert(postgres, table)(rows.selectExpr("*", "1 AS other"), 0)
    with pytest.raises(InvalidRequestError, match="column 'id' is not in the rows"):
        upsert(postgres, table, key=["id"])(rows, 0)
