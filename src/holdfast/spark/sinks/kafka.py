"""A sink that sends the rows of a query to Kafka exactly once.

    in the batch            executors write the rows to an outbox; its files are in the sink's state
    the checkpoint exists   the driver sends the rows in a transaction, which also commits the checkpoint's number as the
                            offset of a consumer group
    then                    the outbox is deleted

A driver that resumes takes the transactional id over, so that Kafka ends a transaction that was left open. Then the group's
offset shows whether the rows of the checkpoint were sent. If not, they are sent from the outbox.
"""

import logging
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from holdfast.common import SYSTEM_CLOCK, Clock, message_pack_decoder
from holdfast.errors import (
    CheckpointCorruptedError,
    CheckpointError,
    InvalidRequestError,
    StorageUnavailableError,
)
from holdfast.locations.handles import FileStateHandle
from holdfast.spark.query import current_batch
from holdfast.spark.sinks.kafka_producer import COLUMNS, TransactionalProducer
from holdfast.spark.sinks.outbox import Outbox, delete_files, has_missing_files, read_rows

__all__ = ["KafkaSink"]

_log = logging.getLogger(__name__)

MAX_UNSENT_BATCHES = 100
"""A query whose rows can't be sent fails when the outbox has this many batches."""

_RENEW_PROGRESS_S = 12 * 3600.0
"""Kafka deletes offsets of a group seven days after the last commit, by default."""

_RESERVED = {
    "enable.auto.commit",
    "enable.idempotence",
    "group.id",
    "isolation.level",
    "transactional.id",
}


class _UnsentBatch(msgspec.Struct, frozen=True):
    """A batch in the outbox.

    Attributes:
        group: The consumer group, and transactional id, of the query that has written it.
        topic: The sink's topic at that time, which has the group's offset.
        checkpoint_id: The checkpoint that completes it.
        files: The files of the outbox, in the order of the rows.
    """

    group: str
    topic: str
    checkpoint_id: int
    files: list[FileStateHandle]


class _State(msgspec.Struct, frozen=True):
    """The state of a sink.

    Attributes:
        sink: Random; distinguishes the sinks of a query.
        unsent: The batches that may not be sent yet, the oldest first.
    """

    sink: str
    unsent: list[_UnsentBatch]


_STATE = message_pack_decoder(_State)


