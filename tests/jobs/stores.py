"""Checkpoints with states of two subtasks, written without Spark, on a local disk and on S3."""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from contracts.elements import broadcast_state, list_state
from servers.s3 import S3Bucket, S3Server

from holdfast.backends import OperatorStateBackend
from holdfast.locations import (
    CheckpointMetadata,
    CompletedCheckpoint,
    FileSystemCheckpointStorage,
    StoredOperator,
    StoredSubtask,
    SubtaskStatistics,
    complete_checkpoint,
)
from holdfast.spark_progress import SPARK, SparkProgress

UID = "visits"


@dataclass(frozen=True, slots=True)
class Store:
    """A checkpoint directory, empty at first.

    Attributes:
        directory: Its URI.
        options: Options of commands that reach it.
    """

    directory: str
    options: list[str] = field(default_factory=list)


def s3_options(server: S3Server) -> list[str]:
    """Return the options of commands that reach S3."""
    settings = {
        "endpoint": server.endpoint,
        "region": server.region,
        "path-style-access": "true",
        "access-key": server.access_key,
        "secret-key": server.secret_key,
    }
    pairs = (f"spark.holdfast.s3.{key}={value}" for key, value in settings.items())
    return [word for pair in pairs for word in ("--conf", pair)]


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Return an empty checkpoint directory on a local disk or on S3."""
    if request.param == "local":
        yield Store(f"file://{tmp_path}/checkpoints")
        return
    bucket: S3Bucket = request.getfixturevalue("memory_bucket")
    from holdfast.spark.settings import Stores

    uri = f"s3://{bucket.name}/checkpoints"
    options = s3_options(bucket.server)
    Stores.parse(dict(pair.split("=", 1) for pair in options[1::2]), uri).use()
    yield Store(uri, options)


def write_checkpoint(
    directory: str,
    number: int,
    *,
    elements: int = 3,
    before: CompletedCheckpoint | None = None,
    job: str = "job",
    parallelism: int = 2,
    element_type: type | None = None,
    savepoint: bool = False,
    query_name: str = "",
    sources: str | None = None,
    watermark: int = 0,
    fetched_bytes: int = 0,
) -> CompletedCheckpoint:
    """Complete a checkpoint or savepoint.

    Args:
        directory: URI of the checkpoint directory, or of that of savepoints.
        number: The checkpoint's id, one more than that of its batch.
        elements: Number of elements in the first subtask's list; the others have one.
        before: A checkpoint; the new one refers to its files for all subtasks but the first.
        job: The job's id.
        parallelism: Number of subtasks.
        element_type: A class whose instances, each made of a number, are the list's elements; numbers if not given.
        savepoint: Whether to write a savepoint.
        query_name: The name of the query.
        sources: The offsets of its sources, a line each; those of one source if not given.
        watermark: The watermark of the batch, milliseconds since 1970.
        fetched_bytes: Bytes that each subtask read from storage, by one request.
    """
    storage = FileSystemCheckpointStorage(directory, inline_threshold=0)
    access = storage.create_checkpoint_storage(job)
    access.initialize_base_locations_for_checkpoint()
    location = (
        access.initialize_location_for_savepoint(number, directory)
        if savepoint
        else access.initialize_location_for_checkpoint(number)
    )
    subtasks = {}
    for index in range(parallelism):
        count = 1 if index else elements
        if index and before is not None:
            handle = before.metadata.operators[UID].subtasks[index].managed_operator[0]
        else:
            backend = OperatorStateBackend()
            values = map(element_type, range(count)) if element_type else range(count)
            list_state(backend, "seen", element_type).add_all(values)
            broadcast_state(backend, "rules", (str, dict[str, int]), {"vat": {"percent": 19}})
            (handle,) = backend.snapshot(location).run().state.managed_operator
        counted = SubtaskStatistics(
            *(count, count + 1, handle.size, 1.0, 20.0, 0.25, 1500.0, "worker"),
            fetched_bytes=fetched_bytes,
            fetch_requests=1 if fetched_bytes else 0,
        )
        subtasks[index] = StoredSubtask(managed_operator=(handle,), statistics=counted)
    progress = SparkProgress(
        query_id="query",
        run_id="run",
        batch_id=number - 1,
        offsets=f'v1\n{{"batchTimestampMs":{number},"conf":{{"a":"b"}}}}\n'
        + (sources or f'{{"logOffset":{number}}}'),
        checkpoint_location="file:/spark",
        spark_version="4.3.0",
        query_name=query_name,
        watermark=watermark,
    )
    metadata = CheckpointMetadata(
        job_id=job,
        checkpoint_id=number,
        commit_token=uuid.uuid4().hex,
        created_ms=1_700_000_000_000,
        duration_ms=12.5,
        writer="holdfast tests",
        operators={UID: StoredOperator(parallelism, 128, subtasks, ("user",), "hash", ("string",))},
        coordinator_states={SPARK: msgspec.msgpack.encode(progress), "sink/visits": b"1234"},
        epoch=1,
    )
    return complete_checkpoint(location, metadata)
