"""Kafka offsets: bytes written by the serializers of Flink's connectors."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from contracts.flink_kinds import BYTES, LONG, STRING, Kind, each, i2, i4, kafka_split, utf
from contracts.flink_savepoints import (
    Subtask,
    inline,
    list_info,
    list_states,
    metadata,
    operator_handle,
)
from hypothesis import given
from hypothesis import strategies as st

from holdfast import flink
from holdfast.errors import CheckpointError, InvalidRequestError

DATA = Path(__file__).parents[1] / "data" / "flink"
CONSUMER = "topic-partition-offset-states"
Element = tuple[str, int, int, bytes]
"""A topic, a partition, an offset, and the bytes that it is in."""


def elements(lines: list[str]) -> Iterator[Element]:
    for line in lines:
        topic, partition, offset, digits = line.split()
        yield topic, int(partition), int(offset), bytes.fromhex(digits)


def splits() -> list[Element]:
    return list(elements((DATA / "kafka-splits.txt").read_text().splitlines()))


def consumed_partitions() -> tuple[bytes, list[Element]]:
    """The snapshot of the serializer of the consumer's state, and its elements."""
    head, *lines = (DATA / "kafka-consumer.txt").read_text().splitlines()
    return bytes.fromhex(head)[4:], list(elements(lines))  # without the version of the form


def open_job(
    directory: Path, operator: bytes, version: int = 6, coordinator: bytes = b"\0"
) -> flink.FlinkSavepoint:
    subtasks = {"job": {0: Subtask(operator=operator)}}
    content = metadata(subtasks, version=version, coordinator=coordinator)
    (directory / "_metadata").write_bytes(content)
    return flink.open_savepoint(directory, uids=["job"])


def of_readers(*values: bytes) -> bytes:
    return list_states({"SourceReaderState": (BYTES, values)})


def of_consumer(*values: bytes) -> bytes:
    snapshot, _ = consumed_partitions()
    description = i4(5) + i2(1) + list_info(CONSUMER, snapshot) + i2(0)
    return operator_handle(description, {CONSUMER: (1, values)})


def test_kafka_source_returns_offsets_for_spark(tmp_path: Path) -> None:
    known = [element for element in splits() if element[2] != -3]
    own = (STRING, ["a"])
    readers = (BYTES, [data for *_, data in known])
    savepoint = open_job(tmp_path, list_states({"SourceReaderState": readers, "own": own}))
    expected = {
        "orders": {"0": 17, "1": 4_000_000_000_000},
        "clicks.of-all_2": {"0": -2, "31": -1},
    }
    assert json.loads(savepoint.source_offsets("job")) == expected
    planned = flink.FlinkStateImport.of(savepoint)
    assert json.loads(planned.starting_offsets["job"]) == expected
    assert planned.kept == ["job/own as job/own: list, string"]


def test_flink_kafka_consumer_returns_offsets_for_spark(
    tmp_path: Path,
) -> None:
    _, stored = consumed_partitions()
    known = [element for element in stored if element[0] != "q"]
    savepoint = open_job(tmp_path, of_consumer(*(data for *_, data in known)), version=4)
    rows = savepoint.read_state("job", CONSUMER).column("value").to_pylist()
    assert [(row["f0"]["topic"], row["f0"]["partition"], row["f1"]) for row in rows] == [
        element[:3] for element in known
    ]
    expected = {"orders": {"0": 18, "1": 4_000_000_000_001}, "clicks.of-all_2": {"31": -2}}
    assert json.loads(savepoint.source_offsets("job")) == expected


@pytest.mark.parametrize("source", ["KafkaSource", "FlinkKafkaConsumer"])
def test_partition_of_consumer_group_is_reported_states_are_imported(
    source: str, tmp_path: Path
) -> None:
    if source == "KafkaSource":
        [data] = [data for topic, *_, data in splits() if topic == "idle"]
        savepoint = open_job(tmp_path, of_readers(data))
    else:
        [data] = [data for topic, *_, data in consumed_partitions()[1] if topic == "q"]
        savepoint = open_job(tmp_path, of_consumer(data), version=4)
    with pytest.raises(InvalidRequestError, match="was never read"):
        savepoint.source_offsets("job")
    with pytest.raises(InvalidRequestError, match="was never read"):
        flink.FlinkStateImport.of(savepoint)  # there is nothing else


def coordinator_state(*statuses: int, version: int = 2) -> bytes:
    """Return the handle of the source coordinator's state: the status of partitions 0, 1, … of orders."""
    known = each(
        [utf("orders") + i4(number) + i4(status) for number, status in enumerate(statuses)]
    )
    state = known + b"\1"
    return inline(i4(1) + i4(version) + i4(len(state)) + state)


def of_coordinator(directory: Path, coordinator: bytes) -> flink.FlinkSavepoint:
    return open_job(directory, of_readers(kafka_split("orders", 0, 17)), coordinator=coordinator)


def test_unassigned_partition_starts_at_job_offset(tmp_path: Path) -> None:
    savepoint = of_coordinator(tmp_path, coordinator_state(0, 1))
    with pytest.raises(InvalidRequestError, match=r"partition 1 of orders .* OffsetsInitializer"):
        savepoint.source_offsets("job")


@pytest.mark.parametrize(
    ("coordinator", "expected"),
    [
        (coordinator_state(1, 0), {"0": 17}),
        (coordinator_state(0, 2), {"0": 17, "1": -2}),
        (coordinator_state(0, 1, version=3), {"0": 17}),
        (inline(b"other"), {"0": 17}),
    ],
    ids=["read since", "came later", "another version", "another source"],
)
def test_coordinator_partitions_are_added_to_reader_positions(
    tmp_path: Path, coordinator: bytes, expected: dict[str, int]
) -> None:
    savepoint = of_coordinator(tmp_path, coordinator)
    assert json.loads(savepoint.source_offsets("job")) == {"orders": expected}


def test_source_with_unknown_offsets_keeps_states_importable(tmp_path: Path) -> None:
    states: dict[str, tuple[Kind, list[object]]] = {
        "SourceReaderState": (BYTES, [kafka_split("orders", 0, -3)]),
        "own": (LONG, [7]),
    }
    planned = flink.FlinkStateImport.of(open_job(tmp_path, list_states(states)))
    assert planned.kept == ["job/own as job/own: list, int64"]
    assert [lost for lost in planned.read().lost if "partition 0 of orders was never read" in lost]


@pytest.mark.parametrize(
    "values",
    [
        [],
        [b""],
        [kafka_split("orders", 0, 1)[:-1]],
        [kafka_split("é", 0, 1)],
        [kafka_split("a", -1, 1)],
    ],
)
def test_other_sources_have_no_offsets_for_spark(values: list[bytes], tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError):
        open_job(tmp_path, of_readers(*values)).source_offsets("job")


@given(position=st.integers(0, 40), byte=st.integers(0, 255), topic=st.sampled_from([0, 1, 2]))
def test_changed_consumer_partition_is_corruption_or_other_offset(
    position: int, byte: int, topic: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    name, partition, _, data = consumed_partitions()[1][topic]
    changed = bytearray(data)
    changed[position % len(data)] = byte
    directory = tmp_path_factory.mktemp("consumer")
    savepoint = open_job(directory, of_consumer(bytes(changed)), version=4)
    try:
        [row] = savepoint.read_state("job", CONSUMER).column("value").to_pylist()
    except CheckpointError:
        return
    assert row["f0"] in ({"topic": name, "partition": partition}, None)
