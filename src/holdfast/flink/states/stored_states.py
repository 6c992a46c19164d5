"""The states of an operator over all its subtasks: what there is, of which types, and the rows of each.

A state that can't be read says why, and is no reason not to read the others.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

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
from holdfast.flink.serializers import Serializer, not_readable, python_type, reading
from holdfast.flink.states.common_types import common_columns, of_schema
from holdfast.flink.states.descriptions import TIMERS, KeyedDescription, StateInfo
from holdfast.flink.states.key_groups import check_key_groups
from holdfast.flink.states.keyed_state import KeyGroups
from holdfast.flink.states.operator_state import OperatorStates
from holdfast.flink.states.raw_timers import raw_timers
from holdfast.flink.states.rocksdb_state import RocksGroups
from holdfast.flink.states.state_parts import (
    BROADCAST,
    DescribedGroups,
    KeyedPart,
    OperatorPart,
    StatePart,
    TimersPart,
    has_time_to_live,
)

_TIMERS = "keyed timer"
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
            if not isinstance(part, KeyedPart) or not part.has_bytes:
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
        if self.incomplete and subtask is None and self.kind != BROADCAST:
            message = f"state {self.name!r} is incomplete; subtask= or --subtask reads the others: {self.incomplete}"
            raise UnreadableStateError(message)
        if self.kind == BROADCAST:
            parts = parts[:1]
        schema = None if as_bytes else pa.schema(list(self.columns))
        for part in parts:
            with reading(f"state {self.name!r}"):
                for batch in part.batches(as_bytes=as_bytes):
                    schema = schema or batch.schema
                    if check_keys and self.key is not None:
                        check_key_groups(batch, self.key, self.max_parallelism)
                    yield of_schema(batch, schema)


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
                state.columns = common_columns(state.columns, columns)
            except TypeError:
                state.failure = "its subtasks say that it has different types"

    def _add_operator(self, index: int, handle: OperatorHandle) -> None:
        if not handle.states:  # of merged files, which has no description either
            return
        states = OperatorStates.of(handle, self._files)
        for name, (mode, _) in handle.states.items():
            part = OperatorPart(index, states, name, self._files)
            self._add(index, name, MODES[mode], part, columns=part.columns)

    def _add_keyed(self, index: int, handle: KeyedHandle) -> None:
        for groups in self._keyed_parts(handle):
            for number, info in enumerate(groups.description.states):
                part = KeyedPart(groups, number, self._files)
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
                    has_ttl=has_time_to_live(info),
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
            part = TimersPart(handle, name, self._files)
            schema = (("key_group", pa.int32()), *columns)
            self._add(index, f"{TIMERS}{name}", _TIMERS, part, columns=schema)


def _key_of(info: StateInfo, description: KeyedDescription) -> Serializer:
    """The serializer of keys, which timers have in them."""
    return info.value.parts[0] if info.is_timer and info.value.parts else description.key
