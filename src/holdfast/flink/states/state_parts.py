"""A subtask's part of a state, and the reading of its rows."""

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
"""Type of states that each subtask has completely."""


class StatePart(Protocol):
    """A subtask's part of a state."""

    def batches(self, *, as_bytes: bool) -> Iterator[pa.RecordBatch]:
        """Read the rows; `as_bytes` leaves values undecoded. Raises `CheckpointError`."""
        ...


class DescribedGroups(Protocol):
    """Keyed state of a subtask, described but not read."""

    @property
    def description(self) -> KeyedDescription:
        """The states."""
        ...

    def with_description(self, description: KeyedDescription) -> Self:
        """Return a copy with another description."""
        ...

    def columns(self, state: int, files: StateFiles) -> Iterator[tuple[int, list[pa.Array]]]:
        """Return the columns of a state in each key group with entries. Raises `CheckpointError`."""
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
        """True if its values, elements or entries are byte arrays."""
        value = self.groups.description.states[self.number].value
        parts = value.parts or (value,)
        return all(
            _without_time(part.type) == pa.binary() and not part.unreadable for part in parts
        )

    def with_types(self, serializers: Mapping[str, Serializer]) -> "KeyedPart":
        """Return a copy that decodes bytes with other serializers; see `StoredState.with_types`."""
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
        groups = self.groups.with_description(
            _with_value_serializer(description, self.number, value)
        )
        return replace(self, groups=groups, has_lists_of_lists=is_list)

    def batches(self, *, as_bytes: bool) -> Iterator[pa.RecordBatch]:
        groups = self.groups
        if as_bytes:
            groups = groups.with_description(_as_bytes(groups.description, self.number))
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

    def batches(self, *, as_bytes: bool) -> Iterator[pa.RecordBatch]:  # noqa: ARG002  # always decoded
        for group, service, columns in raw_timers(self.handle, self.files):
            if service == self.service:
                names, arrays = zip(*columns, strict=True)
                count = len(arrays[0])
                yield pa.record_batch([_constant(group, count), *arrays], ["key_group", *names])


def has_time_to_live(info: StateInfo) -> bool:
    """Return whether values, elements or entries have the time of their last use."""
    value = info.value
    if info.type in {"list", "map"} and value.parts:
        value = value.parts[-1]
    return value.has_last_access


def _without_time(type: pa.DataType) -> pa.DataType:
    """Return the type of values without the time of their last use."""
    is_timed = pa.types.is_struct(type) and [each.name for each in type] == ["value", "last_access"]
    return type.field("value").type if is_timed else type


def _as_bytes(description: KeyedDescription, number: int) -> KeyedDescription:
    """Return the description with the values of one state as bytes."""
    return _with_value_serializer(description, number, only_as_bytes())


def _with_value_serializer(
    description: KeyedDescription, number: int, value: Serializer
) -> KeyedDescription:
    """Return the description with another serializer for the values of one state."""
    states = list(description.states)
    info = states[number]
    states[number] = replace(info, serializers={**info.serializers, "VALUE_SERIALIZER": value})
    return replace(description, states=tuple(states))


def _flat(lists: pa.ListArray) -> pa.Array:
    """Flatten lists of lists by one level."""
    parts = lists.flatten()
    offsets = parts.offsets.take(lists.offsets)
    return pa.ListArray.from_arrays(offsets, parts.values)


def _constant(number: int, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(number, pa.int32()), count)


def common_columns(
    columns: tuple[tuple[str, pa.DataType], ...], others: tuple[tuple[str, pa.DataType], ...]
) -> tuple[tuple[str, pa.DataType], ...]:
    """Merge two lists of columns: a subtask knows only the subclasses of a POJO that it has met. Raises TypeError."""
    if [name for name, _ in columns] != [name for name, _ in others]:
        raise TypeError
    return tuple(
        (name, _merged_type(type, other))
        for (name, type), (_, other) in zip(columns, others, strict=True)
    )


def _merged_type(type: pa.DataType, other: pa.DataType) -> pa.DataType:
    if type == other:
        return type
    if pa.types.is_struct(type) and pa.types.is_struct(other):
        fields = {field.name: field.type for field in type}
        for field in other:
            known = fields.get(field.name)
            fields[field.name] = field.type if known is None else _merged_type(known, field.type)
        return pa.struct(list(fields.items()))
    if pa.types.is_list(type) and pa.types.is_list(other):
        return pa.list_(_merged_type(type.value_type, other.value_type))
    if pa.types.is_map(type) and pa.types.is_map(other):
        return pa.map_(
            _merged_type(type.key_type, other.key_type),
            _merged_type(type.item_type, other.item_type),
        )
    raise TypeError


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert a batch to the common columns of all subtasks."""
    if batch.schema.equals(schema):
        return batch
    columns = [
        column if column.type == field.type else pa.array(column.to_pylist(), field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.record_batch(columns, schema=schema)
