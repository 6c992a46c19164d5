"""What a subtask has of a state, and how its rows are read."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol, Self

import pyarrow as pa

from holdfast.flink.metadata import MODES, KeyGroupsHandle, StateFiles
from holdfast.flink.serializers import (
    Serializer,
    in_bytes,
    list_of,
    map_of,
    only_as_bytes,
    several_in_bytes,
)
from holdfast.flink.states.descriptions import KeyedDescription, StateInfo
from holdfast.flink.states.entries import column_names
from holdfast.flink.states.operator_state import OperatorStates
from holdfast.flink.states.raw_timers import raw_timers

BROADCAST = "broadcast"
"""Kind of the states of which each subtask has all."""


class StatePart(Protocol):
    """What a subtask has of a state."""

    def batches(self, *, as_bytes: bool) -> Iterator[pa.RecordBatch]:
        """The rows; with `as_bytes` values are not decoded. Raises `CheckpointError`."""
        ...


class DescribedGroups(Protocol):
    """Keyed state of a subtask, described but not read."""

    @property
    def description(self) -> KeyedDescription:
        """Which states there are."""
        ...

    def described(self, description: KeyedDescription) -> Self:
        """The same with another description."""
        ...

    def columns(self, state: int, files: StateFiles) -> Iterator[tuple[int, list[pa.Array]]]:
        """The columns of a state in each key group that has some. Raises `CheckpointError`."""
        ...


@dataclass(frozen=True, slots=True)
class OperatorPart:
    """A list, union or broadcast state of a subtask."""

    subtask: int
    states: OperatorStates
    name: str
    files: StateFiles

    @property
    def columns(self) -> tuple[tuple[str, pa.DataType], ...]:
        info = self.states.info(self.name)
        mode, _ = self.states.handle.states[self.name]
        is_broadcast = MODES[mode] == BROADCAST
        first = (
            ("key", info.serializer("KEY_SERIALIZER").type)
            if is_broadcast
            else ("subtask", pa.int32())
        )
        return first, ("value", info.value.type)

    def batches(self, *, as_bytes: bool) -> Iterator[pa.RecordBatch]:
        names = [name for name, _ in self.columns]
        for arrays in self.states.blocks(self.name, self.files, as_bytes=as_bytes):
            if len(arrays) == 1:
                arrays.insert(0, _constant(self.subtask, len(arrays[0])))
            yield pa.record_batch(arrays, names)


@dataclass(frozen=True, slots=True)
class KeyedPart:
    """A keyed state of a subtask."""

    groups: DescribedGroups
    number: int
    files: StateFiles
    has_lists_of_lists: bool = False

    @property
    def columns(self) -> tuple[tuple[str, pa.DataType], ...]:
        description = self.groups.description
        columns = column_names(description.states[self.number], description.key)
        if self.has_lists_of_lists:
            columns[-1] = ("value", columns[-1][1].value_type)
        return ("key_group", pa.int32()), *columns

    @property
    def has_bytes(self) -> bool:
        """Whether its values, elements or entries are arrays of bytes."""
        value = self.groups.description.states[self.number].value
        parts = value.parts or (value,)
        return all(
            _without_time(part.type) == pa.binary() and not part.unreadable for part in parts
        )

    def typed(self, serializers: Mapping[str, Serializer]) -> "KeyedPart":
        """The same with values of these serializers in their bytes; see `StoredState.typed`."""
        description = self.groups.description
        info = description.states[self.number]
        is_list = info.type == "list"
        value = (several_in_bytes if is_list else in_bytes)(
            serializers["value"], has_last_access=has_time_to_live(info)
        )
        if info.type == "map":
            value = map_of(in_bytes(serializers["map_key"]), value)
        elif is_list:
            value = list_of(value)
        groups = self.groups.described(_valued(description, self.number, value))
        return replace(self, groups=groups, has_lists_of_lists=is_list)

    def batches(self, *, as_bytes: bool) -> Iterator[pa.RecordBatch]:
        groups = self.groups
        if as_bytes:
            groups = groups.described(_as_bytes(groups.description, self.number))
        names = [name for name, _ in self.columns]
        for group, columns in groups.columns(self.number, self.files):
            if self.has_lists_of_lists and not as_bytes:
                columns[-1] = _flat(columns[-1])
            yield pa.record_batch([_constant(group, len(columns[0])), *columns], names)


@dataclass(frozen=True, slots=True)
class TimersPart:
    """Timers of a service in the raw keyed state of a subtask."""

    handle: KeyGroupsHandle
    service: str
    files: StateFiles

    def batches(self, *, as_bytes: bool) -> Iterator[pa.RecordBatch]:  # noqa: ARG002  # all are decoded
        for group, service, columns in raw_timers(self.handle, self.files):
            if service == self.service:
                names, arrays = zip(*columns, strict=True)
                count = len(arrays[0])
                yield pa.record_batch([_constant(group, count), *arrays], ["key_group", *names])


def has_time_to_live(info: StateInfo) -> bool:
    """Whether values, elements or entries say when they were last used."""
    value = info.value
    if info.type in {"list", "map"} and value.parts:
        value = value.parts[-1]
    return value.has_last_access


def _without_time(type: pa.DataType) -> pa.DataType:
    """The type of values, without the time of their last use."""
    is_timed = pa.types.is_struct(type) and [each.name for each in type] == ["value", "last_access"]
    return type.field("value").type if is_timed else type


def _as_bytes(description: KeyedDescription, number: int) -> KeyedDescription:
    """The same states, but that the values of one are only had as bytes."""
    return _valued(description, number, only_as_bytes())


def _valued(description: KeyedDescription, number: int, value: Serializer) -> KeyedDescription:
    """The same states, but that the values of one have another serializer."""
    states = list(description.states)
    info = states[number]
    states[number] = replace(info, serializers={**info.serializers, "VALUE_SERIALIZER": value})
    return replace(description, states=tuple(states))


def _flat(lists: pa.ListArray) -> pa.Array:
    """Lists with the elements of the lists that are in them."""
    parts = lists.flatten()
    offsets = parts.offsets.take(lists.offsets)
    return pa.ListArray.from_arrays(offsets, parts.values)


def _constant(number: int, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(number, pa.int32()), count)
