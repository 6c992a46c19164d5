"""A producer of Kafka whose transactions also store which checkpoints are sent."""

import logging
import math
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from holdfast.common import Clock
from holdfast.errors import InvalidRequestError, StorageUnavailableError

if TYPE_CHECKING:
    import confluent_kafka

_log = logging.getLogger(__name__)

COLUMNS = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "topic": ("string",),
    "partition": ("int",),
}
"""Columns of messages and their types, as Spark's Kafka sink takes them."""

_WAIT_S = 0.2

_ABORT_TIMEOUT_S = 5.0
"""Aborting only shortens the time in which consumers wait: the next producer with the id does it too."""


class TransactionalProducer:
    """A producer with a transactional id, and the progress that its transactions commit.

    Making it takes the id over from earlier producers: their open transaction is aborted, and they can no longer commit.

    Attributes:
        group: The transactional id, and the consumer group of the progress.
        topic: The topic of rows without a topic; its partition 0 has the group's offset.
        progress: The last checkpoint whose rows were sent; None if Kafka has none.
        committed_s: `Clock.monotonic_s` of the last commit of progress; minus infinity before the first.

    Raises:
        InvalidRequestError: The topic does not exist.
        StorageUnavailableError: Kafka can't be reached, or refuses the producer.
    """

    def __init__(
        self, settings: Mapping[str, Any], topic: str, group: str, *, timeout_s: float, clock: Clock
    ) -> None:
        import confluent_kafka  # noqa: PLC0415  # an extra

        self.group = group
        self.topic = topic
        self._timeout_s = timeout_s
        self._clock = clock
        self._kafka = confluent_kafka
        self._topics: set[str] = set()
        defaults = {"partitioner": "murmur2_random", "compression.type": "lz4", "linger.ms": 5}
        logger = {"logger": _log}
        consumer_settings = {
            **settings,
            "group.id": group,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "log_level": 3,  # no warnings about settings of producers
        }
        try:
            self._producer = confluent_kafka.Producer(
                {**defaults, **settings, "transactional.id": group, **logger}
            )
            self._check_topic(topic)
            self._producer.init_transactions(timeout_s)
            # Closed at once: while a broker is down, it would log its attempts to connect.
            with closing(confluent_kafka.Consumer(consumer_settings | logger)) as consumer:
                self.progress = self._coordinator_retries(self._read_progress, consumer)
                self._group_metadata = consumer.consumer_group_metadata()
        except confluent_kafka.KafkaException as error:
            raise _unavailable_error(error) from error
        self.committed_s = -math.inf

    def _read_progress(self, consumer: "confluent_kafka.Consumer") -> int | None:
        [known] = consumer.committed([self._kafka.TopicPartition(self.topic, 0)], self._timeout_s)
        if known.error is not None:
            raise self._kafka.KafkaException(known.error)
        return known.offset if known.offset >= 0 else None

    @property
    def _coordinator_retries(self) -> Retrying:
        """Retries while the broker that coordinates the group is not ready, as in a new cluster or after a failure."""
        errors = self._kafka.KafkaError
        not_ready = {
            errors.COORDINATOR_LOAD_IN_PROGRESS,
            errors.COORDINATOR_NOT_AVAILABLE,
            errors.NOT_COORDINATOR,
        }

        def is_not_ready(error: BaseException) -> bool:
            return (
                isinstance(error, self._kafka.KafkaException) and error.args[0].code() in not_ready
            )

        return Retrying(
            retry=retry_if_exception(is_not_ready),
            stop=stop_after_delay(self._timeout_s),
            wait=wait_fixed(_WAIT_S),
            reraise=True,
        )

    def commit(self, checkpoint_id: int, batches: Iterable[pa.RecordBatch] = ()) -> None:
        """Send the messages of a checkpoint, and store that they are sent, in one transaction.

        Raises:
            InvalidRequestError: A topic does not exist.
            StorageUnavailableError: Kafka did not take them, or has fenced this producer. It is unknown whether they
                are sent: another producer has to be made, which finds out.
        """
        partition = self._kafka.TopicPartition(self.topic, 0, checkpoint_id)
        try:
            self._producer.begin_transaction()
            batch_name = f"{self.group}/{checkpoint_id - 1}".encode()
            sequence = 0
            for batch in batches:
                sequence = self._produce(batch, batch_name, sequence)
            self._producer.send_offsets_to_transaction(
                [partition], self._group_metadata, self._timeout_s
            )
            self._producer.commit_transaction()
        except self._kafka.KafkaException as error:
            raise _unavailable_error(error) from error
        self.progress = checkpoint_id
        self.committed_s = self._clock.monotonic_s()

    def close(self) -> None:
        """Abort an open transaction, as far as possible."""
        with suppress(self._kafka.KafkaException):
            self._producer.purge()
            self._producer.abort_transaction(_ABORT_TIMEOUT_S)

    def _produce(self, batch: pa.RecordBatch, batch_name: bytes, sequence: int) -> int:
        """Produce messages, and return the number of the next one."""
        for topic in pc.unique(batch["topic"]).to_pylist():
            self._check_topic(topic or self.topic)
        produce = self._producer.produce
        columns = (batch[name].to_pylist() for name in COLUMNS)
        for key, value, headers, topic, partition in zip(*columns, strict=True):
            own: list[tuple[str, str | bytes | None]] = [
                ("holdfast-batch", batch_name),
                ("holdfast-sequence", b"%d" % sequence),
            ]
            if headers:
                own += [(header["key"], header["value"]) for header in headers]
            while True:
                try:
                    produce(
                        topic or self.topic,
                        value,
                        key,
                        -1 if partition is None else partition,
                        headers=own,
                    )
                except BufferError:
                    self._producer.poll(0.1)
                else:
                    break
            sequence += 1
        self._producer.poll(0)
        return sequence

    def _check_topic(self, topic: str) -> None:
        """Refuse a topic that does not exist: only after minutes Kafka would report it. Raises `InvalidRequestError`."""
        if topic in self._topics:
            return
        known = self._producer.list_topics(topic, self._timeout_s).topics.get(topic)
        error = None if known is None else known.error
        if known is None or (
            error is not None and error.code() == self._kafka.KafkaError.UNKNOWN_TOPIC_OR_PART
        ):
            message = f"Kafka has no topic {topic!r}, or doesn't show it to this user; create it"
            raise InvalidRequestError(message, kind="kafka-topic")
        if error is not None:
            raise self._kafka.KafkaException(error)
        self._topics.add(topic)


def _unavailable_error(error: "confluent_kafka.KafkaException") -> StorageUnavailableError:
    """Return the error for a failed request: the name and text of Kafka's error have no secrets."""
    reason = error.args[0] if error.args else error
    message = f"a request to Kafka failed ({reason}); rows that are not sent stay in the outbox"
    return StorageUnavailableError(message, kind="kafka-failed")
