"""Bad input raises one clear error before the sink gets any data.

Most of these tests need Spark; `test_continuation.py` and `test_subtask.py` have the others.
"""

import re
import threading
from typing import cast

import pyarrow as pa
import pytest
from jobs.job import Job
from jobs.operators import Groups, RowNumbers, WrongColumns
from jobs.session import session_with
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast import StatefulFunction, stateful_query
from holdfast.errors import InvalidRequestError
from holdfast.spark.checkpoint_location import check_disjoint
from holdfast.spark.query import StatefulOperator
from holdfast.spark.settings import Settings
from holdfast.spark_progress import history_of


def check_refused(job: Job, operator: StatefulOperator, *words: str) -> None:
    """Check that the job fails with an error that has all these words, and writes no output."""
    before = job.ids_written()
    with pytest.raises(StreamingQueryException) as caught:
        job.run(operator)
    for word in words:
        assert word in str(caught.value)
    assert job.ids_written() == before


def test_no_checkpoint_directory_is_refused(job: Job) -> None:
    job.feed(files=1)
    job.settings = {}
    operator = job.operator(Groups(70))
    check_refused(job, operator, "InvalidRequestError", "set spark.holdfast.checkpoint.dir")


def test_holdfast_error_is_short_and_not_logged_by_py4j(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    job.feed(files=1)
    job.settings = {}
    with pytest.raises(StreamingQueryException) as caught:
        job.run(job.operator(Groups(70)))
    assert [record for record in caplog.records if record.name.startswith("py4j")] == []
    assert "InvalidRequestError" in str(caught.value)
    assert "query_run.py" not in str(caught.value)


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
def test_bad_setting_is_refused_by_name(settings: dict[str, str], words: list[str]) -> None:
    given = {"spark.holdfast.checkpoint.dir": "file:///tmp/x", "spark.app.name": "x"}
    given |= {f"spark.holdfast.{key}": value for key, value in settings.items()}
    with pytest.raises(InvalidRequestError) as caught:
        Settings.parse(given).open_storage()
    for word in words:
        assert word in str(caught.value)


def test_bad_setting_of_the_session_is_refused_before_the_query_starts(job: Job) -> None:
    """Settings by `--conf` were not checked before."""
    for key, value in {"checkpoint.num-retained": "0", "checkpoint.dirr": "file:///x"}.items():
        settings = {f"spark.holdfast.{key}": value}
        with session_with(job.spark, settings), pytest.raises(InvalidRequestError, match=key):
            job.operator(Groups(70))
    job.operator(Groups(70))


def test_checkpoints_among_files_of_spark_are_refused(job: Job) -> None:
    job.feed(files=1)
    job.settings["spark.holdfast.checkpoint.dir"] = (job.spark_checkpoint / "state").as_uri()
    check_refused(job, job.operator(Groups(70)), "InvalidRequestError", "overlap")


@pytest.mark.exhaustive
def test_damaged_state_file_is_refused(job: Job) -> None:
    job.settings["spark.holdfast.state.worker-memory"] = "0"  # otherwise the file would not be read
    job.settings["spark.holdfast.state.inline-threshold"] = "0"
    job.feed(files=2)
    job.run(job.operator(Groups(70)))
    job.feed(files=1)
    state = next(file for file in job.job_directory.glob("chk-2/*-*"))
    content = bytearray(state.read_bytes())
    content[len(content) // 2] ^= 1
    state.write_bytes(content)
    check_refused(job, job.operator(Groups(70)), "CheckpointCorruptedError", state.name, "crc32c")


@pytest.mark.exhaustive
def test_state_of_another_type_is_refused(job: Job) -> None:
    job.feed(files=2)
    job.run(job.operator(Groups(70)))
    job.feed(files=1)
    operator = job.operator(RowNumbers(), schema="id long, nth long, subtask int")
    check_refused(
        job,
        operator,
        "StateMigrationError",
        "'rows'",
        "struct<id: int64",
        "declared with type int64",
    )


def test_unpicklable_function_is_refused(job: Job) -> None:
    job.feed(files=1)
    function = Groups(70)
    function.lock = threading.Lock()  # type: ignore[attr-defined]
    check_refused(
        job, job.operator(function), "'operator' can't be pickled", "lock", "initialize_state"
    )


BAD_COLUMNS: tuple[list[str], ...] = (
    ["id", "id AS ID"],
    ["id AS `a.b`"],
    ["id AS __HOLDFAST_subtask"],
    ["id AS `*`"],
    [],
)


def test_unusable_columns_are_refused(job: Job) -> None:
    job.feed(files=1)
    operator = job.part(Groups(1), "operator")

    def process(batch: DataFrame, _batch_id: int) -> None:
        for columns in BAD_COLUMNS:
            with pytest.raises(InvalidRequestError, match="there must be at least one"):
                operator.apply(batch.selectExpr(*columns))
        with pytest.raises(InvalidRequestError, match="'operator' have a column type that Arrow"):
            operator.apply(batch.select("*", F.expr("make_ym_interval(1, 2) as months")))
        operator.apply(batch)

    job.run(stateful_query(process, operator))
    assert job.checkpoint_ids() == [1]


def test_rows_of_another_schema_are_refused_in_one_line(job: Job) -> None:
    job.feed(files=1)
    with pytest.raises(StreamingQueryException) as caught:
        job.run(job.operator(WrongColumns(1)))
    text = str(caught.value)
    error = r"^holdfast\.errors\.InvalidRequestError: rows of operator 'operator' don't fit its output schema"
    assert re.search(error, text, re.MULTILINE)
    assert text.count("InvalidRequestError") == 1
    assert "subtask.py" not in text  # the task's own traceback is in the log of its executor
    assert job.ids_written() == []

    job.run(job.operator(Groups(70)))
    (failed,) = history_of([job.latest()]).failed_attempts
    assert failed.reason.startswith("InvalidRequestError: rows of operator 'operator'")


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"uid": ""}, "uid"),
        ({"uid": 5}, "uid must be a non-empty string, got 5"),
        ({"parallelism": 2.0}, "must be an integer"),
        ({"parallelism": 0}, "parallelism must be .*, got 0"),
        ({"parallelism": 32769}, "between 1 and 32768"),
        ({"sink": 5}, "sink must be .*, got 5"),
        ({"max_parallelism": 1}, "parallelism 2 is not between 1 and max parallelism 1"),
        ({"max_parallelism": 0}, "max_parallelism must be .*, got 0"),
        ({"key": ["id", 5]}, "names of columns"),
        (
            {"schema": pa.schema({"id": pa.int64()})},
            r"'operator' must be a Spark schema.* got pyarrow\.lib\.Schema",
        ),
        ({"broadcast": lambda session, _: session.range(1)}, "BroadcastProcessFunction"),
    ],
)
def test_bad_arguments_are_refused_at_once(job: Job, options: dict[str, object], word: str) -> None:
    with pytest.raises(InvalidRequestError, match=word):
        job.operator(Groups(1), **options)


