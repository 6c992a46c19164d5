"""The uploads of the subtasks of a task, which overlap its next subtasks and end before its report."""

import threading
from collections.abc import Iterator
from unittest import mock

import pyarrow as pa
import pytest
from contracts.patience import HANGS_S, wait_until
from jobs.job import Job
from jobs.keyed import totals_job, totals_rows
from jobs.operators import SharesTask, Totals
from pyspark.errors import StreamingQueryException
from servers.buckets import memory_server
from servers.s3 import S3Bucket

from holdfast.backends.functions import FunctionInitializationContext
from holdfast.backends.snapshot import AsyncSnapshot
from holdfast.errors import StorageFullError
from holdfast.spark.settings import StateSettings
from holdfast.testing import Faults, HttpFaults, HttpRequest, http_faults, s3_operation_of
from holdfast.testing.faults import MAX_WAIT_S

SUBTASKS = 4
"""Twice as many as the session has cores: each task runs two."""

ROWS = 100
DAY_S = 86_400


@pytest.fixture
def bucket() -> Iterator[S3Bucket]:
    with memory_server() as server, server.new_bucket() as bucket:
        yield bucket


@pytest.fixture
def store(job: Job, bucket: S3Bucket, _unregister_s3: None) -> Iterator[HttpFaults]:
    """Run a faulty proxy between a job and the store of its checkpoints; all state is in files."""
    with http_faults(bucket.server.endpoint) as store:
        job.settings = {
            "spark.holdfast.checkpoint.dir": f"s3://{bucket.name}/checkpoints",
            "spark.holdfast.state.inline-threshold": "0",
            "spark.holdfast.s3.endpoint": store.url,
            "spark.holdfast.s3.region": bucket.server.region,
            "spark.holdfast.s3.path-style-access": "true",
            "spark.holdfast.s3.access-key": bucket.server.access_key,
            "spark.holdfast.s3.secret-key": bucket.server.secret_key,
        }
        yield store


def is_upload(request: HttpRequest) -> bool:
    """Return whether a request uploads state."""
    name = request.path.rpartition("/")[2]
    return (
        s3_operation_of(request) == "PutObject" and "/chk-" in request.path and name != "_metadata"
    )


def files_of(bucket: S3Bucket, directory: str) -> list[str]:
    """Return the files in directories of the job."""
    keys = bucket.keys()
    return [key for key in keys if f"/{directory}" in key]


def run(job: Job, *, dies: bool = False) -> None:
    function = SharesTask(7, job.directory, dies=dies)
    job.run(job.operator(function, sink=job.write, parallelism=SUBTASKS))


def check_output(job: Job, files: int = 1) -> None:
    """Check that the sink has each row at most once, and that the others are in the state of the subtasks."""
    written = job.ids_written()
    assert len(set(written)) == len(written)
    assert files * ROWS - SUBTASKS * 6 <= len(written) < files * ROWS


def test_other_subtasks_run_before_an_upload_ends(job: Job, store: HttpFaults) -> None:
    failures: list[str] = []

    def wait_for_subtasks() -> None:
        try:
            wait_until(
                lambda: failures or len(list(job.directory.glob("started-*"))) == SUBTASKS,
                "a task waits for an upload before its next subtask",
            )
        except AssertionError as error:
            failures.append(str(error))

    unfinished: list[str] = []

    def note_unfinished() -> None:
        unfinished.extend(
            request.path
            for request in store.requests
            if is_upload(request) and not request.performed
        )

    store.delay(wait_for_subtasks, is_upload, "every")
    store.delay(note_unfinished, lambda request: request.path.endswith("/chk-1/_metadata"))
    job.feed(files=1, rows=ROWS)
    run(job)
    assert not failures
    assert len(list(filter(is_upload, store.requests))) == SUBTASKS
    assert not unfinished
    check_output(job)


@pytest.mark.parametrize("effect", ["without", "with"])
def test_failed_upload_is_repeated(job: Job, store: HttpFaults, effect: str) -> None:
    store.answer(503, is_upload, performed=effect == "with")
    store.reset(is_upload, nth=3, performed=effect == "with")
    job.feed(files=1, rows=ROWS)
    run(job)
    check_output(job)


def test_refused_upload_fails_the_batch(job: Job, store: HttpFaults, bucket: S3Bucket) -> None:
    store.answer(403, is_upload, nth="every")
    job.feed(files=1, rows=ROWS)
    with pytest.raises(StreamingQueryException, match="AccessDenied"):
        run(job)
    assert not files_of(bucket, "chk-")
    store.clear()
    run(job)
    check_output(job)


def test_files_of_a_killed_worker_are_swept(job: Job, store: HttpFaults, bucket: S3Bucket) -> None:
    uploads = 0

    def wait_for_kill() -> None:
        nonlocal uploads
        uploads += 1
        if uploads == 2:  # the first subtasks of both tasks
            (job.directory / "uploading").touch()
        wait_until((job.directory / "killed").exists, "the worker is not killed")

    store.delay(wait_for_kill, is_upload, "every", performed=True)
    job.feed(files=1, rows=ROWS)
    run(job, dies=True)
    check_output(job)
    assert len(files_of(bucket, "chk-1/")) > SUBTASKS + 1  # and _metadata
    bucket.age(2 * DAY_S)  # type: ignore[attr-defined]  # of a server in memory
    job.feed(files=1, rows=ROWS)
    run(job)
    check_output(job, files=2)

    wait_until(
        lambda: not files_of(bucket, "chk-1/"), lambda: f"left: {files_of(bucket, 'chk-1/')}"
    )


# Without Spark


def upload_threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("holdfast_")]


def test_error_of_an_upload_fails_the_task(faults: Faults) -> None:
    job = totals_job(faults.directory)
    faults.before("commit", StorageFullError("as planned"))
    with pytest.raises(StorageFullError, match="as planned"):
        job.run(totals_rows(range(100)))
    assert not upload_threads()
    assert len(job.run(totals_rows(range(100)))) == 100


def test_small_files_of_a_subtask_are_written_at_the_same_time(faults: Faults) -> None:
    job = totals_job(faults.directory, parallelism=1, state=StateSettings(backend="columnar"))
    both = threading.Barrier(2)  # a segment and a manifest
    faults.before("commit", lambda: both.wait(HANGS_S), "every")
    assert len(job.run(totals_rows(range(100)))) == 100


REACHED = threading.Event()
"""A state is uploaded."""


class FailsInSecond(Totals):
    """Fails in its second subtask, while the state of the first is uploaded."""

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        super().initialize_state(context)
        self.subtask = context.subtask_index

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from super().process(batches)
        if self.subtask:
            assert REACHED.wait(MAX_WAIT_S)
            raise NotImplementedError


def test_error_of_a_subtask_cancels_uploads(faults: Faults) -> None:
    released = threading.Event()
    faults.before("write", REACHED.set)
    faults.delay("write", released, "every")
    cancel = AsyncSnapshot.cancel

    def cancel_and_release(snapshot: AsyncSnapshot) -> None:
        cancel(snapshot)
        released.set()

    job = totals_job(faults.directory, FailsInSecond())
    with (
        mock.patch.object(AsyncSnapshot, "cancel", cancel_and_release),
        pytest.raises(NotImplementedError),
    ):
        job.run(totals_rows(range(100)))
    assert released.is_set()
    assert not upload_threads()
    assert "commit" not in faults.calls
