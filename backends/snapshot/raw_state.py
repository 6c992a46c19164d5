"""Raw state: bytes of the user's own format, cut into the units that a rescaled job spreads.

The bytes that are written between two starts are one unit: a partition of operator state, or a key group of
keyed state. It is read back as a file of its own.
"""

import io
import operator
from collections.abc import Generator, Iterable, Sequence
from itertools import pairwise

from holdfast.backends.keys import KeyGroupRange
from holdfast.backends.snapshot import BoundedInputStream, StateSource, location_of
from holdfast.errors import CheckpointCorruptedError, InvalidRequestError, StreamClosedError
from holdfast.locations.file_systems import BytesLike
from holdfast.locations.handles import (
    KeyGroupsStateHandle,
    RawOperatorStateHandle,
    StreamStateHandle,
)
from holdfast.locations.storages import CheckpointStateOutputStream


class _RawStateOutputStream(io.RawIOBase):
    """A state stream in the user's hands: a binary file without `seek`, whose `close` does nothing.

    Positions begin at 0 in each unit, so that what notes positions, such as Arrow and Parquet
    files, is the same there as in a file of its own.

    Args:
        stream: Where the bytes go. Whoever made the stream closes it, if there is to be no handle.
    """

    def __init__(self, stream: CheckpointStateOutputStream) -> None:
        self._stream = stream
        self._first = stream.tell()
        self._starts: list[int] = []  # of the units, in the order of their bytes
        self._finished = False

    def writable(self) -> bool:
        return True

    def write(self, data: BytesLike, /) -> int:  # type: ignore[override]  # 3.11 has no Buffer
        return self._stream.write(data)

    def tell(self) -> int:
        return self._stream.tell() - (self._starts[-1] if self._starts else self._first)

    def flush(self) -> None:
        self._stream.flush()

    def sync(self) -> None:
        """Make what the store has durable, as far as it can before the end."""
        self._stream.sync()

    def close(self) -> None:
        """Nothing: the stream is the system's to close."""

    @property
    def closed(self) -> bool:
        """Return whether the system has ended the stream. Files that users put in front of it look closed, too."""
        return self._finished

    def end(self) -> None:
        """Refuse further writes; the system calls it when `snapshot_state` has returned.

        Buffers that a user has put in front of the stream, and has not let go of, would flush into it later.
        """
        self._finished = True

    def _start(self) -> None:
        if self._finished:
            raise StreamClosedError("raw state is complete; nothing more can be started")
        self._starts.append(self._stream.tell())

    def _finish(self) -> tuple[list[tuple[int, int]], StreamStateHandle | None]:
        """Offset and length of each unit, and the handle to the bytes of all."""
        self.end()
        bounds = [*self._starts, self._stream.tell()]
        handle = self._stream.close_and_get_handle()
        return [(start, end - start) for start, end in pairwise(bounds)], handle


class OperatorStateCheckpointOutputStream(_RawStateOutputStream):
    """Raw operator state in the making: partitions, one behind the other.

    Bytes that are written before the first `start_new_partition` are a partition too.

    Source:
        Flink, OperatorStateCheckpointOutputStream, whose offset of such a partition is wrong.
    """

    @property
    def number_of_partitions(self) -> int:
        """Number of partitions that were begun."""
        return len(self._starts)

    def start_new_partition(self) -> None:
        """Begin a partition; it ends where the next one begins, and may be empty.

        Raises:
            StreamClosedError: The snapshot is complete.
        """
        self._start()

    def write(self, data: BytesLike, /) -> int:  # type: ignore[override]
        if not self._starts and memoryview(data).nbytes:
            self._start()
        return super().write(data)

    def close_and_get_handle(self) -> RawOperatorStateHandle | None:
        """Keep what was written; None if that was nothing. The system calls it.

        Raises what the stream's own success call raises.
        """
        partitions, handle = self._finish()
        return RawOperatorStateHandle(tuple(partitions), handle) if handle else None