def test_other_objects_than_functions_are_refused(job: Job) -> None:
    with pytest.raises(InvalidRequestError, match="StatefulFunction"):
        job.operator(cast("StatefulFunction", len))
    with pytest.raises(InvalidRequestError, match="Groups is a class; pass an object of it"):
        job.operator(cast("StatefulFunction", Groups))


def test_call_of_an_operator_outside_of_a_stream_is_refused(spark: SparkSession, job: Job) -> None:
    operator = job.operator(Groups(70))
    with pytest.raises(InvalidRequestError, match="foreachBatch"):
        operator(spark.range(1), 0)


@pytest.mark.parametrize(
    ("location", "directory"),
    [
        ("s3a://bucket/spark", "s3://bucket/spark/state"),
        ("s3://bucket/spark", "fsspec+s3a://bucket/spark"),
        ("s3a://bucket/spark/all", "s3://bucket/spark/all/state/_entropy_"),
        ("s3a://bucket/state/job/spark", "s3://bucket/state"),
        ("fsspec+sftp://host/spark", "sftp://host/spark/state"),
        ("file:/tmp/spark/", "file:///tmp/spark/state"),
        ("abfs://c@account/spark", "abfss://c@account/spark/state"),
    ],
)
def test_overlapping_directories_are_refused_in_any_spelling(location: str, directory: str) -> None:
    with pytest.raises(InvalidRequestError, match="outside of the checkpointLocation"):
        check_disjoint(location, directory, "job")


@pytest.mark.parametrize(
    ("location", "directory"),
    [
        ("s3a://bucket/spark", "s3://bucket/spark-state"),
        ("s3a://bucket/spark", "s3://other/spark/state"),
        ("s3a://bucket/spark", "gs://bucket/spark/state"),
        ("s3a://bucket/all/spark", "s3://bucket/all"),
        ("s3a://key:secret@bucket/spark", "s3://bucket/state"),
        ("s3a://bucket/spark", None),
    ],
)
def test_separate_directories_are_accepted(location: str, directory: str | None) -> None:
    check_disjoint(location, directory, "job")
