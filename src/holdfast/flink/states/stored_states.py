"""The states of an operator over all its subtasks: what there is, of which types, and the rows of each.

A state that can't be read says why, and is no reason not to read the others.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol, Self

import pyarrow as pa

from holdfast.errors import (
    CheckpointCorruptedError,
    CheckpointNotFoundError,
    InvalidRequestError,
    UnreadableStateError,
    UnsupportedFormatError,
)
from holdfast.flink.metadata import (
    MODES,
    ChangelogHandle,
    FlinkOperator,
    IncrementalHandle,
    KeyedHandle,
    KeyGroupsHandle,
    OperatorHandle,
    StateFiles,
)
from holdfast.flink.serializers import (
    Serializer,
    in_bytes,
    list_of,
    map_of,
    not_readable,
    only_as_bytes,
    python_type,
    reading,
    several_in_bytes,
)
from holdfast.flink.states.descriptions import TIMERS, KeyedDescription, StateInfo
from holdfast.flink.states.entries import column_names
from holdfast.flink.states.key_groups import check_key_groups
from holdfast.flink.states.keyed_state import KeyGroups
from holdfast.flink.states.operator_state import OperatorStates
from holdfast.flink.states.raw_timers import raw_timers
from holdfast.flink.states.rocksdb_state import RocksGroups

_BROADCAST, _TIMERS = "broadcast", "keyed timer"
_OPERATOR_STATE, _KEYED_STATE, _RAW_KEYED_STATE = "operator state", "keyed state", "raw keyed state"
WITH_TIMERS = (_KEYED_STATE, _RAW_KEYED_STATE)
"""Kinds of what timers are in."""

_OF_THIS_STATE = (
    CheckpointCorruptedError,
    CheckpointNotFoundError,
    UnreadableStateError,
    UnsupportedFormatError,
)
"""Errors that say nothing about other states."""


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
class _OperatorPart:
    """A list, union or broadcast state of a subtask."""

    subtask: int
    states: OperatorStates
    name: str
    files: StateFiles

    @property
    def columns(self) -> tuple[tuple[str, pa.DataType], ...]:
        info = self.states.info(self.name)
        mode, _ = self.states.handle.states[self.name]
        is_broadcast = MODES[mode] == _BROADCAST
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
class _KeyedPart:
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

    def typed(self, serializers: Mapping[str, Serializer]) -> "_KeyedPart":
        """The same with values of these serializers in their bytes; see `StoredState.typed`."""
        description = self.groups.description
        info = description.states[self.number]
        is_list = info.type == "list"
        value = (several_in_bytes if is_list else in_bytes)(
            serializers["value"], has_last_access=_has_ttl(info)
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
class _TimersPart:
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


@dataclass(slots=True)
class StoredState:
    """A state of an operator.

    Attributes:
        name: As the job has named it.
        kind: `list`, `union` or `broadcast`; of keyed state `keyed value`, `keyed list`, `keyed map`, `keyed
            reducing`, `keyed aggregating`, `keyed timer`.
        columns: Names and types, as far as they are known.
        failure: Why it can't be read, or empty.
        parts: What reads the rows of a subtask, by its index.
        incomplete: Why rows of a subtask can't be read, which may have some of it; or empty.
        key: The serializer of its keys, if it is kept by key and has one.
        max_parallelism: Number of key groups.
        has_ttl: Whether its values have a time to live.
    """

    name: str
    kind: str
    columns: tuple[tuple[str, pa.DataType], ...]
    failure: str
    parts: list[tuple[int, StatePart]]
    incomplete: str = ""
    key: Serializer | None = None
    max_parallelism: int = 0
    has_ttl: bool = False

    def typed(self, types: Mapping[str, str]) -> "StoredState":
        """The same of values that PyFlink has written.

        Args:
            types: What `value` and `map_key` are, by the names of `python_type`.

        Raises:
            InvalidRequestError: There are no such types, or the state has no bytes that could be of them.
        """
        serializers = {role: python_type(name) for role, name in types.items()}
        roles = {"map_key", "value"} if self.kind == "keyed map" else {"value"}
        if serializers.keys() != roles:
            message = f"state {self.name!r} is {self.kind}; name types of {sorted(roles)}, not of {sorted(types)}"
            raise InvalidRequestError(message)
        parts: list[tuple[int, StatePart]] = []
        columns = self.columns
        for index, part in self.parts:
            if not isinstance(part, _KeyedPart) or not part.has_bytes:
                message = f"state {self.name!r} has no values of bytes, as those of PyFlink are"
                raise InvalidRequestError(message)
            typed = part.typed(serializers)
            parts.append((index, typed))
            columns = typed.columns
        return replace(self, parts=parts, columns=columns)

    @property
    def has_known_hash(self) -> bool:
        """Whether it can be seen that keys are in the key groups where they belong."""
        return self.key is not None and self.key.hash_codes is not None

    def batches(
        self, subtask: int | None, *, as_bytes: bool, check_keys: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """The rows of all subtasks, or of one; of a broadcast state those of one subtask's copy.

        Args:
            subtask: The subtask; None for all.
            as_bytes: Whether values are not decoded.
            check_keys: Whether keys of known hash codes are refused that stand in other key groups than theirs.

        Raises:
            CheckpointError: They can't be read.
        """
        parts = [part for index, part in self.parts if subtask in {None, index}]
        if self.failure and not as_bytes:
            raise UnreadableStateError(f"state {self.name!r}: {self.failure}")
        if self.incomplete and subtask is None and self.kind != _BROADCAST:
            message = f"state {self.name!r} is incomplete; subtask= or --subtask reads the others: {self.incomplete}"
            raise UnreadableStateError(message)
        if self.kind == _BROADCAST:
            parts = parts[:1]
        schema = None if as_bytes else pa.schema(list(self.columns))
        for part in parts:
            with reading(f"state {self.name!r}"):
                for batch in part.batches(as_bytes=as_bytes):
                    schema = schema or batch.schema
                    if check_keys and self.key is not None:
                        check_key_groups(batch, self.key, self.max_parallelism)
                    yield _of_schema(batch, schema)


class StatesOfOperator:
    """The states of an operator.

    Attributes:
        states: All of them, those that can't be read too.
    """

    def __init__(self, operator: FlinkOperator, files: StateFiles) -> None:
        self._operator = operator
        self._files = files
        self._by_name: dict[tuple[str, str], StoredState] = {}
        self._failures: dict[str, str] = {}
        for index, subtask in operator.subtasks.items():
            with self._kept(_OPERATOR_STATE, index):
                if subtask.operator is not None:
                    self._add_operator(index, subtask.operator)
            with self._kept(_KEYED_STATE, index):
                if subtask.keyed is not None:
                    self._add_keyed(index, subtask.keyed)
            with self._kept(_RAW_KEYED_STATE, index):
                if subtask.raw_keyed is not None:
                    self._add_timers(index, subtask.raw_keyed)
        self.states = [
            *(StoredState("", what, (), failure, []) for what, failure in self._failures.items()),
            *(self._completed(state) for state in self._by_name.values()),
        ]

    @contextmanager
    def _kept(self, what: str, index: int) -> Iterator[None]:
        """Keep why all of this can't be read of a subtask, and go on with what can be."""
        try:
            with reading(f"{what} of subtask {index}"):
                yield
        except _OF_THIS_STATE as error:
            self._failures.setdefault(what, str(error))

    def _completed(self, state: StoredState) -> StoredState:
        """The state, which says if a subtask may have rows of it that can't be read."""
        what = _KEYED_STATE if state.kind.startswith("keyed") else _OPERATOR_STATE
        state.incomplete = self._failures.get(what, "")
        if state.kind == _TIMERS and not state.incomplete:
            state.incomplete = self._failures.get(_RAW_KEYED_STATE, "")
        return state

    def _add(
        self,
        index: int,
        name: str,
        kind: str,
        part: StatePart,
        *,
        columns: tuple[tuple[str, pa.DataType], ...],
        failure: str = "",
        key: Serializer | None = None,
        has_ttl: bool = False,
    ) -> None:
        state = self._by_name.get((name, kind))
        if state is None:
            groups = self._operator.max_parallelism
            state = StoredState(
                name,
                kind,
                columns,
                failure,
                [],
                key=key,
                max_parallelism=groups,
                has_ttl=has_ttl,
            )
            self._by_name[name, kind] = state
        state.failure = state.failure or failure
        state.parts.append((index, part))
        if state.columns != columns:
            try:
                state.columns = _merged(state.columns, columns)
            except TypeError:
                state.failure = "its subtasks say that it has different types"

    def _add_operator(self, index: int, handle: OperatorHandle) -> None:
        if not handle.states:  # of merged files, which has no description either
            return
        states = OperatorStates.of(handle, self._files)
        for name, (mode, _) in handle.states.items():
            part = _OperatorPart(index, states, name, self._files)
            self._add(index, name, MODES[mode], part, columns=part.columns)

    def _add_keyed(self, index: int, handle: KeyedHandle) -> None:
        for groups in self._keyed_parts(handle):
            for number, info in enumerate(groups.description.states):
                part = _KeyedPart(groups, number, self._files)
                failure = ""
                if info.namespace.unreadable:
                    failure = str(not_readable(info.namespace.unreadable))
                self._add(
                    index,
                    info.name,
                    f"keyed {info.type}",
                    part,
                    columns=part.columns,
                    failure=failure,
                    key=_key_of(info, groups.description),
                    has_ttl=_has_ttl(info),
                )

    def _keyed_parts(self, handle: KeyedHandle | None) -> Iterator[DescribedGroups]:
        match handle:
            case KeyGroupsHandle():
                yield KeyGroups.of(handle, self._files, self._operator.max_parallelism)
            case IncrementalHandle():
                yield RocksGroups.of(handle, self._files, self._operator.max_parallelism)
            case ChangelogHandle(bases=bases, changes=0):
                for base in bases:
                    yield from self._keyed_parts(base)
            case None:
                return
            case _:
                message = (
                    "the changelog state backend has written changes since the last whole state, which only Flink "
                    "can apply; take a canonical savepoint"
                )
                raise UnreadableStateError(message)

    def _add_timers(self, index: int, handle: KeyedHandle) -> None:
        if not isinstance(handle, KeyGroupsHandle):
            return
        services = {
            name: tuple((column, array.type) for column, array in columns)
            for _, name, columns in raw_timers(handle, self._files)
        }
        for name, columns in services.items():
            part = _TimersPart(handle, name, self._files)
            schema = (("key_group", pa.int32()), *columns)
            self._add(index, f"{TIMERS}{name}", _TIMERS, part, columns=schema)


def _key_of(info: StateInfo, description: KeyedDescription) -> Serializer:
    """The serializer of keys, which timers have in them."""
    return info.value.parts[0] if info.is_timer and info.value.parts else description.key


def _has_ttl(info: StateInfo) -> bool:
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


def _merged(
    columns: tuple[tuple[str, pa.DataType], ...], others: tuple[tuple[str, pa.DataType], ...]
) -> tuple[tuple[str, pa.DataType], ...]:
    """Columns of both: a subtask knows those subclasses of a POJO that it has met. Raises TypeError."""
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


def _of_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with the columns that all subtasks have together."""
    if batch.schema.equals(schema):
        return batch
    columns = [
        column if column.type == field.type else pa.array(column.to_pylist(), field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.record_batch(columns, schema=schema)


def _flat(lists: pa.ListArray) -> pa.Array:
    """Lists with the elements of the lists that are in them."""
    parts = lists.flatten()
    offsets = parts.offsets.take(lists.offsets)
    return pa.ListArray.from_arrays(offsets, parts.values)


def _constant(number: int, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(number, pa.int32()), count)
