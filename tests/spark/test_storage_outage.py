"""A store that is down for longer than Holdfast waits for it."""

from collections.abc import Iterator
from unittest import mock

import pytest
from jobs.job import Job
from jobs.operators import Groups
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from servers.s3 import S3Bucket

from holdfast.testing import HttpFaults, http_faults

FILES = 3


@pytest.fixture
def store(job: Job, ministack_bucket: S3Bucket, _unregister_s3: None) -> Iterator[HttpFaults]:
    """Run a faulty proxy between a job and the store of its checkpoints."""
    server = ministack_bucket.server
    with http_faults(server.endpoint) as store:
        job.settings = {
            "spark.hadoop.fs.s3a.endpoint": store.url,
            "spark.hadoop.fs.s3a.access.key": server.access_key,
            "spark.hadoop.fs.s3a.secret.key": server.secret_key,
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.holdfast.checkpoint.dir": f"s3://{ministack_bucket.name}/checkpoints",
        }
        yield store


@pytest.mark.exhaustive
def test_outage_fails_the_query_and_a_restart_resumes(job: Job, store: HttpFaults) -> None:
    job.feed(files=FILES)

    def sink(rows: DataFrame, batch_id: int) -> None:
        job.write(rows, batch_id)
        if batch_id == 1:
            store.answer(503, nth="every")

    with (
        mock.patch("holdfast.spark.query.coordinator.COMMIT_DEADLINE_S", 0.5),
        mock.patch("holdfast.spark.query.coordinator.ABORT_DEADLINE_S", 0.5),
        pytest.raises(StreamingQueryException) as failed,
    ):
        job.run(job.operator(Groups(70), sink=sink))
    assert "StorageUnavailableError: S3 failed to perform " in str(failed.value)
    assert "[HF-STORE-FAILED]" in str(failed.value)

    store.clear()
    batch_ids: list[int] = []

    def sink_again(rows: DataFrame, batch_id: int) -> None:
        batch_ids.append(batch_id)
        job.write(rows, batch_id)

    job.run(job.operator(Groups(70), sink=sink_again))
    assert batch_ids == [1, 2]
    assert len(set(job.ids_written())) == len(job.ids_written()) == 2 * 140
