"""The states of a backend by name, each created once from its descriptor."""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeVar, cast

import pyarrow as pa

from holdfast.backends.descriptors import (
    AggregateFunction,
    AggregatingStateDescriptor,
    KnownFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from holdfast.backends.keyed.compatibility import (
    StateDefault,
    StateFunction,
    check_hashable,
    check_kind,
    check_settings_unchanged,
)
from holdfast.backends.keyed.keys import Hash
from holdfast.backends.keyed.states import (
    TIME,
    AggregatingColumns,
    AggregatingState,
    Average,
    AverageColumns,
    CheckedRows,
    CombiningColumns,
    CurrentKeyView,
    FoldingColumns,
    KeyCursor,
    KeyedListState,
    ListColumns,
    ListForm,
    MapColumns,
    MapState,
    ReducingState,
    Timers,
    TimerService,
    ValueColumns,
    ValueForm,
    ValueRows,
    ValueState,
)
from holdfast.backends.keyed.table import (
    NO_COLUMNS,
    Fold,
    StateKind,
    StateTables,
    TableSpec,
    plain_schema,
)
from holdfast.backends.keys import KeyGroupRange
from holdfast.errors import InvalidRequestError

TIMERS = "_timers/"
"""Prefix of the names of timers, reserved for them."""

_CLOSED = "the backend is closed"
_State = TypeVar("_State", bound=CurrentKeyView[Any, Any])


class KnownStates:
    """The requested states of a subtask; its methods are those of `KeyedStateBackend`. `now_ms` is the time of the batch."""

    def __init__(
        self,
        tables: StateTables,
        key: pa.Schema,
        key_groups: KeyGroupRange,
        hash_of: Hash,
        cursor: KeyCursor,
    ) -> None:
        self.now_ms = 0
        self._tables = tables
        self._key = key
        self._key_groups = key_groups
        self._hash_of = hash_of
        self._cursor = cursor
        self._states: dict[str, tuple[tuple[Any, ...], Any]] = {}
        self._is_closed = False

    def __iter__(self) -> Iterator[CurrentKeyView[Any, Any]]:
        return (state for _, state in self._states.values())

    def names(self) -> frozenset[str]:
        self.check_open()
        names = {*self._tables.specs(), *self._states}
        return frozenset(name for name in names if not name.startswith(TIMERS))

    def value_state(self, descriptor: ValueStateDescriptor, namespace: pa.Schema) -> ValueState:
        form = ValueForm(descriptor.name, descriptor.serializer)
        ttl, default = descriptor.ttl, descriptor.default
        if ttl is not None and ttl.ttl_ms is not None:
            default = None  # as in Flink

        def make() -> ValueState:
            rows = self._rows("value", form, namespace, ttl)
            return ValueState(ValueColumns(rows, default), self._cursor)

        stored = None if default is None else StateDefault.of(default, form.encode([default]))
        settings = ("value", form.serializer, namespace, ttl, stored)
        return self._state(descriptor.name, namespace, settings, make)

    def list_state(self, descriptor: ListStateDescriptor, namespace: pa.Schema) -> KeyedListState:
        ttl = descriptor.ttl
        has_times = ttl is not None and ttl.ttl_ms is not None
        form = ListForm(descriptor.name, descriptor.serializer, has_times=has_times)

        def make() -> KeyedListState:
            rows = self._rows("list", form, namespace, ttl, folds=("concatenate",))
            return KeyedListState(ListColumns(rows, form, lambda: self.now_ms), self._cursor)

        settings = ("list", form.serializer, namespace, ttl)
        return self._state(descriptor.name, namespace, settings, make)

    def map_state(self, descriptor: MapStateDescriptor, namespace: pa.Schema) -> MapState:
        name = descriptor.name
        form = ValueForm(name, descriptor.value_serializer)
        serializer = descriptor.key_serializer
        sub_key = pa.schema([serializer.field("key")])

        def make() -> MapState:
            check_hashable(f"state {name!r}: the map key", sub_key)
            rows = self._rows("map", form, namespace, descriptor.ttl, sub_key=sub_key)
            key_form = ValueForm(name, serializer, subject="map keys")
            return MapState(MapColumns(rows, key_form), self._cursor)

        settings = ("map", serializer, form.serializer, namespace, descriptor.ttl)
        return self._state(name, namespace, settings, make)

    def reducing_state(
        self, descriptor: ReducingStateDescriptor, namespace: pa.Schema
    ) -> ReducingState:
        form = ValueForm(descriptor.name, descriptor.serializer)
        function = descriptor.function
        functions: tuple[KnownFunction, ...] = ()
        if isinstance(function, Mapping):
            functions = tuple(function[field.name] for field in form.schema)
        elif isinstance(function, str):
            functions = (function,)

        def make() -> ReducingState:
            rows = self._rows("reducing", form, namespace, descriptor.ttl, folds=functions)
            columns: FoldingColumns | CombiningColumns
            if callable(function):
                columns = CombiningColumns(rows, function)
            else:
                columns = FoldingColumns(rows, functions)
            return ReducingState(columns, function, self._cursor)

        known = functions or StateFunction.of(function)
        settings = ("reducing", known, form.serializer, namespace, descriptor.ttl)
        return self._state(descriptor.name, namespace, settings, make)

    def aggregating_state(
        self, descriptor: AggregatingStateDescriptor, namespace: pa.Schema
    ) -> AggregatingState:
        form = ValueForm(descriptor.name, descriptor.serializer)
        function = descriptor.function
        is_known = not isinstance(function, AggregateFunction)

        def make() -> AggregatingState:
            folds: tuple[Fold, ...] = ("sum", "sum") if is_known else ()
            rows = self._rows("aggregating", form, namespace, descriptor.ttl, folds=folds)
            if isinstance(function, AggregateFunction):
                columns = AggregatingColumns(rows, function)
                return AggregatingState(columns, function, self._cursor)
            return AggregatingState(AverageColumns(rows), Average(descriptor.name), self._cursor)

        known = function if is_known else StateFunction.of(function)
        settings = ("aggregating", known, form.serializer, namespace, descriptor.ttl)
        return self._state(descriptor.name, namespace, settings, make)

    def timers(self, name: str, namespace: pa.Schema) -> TimerService:
        """Return the timers of that name, which must begin with `TIMERS`."""

        def make() -> TimerService:
            spec = TableSpec(name, "timers", self._key, NO_COLUMNS, namespace, TIME)
            self._check_stored(spec)
            rows = CheckedRows(self._tables.table(spec), self._key_groups, self._hash_of)
            return TimerService(Timers(rows, self._key_groups), self._cursor)

        return self._state(name, namespace, ("timers", namespace), make)

    def earliest_timer(self, prefix: str) -> int | None:
        """Return the earliest time of all timers with this prefix, requested or not; None without timers."""
        self.check_open()
        times = [
            self.timers(name, plain_schema(spec.namespace)).earliest()
            for name, spec in self._tables.specs().items()
            if name.startswith(prefix)
        ]
        return min((time for time in times if time is not None), default=None)

    def drop(self, name: str) -> None:
        """Remove a state and its table; ignores timers."""
        if not name.startswith(TIMERS):
            _, state = self._states.pop(name, (None, None))
            if state is not None:
                state.close(f"state {name!r} was dropped; get it from the backend again")
            self._tables.drop(name)

    def flush(self) -> None:
        """Write back changes made by the current key. Raises `InvalidRequestError`."""
        self.check_open()
        for state in self:
            state.flush()

    def check_open(self) -> None:
        """Raise `InvalidRequestError` after `close`."""
        if self._is_closed:
            raise InvalidRequestError(_CLOSED)

    def close(self) -> None:
        """Close all states: later calls of them raise `InvalidRequestError`."""
        self._is_closed = True
        for state in self:
            state.close(_CLOSED)
        self._states.clear()

    def _state(
        self, name: str, namespace: pa.Schema, settings: tuple[Any, ...], make: Callable[[], _State]
    ) -> _State:
        """Return the state of an earlier request, or a new one."""
        self.check_open()
        known = self._states.get(name)
        if known is not None:
            before, state = known
            check_settings_unchanged(name, before, settings)
            return cast("_State", state)
        if settings[0] != "timers" and name.startswith(TIMERS):
            raise InvalidRequestError(
                f"state name {name!r} must not begin with {TIMERS!r}, which is reserved for timers"
            )
        check_hashable(f"state {name!r}: the namespace", namespace)
        made = make()
        self._states[name] = (settings, made)
        return made

    def _rows(
        self,
        kind: StateKind,
        form: ValueForm,
        namespace: pa.Schema,
        ttl: StateTtlConfig | None,
        *,
        sub_key: pa.Schema = NO_COLUMNS,
        folds: tuple[Fold, ...] = (),
    ) -> ValueRows:
        spec = TableSpec(
            name=form.name,
            kind=kind,
            key=self._key,
            values=form.schema,
            namespace=namespace,
            sub_key=sub_key,
            folds=folds,
            ttl_ms=None if ttl is None else ttl.ttl_ms,
            is_struct=form.is_struct,
        )
        rules = form.serializer.rules
        stored = self._check_stored(spec, rules.renamed)
        if stored is not None and not (
            stored.is_struct == spec.is_struct
            and stored.values.equals(spec.values, check_metadata=True)
        ):
            # Fail when the state is requested, not when its first row is read.
            form.migrate(stored, [pa.array([], field.type) for field in stored.values])
        table = self._tables.table(spec, form.migrate, rewrite=rules.changes_names)
        return ValueRows(table, form, self._key_groups, self._hash_of, ttl)

    def _check_stored(
        self, spec: TableSpec, renamed: Mapping[str, str] = MappingProxyType({})
    ) -> TableSpec | None:
        """Return the stored specification of a state; None for a new state. Raises `StateMigrationError`."""
        stored = self._tables.specs().get(spec.name)
        if stored is not None:
            check_kind(stored, spec, renamed)
        return stored