class KeyedStateCheckpointOutputStream(_RawStateOutputStream):
    """Raw keyed state in the making: each key group of a range at most once, in any order.

    Args:
        stream: Where the bytes go.
        key_group_range: The subtask's key groups.

    Source:
        Flink, KeyedStateCheckpointOutputStream. There the bytes before the first key group are
        written and never found again; here they are refused.
    """

    def __init__(self, stream: CheckpointStateOutputStream, key_group_range: KeyGroupRange) -> None:
        super().__init__(stream)
        self._key_groups = key_group_range
        self._started: dict[int, None] = {}  # in the order of their bytes

    @property
    def key_group_range(self) -> KeyGroupRange:
        """The subtask's key groups."""
        return self._key_groups

    @property
    def current_key_group(self) -> int | None:
        """The key group begun last; None before the first."""
        return next(reversed(self._started), None)

    def is_key_group_started(self, key_group: int) -> bool:
        """Return whether the key group was begun."""
        return key_group in self._started

    def is_key_group_finished(self, key_group: int) -> bool:
        """Return whether the key group was begun, and nothing can be added to it."""
        return key_group in self._started and (
            self._finished or key_group != self.current_key_group
        )

    def start_new_key_group(self, key_group: int) -> None:
        """Begin a key group; it ends where the next one begins, and may be empty.

        Raises:
            InvalidRequestError: The key group is none of this subtask's, or was begun before.
            StreamClosedError: The snapshot is complete.
        """
        key_group = operator.index(key_group)  # also one of NumPy's
        if key_group not in self._key_groups:
            first, last = self._key_groups.start_key_group, self._key_groups.end_key_group
            message = (
                f"key group {key_group} is none of this subtask's, which are {first} to {last}; "
                "a key that is not deterministic leads there: one whose hash changes between "
                "calls or processes"
            )
            raise InvalidRequestError(message)
        if key_group in self._started and not self._finished:
            message = f"key group {key_group} already registered; each is written in one piece"
            raise InvalidRequestError(message)
        self._start()
        self._started[key_group] = None

    def write(self, data: BytesLike, /) -> int:  # type: ignore[override]
        if not self._started:
            raise InvalidRequestError("raw keyed state belongs to a key group; start one first")
        return super().write(data)

    def close_and_get_handle(self) -> KeyGroupsStateHandle | None:
        """Keep what was written; None if that was nothing. The system calls it.

        Raises what the stream's own success call raises.
        """
        units, handle = self._finish()
        by_group = dict(zip(self._started, units, strict=True))
        bounds = (self._key_groups.start_key_group, self._key_groups.end_key_group)
        partitions = tuple(map(by_group.get, self._key_groups))
        return KeyGroupsStateHandle(bounds, partitions, handle) if handle else None


class StatePartitionStream(io.BufferedReader):
    """The bytes of one unit of raw state, read as a file: it begins at 0 and ends with the unit.

    Nothing is opened before the first read, which raises `CheckpointNotFoundError` if the state
    is gone, and `CheckpointCorruptedError` if it is not what was written.
    """

    def __init__(self, partition: BoundedInputStream) -> None:
        super().__init__(partition)


class KeyGroupStatePartitionStream(StatePartitionStream):
    """The bytes of one key group.

    Attributes:
        key_group: The key group's number.
    """

    def __init__(self, partition: BoundedInputStream, key_group: int) -> None:
        super().__init__(partition)
        self.key_group = key_group


def raw_operator_partitions(
    handles: Iterable[RawOperatorStateHandle],
) -> Generator[StatePartitionStream]:
    """The partitions behind the handles, in order; empty ones too.

    Each stream is closed when the next one is asked for, and the last one with the generator.
    """
    for handle in handles:
        with StateSource(handle.stream) as source:
            for offset, length in handle.partitions:
                with StatePartitionStream(BoundedInputStream(source, offset, length)) as stream:
                    yield stream


def raw_key_groups(
    handles: Iterable[KeyGroupsStateHandle],
) -> Generator[KeyGroupStatePartitionStream]:
    """The key groups behind the handles that were begun, in the order in which they were written.

    Each stream is closed when the next one is asked for, and the last one with the generator.

    Raises:
        CheckpointCorruptedError: A handle has another number of partitions than of key groups.
    """
    for handle in handles:
        with StateSource(handle.stream) as source:
            for key_group, (offset, length) in _in_written_order(handle):
                partition = BoundedInputStream(source, offset, length)
                with KeyGroupStatePartitionStream(partition, key_group) as stream:
                    yield stream


def _in_written_order(handle: KeyGroupsStateHandle) -> Sequence[tuple[int, tuple[int, int]]]:
    first, last = handle.key_groups
    if len(handle.partitions) != last - first + 1:
        message = f"{len(handle.partitions)} partitions for key groups {first} to {last}"
        raise CheckpointCorruptedError(message, location_of(handle.stream))
    begun = [
        (key_group, partition)
        for key_group, partition in enumerate(handle.partitions, first)
        if partition is not None
    ]
    return sorted(begun, key=lambda item: item[1])
