"""A query on Spark that claims its start; other tests of claims do without Spark."""

from pathlib import Path

from contracts.files import files_below
from jobs.job import Job
from jobs.totals_by_key import KEYS, ROWS, run, totals
from pyspark.sql import SparkSession

import holdfast
from holdfast.locations.adapters import FileStateHandle
from holdfast.spark.query import CLEANER


def test_query_refers_to_claimed_files(spark: SparkSession, job: Job, tmp_path: Path) -> None:
    job.feed(files=1, rows=ROWS)
    run(job, totals(job))
    former = job.latest()
    pointer = former.location.external_pointer
    after = Job(spark, tmp_path / "after")
    after.settings |= {
        "spark.holdfast.savepoint.path": pointer,
        "spark.holdfast.savepoint.claim-mode": "CLAIM",  # as Flink writes it
    }
    after.feed(files=1, rows=10)
    run(after, totals(after))
    CLEANER.wait()
    metadata = after.latest().metadata
    assert [claim.pointer for claim in metadata.claimed] == [pointer]
    before, now = (
        {stream.uri for stream in each.shared_streams() if isinstance(stream, FileStateHandle)}
        for each in (former.metadata, metadata)
    )
    assert before <= now
    assert before < files_below(f"file://{job.checkpoints}")
    state = holdfast.read_state(after.latest().location.external_pointer, "operator", "totals")
    rows = {row["key"]: row["value"]["rows"] for row in state.to_pylist()}
    assert rows == {key: len(range(key, ROWS, KEYS)) + (key < 10) for key in range(KEYS)}
