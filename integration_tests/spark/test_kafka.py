"""Kafka: a driver that reads a topic is killed, and one that writes messages once, at every step from the outbox to the commit."""

import json
from collections import defaultdict
from pathlib import Path
from unittest import mock

import confluent_kafka
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from jobs import from_kafka
from jobs.job import Job
from jobs.killed import BATCH
from jobs.operators import Groups
from jobs.processes import run_until_done, run_until_killed
from jobs.to_kafka import POINTS, MessageSink, sending
from jobs.two_phases import COMMIT, GROUP, job_of
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from servers.kafka import KafkaServer, connector_jars

from holdfast import progress_of, roll_back, stateful_query
from holdfast.errors import InvalidRequestError
from holdfast.locations import CheckpointMetadata, CompletedCheckpoint, complete_checkpoint
from holdfast.locations.adapters import CheckpointStorageLocation, JobOwnership
from holdfast.spark.sinks.kafka import KafkaSink
from holdfast.spark_progress import sources_of

FILES = 3
ROWS = 4 * from_kafka.ROWS_PER_BATCH
"""Rows of a topic that a job reads."""

FIRST = 60
SECOND = 120
"""Rows of the first and of the second batch."""

# Points at which the driver dies: whether the batch is committed then, and the rows that consumers see.
KILLED = {
    "in_a_task": (False, FIRST),
    "after_outbox": (False, FIRST),
    "before_metadata": (False, FIRST),
    "after_metadata": (True, FIRST),
    "before_transaction": (True, FIRST),
    "in_transaction": (True, FIRST),
    "before_commit": (True, FIRST),
    "after_commit": (True, FIRST + SECOND),
    "after_deletion": (True, FIRST + SECOND),
}


