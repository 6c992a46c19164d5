"""The states of an operator over all its subtasks: their types and rows.

An unreadable state has the reason in `failure`; the others can still be read.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from holdfast.backends.keys import flink_key_groups
from holdfast.errors import (
    CheckpointCorruptedError,
    CheckpointNotFoundError,
    InvalidRequestError,
    UnreadableStateError,
    UnsupportedFormatError,
)
from holdfast.flink.binary import corrupted_error
from holdfast.flink.handles import (
    ChangelogHandle,
    IncrementalHandle,
    KeyedHandle,
    KeyGroupsHandle,
    OperatorHandle,
)
from holdfast.flink.metadata import FlinkOperator
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
from holdfast.flink.state_files import StateFiles
from holdfast.flink.states.descriptions import TIMERS
from holdfast.flink.states.entries import Columns, column_names, constant
from holdfast.flink.states.keyed_state import KeyGroups
from holdfast.flink.states.operator_state import BROADCAST, OperatorPart, OperatorStates
from holdfast.flink.states.raw_timers import TimersPart, timers_parts
from holdfast.flink.states.rocksdb_state import RocksGroups

_TIMERS = "keyed timer"
_OPERATOR_STATE, _KEYED_STATE, _RAW_KEYED_STATE = "operator state", "keyed state", "raw keyed state"
WITH_TIMERS = (_KEYED_STATE, _RAW_KEYED_STATE)
"""Parts of a subtask that contain timers."""

_OF_THIS_STATE = (
    CheckpointCorruptedError,
    CheckpointNotFoundError,
    UnreadableStateError,
    UnsupportedFormatError,
)
"""Errors that do not affect other states."""


@dataclass(frozen=True, slots=True)
class KeyedPart:
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
        return all(part.content_type == pa.binary() and not part.unreadable for part in parts)

    def with_types(self, serializers: Mapping[str, Serializer]) -> "KeyedPart":
        """Return a copy that decodes bytes with other serializers; see `StoredState.with_types`."""
        description = self.groups.description
        info = description.states[self.number]
        is_list = info.type == "list"
        wrap = several_in_bytes if is_list else in_bytes
        value = wrap(serializers["value"], has_last_access=info.has_ttl)
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


StatePart = OperatorPart | KeyedPart | TimersPart


@dataclass(slots=True)
class StoredState:
    """A state of an operator.

    Attributes:
        name: Name in the job.
        kind: `list`, `union` or `broadcast`; of keyed state `keyed value`, `keyed list`, `keyed map`, `keyed
            reducing`, `keyed aggregating`, `keyed timer`.
        columns: Known names and types.
        failure: Reason why it can't be read, or empty.
        parts: Parts of subtasks, by index.
        incomplete: Reason why rows of a subtask that may have some can't be read, or empty.
        key: Serializer of its keys, if it is keyed.
        max_parallelism: Number of key groups.
        has_ttl: Whether its values have a time to live.
    """

    name: str
    kind: str
    columns: Columns
    failure: str = ""
    parts: list[tuple[int, StatePart]] = field(default_factory=list)
    incomplete: str = ""
    key: Serializer | None = None
    max_parallelism: int = 0
    has_ttl: bool = False

    def with_types(self, types: Mapping[str, str]) -> "StoredState":
        """Return a copy that decodes values written by PyFlink.

        Args:
            types: Types of `value` and `map_key`, by the names of `python_type`.

        Raises:
            InvalidRequestError: A type is unknown, or the state has no bytes to decode.
        """
        serializers = {role: python_type(name) for role, name in types.items()}
        roles = {"map_key", "value"} if self.kind == "keyed map" else {"value"}
        if serializers.keys() != roles:
            message = f"types of state {self.name!r} ({self.kind}) must be of {sorted(roles)}, got {sorted(types)}"
            raise InvalidRequestError(message)
        parts: list[tuple[int, StatePart]] = []
        columns = self.columns
        for index, part in self.parts:
            if not isinstance(part, KeyedPart) or not part.has_bytes:
                message = f"types are only for PyFlink's byte arrays, and state {self.name!r} has other values"
                raise InvalidRequestError(message)
            with_types = part.with_types(serializers)
            parts.append((index, with_types))
            columns = with_types.columns
        return replace(self, parts=parts, columns=columns)

    @property
    def has_known_hash(self) -> bool:
        """True if keys can be checked against their key groups."""
        return self.key is not None and self.key.hash_codes is not None

    def batches(
        self, subtask: int | None, *, as_bytes: bool, check_keys: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Read the rows of all subtasks, or of one; of a broadcast state those of one subtask's copy.

        Args:
            subtask: The subtask; None for all.
            as_bytes: Whether to leave values undecoded.
            check_keys: Whether to raise an error for keys in wrong key groups, if their hash codes are known.

        Raises:
            CheckpointError: They can't be read.
        """
        parts = [part for index, part in self.parts if subtask in {None, index}]
        if self.failure and not as_bytes:
            raise UnreadableStateError(f"state {self.name!r}: {self.failure}")
        if self.incomplete and subtask is None and self.kind != BROADCAST:
            message = f"state {self.name!r} is incomplete; read other subtasks with subtask= or --subtask: {self.incomplete}"
            raise UnreadableStateError(message)
        if self.kind == BROADCAST:
            parts = parts[:1]
        schema = None if as_bytes else pa.schema(list(self.columns))
        for part in parts:
            with reading(f"state {self.name!r}"):
                for batch in part.batches(as_bytes=as_bytes):
                    schema = schema or batch.schema
                    if check_keys:
                        self._check_key_groups(batch)
                    yield _conform(batch, schema)

    def _check_key_groups(self, rows: pa.RecordBatch) -> None:
        """Check that keys are in the key groups of Flink's hash, the nearest thing to a checksum in Flink's state."""
        if self.key is None or self.key.hash_codes is None or not len(rows):
            return
        expected = flink_key_groups(self.key.hash_codes(rows.column("key")), self.max_parallelism)
        stored = rows.column("key_group").to_numpy()
        misplaced = np.flatnonzero(stored != expected)
        if len(misplaced):
            first = misplaced[0]
            message = (
                f"by Flink's hash, {len(misplaced)} of {len(rows)} keys in key group {stored[first]} belong to other "
                f"groups, the first of them to {expected[first]}"
            )
            raise corrupted_error(message)


