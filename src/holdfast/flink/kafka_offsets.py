"""Where readers of Kafka go on, out of the state of Flink's source.

Each element of `SourceReaderState` is a split in the version of its serializer:

    int version, int n, n bytes: utf topic, int partition, long next offset, long last offset

Source:
    Flink, SimpleVersionedSerialization (2.3.0); flink-connector-kafka, KafkaPartitionSplitSerializer.
"""

import json
import re
from collections.abc import Iterable
from contextlib import suppress

from holdfast.errors import CheckpointCorruptedError, InvalidRequestError
from holdfast.flink.data_input import DataInput

READERS = "SourceReaderState"
"""The list state in which readers of sources keep their splits."""

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_OF_CONSUMER_GROUP = -3


def starting_offsets(splits: Iterable[bytes]) -> str:
    """The offsets behind what was read, as Spark's `startingOffsets` has them.

    Args:
        splits: Elements of `READERS` of all subtasks.

    Raises:
        InvalidRequestError: A split is none of Kafka's, or begins where its consumer group has been.
    """
    topics: dict[str, dict[str, int]] = {}
    for split in splits:
        topic, partition, offset = _split(split)
        if offset == _OF_CONSUMER_GROUP:
            message = (
                f"partition {partition} of {topic} was never read: it begins at the offset of the job's consumer "
                "group, which Kafka has"
            )
            raise InvalidRequestError(message)
        topics.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(topics, sort_keys=True)


def is_kafka(splits: Iterable[bytes]) -> bool:
    """Whether the splits are all of Kafka."""
    with suppress(InvalidRequestError):
        return all(_split(split) for split in splits)
    return False


def _split(element: bytes) -> tuple[str, int, int]:
    """Topic, partition and next offset."""
    with suppress(CheckpointCorruptedError):
        source = DataInput(element)
        version, length = source.read_int(), source.count()
        is_whole = version == 0 and length == source.left
        topic, partition = source.utf(), source.read_int()
        offset, _ = source.longs(2)
        is_offset = partition >= 0 and offset >= _OF_CONSUMER_GROUP
        if is_whole and not source.left and is_offset and _TOPIC.fullmatch(topic):
            return topic, partition, offset
    raise InvalidRequestError("the source is no KafkaSource whose splits are known")
