"""Raw state: bytes in the user's own format, in units that a rescaled job redistributes.

The bytes between two starts are one unit: a partition of operator state, or a key group of keyed state. Each unit is read
as a separate file.
"""

import io
import operator
from collections.abc import Generator, Iterable, Sequence
from itertools import pairwise

from holdfast.backends.keys import KeyGroupRange
from holdfast.backends.snapshot.section import BoundedInputStream, StateSource, location_of
from holdfast.errors import CheckpointCorruptedError, InvalidRequestError, StreamClosedError
from holdfast.locations.file_systems import BytesLike
from holdfast.locations.handles import (
    KeyGroupsStateHandle,
    RawOperatorStateHandle,
    StreamStateHandle,
)
from holdfast.locations.storages import CheckpointStateOutputStream


class _RawStateOutputStream(io.RawIOBase):
    """A state stream for user code: a binary file without `seek`, whose `close` does nothing.

    Positions begin at 0 in each unit, so that formats that store positions, such as Arrow and Parquet, are the same as in
    a separate file. The owner of the stream that the bytes are written to closes it, if the state is discarded.
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
        """Make the written bytes durable, as far as the store can before the end."""
        self._stream.sync()

    def close(self) -> None:
        """Do nothing: Holdfast closes the stream."""

    @property
    def closed(self) -> bool:
        """Return whether Holdfast has ended the stream. Files of the user around it report that they are closed, too."""
        return self._finished

    def end(self) -> None:
        """Refuse further writes; Holdfast calls it after `snapshot_state`.

        A buffer of the user around the stream that still exists would flush into it later.
        """
        self._finished = True

    def _start(self) -> None:
        if self._finished:
            raise StreamClosedError("raw state is complete; no further part can be started")
        self._starts.append(self._stream.tell())

    def _finish(self) -> tuple[list[tuple[int, int]], StreamStateHandle | None]:
        """Close the stream; returns offset and length of each unit, and the handle to the bytes of all."""
        self.end()
        bounds = [*self._starts, self._stream.tell()]
        handle = self._stream.close_and_get_handle()
        return [(start, end - start) for start, end in pairwise(bounds)], handle


class OperatorStateCheckpointOutputStream(_RawStateOutputStream):
    """The output stream of raw operator state: partitions, one after the other.

    Bytes that are written before the first `start_new_partition` are a partition too.

    Source:
        Flink, OperatorStateCheckpointOutputStream, which stores a wrong offset for that partition.
    """

    @property
    def number_of_partitions(self) -> int:
        """Number of partitions that were started."""
        return len(self._starts)

    def start_new_partition(self) -> None:
        """Start a partition; it ends at the start of the next one, and may be empty.

        Raises:
            StreamClosedError: The snapshot is complete.
        """
        self._start()

    def write(self, data: BytesLike, /) -> int:  # type: ignore[override]  # typeshed's buffer is wider
        if not self._starts and memoryview(data).nbytes:
            self._start()
        return super().write(data)

    def close_and_get_handle(self) -> RawOperatorStateHandle | None:
        """Keep the written bytes; returns None without bytes. Holdfast calls it. Raises what the stream raises."""
        partitions, handle = self._finish()
        return RawOperatorStateHandle(tuple(partitions), handle) if handle else None


class KeyedStateCheckpointOutputStream(_RawStateOutputStream):
    """The output stream of raw keyed state: each key group of a range at most once, in any order.

    Source:
        Flink, KeyedStateCheckpointOutputStream, which writes bytes before the first key group and never reads them; this
        one refuses them.
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
        """The key group that was started last; None before the first."""
        return next(reversed(self._started), None)

    def is_key_group_started(self, key_group: int) -> bool:
        """Return whether the key group was started."""
        return key_group in self._started

    def is_key_group_finished(self, key_group: int) -> bool:
        """Return whether the key group was started and can't be written to any longer."""
        return key_group in self._started and (
            self._finished or key_group != self.current_key_group
        )

    def start_new_key_group(self, key_group: int) -> None:
        """Start a key group; it ends at the start of the next one, and may be empty.

        Raises:
            InvalidRequestError: The key group belongs to another subtask, or was started before.
            StreamClosedError: The snapshot is complete.
        """
        key_group = operator.index(key_group)  # of an integer of NumPy, too
        if key_group not in self._key_groups:
            first, last = self._key_groups.start_key_group, self._key_groups.end_key_group
            raise InvalidRequestError(
                f"key group {key_group} belongs to another subtask, this one has {first} to {last}; "
                "the cause is a key that is not deterministic: its hash changes between calls or "
                "processes"
            )
        if key_group in self._started and not self._finished:
            message = f"key group {key_group} was already started; write all of its bytes at once"
            raise InvalidRequestError(message)
        self._start()
        self._started[key_group] = None

    def write(self, data: BytesLike, /) -> int:  # type: ignore[override]  # typeshed's buffer is wider
        if not self._started:
            raise InvalidRequestError(
                "raw keyed state belongs to a key group; start a key group first"
            )
        return super().write(data)

    def close_and_get_handle(self) -> KeyGroupsStateHandle | None:
        """Keep the written bytes; returns None without bytes. Holdfast calls it. Raises what the stream raises."""
        units, handle = self._finish()
        by_group = dict(zip(self._started, units, strict=True))
        bounds = (self._key_groups.start_key_group, self._key_groups.end_key_group)
        partitions = tuple(map(by_group.get, self._key_groups))
        return KeyGroupsStateHandle(bounds, partitions, handle) if handle else None


class StatePartitionStream(io.BufferedReader):
    """The bytes of one unit of raw state as a file, which begins at 0 and ends with the unit.

    It opens the state with the first read, which raises `CheckpointNotFoundError` if the state is gone, and
    `CheckpointCorruptedError` if the bytes have changed.
    """


class KeyGroupStatePartitionStream(StatePartitionStream):
    """The bytes of one key group, whose number is `key_group`."""

    def __init__(self, partition: BoundedInputStream, key_group: int) -> None:
        super().__init__(partition)
        self.key_group = key_group


def raw_operator_partitions(
    handles: Iterable[RawOperatorStateHandle],
) -> Generator[StatePartitionStream]:
    """Read the partitions of handles, in order, with empty ones.

    Each stream is closed before the next one, and the last one with the generator.
    """
    for handle in handles:
        with StateSource(handle.stream) as source:
            for offset, length in handle.partitions:
                with StatePartitionStream(BoundedInputStream(source, offset, length)) as stream:
                    yield stream


def raw_key_groups(
    handles: Iterable[KeyGroupsStateHandle],
) -> Generator[KeyGroupStatePartitionStream]:
    """Read the key groups of handles that were started, in the order in which they were written.

    Each stream is closed before the next one, and the last one with the generator.

    Raises:
        CheckpointCorruptedError: The numbers of partitions and of key groups in a handle differ.
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
    started = [
        (key_group, partition)
        for key_group, partition in enumerate(handle.partitions, first)
        if partition is not None
    ]
    return sorted(started, key=lambda item: item[1])