class OperatorStateReader:
    """The states of an operator.

    Attributes:
        states: All states, including unreadable ones.
    """

    def __init__(self, operator: FlinkOperator, files: StateFiles) -> None:
        self._operator = operator
        self._files = files
        self._by_name: dict[tuple[str, str], StoredState] = {}
        self._failures: dict[str, str] = {}
        for index, subtask in operator.subtasks.items():
            with self._record_failures(_OPERATOR_STATE, index):
                if subtask.operator is not None:
                    self._add_operator(index, subtask.operator)
            with self._record_failures(_KEYED_STATE, index):
                if subtask.keyed is not None:
                    self._add_keyed(index, subtask.keyed)
            with self._record_failures(_RAW_KEYED_STATE, index):
                if isinstance(subtask.raw_keyed, KeyGroupsHandle):
                    self._add_timers(index, subtask.raw_keyed)
        self.states = [
            *(StoredState("", subject, (), failure) for subject, failure in self._failures.items()),
            *(self._mark_incomplete(state) for state in self._by_name.values()),
        ]

    @contextmanager
    def _record_failures(self, subject: str, index: int) -> Iterator[None]:
        """Record the failure of a subtask's part, and continue with the rest."""
        try:
            with reading(f"{subject} of subtask {index}"):
                yield
        except _OF_THIS_STATE as error:
            self._failures.setdefault(subject, str(error))

    def _mark_incomplete(self, state: StoredState) -> StoredState:
        """Return the state, marked as incomplete if a subtask may have unreadable rows of it."""
        subject = _KEYED_STATE if state.kind.startswith("keyed") else _OPERATOR_STATE
        state.incomplete = self._failures.get(subject, "")
        if state.kind == _TIMERS and not state.incomplete:
            state.incomplete = self._failures.get(_RAW_KEYED_STATE, "")
        return state

    def _add(self, index: int, part: StatePart, described: StoredState) -> None:
        """Add a subtask's part of a state, which it describes without parts."""
        state = self._by_name.setdefault((described.name, described.kind), described)
        state.failure = state.failure or described.failure
        state.parts.append((index, part))
        if state.columns != described.columns:
            try:
                state.columns = _common_columns(state.columns, described.columns)
            except TypeError:
                state.failure = "its types differ between subtasks"

    def _add_operator(self, index: int, handle: OperatorHandle) -> None:
        if not handle.states:  # a handle of merged files, which has no description
            return
        states = OperatorStates.of(handle, self._files)
        for name in handle.states:
            part = OperatorPart(index, states, name, self._files)
            self._add(index, part, StoredState(name, part.kind, part.columns))

    def _add_keyed(self, index: int, handle: KeyedHandle) -> None:
        for groups in self._keyed_parts(handle):
            for number, info in enumerate(groups.description.states):
                part = KeyedPart(groups, number, self._files)
                unreadable = info.namespace.unreadable
                described = StoredState(
                    info.name,
                    f"keyed {info.type}",
                    part.columns,
                    str(not_readable(unreadable)) if unreadable else "",
                    key=info.key(groups.description.key),
                    max_parallelism=self._operator.max_parallelism,
                    has_ttl=info.has_ttl,
                )
                self._add(index, part, described)

    def _keyed_parts(self, handle: KeyedHandle) -> Iterator[KeyGroups | RocksGroups]:
        match handle:
            case KeyGroupsHandle():
                yield KeyGroups.of(handle, self._files, self._operator.max_parallelism)
            case IncrementalHandle():
                yield RocksGroups.of(handle, self._files, self._operator.max_parallelism)
            case ChangelogHandle(bases=bases, changes=0):
                for base in bases:
                    yield from self._keyed_parts(base)
            case _:
                message = (
                    "the changelog state backend has written changes since the last materialization, which only "
                    "Flink can apply; take a canonical savepoint"
                )
                raise UnreadableStateError(message)

    def _add_timers(self, index: int, handle: KeyGroupsHandle) -> None:
        for part in timers_parts(handle, self._files):
            described = StoredState(f"{TIMERS}{part.service}", _TIMERS, part.columns)
            self._add(index, part, described)


def _common_columns(columns: Columns, others: Columns) -> Columns:
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


def _conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    if batch.schema.equals(schema):
        return batch
    columns = [
        column if column.type == field.type else pa.array(column.to_pylist(), field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.record_batch(columns, schema=schema)


def _flat(lists: pa.ListArray) -> pa.Array:
    """Flatten lists of lists by one level."""
    parts = lists.flatten()
    offsets = parts.offsets.take(lists.offsets)
    return pa.ListArray.from_arrays(offsets, parts.values)
