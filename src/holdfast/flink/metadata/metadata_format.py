"""Flink's `_metadata` in all its versions, 2 to 7: operators, their subtasks, and handles to their state.

    file      int 0x4960672d, int version, long checkpoint, int n * master, int n * operator [, properties]
    master    int 0xc96b1696, int length { int version, utf name, int n, bytes }
    operator  [from 5: utf name, utf uid] 16 bytes id, int parallelism, int max parallelism,
              coordinator, int subtasks * { int index, subtask }
    subtask   operator handle, raw operator handle, keyed handle, raw keyed handle, channels

Source:
    Flink, MetadataSerializers and MetadataV2V3SerializerBase (2.3.0).
"""

from dataclasses import dataclass

from holdfast.errors import CheckpointError, UnsupportedFormatError
from holdfast.flink.binary import DataInput, damaged
from holdfast.flink.metadata.handles import (
    KeyedHandle,
    OperatorHandle,
    StreamHandle,
    channel_bytes,
    keyed_handle,
    operator_handle,
    stream_handle,
)

_MAGIC = 0x4960672D
_MASTER_MAGIC = 0xC96B1696
VERSIONS = range(2, 8)


@dataclass(frozen=True, slots=True)
class FlinkSubtask:
    """What a subtask has stored.

    Attributes:
        operator: List, union and broadcast states.
        raw_operator: A stream that the function has written.
        keyed: Keyed state.
        raw_keyed: Timers on the heap, beside RocksDB.
        in_flight_bytes: Rows that were between operators, in unaligned checkpoints.
    """

    operator: OperatorHandle | None
    raw_operator: OperatorHandle | None
    keyed: KeyedHandle | None
    raw_keyed: KeyedHandle | None
    in_flight_bytes: int


@dataclass(frozen=True, slots=True)
class FlinkOperator:
    """An operator of a job.

    Attributes:
        id: In hexadecimal digits, made of the uid, or of the job's graph if it has none.
        name: As the web interface shows it; empty before Flink 2.0, which doesn't store it.
        uid: Empty if it has none, or before Flink 2.0, which doesn't store it.
        parallelism: Number of subtasks.
        max_parallelism: Number of key groups.
        coordinator: State of the operator's part on the JobManager, such as a source's splits.
        subtasks: By index; finished ones are missing.
        is_finished: Whether all subtasks had ended.
    """

    id: str
    name: str
    uid: str
    parallelism: int
    max_parallelism: int
    coordinator: StreamHandle | None
    subtasks: dict[int, FlinkSubtask]
    is_finished: bool


@dataclass(frozen=True, slots=True)
class FlinkMetadata:
    """Content of a `_metadata` file.

    Attributes:
        version: The version of the metadata's form.
        checkpoint_id: The number of the checkpoint; savepoints have such a number, too.
        operators: In the order of the file.
    """

    version: int
    checkpoint_id: int
    operators: tuple[FlinkOperator, ...]


def parse_metadata(data: bytes) -> FlinkMetadata:
    """Read a `_metadata` file.

    Raises:
        CheckpointCorruptedError: It is damaged.
        UnsupportedFormatError: It is none of Flink's, or of an unknown version.
    """
    source = DataInput(data)
    if source.left < 8 or source.read_int() != _MAGIC:
        message = (
            "the file doesn't begin like metadata of Flink; `holdfast show` reads Holdfast's own"
        )
        raise UnsupportedFormatError(message)
    version = source.read_int()
    if version not in VERSIONS:
        message = (
            f"the metadata is of version {version}, and Holdfast reads {VERSIONS[0]} to {VERSIONS[-1]}: "
            "those of Flink 1.3 to 2.3"
        )
        raise UnsupportedFormatError(message)
    checkpoint_id = source.read_long()
    for _ in range(source.count(8)):
        _skip_master(source)
    operators = []
    for number in range(source.count(16)):
        try:
            operators.append(_operator(source, version))
        except CheckpointError as error:
            last = f" behind operator {operators[-1].id}" if operators else ""
            raise type(error)(f"{error.args[0]} (operator {number}{last})") from error
    return FlinkMetadata(version, checkpoint_id, tuple(operators))


def _skip_master(source: DataInput) -> None:
    source.expect(_MASTER_MAGIC, "state of the master")
    source.take(source.count())


def _operator(source: DataInput, version: int) -> FlinkOperator:
    name = uid = ""
    if version >= 5:
        name, uid = source.utf(), source.utf()
    id = source.take(16).hex()
    parallelism, max_parallelism = source.read_int(), source.read_int()
    if not (0 <= parallelism <= 1 << 15 and -1 <= max_parallelism <= 1 << 15):
        raise damaged(f"an operator has {parallelism} subtasks and {max_parallelism} key groups")
    coordinator = None
    if version == 2:
        source.read_int()
    else:
        coordinator = stream_handle(source)
    count = source.read_int()
    if count > min(parallelism, source.left // 4):
        raise damaged(f"an operator of {parallelism} subtasks has the state of {count}")
    subtasks = {}
    for _ in range(count):
        index = source.read_int()
        if index < 0 and version >= 3:
            continue  # it had ended
        if not 0 <= index < parallelism or index in subtasks:
            raise damaged(f"there is a subtask {index} of {parallelism}")
        subtasks[index] = _subtask(source, version)
    return FlinkOperator(
        id, name, uid, parallelism, max_parallelism, coordinator, subtasks, is_finished=count < 0
    )


def _subtask(source: DataInput, version: int) -> FlinkSubtask:
    if version == 2:
        source.take(12)
    operator, raw_operator = _optional(source), _optional(source)
    keyed, raw_keyed = keyed_handle(source), keyed_handle(source)
    in_flight = 0
    if version >= 3:
        for _ in range(2):  # channels of what comes in, and of what goes out
            for _ in range(source.count(16)):
                in_flight += channel_bytes(source, has_kind=version >= 6)
    if version >= 7 and source.byte():
        source.read_long()
    return FlinkSubtask(operator, raw_operator, keyed, raw_keyed, in_flight)


def _optional(source: DataInput) -> OperatorHandle | None:
    number = source.read_int()
    if number not in {0, 1}:
        raise damaged(f"a subtask has {number} operator states of one kind")
    return operator_handle(source) if number else None
