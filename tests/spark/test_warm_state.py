"""State that stays on executors, with a real Spark: it is used if possible, and never if stale."""

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from jobs.job import Job
from jobs.operators import DiesOnce, Groups, RowNumbers, local_directories
from pyspark.sql import DataFrame, SparkSession

from holdfast import StatefulFunction
from holdfast.locations import CheckpointMetadata
from holdfast.locations.metadata import decode_metadata
from holdfast.spark.query import StatefulOperator

ROWS = 100
LOCAL = "spark.holdfast.state.local-recovery"
MEMORY = "spark.holdfast.state.worker-memory"


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Job:
    return warm_job(spark, tmp_path / "job")


def warm_job(spark: SparkSession, directory: Path) -> Job:
    """Return a job that writes all its state into files, and keeps copies of them."""
    job = Job(spark, directory)
    job.settings |= {
        "spark.holdfast.state.inline-threshold": "0",
        "spark.holdfast.checkpoint.num-retained": "100",
        LOCAL: "true",
    }
    return job


def numbering_operator(
    job: Job, function: StatefulFunction | None = None, **options: object
) -> StatefulOperator:
    schema = "id long, nth long, subtask int"
    return job.operator(function or RowNumbers(), schema=schema, **options)


def metadata_of(job: Job, checkpoint_id: int) -> CheckpointMetadata:
    directory = job.job_directory / f"chk-{checkpoint_id}"
    content = (directory / "_metadata").read_bytes()
    return decode_metadata(content, f"file://{directory}", uri="_metadata")


def sources(job: Job, checkpoint_id: int) -> set[str]:
    """Return the sources of the state of a batch's subtasks."""
    subtasks = metadata_of(job, checkpoint_id).operators["operator"].subtasks.values()
    return {subtask.statistics.restored_from for subtask in subtasks if subtask.statistics}


def check_each_row_was_counted_once(job: Job, files: int) -> None:
    """Check that the rows are numbered once; with a stale state some numbers would be repeated."""
    tables = [pq.read_table(file) for file in job.output.glob("batch=*/*.parquet")]
    rows = [row for table in tables for row in table.to_pylist()]
    assert sorted(row["id"] for row in rows) == list(range(files * ROWS))
    for subtask in (0, 1):
        numbers = sorted(row["nth"] for row in rows if row["subtask"] == subtask)
        assert numbers == list(range(len(numbers)))


def places(spark: SparkSession) -> list[Path]:
    """Return the directories of local copies, independent of the library."""
    directories = spark.sparkContext.parallelize([0], 1).map(local_directories).first()
    return [Path(directory) / "holdfast" for directory in directories]


def names(directories: list[Path]) -> list[str]:
    return [file.name for directory in directories for file in directory.glob("*/*")]


@pytest.mark.exhaustive
def test_state_is_found_on_the_host_and_not_fetched(job: Job) -> None:
    job.settings[MEMORY] = "0"
    job.feed(files=3, rows=ROWS)
    job.run(numbering_operator(job))
    assert sources(job, 1) == {""}
    assert sources(job, 2) == sources(job, 3) == {"local"}
    check_each_row_was_counted_once(job, 3)


