"""Handles to operator state: managed, which is states by name, and raw, which is partitions."""

from enum import IntEnum

import msgspec

from holdfast.common import MAX_INT64, Count
from holdfast.locations.handles.state_handle import InOneStream, flaw_of_parts
from holdfast.locations.handles.stream_handles import StreamStateHandle


class OperatorStateMode(IntEnum):
    """How a state's elements are spread over subtasks when a job is restored.

    The numbers are stored and never change.

    Source:
        Flink, OperatorStateHandle.Mode: the same names and ordinals.
    """

    SPLIT_DISTRIBUTE = 0
    UNION = 1
    BROADCAST = 2


class StatePartitions(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where one named state lies in its stream, and which of its elements belong to a subtask.

    Elements are counted, not listed by offset: a range of rows can be cut at any element
    without an entry for each.

    Attributes:
        mode: How elements are spread when restored.
        offset: First byte of the state's section in the stream.
        length: Length of the section in bytes.
        first: Index of the first element that counts.
        count: Number of elements that count.
        is_copy: Whether the elements belong to another subtask, which stores them: this subtask
            has them only if it asks for the state. A restart gives every subtask such copies of
            union states; a checkpoint never has any.
    """

    mode: OperatorStateMode
    offset: Count
    length: Count
    first: Count
    count: Count
    is_copy: bool = False


class OperatorStateHandle(InOneStream, frozen=True):
    """One subtask's managed operator state.

    Attributes:
        states: Where each state is, by its name.
        stream: The bytes of all of them.
    """

    states: dict[str, StatePartitions]
    stream: StreamStateHandle

    def flaw(self) -> str | None:
        for state in self.states.values():
            if state.first + state.count > MAX_INT64:
                return f"elements {state.first} to {state.first + state.count}"
        sections = ((state.offset, state.length) for state in self.states.values())
        return flaw_of_parts(sections, self.size)


class RawOperatorStateHandle(InOneStream, frozen=True):
    """One subtask's raw operator state: bytes in the user's own format, cut into partitions.

    A partition is the unit that is spread over subtasks, always by `SPLIT_DISTRIBUTE`.

    Attributes:
        partitions: Offset and length in the stream, in bytes, of each partition that counts.
        stream: The bytes of all partitions.
    """

    partitions: tuple[tuple[Count, Count], ...]
    stream: StreamStateHandle

    def flaw(self) -> str | None:
        return flaw_of_parts(self.partitions, self.size)
