"""The checkpoints of a stopped query, made without Spark, for pages that inspect a job and run none."""

import json
import os
import tarfile
import time
from pathlib import Path

import msgspec
import pyarrow as pa
from contracts.flink_archives import ARCHIVES, extract

from holdfast.backends import ListStateDescriptor, MapStateDescriptor, OperatorStateBackend
from holdfast.locations import (
    CheckpointMetadata,
    FileSystemCheckpointStorage,
    StoredOperator,
    StoredSubtask,
    SubtaskStatistics,
    complete_checkpoint,
)
from holdfast.locations.adapters import CheckpointStorageAccess, JobOwnership
from holdfast.spark.checkpoint_location import LINK_FILE, Link, encode_link
from holdfast.spark_progress import SparkProgress

JOB = "totals"
QUERY = "5e0c7a52-9d5c-4a9e-8a57-0c1f6f8e41f3"
CHECKPOINTS = (40, 41, 42)
PARALLELISM = 2

_TWO_DAYS_S = 2 * 24 * 3600


def write_data(directory: Path) -> None:
    """Write the content of /data: `holdfast`, `totals-spark`, `flink` and an empty `savepoints`."""
    location = directory / "totals-spark"
    write_job(f"file://{directory}/holdfast", f"file://{location}")
    _write_query(location, f"file://{directory}/holdfast")
    (directory / "savepoints").mkdir()
    _write_flink_savepoints(directory / "flink")
    # A file of a killed driver, which a sweep would delete.
    leftover = directory / "holdfast" / JOB / "chk-43" / f"0badf00d-{'0' * 32}"
    leftover.parent.mkdir(mode=0o700)
    leftover.write_bytes(b"x" * 1000)
    before = time.time() - _TWO_DAYS_S
    os.utime(leftover, (before, before))


def _write_flink_savepoints(directory: Path) -> None:
    """Native savepoints of Flink 2.3 on RocksDB and of 1.20 on the heap; and `orders`, of the job in `examples/flink`."""
    for name in ("rocks", "f120-heap"):
        with tarfile.open(ARCHIVES / f"{name}.tar.xz") as archive:
            for member in archive.getmembers():
                kind, _, member.name = member.name.partition("/native/")
                if member.name and kind == name and member.isfile():
                    archive.extract(member, directory, filter="data")
    extract(directory, "orders")


def write_job(checkpoint_dir: str, checkpoint_location: str) -> None:
    """Write the checkpoints of job `totals`; each completes the batch with the number before its id."""
    storage = FileSystemCheckpointStorage(checkpoint_dir, inline_threshold=0)
    access = storage.create_checkpoint_storage(JOB)
    access.initialize_base_locations_for_checkpoint()
    ownership = access.claim_job()
    for checkpoint_id in CHECKPOINTS:
        _complete(access, ownership, checkpoint_id, checkpoint_location)


def _complete(
    access: CheckpointStorageAccess,
    ownership: JobOwnership,
    checkpoint_id: int,
    checkpoint_location: str,
) -> None:
    location = access.initialize_location_for_checkpoint(checkpoint_id)
    subtasks = {}
    for subtask in range(PARALLELISM):
        snapshot = _state_of(checkpoint_id, subtask).snapshot(location)
        (handle,) = snapshot.run().state.managed_operator
        statistics = SubtaskStatistics(
            rows_in=500,
            rows_out=10,
            state_bytes=handle.size,
            restore_ms=1.5,
            process_ms=20.0,
            sync_ms=0.5,
            async_ms=3.0,
            restored_from="worker",
        )
        subtasks[subtask] = StoredSubtask((handle,), statistics)
    progress = SparkProgress(
        query_id=QUERY,
        run_id="b4f2d8e0-3c1a-4f6b-9e7d-2a5c8b0d6e1f",
        batch_id=checkpoint_id - 1,
        offsets=_offsets(checkpoint_id - 1),
        checkpoint_location=checkpoint_location,
        spark_version="4.3.0",
    )
    metadata = CheckpointMetadata(
        job_id=JOB,
        checkpoint_id=checkpoint_id,
        created_ms=time.time_ns() // 1_000_000,
        duration_ms=30.0,
        writer="holdfast",
        operators={JOB: StoredOperator(PARALLELISM, 128, subtasks)},
        coordinator_states={"spark": msgspec.msgpack.encode(progress)},
        epoch=ownership.epoch,
    )
    complete_checkpoint(location, metadata, ownership)


def _state_of(checkpoint_id: int, subtask: int) -> OperatorStateBackend:
    backend = OperatorStateBackend()
    rows = pa.schema({"customer": pa.string(), "total": pa.int64()})
    totals = backend.get_list_state(ListStateDescriptor("totals", rows))
    totals.add_all(
        {"customer": f"customer {number}", "total": 100 * checkpoint_id + number}
        for number in range(subtask, 10, PARALLELISM)
    )
    limits = backend.get_broadcast_state(MapStateDescriptor("limits", str, int))
    limits.put("small", checkpoint_id)
    return backend


def _write_query(location: Path, checkpoint_dir: str) -> None:
    """Spark's side of it: its last three batches."""
    for name in ("offsets", "commits"):
        (location / name).mkdir(parents=True)
    (location / "metadata").write_text(json.dumps({"id": QUERY}))
    for checkpoint_id in CHECKPOINTS:
        batch = checkpoint_id - 1
        (location / "offsets" / str(batch)).write_text(_offsets(batch))
        (location / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    link = Link(checkpoint_dir=checkpoint_dir, job_id=JOB, storage="filesystem")
    (location / LINK_FILE).write_text(encode_link(link))


def _offsets(batch: int) -> str:
    pinned = {"batchWatermarkMs": 0, "batchTimestampMs": 1_700_000_000_000 + batch, "conf": {}}
    return f"v1\n{json.dumps(pinned)}\n{1000 * batch}"
