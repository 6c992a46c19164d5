"""A real Kafka broker on a loopback port, which can be killed and started again, and its topics read without Spark."""

import shlex
import uuid
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from contracts.patience import HANGS_S
from servers import infra


@dataclass(frozen=True, slots=True)
class KafkaServer:
    """A broker.

    Attributes:
        bootstrap: The value of `bootstrap.servers`.
        directory: Its directory, which identifies it.
    """

    bootstrap: str
    directory: Path

    def create_topic(self, partitions: int = 2, name: str | None = None) -> str:
        """Create a topic, and return its name."""
        name = name or f"topic-{uuid.uuid4().hex[:8]}"
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        [created] = admin.create_topics(
            [NewTopic(name, num_partitions=partitions, replication_factor=1)]
        ).values()
        created.result(HANGS_S)
        return name

    def produce(self, topic: str, rows: Iterable[tuple[str, str]]) -> None:
        """Send keys and values."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 5})
        for key, value in rows:
            producer.produce(topic, value, key)
        assert producer.flush(HANGS_S) == 0

    def read(self, topic: str, isolation: str = "read_committed") -> list[Message]:
        """Return all messages of a topic, partition by partition, in their order."""
        settings = {
            "bootstrap.servers": self.bootstrap,
            "group.id": f"reader-{uuid.uuid4().hex}",
            "isolation.level": isolation,
            "enable.auto.commit": "false",
            "enable.partition.eof": "true",
            "auto.offset.reset": "earliest",
        }
        with closing(Consumer(settings)) as consumer:
            partitions = consumer.list_topics(topic, HANGS_S).topics[topic].partitions
            consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
            messages: dict[int, list[Message]] = {number: [] for number in partitions}
            at_end: set[int] = set()
            while len(at_end) < len(partitions):
                message = consumer.poll(HANGS_S)
                assert message is not None, f"{topic} can't be read"
                if (error := message.error()) is None:
                    messages[message.partition() or 0].append(message)
                elif error.code() == -191:  # the end of a partition
                    at_end.add(message.partition() or 0)
                else:
                    raise KafkaException(error)
        return [message for number in sorted(messages) for message in messages[number]]

    def kill(self) -> None:
        """Kill the broker."""
        infra.run("kafka", "broker", "kill", str(self.directory))

    def start(self) -> None:
        """Start the broker after it was killed."""
        infra.run("kafka", "broker", "start", str(self.directory))


@contextmanager
def kafka_server() -> Iterator[KafkaServer]:
    """Run the broker of `infra/kafka`, without topics."""
    with infra.running("kafka") as known:
        yield KafkaServer(known["bootstrap"], Path(known["directory"]))


def connector_jars() -> str:
    """Return the value of `spark.jars` for Spark's connector; the test is skipped if it can't be had."""
    done = infra.call("kafka", "jars")
    if done.returncode == 3:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr
    [word] = shlex.split(done.stdout)
    return ",".join(map(str, sorted(Path(word.removeprefix("jars=")).glob("*.jar"))))


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaServer]:
    with kafka_server() as server:
        yield server