@pytest.fixture(scope="module")
def killed_jobs(
    spark: SparkSession, kafka: KafkaServer, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The directories of jobs whose driver was killed while each of them was at another point."""
    directory = tmp_path_factory.mktemp("killed")
    for name in POINTS:
        kafka.create_topic(name=name)
        job_of(spark, directory, name).feed(FILES)
    run_until_killed("-m", "jobs.to_kafka", str(directory), kafka.bootstrap)
    return directory


def check_sent(job: Job, kafka: KafkaServer, topic: str) -> None:
    """Check that each row is in a message or in the state, once, in order, and that the outbox is empty."""
    messages = kafka.read(topic)
    ids = [int(message.value() or b"") for message in messages]
    assert sorted([*ids, *job.ids_held()]) == job.ids_fed
    sequences: dict[object, list[int]] = defaultdict(list)
    by_key: dict[tuple[object, object, object], list[int]] = defaultdict(list)
    for message in messages:
        headers = dict(message.headers() or ())
        batch, sequence = headers["holdfast-batch"], int(headers["holdfast-sequence"] or b"")
        sequences[batch].append(sequence)
        by_key[batch, message.key(), message.partition()].append(sequence)
    for numbers in sequences.values():
        assert sorted(numbers) == list(range(len(numbers)))
    for numbers in by_key.values():
        assert numbers == sorted(numbers)
    assert len({(key, partition) for _, key, partition in by_key}) == 5  # a key has one partition
    assert list((job.job_directory / "outbox").glob("*")) == []


@pytest.mark.parametrize("name", KILLED, ids=POINTS.get)
def test_driver_killed_at_any_point_sends_each_row_once(
    spark: SparkSession, kafka: KafkaServer, killed_jobs: Path, name: str
) -> None:
    job = job_of(spark, killed_jobs, name)
    is_committed, visible = KILLED[name]
    assert job.checkpoint_ids()[-1] == (BATCH + 1 if is_committed else BATCH)
    assert len(kafka.read(name)) == visible

    parallelism = 3 if name == "in_transaction" else 2
    job.run(sending(job, MessageSink(kafka.bootstrap, name), parallelism=parallelism))

    check_sent(job, kafka, name)


def test_late_driver_completes_and_its_rows_are_sent(
    spark: SparkSession, kafka: KafkaServer, killed_jobs: Path
) -> None:
    topic = "late"
    job = job_of(spark, killed_jobs, topic)
    late = (job.directory / "late").read_bytes()

    def overtaken(
        location: CheckpointStorageLocation, metadata: CheckpointMetadata, ownership: JobOwnership
    ) -> CompletedCheckpoint:
        file = Path(location.external_pointer.removeprefix("file://")) / "_metadata"
        file.write_bytes(late)
        return complete_checkpoint(location, metadata, ownership)

    with mock.patch(COMMIT, overtaken):
        with pytest.raises(StreamingQueryException, match="an earlier driver of this job"):
            job.run(sending(job, MessageSink(kafka.bootstrap, topic)))
    assert len(kafka.read(topic)) == FIRST

    job.run(sending(job, MessageSink(kafka.bootstrap, topic)))
    check_sent(job, kafka, topic)


class Paused(MessageSink):
    """A sink whose driver stops responding before it sends the rows of a checkpoint."""

    def __init__(self, bootstrap: str, topic: str, checkpoint: int) -> None:
        super().__init__(bootstrap, topic)
        self.checkpoint = checkpoint

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        if checkpoint_id != self.checkpoint:
            super().notify_checkpoint_complete(checkpoint_id)

    def resume(self) -> None:
        super().notify_checkpoint_complete(self.checkpoint)


class Successor(MessageSink):
    """A sink that is disturbed by a driver that was thought dead, right before it sends a batch."""

    def __init__(self, bootstrap: str, topic: str, zombie: Paused) -> None:
        super().__init__(bootstrap, topic)
        self.zombie = zombie

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        if checkpoint_id == FILES:
            self.zombie.resume()
        super().notify_checkpoint_complete(checkpoint_id)


def test_zombie_after_its_successor_sends_no_row_twice(job: Job, kafka: KafkaServer) -> None:
    topic = kafka.create_topic()
    job.feed(FILES - 1)
    zombie = Paused(kafka.bootstrap, topic, FILES - 1)
    job.run(sending(job, zombie))
    assert len(kafka.read(topic)) == FIRST

    job.feed(1)
    job.run(sending(job, Successor(kafka.bootstrap, topic, zombie)))
    check_sent(job, kafka, topic)


class CutOff(MessageSink):
    """A sink whose broker is down when it is notified of a checkpoint."""

    def __init__(self, kafka: KafkaServer, topic: str, checkpoint: int) -> None:
        super().__init__(kafka.bootstrap, topic, transaction_timeout_ms="5000")
        self.kafka = kafka
        self.checkpoint = checkpoint

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        if checkpoint_id != self.checkpoint:
            super().notify_checkpoint_complete(checkpoint_id)
            return
        self.kafka.kill()
        try:
            super().notify_checkpoint_complete(checkpoint_id)
        finally:
            self.kafka.start()


def test_rows_are_sent_later_if_the_broker_is_down(
    job: Job, kafka: KafkaServer, caplog: pytest.LogCaptureFixture
) -> None:
    topic = kafka.create_topic()
    job.feed(FILES)
    job.run(sending(job, CutOff(kafka, topic, FILES - 1)))
    job.run(sending(job, MessageSink(kafka.bootstrap, topic)))
    assert caplog.text.count("CutOff failed in notify_checkpoint_complete") >= 1
    check_sent(job, kafka, topic)


def test_deleted_progress_is_an_error_if_rows_may_be_unsent(job: Job, kafka: KafkaServer) -> None:
    topic = kafka.create_topic()
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})

    def delete_group() -> str:
        groups: list[str] = [
            group.group_id
            for group in admin.list_consumer_groups().result().valid
            if group.group_id.startswith(topic)
        ]
        [group] = groups
        admin.delete_consumer_groups([group])[group].result()
        return group

    # The outbox is empty, so everything was sent.
    job.feed(1)
    job.run(sending(job, MessageSink(kafka.bootstrap, topic)))
    delete_group()
    job.feed(1)
    job.run(sending(job, Paused(kafka.bootstrap, topic, 2)))
    assert len(kafka.read(topic)) == FIRST

    # The outbox has rows, and nothing shows whether they were sent.
    group = delete_group()
    job.feed(1)
    with pytest.raises(StreamingQueryException, match="HF-KAFKA-PROGRESS-LOST"):
        job.run(sending(job, MessageSink(kafka.bootstrap, topic)))
    assert len(kafka.read(topic)) == FIRST
    offsets = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 1)])
    admin.alter_consumer_group_offsets([offsets])[group].result()
    job.run(sending(job, MessageSink(kafka.bootstrap, topic)))
    check_sent(job, kafka, topic)


def test_batches_after_a_rollback_are_sent_again(job: Job, kafka: KafkaServer) -> None:
    topic = kafka.create_topic()
    job.settings["spark.holdfast.checkpoint.num-retained"] = "9"
    job.feed(FILES)
    job.run(sending(job, MessageSink(kafka.bootstrap, topic)))
    before = {message.value() for message in kafka.read(topic)}
    roll_back(f"file://{job.spark_checkpoint}", checkpoint=1)
    job.run(sending(job, MessageSink(kafka.bootstrap, topic)))
    after = [message.value() for message in kafka.read(topic)]
    assert len(after) == 2 * len(before) - FIRST
    assert set(after) == before
    assert list((job.job_directory / "outbox").glob("*")) == []


def test_function_writes_to_two_sinks(job: Job, kafka: KafkaServer) -> None:
    even, odd = kafka.create_topic(), kafka.create_topic()
    part = job.operator(Groups(GROUP), sink=None, persist=True)

    def process(rows: DataFrame, batch_id: int) -> None:
        rows = part.apply(rows)
        for remainder in (0, 2):
            sinks["even"](rows.where(f"id % 4 = {remainder}"), batch_id)
        if batch_id:
            sinks["odd"](rows.where("id % 2 = 1"), batch_id)

    for _ in range(2):
        job.feed(1)
        sinks = {
            "even": MessageSink(kafka.bootstrap, even),
            "odd": MessageSink(kafka.bootstrap, odd),
        }
        job.run(stateful_query(process, part, sinks=sinks))
    assert len(kafka.read(even)) == (FIRST + SECOND) / 2
    assert len(kafka.read(odd)) == SECOND / 2
    assert {
        name for name in job.latest().metadata.coordinator_states if name.startswith("sink")
    } == {
        "sink/even",
        "sink/odd",
    }


def test_columns_of_spark_become_parts_of_messages(job: Job, kafka: KafkaServer) -> None:
    topic, other = kafka.create_topic(), kafka.create_topic(partitions=1)
    sink = KafkaSink({"bootstrap.servers": kafka.bootstrap}, topic)

    def write(rows: DataFrame, batch_id: int) -> None:
        sink(
            rows.where("id < 4").selectExpr(
                "CAST(NULL AS STRING) AS key",
                "CASE WHEN id > 0 THEN name END AS value",
                f"CASE WHEN id < 2 THEN '{other}' END AS topic",
                "CASE WHEN id > 1 THEN int(1) END AS partition",
                "array(struct('at' AS key, CAST(string(id) AS BINARY) AS value)) AS headers",
            ),
            batch_id,
        )

    part = job.operator(Groups(1), sink=None, parallelism=1)
    job.feed(1)
    job.run(
        stateful_query(
            lambda rows, batch: write(part.apply(rows), batch), part, sinks={"all": sink}
        )
    )
    messages = kafka.read(other) + kafka.read(topic)
    assert [(message.value(), message.partition()) for message in messages] == [
        (None, 0),
        (b"row 1", 0),
        (b"row 2", 1),
        (b"row 3", 1),
    ]
    assert [dict(message.headers() or ())["at"] for message in messages] == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["id AS value"], "column value of rows for Kafka must be string or binary, got bigint"),
        (["name AS value", "id"], "these have value, id"),
    ],
)
def test_rows_without_columns_of_messages_are_refused(
    job: Job, kafka: KafkaServer, columns: list[str], message: str
) -> None:
    sink = KafkaSink({"bootstrap.servers": kafka.bootstrap}, kafka.create_topic())
    part = job.operator(Groups(1), sink=None)
    job.feed(1)

    def process(rows: DataFrame, batch_id: int) -> None:
        sink(part.apply(rows).selectExpr(*columns), batch_id)

    with pytest.raises(StreamingQueryException, match=message):
        job.run(stateful_query(process, part, sinks={"all": sink}))


def test_missing_topic_is_refused(job: Job, kafka: KafkaServer) -> None:
    job.feed(1)
    with pytest.raises(StreamingQueryException, match="Kafka has no topic 'nowhere'"):
        job.run(sending(job, MessageSink(kafka.bootstrap, "nowhere")))


def test_sink_without_a_state_refuses_rows(spark: SparkSession) -> None:
    with pytest.raises(InvalidRequestError, match="does not store the state of this KafkaSink"):
        KafkaSink({"bootstrap.servers": "127.0.0.1:9"}, "topic")(spark.range(1), 0)


def test_secrets_are_not_in_the_text_of_a_sink() -> None:
    settings = {"bootstrap.servers": "127.0.0.1:9", "sasl.password": "secret"}
    assert "secret" not in repr(KafkaSink(settings, "topic"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "must have bootstrap.servers"),
        ({"bootstrap.servers": "a", "transactional.id": "b"}, "sets transactional.id itself"),
    ],
)
def test_invalid_settings_of_a_sink_are_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        KafkaSink(settings, "topic")


def test_missing_client_is_refused_by_the_name_of_the_extra() -> None:
    with mock.patch.dict("sys.modules", {confluent_kafka.__name__: None}):
        with pytest.raises(InvalidRequestError, match=r"pip install 'holdfast\[kafka\]'"):
            KafkaSink({"bootstrap.servers": "127.0.0.1:9"}, "topic")


@pytest.fixture(scope="module")
def resumed_jobs(
    spark: SparkSession, kafka: KafkaServer, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The directories of jobs that have read their topics, with a driver that was killed in between."""
    jars = connector_jars()
    directory = tmp_path_factory.mktemp("from-kafka")
    for topic in from_kafka.POINTS:
        kafka.create_topic(name=topic)
        kafka.produce(topic, ((f"key {number % 7}", str(number)) for number in range(ROWS)))
    arguments = ["-m", "jobs.from_kafka", str(directory), kafka.bootstrap, jars]
    run_until_killed(*arguments, "killed")
    for name, point in from_kafka.POINTS.items():
        committed = BATCH if point == "before the metadata" else BATCH + 1
        assert job_of(spark, directory, name).checkpoint_ids()[-1] == committed
    run_until_done(*arguments, "resumed")
    return directory


@pytest.mark.parametrize("name", from_kafka.POINTS, ids=from_kafka.POINTS.get)
def test_job_from_kafka_killed_at_a_checkpoint_counts_each_row_once(
    spark: SparkSession, resumed_jobs: Path, name: str
) -> None:
    job = job_of(spark, resumed_jobs, name)
    assert sorted([*job.ids_written(), *job.ids_held()]) == list(range(ROWS))
    [source] = sources_of(progress_of(job.latest().metadata).offsets)
    assert sum(json.loads(source)[name].values()) == ROWS