class KafkaSink:
    """Sends rows to Kafka exactly once: consumers with `isolation.level=read_committed` get each row once.

    A batch is one transaction: they get all of its rows or none. The rows have the columns of Spark's Kafka
    sink: `value` and optionally `key`, `headers`, `topic` and `partition`. Use it as the sink of an operator, or name it in `sinks`
    of `stateful_query`. Rows of a key keep the order that they have in a partition of the batch.

    Each message has two headers: `holdfast-batch` identifies the batch, and `holdfast-sequence` is the number of the message in it.

    Args:
        settings: Settings of librdkafka for the producer, such as `bootstrap.servers` and those of authentication. They
            are not stored and not logged.
        topic: The topic of rows without a `topic`; it has to exist, as all topics do.
        id_prefix: The first part of the transactional id and the consumer group, both
            `<id_prefix>-<application id>-<random digits>`, for ACLs.
        timeout_s: The longest time for a request to Kafka, in seconds.

    Raises:
        InvalidRequestError: confluent-kafka is not installed, or an argument can't be used.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        topic: str,
        *,
        id_prefix: str = "holdfast",
        timeout_s: float = 30.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        try:
            import confluent_kafka  # noqa: F401, PLC0415  # an extra
        except ImportError as error:
            message = "KafkaSink needs confluent-kafka on the driver: pip install 'holdfast[kafka]'"
            raise InvalidRequestError(message, kind="setting") from error
        if "bootstrap.servers" not in settings:
            raise InvalidRequestError("settings of KafkaSink must have bootstrap.servers")
        if reserved := sorted(_RESERVED & settings.keys()):
            raise InvalidRequestError(
                f"KafkaSink sets {', '.join(reserved)} itself; remove it from settings"
            )
        if not topic or not id_prefix:
            raise InvalidRequestError("topic and id_prefix of KafkaSink must not be empty")
        self._settings = dict(settings)
        self._topic = topic
        self._id_prefix = id_prefix
        self._timeout_s = timeout_s
        self._clock = clock
        self._sink = ""
        self._unsent: list[_UnsentBatch] = []
        self._group = ""
        self._written: list[FileStateHandle] = []
        self._outbox: Outbox | None = None
        self._is_swept = False
        self._producer: TransactionalProducer | None = None
        self._failure: CheckpointError | None = None

    def __repr__(self) -> str:
        return f"KafkaSink(topic={self._topic!r})"

    def initialize_state(self, state: bytes | None) -> None:
        """Restore the batches that may not be sent yet."""
        restored = _State(uuid.uuid4().hex[:8], []) if state is None else _decode(state)
        self._sink = restored.sink
        self._unsent = list(restored.unsent)
        self._written = []
        self._outbox = None
        self._is_swept = False
        self._failure = None
        self._close_producer()

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Write the rows of a batch to the outbox.

        Raises:
            InvalidRequestError: The rows don't have the columns of messages, the topic does not exist, or the query doesn't
                know the sink.
            StorageUnavailableError: Kafka can't be reached at the start of the query, or did not take the rows of many
                batches.
        """
        if not self._sink:
            raise InvalidRequestError(
                "the query does not store the state of this KafkaSink; pass it as sink= to stateful(...), or name it in "
                "sinks= of stateful_query(...)"
            )
        if self._failure is not None:
            raise self._failure
        if len(self._unsent) >= MAX_UNSENT_BATCHES:
            raise StorageUnavailableError(
                f"the rows of {len(self._unsent)} batches are in the outbox and could not be sent to Kafka; "
                "the log has the reasons. They are sent when the query is started again and Kafka takes them",
                kind="kafka-failed",
            )
        batch = current_batch()
        self._group = f"{self._id_prefix}-{batch.application_id()}-{self._sink}"
        outbox = self._open_outbox(batch.job_directory)
        messages = rows.select(*_message_columns(rows.schema))
        self._store_progress(batch_id)
        self._written += outbox.write(messages, batch_id + 1, batch.job.stores)

    def snapshot_state(self, checkpoint_id: int) -> bytes:
        """Return the batches to send once the checkpoint exists."""
        if self._written:
            batch = _UnsentBatch(self._group, self._topic, checkpoint_id, self._written)
            self._unsent.append(batch)
            self._written = []
        return msgspec.msgpack.encode(_State(self._sink, self._unsent))

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Send the batches of the checkpoint; if that fails, it is tried again after the next batch."""
        had_producer = self._producer is not None
        self._failure = None
        try:
            try:
                self._send_all()
            except CheckpointError:
                if not had_producer:
                    raise
                # Another driver may have taken the transactional id over and sent the rows: this one or the other was
                # thought dead.
                self._close_producer()
                self._send_all()
        except BaseException as error:
            # The next attempt has to find out what has become of the transaction.
            self._close_producer()
            is_outage = isinstance(error, StorageUnavailableError)
            if isinstance(error, CheckpointError) and not is_outage:
                self._failure = error
            raise
        if self._outbox is not None and not self._is_swept:  # the first checkpoint of the run
            self._outbox.sweep(checkpoint_id)
            self._is_swept = True

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Delete the rows of this attempt."""
        delete_files(self._written)
        for batch in self._unsent:
            if batch.checkpoint_id == checkpoint_id:
                delete_files(batch.files)

    def _open_outbox(self, job_directory: str | None) -> Outbox:
        if self._outbox is None:
            if job_directory is None:
                message = (
                    "KafkaSink keeps rows next to the checkpoints until they are sent, and these checkpoints are in the "
                    "driver's memory; set spark.holdfast.checkpoint.dir"
                )
                raise InvalidRequestError(message, kind="setting")
            outbox = Outbox.below(job_directory, self._sink)
            outbox.prepare()
            self._outbox = outbox
        return self._outbox

    def _store_progress(self, checkpoint_id: int) -> None:
        """Make sure that the group has an offset, so that a missing one can only mean that Kafka has deleted it."""
        if any(
            (unsent.group, unsent.topic) == (self._group, self._topic) for unsent in self._unsent
        ):
            return  # its offset must not be invented
        producer = self._open_producer(self._group, self._topic)
        if producer.progress is None:
            producer.commit(checkpoint_id)
        elif self._clock.monotonic_s() - producer.committed_s > _RENEW_PROGRESS_S:
            try:
                producer.commit(producer.progress)
            except StorageUnavailableError:
                _log.warning("could not renew the offset of group %s", self._group, exc_info=True)
                self._close_producer()

    def _send_all(self) -> None:
        while self._unsent:
            self._send(self._unsent[0])
            del self._unsent[0]

    def _send(self, batch: _UnsentBatch) -> None:
        """Send a batch, unless it was sent before, and delete it from the outbox."""
        producer = self._open_producer(batch.group, batch.topic)
        if producer.progress is None and not has_missing_files(batch.files):
            raise InvalidRequestError(
                f"Kafka does not know whether the rows of checkpoint {batch.checkpoint_id} were sent: the offset of the "
                f"group {batch.group!r} is gone, which Kafka deletes after offsets.retention.minutes. Look for messages "
                f"whose header holdfast-batch is {batch.group}/{batch.checkpoint_id - 1}. If there are any, set the "
                f"offset {batch.checkpoint_id} for partition 0 of topic {batch.topic!r} in this group; if "
                f"there is no such message, set {batch.checkpoint_id - 1}. Then start the query again",
                kind="kafka-progress-lost",
            )
        if producer.progress is not None and producer.progress < batch.checkpoint_id:
            producer.commit(batch.checkpoint_id, read_rows(batch.files))
        delete_files(batch.files)

    def _open_producer(self, group: str, topic: str) -> "TransactionalProducer":
        known = self._producer
        if known is None or (known.group, known.topic) != (group, topic):
            self._close_producer()
            self._producer = known = TransactionalProducer(
                self._settings, topic, group, timeout_s=self._timeout_s, clock=self._clock
            )
        return known

    def _close_producer(self) -> None:
        if self._producer is not None:
            self._producer.close()
            self._producer = None


def _message_columns(schema: StructType) -> Sequence[Any]:
    """Return the columns of messages. Raises `InvalidRequestError` if rows don't have them."""
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    unknown = sorted(types.keys() - COLUMNS.keys())
    if "value" not in types or unknown:
        raise InvalidRequestError(
            f"rows for Kafka must have a column value, and may have {', '.join(sorted(COLUMNS.keys() - {'value'}))}; "
            f"these have {', '.join(types)}"
        )
    for name, type in types.items():
        if type not in COLUMNS[name]:
            message = (
                f"column {name} of rows for Kafka must be {' or '.join(COLUMNS[name])}, got {type}"
            )
            raise InvalidRequestError(message)
    stored = {
        name: "binary" if "binary" in allowed else allowed[0] for name, allowed in COLUMNS.items()
    }
    return [
        (F.col(name) if name in types else F.lit(None)).cast(type).alias(name)
        for name, type in stored.items()
    ]


def _decode(state: bytes) -> _State:
    try:
        return _STATE.decode(state)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        message = f"the state of a KafkaSink can't be decoded ({error})"
        raise CheckpointCorruptedError(message) from error
