"""A subtask's part of a keyed state, and the reading of its rows."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from holdfast.flink.serializers import (
    Serializer,
    in_bytes,
    list_of,
    map_of,
    only_as_bytes,
    several_in_bytes,
)
from holdfast.flink.state_files import StateFiles
from holdfast.flink.states.entries import Columns, column_names, constant
from holdfast.flink.states.keyed_state import KeyGroups
from holdfast.flink.states.rocksdb_state import RocksGroups


@dataclass(frozen=True, slots=True)
class KeyedPart:
    """A keyed state of a subtask."""

    groups: KeyGroups | RocksGroups
    number: int
    files: StateFiles
    has_lists_of_lists: bool = False

    @property
    def columns(self) -> Columns:
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
            serializers["value"], has_last_access=info.has_ttl
        )
        if info.type == "map":
            value = map_of(in_bytes(serializers["map_key"]), value)
        elif is_list:
            value = list_of(value)
        return replace(self, groups=self._with_values(value), has_lists_of_lists=is_list)

    def batches(self, *, as_bytes: bool) -> Iterator[pa.RecordBatch]:
        groups = self._with_values(only_as_bytes()) if as_bytes else self.groups
        names = [name for name, _ in self.columns]
        for group, columns in groups.columns(self.number, self.files):
            if self.has_lists_of_lists and not as_bytes:
                columns[-1] = _flat(columns[-1])
            yield pa.record_batch([constant(group, len(columns[0])), *columns], names)

    def _with_values(self, value: Serializer) -> KeyGroups | RocksGroups:
        """Return the key groups with another serializer for the values of the state."""
        description = self.groups.description
        states = list(description.states)
        info = states[self.number]
        serializers = {**info.serializers, "VALUE_SERIALIZER": value}
        states[self.number] = replace(info, serializers=serializers)
        return replace(self.groups, description=replace(description, states=tuple(states)))


def _without_time(type: pa.DataType) -> pa.DataType:
    """Return the type of values without the time of their last use."""
    is_timed = pa.types.is_struct(type) and [each.name for each in type] == ["value", "last_access"]
    return type.field("value").type if is_timed else type


def _flat(lists: pa.ListArray) -> pa.Array:
    """Flatten lists of lists by one level."""
    parts = lists.flatten()
    offsets = parts.offsets.take(lists.offsets)
    return pa.ListArray.from_arrays(offsets, parts.values)
