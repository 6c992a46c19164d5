"""A query with one operator, run without Spark: its checkpointLocation, its driver, and its subtasks one after the other."""

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from jobs.coordinator import coordinator
from jobs.stopped_query import put, text_of
from pyspark import cloudpickle

from holdfast import StatefulFunction, application_id
from holdfast.backends.keyed import BackendName
from holdfast.backends.keys import key_group_range, key_hash
from holdfast.backends.subtask import OperatorKey
from holdfast.common import SYSTEM_CLOCK
from holdfast.errors import CheckpointNotFoundError
from holdfast.locations import FileSystemCheckpointStorage
from holdfast.spark.checkpoint_location import LINK_FILE, Link, encode_link
from holdfast.spark.event_time import times_of_batch
from holdfast.spark.query import CLEANER, CheckpointCoordinator, PendingCheckpoint
from holdfast.spark.settings import Settings
from holdfast.spark.subtask import (
    Acknowledgement,
    CheckpointInfo,
    JobStorage,
    OperatorInfo,
    SubtaskRunner,
    TaskPayload,
    decode_acknowledgements,
)
from holdfast.spark_progress import SparkProgress
from proof.values.plain import from_arrow
from proof.values.sinks import Row, Sink


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The program of a start of the query.

    Attributes:
        function: The operator's function.
        uid: The operator's uid.
        key: The operator's key.
        parallelism: Number of its subtasks.
        backend: Its state backend.
        output: The schema of its output.
        may_drop: Whether state of other uids may be dropped.
    """

    function: StatefulFunction
    uid: str
    key: pa.Schema
    parallelism: int
    backend: BackendName
    output: pa.Schema
    may_drop: bool


class CrashError(Exception):
    """The driver crashes."""


class _Reports:
    """The reports of subtasks."""

    def __init__(self) -> None:
        self.value: list[bytes] = []

    def add(self, term: list[bytes]) -> None:
        self.value += term


@dataclass(slots=True)
class StoredQuery:
    """A query, with its stored files.

    Attributes:
        location: Its checkpointLocation.
        checkpoint_dir: The checkpoint directory of its operator.
        num_retained: Number of retained checkpoints.
        sinks: Its sinks.
        query_id: Its id in Spark.
        start: The savepoint to start from.
    """

    location: str
    checkpoint_dir: str
    num_retained: int
    sinks: Sequence[Sink]
    query_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    start: str | None = None
    _driver: CheckpointCoordinator | None = None

    @property
    def job_directory(self) -> str:
        """The directory of its operator's job."""
        return f"{self.checkpoint_dir}/{self.query_id}"

    def create(self) -> None:
        """Write the files of Spark and Holdfast at the first start of the query."""
        put(f"{self.location}/metadata", json.dumps({"id": self.query_id}))
        link = Link(checkpoint_dir=self.checkpoint_dir, job_id=self.query_id, storage="filesystem")
        put(f"{self.location}/{LINK_FILE}", encode_link(link))

    def stop(self) -> None:
        """End the driver, and wait for its deletions in the background."""
        self._driver = None
        CLEANER.wait()

    def run_batch(
        self,
        program: Program,
        batch_id: int,
        rows: pa.Table,
        *,
        time_ms: int,
        watermark_ms: int,
        dies: str = "",
    ) -> list[Row] | None:
        """Run a batch, or repeat it; the times of a repeated batch are those of the first attempt.

        Args:
            program: The program.
            batch_id: The batch.
            rows: Its rows.
            time_ms: The time of the driver's clock.
            watermark_ms: Spark's watermark.
            dies: The point where the driver crashes: "before the sink", "after the sink" or "after the checkpoint".

        Returns:
            The output; None if the batch was completed before.

        Raises:
            CrashError: The driver has crashed.
            CheckpointError: The program is refused.
        """
        log = f"{self.location}/offsets/{batch_id}"
        try:
            offsets = text_of(log)
        except CheckpointNotFoundError:
            times = {"batchTimestampMs": time_ms, "batchWatermarkMs": watermark_ms}
            offsets = f'v1\n{json.dumps(times)}\n{{"rows":"{uuid.uuid4().hex}"}}'
            put(log, offsets)
        try:
            output = self._run_batch(program, batch_id, rows, offsets, dies)
        except BaseException:
            self.stop()
            raise
        put(f"{self.location}/commits/{batch_id}", 'v1\n{"nextBatchWatermarkMs":0}')
        return output

    def _run_batch(
        self, program: Program, batch_id: int, rows: pa.Table, offsets: str, dies: str
    ) -> list[Row] | None:
        if self._driver is None:
            self._driver = coordinator(
                self.checkpoint_dir,
                job_id=self.query_id,
                query_id=self.query_id,
                uid=program.uid,
                key=program.key.names,
                parallelism=program.parallelism,
                num_retained=self.num_retained,
                start=self.start,
                allow_non_restored_state=program.may_drop,
            )
        driver = self._driver
        pending = driver.begin(batch_id, lambda batch: text_of(f"{self.location}/offsets/{batch}"))
        if pending is None:
            return None
        times = times_of_batch(offsets, pending.progress)
        progress = SparkProgress(
            query_id=self.query_id,
            run_id="run",
            batch_id=batch_id,
            offsets=offsets,
            checkpoint_location=self.location,
            spark_version="4.3.0",
            watermark=max(times.watermark, 0),
            batch_time=times.batch_time,
        )
        try:
            output, reports = self._run_subtasks(program, pending, rows, times)
        except BaseException as error:
            driver.abort(pending, error)
            raise
        _die_if(dies, "before the sink")
        application = application_id(self.location)
        for sink in self.sinks:
            sink.write(batch_id, output, application)
        _die_if(dies, "after the sink")
        driver.complete(pending, {program.uid: reports}, progress)
        CLEANER.wait()
        _die_if(dies, "after the checkpoint")
        return output

    def _run_subtasks(
        self, program: Program, pending: PendingCheckpoint, rows: pa.Table, times: Any
    ) -> tuple[list[Row], list[Acknowledgement]]:
        assigned = pending.assigned[program.uid]
        settings = Settings.parse(
            {
                "spark.holdfast.checkpoint.dir": self.checkpoint_dir,
                "spark.holdfast.state.backend": program.backend,
            }
        )
        reports = _Reports()
        runner = SubtaskRunner(
            operator=OperatorInfo(
                uid=program.uid,
                parallelism=program.parallelism,
                key=OperatorKey(program.key, assigned.max_parallelism),
                input_schema=rows.schema,
                output_schema=program.output,
            ),
            checkpoint=CheckpointInfo(
                checkpoint_id=pending.checkpoint_id,
                location_reference=pending.location.location_reference,
                restored_checkpoint_id=pending.restored_checkpoint_id,
                may_refer=pending.may_refer[program.uid],
                times=times,
            ),
            job=JobStorage(
                job_id=self.query_id,
                storage=FileSystemCheckpointStorage(self.checkpoint_dir),
                stores=settings.stores,
                compression=settings.compression,
                state=settings.state,
                clock=SYSTEM_CLOCK,
            ),
            payload=TaskPayload(cloudpickle.dumps(program.function), assigned.subtasks, None),  # type: ignore[no-untyped-call]
            reports=reports,
        )
        output: list[Row] = []
        for marked in _partitions(rows, program, assigned.max_parallelism):
            for batch in runner(iter(marked.to_batches(max_chunksize=3))):
                cells = zip(*map(from_arrow, batch.columns), strict=True)
                names = batch.schema.names
                output += [dict(zip(names, row, strict=True)) for row in cells]
        return output, decode_acknowledgements(reports.value)


def _partitions(rows: pa.Table, program: Program, max_parallelism: int) -> list[pa.Table]:
    """Return the rows of each subtask, marked as `InputRows` requires: first one without data."""
    hashes = key_hash([rows.column(name).combine_chunks() for name in program.key.names])
    groups = hashes.to_numpy().astype(np.int64) % max_parallelism
    parts = []
    for subtask in range(program.parallelism):
        own = key_group_range(max_parallelism, program.parallelism, subtask)
        is_own = (groups >= own.start_key_group) & (groups <= own.end_key_group)
        mine = rows.filter(pa.array(is_own))
        empty = pa.table([pa.nulls(1, each.type) for each in rows.schema], schema=rows.schema)
        marks = [subtask - program.parallelism, *[subtask] * len(mine)]
        part = pa.concat_tables([empty, mine])
        parts.append(part.append_column("subtask", pa.array(marks, pa.int32())))
    return parts


def _die_if(dies: str, here: str) -> None:
    if dies == here:
        raise CrashError(here)
