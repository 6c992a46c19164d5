"""Drivers killed with SIGKILL at every step of a batch."""

import json
from pathlib import Path

import pytest
from jobs.cluster import Reference
from jobs.killed import BATCH, FILES, GROUP, ROWS
from jobs.operators import Groups
from jobs.processes import run_until_killed
from jobs.steps import COMMITTED_FROM, STEPS, job_of
from pyspark.sql import DataFrame, SparkSession

from holdfast.locations import sweep
from holdfast.spark.query import CLEANER


@pytest.fixture(scope="module")
def killed_jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directories of jobs whose driver was killed while each of them was at another step."""
    directory = tmp_path_factory.mktemp("killed")
    run_until_killed("-m", "jobs.steps", str(directory))
    return directory


def test_all_steps_of_a_batch_are_known(killed_jobs: Path) -> None:
    seen = set(json.loads((killed_jobs / "seen.json").read_text()))
    assert seen | {"a task ends"} == set(STEPS)


@pytest.mark.parametrize("number", range(len(STEPS)), ids=lambda number: f"before {STEPS[number]}")
def test_driver_killed_at_any_step_loses_and_duplicates_nothing(
    spark: SparkSession, killed_jobs: Path, reference: Reference, number: int
) -> None:
    job = job_of(spark, killed_jobs, str(number))
    is_committed = number >= COMMITTED_FROM
    assert max(job.checkpoint_ids()) == (BATCH + 1 if is_committed else BATCH)
    sunk: list[int] = []

    def sink(rows: DataFrame, batch_id: int) -> None:
        sunk.append(batch_id)
        job.write(rows, batch_id)

    job.feed(files=FILES - 2, rows=ROWS)
    job.run(job.operator(Groups(GROUP), sink=sink))

    assert sunk == list(range(BATCH + 1 if is_committed else BATCH, FILES))
    assert job.ids_written() == reference.written
    assert job.ids_by_subtask() == reference.held
    CLEANER.wait()
    sweep(f"file://{job.checkpoints}", job.job_directory.name, grace_s=0)
    left = [path for path in job.job_directory.rglob("*") if path.is_file()]
    assert sorted(str(path.parent.relative_to(job.job_directory)) for path in left) == [
        "_epoch",
        *[f"chk-{FILES}"] * 3,  # metadata, and a state for each subtask
    ]
