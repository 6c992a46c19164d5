"""The outbox of a Kafka sink, on a real broker and without Spark."""

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql.types import StringType, StructField, StructType
from servers.kafka import KafkaServer

from holdfast.errors import CheckpointNotFoundError, StorageUnavailableError
from holdfast.spark.sinks.kafka import MAX_UNSENT_BATCHES, KafkaSink
from holdfast.testing import ManualClock

MODULE = "holdfast.spark.sinks.kafka"
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@dataclass
class Rows:
    """Rows of a batch that are written in this process, as the sink calls Spark to write them."""

    values: range
    schema = StructType([StructField("value", StringType())])

    def select(self, *_: object) -> "Rows":
        return self

    def mapInArrow(self, function: Callable[..., Iterator[pa.RecordBatch]], _: str) -> "Rows":  # noqa: N802  # Spark's name
        count = len(self.values)
        columns = {
            "key": pa.nulls(count, pa.binary()),
            "value": pa.array([b"%d" % value for value in self.values], pa.binary()),
            "headers": pa.nulls(count, HEADERS),
            "topic": pa.nulls(count, pa.string()),
            "partition": pa.nulls(count, pa.int32()),
        }
        self.handles = [
            handle
            for written in function(iter([pa.record_batch(columns)]))
            for handle in written["handle"].to_pylist()
        ]
        return self

    def collect(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(handle=handle) for handle in self.handles]


class Job:
    """The calls of a query that a sink gets."""

    def __init__(self, kafka: KafkaServer, directory: Path) -> None:
        self.kafka = kafka
        self.topic = kafka.create_topic(partitions=1)
        self.outbox = directory / "outbox"
        self.clock = ManualClock()
        self.state: bytes | None = None
        self.batch = 0
        self.written = 0
        self.current = SimpleNamespace(
            application_id=lambda: "application",
            job_directory=f"file://{directory}",
            job=SimpleNamespace(stores=SimpleNamespace(use=lambda: None)),
        )

    def start(self) -> KafkaSink:
        """Start a run from the last checkpoint."""
        settings = {"bootstrap.servers": self.kafka.bootstrap}
        sink = KafkaSink(settings, self.topic, id_prefix=self.topic, clock=self.clock)
        sink.initialize_state(self.state)
        if self.batch:
            sink.notify_checkpoint_complete(self.batch)
        return sink

    def run_batch(self, sink: KafkaSink, *, count: int = 3, is_sent: bool = True) -> None:
        """Complete a checkpoint; the driver may die before it is notified."""
        rows: Any = Rows(range(self.written, self.written + count))
        with mock.patch(f"{MODULE}.current_batch", return_value=self.current):
            with mock.patch(f"{MODULE}.F"):
                sink(rows, self.batch)
        self.written += count
        self.batch += 1
        self.state = sink.snapshot_state(self.batch)
        if is_sent:
            sink.notify_checkpoint_complete(self.batch)

    def check_sent(self) -> None:
        """Check that each row is in the topic once, in order, and that the outbox is empty."""
        values = [int(message.value() or b"") for message in self.kafka.read(self.topic)]
        assert values == list(range(self.written))
        assert list(self.outbox.iterdir()) == []

    def delete_offsets(self) -> None:
        """Delete the offsets of the sink's group, as Kafka does after a time."""
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap})
        groups: list[str] = [
            group.group_id
            for group in admin.list_consumer_groups().result().valid
            if group.group_id.startswith(self.topic)
        ]
        for deleted in admin.delete_consumer_groups(groups).values():
            deleted.result()


@pytest.fixture
def sending(kafka: KafkaServer, tmp_path: Path) -> Job:
    return Job(kafka, tmp_path)


def test_files_of_failed_attempts_are_swept_with_the_next_checkpoint(sending: Job) -> None:
    sink = sending.start()
    sending.run_batch(sink, is_sent=False)
    [file] = sending.outbox.iterdir()
    sink.notify_checkpoint_complete(1)
    sink_id = file.name.partition("-")[0]
    for name in (f"{sink_id}-1-", f"{sink_id}-2-", f"{sink_id}-3-", "other-1-"):
        (sending.outbox / f"{name}{uuid.uuid4().hex}").touch()

    sending.run_batch(sending.start())

    kept = {file.name.rpartition("-")[0] for file in sending.outbox.iterdir()}
    assert kept == {f"{sink_id}-3", "other-1"}


def test_batch_of_several_megabytes_is_sent_whole(sending: Job) -> None:
    sending.run_batch(sending.start(), count=400_000)

    sending.check_sent()


def test_rows_are_sent_again_after_an_error_while_they_are_read(sending: Job) -> None:
    sink = sending.start()
    with mock.patch(f"{MODULE}.read_rows", side_effect=MemoryError), pytest.raises(MemoryError):
        sending.run_batch(sink)

    sending.run_batch(sink)

    sending.check_sent()


def test_offset_is_stored_again_after_a_long_pause(sending: Job) -> None:
    sink = sending.start()
    sending.run_batch(sink)
    sending.delete_offsets()
    sending.clock.advance(24 * 3600)
    sending.run_batch(sink, is_sent=False)

    sending.start()

    sending.check_sent()


def test_full_outbox_fails_the_query_and_is_sent_later(sending: Job) -> None:
    sink = sending.start()
    for _ in range(MAX_UNSENT_BATCHES):
        sending.run_batch(sink, is_sent=False)
    with pytest.raises(StorageUnavailableError, match="rows of 100 batches are in the outbox"):
        sending.run_batch(sink)

    sending.run_batch(sending.start())

    sending.check_sent()


def test_missing_file_of_unsent_rows_is_an_error(sending: Job) -> None:
    sink = sending.start()
    sending.run_batch(sink)
    sending.run_batch(sink, is_sent=False)
    for file in sending.outbox.iterdir():
        file.unlink()
    with pytest.raises(CheckpointNotFoundError):
        sending.start()
