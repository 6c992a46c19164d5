"""Flink's `_metadata` in all its versions, 2 to 7: operators, their subtasks, and handles of their state.

    file      int 0x4960672d, int version, long checkpoint, int n * master, int n * operator [, properties]
    master    int 0xc96b1696, int length { int version, utf name, int n, bytes }
    operator  [from 5: utf name, utf uid] 16 bytes id, int parallelism, int max parallelism,
              coordinator, int subtasks * { int index, subtask }
    subtask   operator handle, raw operator handle, keyed handle, raw keyed handle, channels

Source:
    Flink, MetadataSerializers and MetadataV2V3SerializerBase (2.3.0). For ids of operators: Flink,
    StreamGraphHasherV2.generateUserSpecifiedHash; Guava, Hashing.murmur3_128 with seed 0.
"""

from dataclasses import dataclass

from holdfast.errors import CheckpointError, UnsupportedFormatError
from holdfast.flink.binary import DataInput, corrupted_error
from holdfast.flink.handles import (
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
    """The stored state of a subtask.

    Attributes:
        operator: List, union and broadcast states.
        keyed: Keyed state.
        raw_keyed: Timers on the heap in a job with RocksDB.
        in_flight_bytes: Size of the rows between operators in an unaligned checkpoint.
    """

    operator: OperatorHandle | None
    keyed: KeyedHandle | None
    raw_keyed: KeyedHandle | None
    in_flight_bytes: int


@dataclass(frozen=True, slots=True)
class FlinkOperator:
    """An operator of a job.

    Attributes:
        id: Hexadecimal id, derived from the uid, or from the job's graph without one.
        name: Name in the web interface; empty before Flink 2.0, which does not store it.
        uid: Empty without one, or before Flink 2.0, which does not store it.
        parallelism: Number of subtasks.
        max_parallelism: Number of key groups.
        coordinator: State of the operator's coordinator on the JobManager, such as a source's splits.
        subtasks: By index, without finished ones.
    """

    id: str
    name: str
    uid: str
    parallelism: int
    max_parallelism: int
    coordinator: StreamHandle | None
    subtasks: dict[int, FlinkSubtask]

    @property
    def in_flight_bytes(self) -> int:
        return sum(subtask.in_flight_bytes for subtask in self.subtasks.values())


@dataclass(frozen=True, slots=True)
class FlinkMetadata:
    """Content of a `_metadata` file of a format `version`, with operators in the order of the file."""

    version: int
    checkpoint_id: int
    operators: tuple[FlinkOperator, ...]


def parse_metadata(data: bytes) -> FlinkMetadata:
    """Read a `_metadata` file. Raises `CheckpointCorruptedError` and `UnsupportedFormatError`."""
    source = DataInput(data)
    if source.left < 8 or source.read_int() != _MAGIC:
        message = (
            "the file does not start like Flink metadata; use `holdfast show` for Holdfast's own"
        )
        raise UnsupportedFormatError(message)
    version = source.read_int()
    if version not in VERSIONS:
        message = (
            f"the metadata has version {version}; Holdfast reads {VERSIONS[0]} to {VERSIONS[-1]}, "
            "of Flink 1.3 to 2.3"
        )
        raise UnsupportedFormatError(message)
    checkpoint_id = source.read_long()
    for _ in range(source.count(8)):
        source.expect(_MASTER_MAGIC, "state of the master")
        source.take(source.count())
    operators = []
    for number in range(source.count(16)):
        try:
            operators.append(_operator(source, version))
        except CheckpointError as error:
            last = f" after operator {operators[-1].id}" if operators else ""
            raise type(error)(f"{error.args[0]} (operator {number}{last})") from error
    return FlinkMetadata(version, checkpoint_id, tuple(operators))


def _operator(source: DataInput, version: int) -> FlinkOperator:
    name = uid = ""
    if version >= 5:
        name, uid = source.utf(), source.utf()
    id = source.take(16).hex()
    parallelism, max_parallelism = source.read_int(), source.read_int()
    if not (0 <= parallelism <= 1 << 15 and -1 <= max_parallelism <= 1 << 15):
        raise corrupted_error(
            f"an operator has {parallelism} subtasks and {max_parallelism} key groups"
        )
    coordinator = stream_handle(source) if version > 2 else None
    if version == 2:
        source.read_int()
    count = source.read_int()
    if count > min(parallelism, source.left // 4):
        raise corrupted_error(f"an operator of {parallelism} subtasks has the state of {count}")
    subtasks = {}
    for _ in range(count):
        index = source.read_int()
        if index < 0 and version >= 3:
            continue  # it has finished
        if not 0 <= index < parallelism or index in subtasks:
            raise corrupted_error(
                f"subtask index {index} is not below the parallelism {parallelism}"
            )
        subtasks[index] = _subtask(source, version)
    return FlinkOperator(id, name, uid, parallelism, max_parallelism, coordinator, subtasks)


def _subtask(source: DataInput, version: int) -> FlinkSubtask:
    if version == 2:
        source.take(12)
    operator, _raw_operator = _optional(source), _optional(source)
    keyed, raw_keyed = keyed_handle(source), keyed_handle(source)
    in_flight = 0
    if version >= 3:
        for _ in range(2):  # input channels, then output channels
            for _ in range(source.count(16)):
                in_flight += channel_bytes(source, has_kind=version >= 6)
    if version >= 7 and source.byte():
        source.read_long()
    return FlinkSubtask(operator, keyed, raw_keyed, in_flight)


def _optional(source: DataInput) -> OperatorHandle | None:
    number = source.read_int()
    if number not in {0, 1}:
        raise corrupted_error(f"a subtask has {number} operator states of one type")
    return operator_handle(source) if number else None


_MASK = (1 << 64) - 1
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F


def operator_id(uid: str) -> str:
    """Return the hexadecimal id of the operator with a uid; metadata before Flink 2.0 has only ids."""
    data = uid.encode()
    h1 = h2 = 0
    whole = len(data) & ~15
    for start in range(0, whole, 16):
        h1 ^= _mix(_half(data, start), _C1, 31, _C2)
        h1 = ((_rotate(h1, 27) + h2) * 5 + 0x52DCE729) & _MASK
        h2 ^= _mix(_half(data, start + 8), _C2, 33, _C1)
        h2 = ((_rotate(h2, 31) + h1) * 5 + 0x38495AB5) & _MASK
    h2 ^= _mix(_half(data, whole + 8), _C2, 33, _C1)
    h1 ^= _mix(_half(data, whole), _C1, 31, _C2)
    h1 ^= len(data)
    h2 ^= len(data)
    h1 = (h1 + h2) & _MASK
    h2 = (h2 + h1) & _MASK
    h1, h2 = _finalize(h1), _finalize(h2)
    h1 = (h1 + h2) & _MASK
    h2 = (h2 + h1) & _MASK
    return (h1.to_bytes(8, "little") + h2.to_bytes(8, "little")).hex()


def _half(data: bytes, start: int) -> int:
    return int.from_bytes(data[start : start + 8], "little")


def _mix(half: int, first: int, bits: int, second: int) -> int:
    return _rotate(half * first & _MASK, bits) * second & _MASK


def _rotate(word: int, bits: int) -> int:
    return (word << bits | word >> (64 - bits)) & _MASK


def _finalize(h: int) -> int:
    h = (h ^ h >> 33) * 0xFF51AFD7ED558CCD & _MASK
    h = (h ^ h >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return h ^ h >> 33
