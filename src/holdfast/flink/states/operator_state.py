"""Operator state of a subtask: lists, unions and broadcast states, each element at its own offset.

    list, union  an element at each offset
    broadcast    at the only offset int n, n * { key, value }

If state is compressed, offsets are those of Snappy chunks, and each element starts a chunk.

Source:
    Flink, OperatorStateRestoreOperation and PartitionableListState (2.3.0).
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from holdfast.errors import InvalidRequestError
from holdfast.flink.binary import corrupted_error, decompress_streams
from holdfast.flink.handles import OperatorHandle
from holdfast.flink.serializers import Serializer, list_of, only_as_bytes, struct_of
from holdfast.flink.state_files import StateFiles, StateStream
from holdfast.flink.states.descriptions import OperatorDescription, StateInfo, operator_description
from holdfast.flink.states.entries import Columns, constant, decode_column

BROADCAST = "broadcast"
"""Type of states that each subtask has completely."""
_BLOCK_BYTES, _BLOCK_ELEMENTS = 4 << 20, 1 << 16


@dataclass(frozen=True, slots=True)
class OperatorStates:
    """Operator state of a subtask, described but not read."""

    handle: OperatorHandle
    description: OperatorDescription

    @classmethod
    def of(cls, handle: OperatorHandle, files: StateFiles) -> "OperatorStates":
        """Read only the description. Raises `CheckpointError`."""
        with files.open(handle.stream) as stream:
            offsets = _positions(handle, stream.size)
            return cls(handle, operator_description(files.input(stream, 0, offsets[0])))

    def info(self, name: str) -> StateInfo:
        """Return the description of a state of the handle. Raises `CheckpointCorruptedError`."""
        mode, _ = self.handle.states[name]
        infos = self.description.broadcasts if mode == BROADCAST else self.description.lists
        for info in infos:
            if info.name == name:
                return info
        raise corrupted_error(f"state {name!r} has elements but no description")

    def blocks(self, name: str, files: StateFiles, *, as_bytes: bool) -> Iterator[list[pa.Array]]:
        """Read the elements of a state in blocks, at least one: values, or keys and values of a broadcast state.

        Elements of lists are left undecoded with `as_bytes`. Raises `CheckpointError`.
        """
        mode, offsets = self.handle.states[name]
        info = self.info(name)
        serializers = [info.value]
        if mode == BROADCAST:
            serializers.insert(0, info.serializer("KEY_SERIALIZER"))
        if not offsets:
            yield [pa.array([], serializer.type) for serializer in serializers]
            return
        with files.open(self.handle.stream) as stream:
            for data, starts, ends in self._elements(stream, offsets):
                if mode == BROADCAST:
                    if as_bytes:
                        message = "values of a broadcast state can't be read as bytes"
                        raise InvalidRequestError(message)
                    yield _broadcast(data, starts, serializers)
                else:
                    value = only_as_bytes() if as_bytes else info.value
                    places = zip(starts, ends, strict=True)
                    yield [decode_column(value, [data[start:end] for start, end in places])]

    def _elements(
        self, stream: StateStream, offsets: Sequence[int]
    ) -> Iterator[tuple[bytes, list[int], list[int]]]:
        """Return the bytes with the starts and the latest possible ends of elements."""
        positions = _positions(self.handle, stream.size)
        if not self.description.is_compressed:
            ends = _ends(offsets, dict(itertools.pairwise(positions)))
            for block in _blocks(offsets, ends):
                first = min(offsets[block])
                data = stream.read(first, max(ends[block]))
                starts = [offset - first for offset in offsets[block]]
                yield data, starts, [end - first for end in ends[block]]
            return
        # The header of the stream is not at an offset, only its first chunk.
        [whole] = decompress_streams(stream.read(positions[0], stream.size), has_header=True)
        try:
            places = [whole.positions[offset - positions[0]] for offset in positions]
        except KeyError as error:
            raise corrupted_error("an element doesn't start at a compressed chunk") from error
        place = dict(zip(positions, places, strict=True))
        starts = [place[offset] for offset in offsets]
        ends = _ends(starts, dict(itertools.pairwise(places)))
        for block in _blocks(starts, ends):
            yield whole.data, starts[block], ends[block]


@dataclass(frozen=True, slots=True)
class OperatorPart:
    subtask: int
    states: OperatorStates
    name: str
    files: StateFiles

    @property
    def kind(self) -> str:
        mode, _ = self.states.handle.states[self.name]
        return mode

    @property
    def columns(self) -> Columns:
        info = self.states.info(self.name)
        first = ("subtask", pa.int32())
        if self.kind == BROADCAST:
            first = ("key", info.serializer("KEY_SERIALIZER").type)
        return first, ("value", info.value.type)

    def batches(self, *, as_bytes: bool) -> Iterator[pa.RecordBatch]:
        names = [name for name, _ in self.columns]
        for arrays in self.states.blocks(self.name, self.files, as_bytes=as_bytes):
            if self.kind != BROADCAST:
                arrays.insert(0, constant(self.subtask, len(arrays[0])))
            yield pa.record_batch(arrays, names)


def _ends(starts: Sequence[int], next_starts: dict[int, int]) -> list[int]:
    """Return the ends of elements: the next start of anything. Elements may be empty."""
    nexts = [*starts[1:], -1]
    return [
        start if start == later else next_starts.get(start, start)
        for start, later in zip(starts, nexts, strict=True)
    ]


def _blocks(starts: Sequence[int], ends: Sequence[int]) -> Iterator[slice]:
    """Group adjacent elements that are read at once; all of them if they are unordered."""
    if any(start > later for start, later in itertools.pairwise(starts)):
        yield slice(0, len(starts))
        return
    first = 0
    for number, end in enumerate(ends):
        is_full = number - first == _BLOCK_ELEMENTS or end - starts[first] > _BLOCK_BYTES
        if is_full and number > first:
            yield slice(first, number)
            first = number
    yield slice(first, len(starts))


def _positions(handle: OperatorHandle, size: int) -> list[int]:
    """Return all offsets of the stream in order, and its end."""
    offsets = {offset for _, state in handle.states.values() for offset in state}
    positions = sorted({*offsets, size})
    if positions[0] < 0 or positions[-1] != size:
        raise corrupted_error("an element starts outside of its stream")
    return positions


def _broadcast(data: bytes, starts: list[int], serializers: list[Serializer]) -> list[pa.Array]:
    for serializer in serializers:
        if serializer.unreadable:
            serializer.read(data, 0)
    [key, value] = serializers
    pairs = list_of(struct_of({"key": key, "value": value}))
    rows = [row for start in starts for row in pairs.read(data, start)[0]]
    columns: list[pa.Array] = pa.array(rows, pairs.type.value_type).flatten()
    return columns
