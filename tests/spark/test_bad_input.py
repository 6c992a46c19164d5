"""Each kind of bad input gets one clear error, before the sink sees any data."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest
from jobs.job import Job
from jobs.operators import CountsLongs, Groups, Returns, StopsReading, WrongColumns
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from holdfast.errors import InvalidRequestError
from holdfast.spark import Settings, StatefulFunction, StatefulOperator


def refused(job: Job, operator: StatefulOperator, *words: str) -> None:
    """The job fails with an error that has all these words, and the output stays as it was."""
    before = job.ids_written()
    with pytest.raises(StreamingQueryException) as caught:
        job.run(operator)
    for word in words:
        assert word in str(caught.value)
    assert job.ids_written() == before


@pytest.fixture
def ran(job: Job) -> Job:
    """A job that has completed two checkpoints and has more to read."""
    job.feed(files=2)
    job.run(job.operator(Groups(70)))
    job.feed(files=1)
    return job


def metadata_of(job: Job) -> Path:
    return job.job_directory / "chk-2" / "_metadata"


def test_no_checkpoint_directory_is_refused(job: Job) -> None:
    job.feed(files=1)
    job.settings = {}
    operator = job.operator(Groups(70))
    refused(job, operator, "InvalidRequestError", "set spark.holdfast.checkpoint.dir")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"checkpoint.dirr": "file:///x"}, ["did you mean 'spark.holdfast.checkpoint.dir'"]),
        ({"checkpoint.dir": "/data"}, ["no scheme", "file:///"]),
        ({"checkpoint.dir": "file:///"}, ["root directory"]),
        ({"checkpoint.dir": "file://data/x"}, ["three slashes"]),
        ({"checkpoint.dir": "memory:///x"}, ["checkpoint.storage", "memory"]),
        ({"checkpoint.num-retained": "0"}, ["num-retained", "at least 1"]),
        ({"checkpoint.num-retained": "many"}, ["num-retained", "'many'"]),
        ({"checkpoint.storage": "disk"}, ["`filesystem` or `memory`"]),
        ({"state.inline-threshold": "2m"}, ["inline-threshold", "0 to 1m"]),
        ({"state.inline-threshold": "2 bananas"}, ["size"]),
        ({"job.id": "../x"}, ["job id", "can't name a directory"]),
    ],
)
def test_a_bad_setting_is_refused_by_name(settings: dict[str, str], words: list[str]) -> None:
    given = {"spark.holdfast.checkpoint.dir": "file:///tmp/x", "spark.app.name": "x"}
    given |= {f"spark.holdfast.{key}": value for key, value in settings.items()}
    with pytest.raises(InvalidRequestError) as caught:
        Settings.parse(given).open_storage()
    for word in words:
        assert word in str(caught.value)


def test_an_unknown_store_is_refused(job: Job) -> None:
    job.feed(files=1)
    job.settings["spark.holdfast.checkpoint.dir"] = "gopher://data/x"
    refused(job, job.operator(Groups(70)), "no file system for gopher://", "file://")


def test_checkpoints_among_files_of_spark_are_refused(job: Job) -> None:
    job.feed(files=1)
    job.settings["spark.holdfast.checkpoint.dir"] = (job.spark_checkpoint / "state").as_uri()
    refused(job, job.operator(Groups(70)), "InvalidRequestError", "lie in each other")


def test_a_file_in_the_way_of_the_directory_is_refused(job: Job) -> None:
    job.feed(files=1)
    job.checkpoints.write_text("not a directory")
    refused(job, job.operator(Groups(70)), "InvalidRequestError", "file:///")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda content: content[:-10], ["CheckpointCorruptedError", "cut off"]),
        (lambda content: content[:100] + b"?" + content[101:], ["CheckpointCorruptedError"]),
        (lambda _: b"PAR1 and so on", ["CheckpointCorruptedError", "not a holdfast metadata"]),
        (lambda _: b"", ["CheckpointCorruptedError"]),
    ],
    ids=["truncated", "flipped", "another file", "empty"],
)
def test_damaged_metadata_is_refused(
    ran: Job, damage: Callable[[bytes], bytes], words: list[str]
) -> None:
    metadata_of(ran).write_bytes(damage(metadata_of(ran).read_bytes()))
    refused(ran, ran.operator(Groups(70)), *words, "chk-2/_metadata")


def test_a_damaged_state_file_is_refused(job: Job) -> None:
    job.settings["spark.holdfast.state.worker-memory"] = "0"  # else nobody reads it
    job.settings["spark.holdfast.state.inline-threshold"] = "0"
    job.feed(files=2)
    job.run(job.operator(Groups(70)))
    job.feed(files=1)
    state = next(file for file in job.job_directory.glob("chk-2/*-*"))
    content = bytearray(state.read_bytes())
    content[len(content) // 2] ^= 1
    state.write_bytes(content)
    refused(job, job.operator(Groups(70)), "CheckpointCorruptedError", state.name, "crc32c")


def test_state_of_another_type_is_refused(ran: Job) -> None:
    operator = ran.operator(CountsLongs(), schema="id long, nth long, subtask int")
    refused(ran, operator, "StateMigrationError", "'rows'", "struct<id: int64", "int64 is asked")


def test_a_function_that_can_not_travel_is_refused(job: Job) -> None:
    job.feed(files=1)
    function = Groups(70)
    function.lock = threading.Lock()  # type: ignore[attr-defined]
    refused(job, job.operator(function), "'operator' can't be pickled", "lock", "initialize_state")


def test_a_type_that_arrow_has_not_is_refused(job: Job) -> None:
    job.feed(files=1)
    operator = job.operator(Groups(70))
    months = F.expr("make_ym_interval(1, 2) as months")
    with pytest.raises(
        StreamingQueryException, match="'operator' have a column of a type that Arr"
    ):
        job.run(lambda batch, batch_id: operator(batch.select("*", months), batch_id))


def test_another_uid_is_refused(ran: Job) -> None:
    refused(ran, ran.operator(Groups(70), uid="other"), "'other'", "'operator'", "uid")


def test_a_directory_of_another_query_is_refused(
    spark: SparkSession, ran: Job, tmp_path: Path
) -> None:
    other = type(ran)(spark, tmp_path / "other")
    other.feed(files=1)
    other.settings = ran.settings | {"spark.holdfast.job.id": ran.job_directory.name}
    refused(other, other.operator(Groups(70)), "belongs to another streaming query")


def test_a_checkpoint_copied_from_another_job_is_refused(
    spark: SparkSession, ran: Job, tmp_path: Path
) -> None:
    other = type(ran)(spark, tmp_path / "other")
    other.feed(files=2)
    other.run(other.operator(Groups(70)))
    metadata_of(ran).write_bytes(metadata_of(other).read_bytes())
    refused(ran, ran.operator(Groups(70)), "belongs to job")


def test_checkpoints_that_vanished_are_a_gap(ran: Job) -> None:
    for directory in ran.job_directory.glob("chk-*"):
        for file in directory.iterdir():
            file.unlink()
        directory.rmdir()
    refused(ran, ran.operator(Groups(70)), "BatchGapError", "no completed checkpoint", "is at 2")


def test_a_spark_checkpoint_that_started_over_is_a_gap(ran: Job) -> None:
    job_id = ran.job_directory.name
    metadata = (ran.spark_checkpoint / "metadata").read_bytes()
    ran.forget_spark_checkpoint()
    ran.spark_checkpoint.mkdir()
    (ran.spark_checkpoint / "metadata").write_bytes(metadata)  # the same query, from batch 0
    assert job_id in metadata.decode()
    refused(ran, ran.operator(Groups(70)), "BatchGapError", "completed 1", "is at 0")


@pytest.mark.parametrize(
    ("returned", "word"), [(None, "NoneType"), ([{"id": 1}], "yields dict"), (5, "returned int")]
)
def test_an_operator_that_yields_no_batches_is_refused(
    job: Job, returned: object, word: str
) -> None:
    job.feed(files=1)
    refused(job, job.operator(Returns(returned)), word, "'operator'")


@pytest.mark.parametrize(
    "columns",
    [["id", "id AS ID"], ["id AS `a.b`"], ["id AS __HOLDFAST_subtask"], ["id AS `*`"], []],
    ids=["repeated", "dotted", "reserved", "star", "none"],
)
def test_columns_that_cannot_be_used_are_refused(job: Job, columns: list[str]) -> None:
    job.feed(files=1)
    operator = job.operator(Groups(1))
    with pytest.raises(StreamingQueryException, match="there must be at least one"):
        job.run(lambda batch, batch_id: operator(batch.selectExpr(*columns), batch_id))


def test_an_operator_that_leaves_rows_unread_is_refused(job: Job) -> None:
    job.feed(files=1)
    refused(job, job.operator(StopsReading(1)), "before it had read all of its rows")


def test_rows_that_do_not_fit_the_schema_are_refused(job: Job) -> None:
    job.feed(files=1)
    refused(job, job.operator(WrongColumns(1)), "'operator'", "['name']", "output schema")


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"uid": ""}, "uid"),
        ({"uid": 5}, "uid is 5"),
        ({"parallelism": 2.0}, "whole number"),
        ({"parallelism": 0}, "parallelism is 0"),
        ({"parallelism": 32769}, "between 1 and 32768"),
        ({"sink": 5}, "sink 5"),
        ({"max_parallelism": 1}, "parallelism 2 is not between 1 and max parallelism 1"),
        ({"max_parallelism": 0}, "max_parallelism is 0"),
        ({"key": ["id", 5]}, "name of a column"),
        ({"schema": pa.schema({"id": pa.int64()})}, r"'operator' is a pyarrow\.lib\.Schema; give"),
        ({"broadcast": lambda session, _: session.range(1)}, "BroadcastProcessFunction"),
    ],
)
def test_bad_arguments_are_refused_at_once(job: Job, options: dict[str, object], word: str) -> None:
    with pytest.raises(InvalidRequestError, match=word):
        job.operator(Groups(1), **options)


def test_a_function_that_is_no_operator_is_refused(job: Job) -> None:
    with pytest.raises(InvalidRequestError, match="StatefulFunction"):
        job.operator(cast("StatefulFunction", len))
    with pytest.raises(InvalidRequestError, match="Groups is a class; pass an object of it"):
        job.operator(cast("StatefulFunction", Groups))


def test_calling_the_operator_outside_of_a_stream_is_refused(spark: SparkSession, job: Job) -> None:
    operator = job.operator(Groups(70))
    with pytest.raises(InvalidRequestError, match="foreachBatch"):
        operator(spark.range(1), 0)
