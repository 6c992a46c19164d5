"""A whole Spark job whose settings name an S3 location on a moto server as its checkpoint storage."""

from collections.abc import Iterator

import pytest
from jobs.job import Job
from jobs.session import session_with
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from servers.s3 import S3Bucket

import holdfast as hf
from holdfast.locations import sweep
from holdfast.locations.adapters import unregister_file_system
from holdfast.spark.query import CLEANER

NAMES = 4
ROWS = 100


@pytest.fixture
def job_on_moto(job: Job, moto_bucket: S3Bucket) -> Iterator[Job]:
    server = moto_bucket.server
    job.settings = {
        "spark.holdfast.checkpoint.dir": f"s3://{moto_bucket.name}/checkpoints",
        "spark.holdfast.checkpoint.num-retained": "2",
        "spark.holdfast.job.id": "orders",
        "spark.holdfast.s3.endpoint": server.endpoint,
        "spark.holdfast.s3.region": server.region,
        "spark.holdfast.s3.access-key": server.access_key,
        "spark.holdfast.s3.secret-key": server.secret_key,
        "spark.holdfast.s3.path-style-access": "true",
        "spark.holdfast.state.inline-threshold": "0",  # every state file is an object
    }
    yield job
    unregister_file_system("s3")


class Totals:
    """A query that counts the rows of each name; its sink can fail in one batch."""

    def __init__(self, job: Job, failing_batch: int | None = None) -> None:
        self.job = job
        self.failing_batch = failing_batch
        self.counts: dict[str, int] = {}

    def run(self) -> None:
        """Process all rows of the source."""
        named = self.job.stream().selectExpr(f"concat('n', id % {NAMES}) AS name")
        totals = hf.keyed(named, "name", uid="totals", parallelism=2).agg(n=hf.count())
        query = (
            totals.writeStream.foreachBatch(self.write)
            .option("checkpointLocation", str(self.job.spark_checkpoint))
            .trigger(availableNow=True)
        )
        with session_with(self.job.spark, self.job.settings):
            query.start().awaitTermination()

    def write(self, rows: DataFrame, batch_id: int) -> None:
        counts = {row.name: row.n for row in rows.collect()}
        if batch_id == self.failing_batch:
            raise RuntimeError("the table is missing")
        self.counts |= counts


def checkpoints(bucket: S3Bucket) -> dict[str, list[str]]:
    """Return the names of the objects of each checkpoint, by its directory."""
    directories: dict[str, list[str]] = {}
    for key in bucket.keys("checkpoints/orders/chk-"):
        directory, _, name = key.removeprefix("checkpoints/orders/").partition("/")
        directories.setdefault(directory, []).append(name)
    return directories


def state_objects(bucket: S3Bucket) -> list[str]:
    """Return the keys of all objects of the job, except the claims of its owners."""
    keys = bucket.keys("checkpoints/orders/")
    return [key for key in keys if not key.startswith("checkpoints/orders/_epoch")]


def test_job_on_moto_commits_cleans_up_and_restarts(
    job_on_moto: Job, moto_bucket: S3Bucket
) -> None:
    job = job_on_moto
    job.feed(files=2, rows=ROWS)
    Totals(job).run()
    CLEANER.wait()
    assert sorted(checkpoints(moto_bucket)) == ["chk-1", "chk-2"]
    assert all("_metadata" in names for names in checkpoints(moto_bucket).values())
    committed = state_objects(moto_bucket)
    assert any("/shared/" in key for key in committed)  # the state itself is in objects

    job.feed(files=1, rows=ROWS)
    with pytest.raises(StreamingQueryException, match="the table is missing"):
        Totals(job, failing_batch=2).run()
    CLEANER.wait()
    assert state_objects(moto_bucket) == committed  # the failed batch leaves no objects
    assert moto_bucket.uploads() == []

    restarted = Totals(job)
    restarted.run()
    CLEANER.wait()
    assert restarted.counts == {f"n{i}": 3 * ROWS // NAMES for i in range(NAMES)}
    assert sorted(checkpoints(moto_bucket)) == ["chk-2", "chk-3"]
    assert sweep(f"s3://{moto_bucket.name}/checkpoints", "orders", grace_s=0).files == ()
