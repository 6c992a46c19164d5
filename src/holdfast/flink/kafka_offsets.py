"""Kafka offsets in the state of Flink's sources.

`KafkaSource`: each element of `SourceReaderState` is a split in the version of its serializer:

    int version, int n, n bytes: utf topic, int partition, long next offset, long last offset

    Since version 2, the state of its coordinator on the JobManager has the partitions that no reader has had yet:

    int 1, int version, int n, n bytes: int n * { utf topic, int partition, int status }, byte

`FlinkKafkaConsumer`, its predecessor: each element of the union state `topic-partition-offset-states` is a pair of a
topic and partition, by Kryo, and the last offset that was read.

Source:
    Flink, SimpleVersionedSerialization (2.3.0); flink-connector-kafka, KafkaPartitionSplitSerializer,
    KafkaSourceEnumStateSerializer (4.0.1), FlinkKafkaConsumerBase and KafkaTopicPartitionStateSentinel (3.4.0).
"""

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import pyarrow as pa

from holdfast.errors import CheckpointCorruptedError, InvalidRequestError
from holdfast.flink.binary import DataInput
from holdfast.flink.serializers import TOPIC_PARTITION

_READERS, _CONSUMER = "SourceReaderState", "topic-partition-offset-states"
SOURCES = (_READERS, _CONSUMER)
"""The states where sources store their offsets."""

Position = tuple[str, int, int]
"""A topic, one of its partitions, and the next offset."""

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_LATEST, _EARLIEST, _OF_CONSUMER_GROUP = -1, -2, -3  # Spark and KafkaSource use the same numbers
_OF_JOB = -4
_START_TEXTS = {
    _OF_CONSUMER_GROUP: "at the offset of the job's consumer group, which is stored in Kafka",
    _OF_JOB: "at an offset from the job's OffsetsInitializer, which is not in savepoints",
}
_BY_STATUS = {1: _OF_JOB, 2: _EARLIEST}
"""First offsets of partitions that no reader has had: initial partitions, and partitions discovered later."""
_OF_CONSUMER = pa.struct([("f0", TOPIC_PARTITION), ("f1", pa.int64())])
_SENTINELS = {
    -915623761776: _OF_CONSUMER_GROUP,  # not set
    -915623761775: _EARLIEST,
    -915623761774: _LATEST,
    -915623761773: _OF_CONSUMER_GROUP,
}
"""Offsets that FlinkKafkaConsumer stores for partitions that were not read yet."""


def positions(state: str, values: pa.ChunkedArray) -> list[Position]:
    """Return the next offsets of a source.

    Args:
        state: One of `SOURCES`.
        values: The elements of all subtasks.

    Raises:
        InvalidRequestError: The values are not Kafka splits, or are empty.
    """
    if not len(values):
        raise InvalidRequestError("the source has no splits in its state")
    if state == _CONSUMER and values.type == _OF_CONSUMER:
        return [_read_consumed(element) for element in values.to_pylist()]
    if state == _READERS and values.type == pa.binary():
        return [_split(element) for element in values.to_pylist()]
    raise _no_splits()


def never_read(coordinator: bytes, known: Iterable[Position]) -> list[Position]:
    """Return the first offsets of partitions that no reader has had; empty if the state does not have them.

    Args:
        coordinator: The state of the source's coordinator on the JobManager.
        known: Positions of the readers.
    """
    with suppress(CheckpointCorruptedError):
        source = DataInput(coordinator)
        if (source.read_int(), source.read_int()) == (1, 2) and source.count() == source.left:
            there = {place[:2] for place in known}
            partitions = [
                (source.utf(), source.read_int(), source.read_int())
                for _ in range(source.count(10))
            ]
            if source.left == 1:
                return [
                    (topic, partition, _BY_STATUS[status])
                    for topic, partition, status in partitions
                    if status in _BY_STATUS and (topic, partition) not in there
                ]
    return []


def starting_offsets(places: Iterable[Position]) -> str:
    """Format offsets for Spark's `startingOffsets`.

    Raises:
        InvalidRequestError: A partition starts at an offset that isn't in the savepoint.
    """
    topics: dict[str, dict[str, int]] = {}
    for topic, partition, offset in places:
        if offset in _START_TEXTS:
            message = (
                f"partition {partition} of {topic} was never read: it starts {_START_TEXTS[offset]}"
            )
            raise InvalidRequestError(message)
        topics.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(topics, sort_keys=True)


def _split(element: bytes) -> Position:
    with suppress(CheckpointCorruptedError):
        source = DataInput(element)
        version, length = source.read_int(), source.count()
        is_whole = version == 0 and length == source.left
        topic, partition = source.utf(), source.read_int()
        offset, _ = source.longs(2)
        if is_whole and not source.left and _is_position(topic, partition, offset):
            return topic, partition, offset
    raise _no_splits()


def _read_consumed(element: dict[str, Any] | None) -> Position:
    if element is not None and element["f0"] is not None:
        topic, partition, last = element["f0"]["topic"], element["f0"]["partition"], element["f1"]
        offset = _SENTINELS.get(last, last + 1)
        if topic is not None and _is_position(topic, partition, offset):
            return topic, partition, offset
    raise _no_splits()


def _is_position(topic: str, partition: int, offset: int) -> bool:
    return bool(_TOPIC.fullmatch(topic)) and partition >= 0 and offset >= _OF_CONSUMER_GROUP


def _no_splits() -> InvalidRequestError:
    return InvalidRequestError("the source is not a Kafka source with known splits")