def test_state_is_read_from_the_worker_of_the_last_batch(
    job: Job, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Spark takes idle workers in turn; with its own environment, this job has only one.
    monkeypatch.setitem(spark.sparkContext.environment, "WORKERS_OF", str(job.output))
    job.settings[LOCAL] = "auto"  # the checkpoints are on a local disk
    job.feed(files=4, rows=ROWS)
    job.run(numbering_operator(job, parallelism=1))
    assert [sources(job, number) for number in (2, 3, 4)] == [{"worker"}] * 3
    check_each_row_was_counted_once(job, 4)


@pytest.mark.exhaustive
def test_state_without_local_recovery_is_read_from_storage(job: Job, spark: SparkSession) -> None:
    job.settings |= {LOCAL: "false", MEMORY: "0"}
    before = names(places(spark))
    job.feed(files=2, rows=ROWS)
    job.run(numbering_operator(job))
    assert sources(job, 2) == {"storage"}
    assert names(places(spark)) == before


@pytest.mark.exhaustive
@pytest.mark.parametrize("memory", ["0", "64m"])
def test_state_survives_the_death_of_a_worker(job: Job, tmp_path: Path, memory: str) -> None:
    job.settings[MEMORY] = memory
    job.feed(files=4, rows=ROWS)
    dies = DiesOnce(tmp_path / "marker", after_rows=ROWS)
    job.run(numbering_operator(job, dies))
    assert (tmp_path / "marker").exists()
    check_each_row_was_counted_once(job, 4)


@pytest.mark.exhaustive
def test_state_of_an_uncommitted_batch_is_not_used(job: Job) -> None:
    job.feed(files=4, rows=ROWS)

    with pytest.raises(Exception, match="as planned"):
        # After the write all subtasks have stored and kept their state.
        job.run(numbering_operator(job, sink=job.write_and_fail_in(2)))
    assert job.checkpoint_ids() == [1, 2]
    job.run(numbering_operator(job))
    check_each_row_was_counted_once(job, 4)
    assert "storage" not in sources(job, 3) | sources(job, 4)


@pytest.mark.exhaustive
def test_job_at_an_older_checkpoint_ignores_newer_copies(job: Job) -> None:
    job.feed(files=4, rows=ROWS)
    job.run(numbering_operator(job))
    for number in (3, 4):
        shutil.rmtree(job.job_directory / f"chk-{number}")
    for log in ("offsets", "commits", "sources/0"):
        for batch_id in (2, 3):
            (job.spark_checkpoint / log / str(batch_id)).unlink()
            (job.spark_checkpoint / log / f".{batch_id}.crc").unlink(missing_ok=True)
    job.run(numbering_operator(job))
    assert job.checkpoint_ids() == [1, 2, 3, 4]
    check_each_row_was_counted_once(job, 4)


@pytest.mark.exhaustive
def test_jobs_with_the_same_uid_keep_their_states_apart(
    spark: SparkSession, tmp_path: Path
) -> None:
    jobs = [warm_job(spark, tmp_path / name) for name in ("a", "b")]
    for _ in range(2):
        for job in jobs:
            job.feed(files=2, rows=ROWS)
            job.run(numbering_operator(job))
    for job in jobs:
        check_each_row_was_counted_once(job, 4)


@pytest.mark.exhaustive
def test_damaged_or_missing_copies_are_fetched_again(job: Job, spark: SparkSession) -> None:
    job.settings[MEMORY] = "0"
    job.feed(files=4, rows=ROWS)
    directories = places(spark)

    def damage_copies(rows: DataFrame, batch_id: int) -> None:
        job.write(rows, batch_id)
        if batch_id == 1:
            for copy in [copy for kept in directories for copy in kept.glob("*/*")]:
                copy.write_bytes(copy.read_bytes()[:-1])
        if batch_id == 2:
            for directory in directories:
                shutil.rmtree(directory, ignore_errors=True)

    job.run(numbering_operator(job, sink=damage_copies))
    assert sources(job, 2) == {"local"}
    assert sources(job, 3) == sources(job, 4) == {"storage"}
    check_each_row_was_counted_once(job, 4)


@pytest.mark.exhaustive
def test_rows_of_a_list_state_outlive_a_restart_on_the_same_host(job: Job) -> None:
    job.feed(files=2, rows=ROWS)
    job.run(job.operator(Groups(30)))
    job.feed(files=1, rows=ROWS)
    job.run(job.operator(Groups(30)))
    assert sources(job, 3) <= {"local", "worker"}
    written = job.ids_written()
    assert len(set(written)) == len(written) == 300 - 2 * (150 % 30)
