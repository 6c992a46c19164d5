"""The keyed state backend: the states of one subtask that belong to keys."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

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
from holdfast.backends.keyed.keys import Hash, Keys
from holdfast.backends.keyed.states import (
    TIME,
    AggregatingColumns,
    AggregatingState,
    Average,
    AverageColumns,
    CombiningColumns,
    FoldingColumns,
    KeyContext,
    KeyedListState,
    KeyedRows,
    ListColumns,
    ListForm,
    MapColumns,
    MapState,
    ReducingState,
    StateRows,
    Timers,
    TimerService,
    ValueColumns,
    ValueForm,
    ValueState,
    fold_of,
)
from holdfast.backends.keyed.table import Fold, StateKind, StateTables, TableSpec
from holdfast.backends.keys import KeyGroupRange, check_parallelism, xxhash64
from holdfast.backends.serializers import Serializer, column
from holdfast.backends.snapshot import SnapshotPart
from holdfast.errors import InvalidRequestError, StateMigrationError
from holdfast.locations.storages import CheckpointStreamFactory

_NO_NAMESPACE = pa.schema([])
_TIMERS = "_timers/"
"""Begins the names of timers, which no other state may have."""


class _OfCurrentKey(Protocol):
    """What the states of all kinds can do."""

    def leave_namespace(self) -> None:
        """Another namespace is current from now on."""
        ...

    def settle(self) -> None:
        """Write back what has changed, and forget what was looked up."""
        ...


_State = TypeVar("_State", bound=_OfCurrentKey)


class KeyedStateBackend:
    """Keeps the keyed states of a subtask, over tables that a backend of tables has.

    Each state is there by arrays, for many keys at once (`state.columns`), and by the current key:

        keys(columns)                        the distinct keys of a batch
        state.columns.get(keys), put, …      by arrays, at any time
        begin_batch(keys)                    from here on by the current key
        set_current_key(index), set_current_namespace(…), state.value(), state.update(…), …
        end_batch                            what has changed is written; `snapshot` does so, too

    Restored states are there under their names; one that nobody asks for is carried on into the next snapshot.

    Args:
        tables: Where rows lie; new, or restored.
        key: The key's columns.
        max_parallelism: Number of key groups of the job, 1 to 32768.
        key_groups: The key groups that the subtask has; None for all.
        hash_of: What rows are sorted by inside of a key group; only tests take another one.

    Raises:
        InvalidRequestError: The key has no columns, or one has a type that can't be a key's, or numbers are
            out of bounds.
        StateMigrationError: The tables are of other keys.

    Source:
        Flink, AbstractKeyedStateBackend.
    """

    def __init__(
        self,
        tables: StateTables,
        key: pa.Schema,
        max_parallelism: int,
        key_groups: KeyGroupRange | None = None,
        *,
        hash_of: Hash = xxhash64,
    ) -> None:
        check_parallelism(max_parallelism, 1)
        _check_hashable("the key", key)
        if not 0 < len(key) == len(set(key.names)):
            raise InvalidRequestError(f"the key needs columns of different names, not {key.names}")
        self._tables = tables
        self._key = key
        self._max_parallelism = max_parallelism
        self._key_groups = key_groups or KeyGroupRange(0, max_parallelism - 1)
        self._hash_of = hash_of
        self._states: dict[str, tuple[tuple[Any, ...], Any]] = {}
        self._context = KeyContext()
        self._now_ms = 0
        for spec in tables.specs().values():
            self._check_key(spec)

    @property
    def key(self) -> pa.Schema:
        """The key's columns."""
        return self._key

    def keys(self, columns: Sequence[pa.Array | pa.ChunkedArray] | pa.RecordBatch) -> Keys:
        """The distinct keys of a batch.

        Args:
            columns: The key's columns, in order; or a batch that has columns of their names.

        Raises:
            InvalidRequestError: A column has another type than the key, or a key belongs to another subtask.
        """
        if isinstance(columns, pa.RecordBatch):
            missing = [name for name in self._key.names if name not in columns.schema.names]
            if missing:
                raise InvalidRequestError(f"the batch has no key columns {missing}")
            columns = [columns.column(name) for name in self._key.names]
        types = [column.type for column in columns]
        if types != self._key.types:
            message = f"the key has columns {_shown(self._key)}, and columns of {types} were given"
            raise InvalidRequestError(message)
        hashes = None if self._hash_of is xxhash64 else self._hash_of(_arrays(columns))
        keys = Keys.of(columns, self._max_parallelism, hashes)
        keys.check(self._key_groups)
        return keys

    def in_namespaces(self, keys: Keys, namespaces: Sequence[pa.Array]) -> Keys:
        """The distinct pairs of key and namespace of a batch, for states with namespaces.

        Args:
            keys: The keys of the batch.
            namespaces: The namespace's columns, a row for each row of the batch.

        Raises:
            InvalidRequestError: The columns have another length.
        """
        return keys.with_columns(keys.codes, namespaces, self._hash_of)

    def get_state(
        self, descriptor: ValueStateDescriptor, namespace: pa.Schema = _NO_NAMESPACE
    ) -> ValueState:
        """The value state of that name; the same object each time. A new state begins empty.

        Args:
            descriptor: The state's name and type.
            namespace: The columns of its namespaces; none for a state without.

        Raises:
            StateMigrationError: The state was stored, or asked for before, as another kind or with a type
                that can't become this one.
            InvalidRequestError: The name can't be a state's, or a column of the namespace can't be hashed.
        """
        form = ValueForm(descriptor.name, descriptor.serializer)

        def make() -> ValueState:
            rows = self._rows(
                _spec("value", self._key, form, namespace, descriptor.ttl), form, descriptor.ttl
            )
            has_default = descriptor.default is not None and not rows.has_ttl
            default = descriptor.default if has_default else None
            return ValueState(ValueColumns(rows, default), self._context)

        return self._state(
            descriptor.name, ("value", form.serializer, namespace, descriptor.ttl), make
        )

    def get_list_state(
        self, descriptor: ListStateDescriptor, namespace: pa.Schema = _NO_NAMESPACE
    ) -> KeyedListState:
        """The list state of that name. All else is as for `get_state`."""
        ttl = descriptor.ttl
        form = ListForm(
            descriptor.name,
            descriptor.serializer,
            has_times=ttl is not None and ttl.ttl_ms is not None,
        )

        def make() -> KeyedListState:
            spec = _spec("list", self._key, form, namespace, ttl, folds=("concatenate",))
            rows = self._rows(spec, form, ttl)
            return KeyedListState(ListColumns(rows, form, lambda: self._now_ms), self._context)

        return self._state(descriptor.name, ("list", form.serializer, namespace, ttl), make)

    def get_map_state(
        self, descriptor: MapStateDescriptor, namespace: pa.Schema = _NO_NAMESPACE
    ) -> MapState:
        """The map state of that name. All else is as for `get_state`; map keys must be of a type that can be hashed."""
        name = descriptor.name
        form = ValueForm(name, descriptor.value_serializer)
        serializer = descriptor.key_serializer
        sub_key = pa.schema([column("key", serializer.storage_type, serializer.stored)])

        def make() -> MapState:
            _check_hashable(f"state {name!r}: the map key", sub_key)
            spec = _spec("map", self._key, form, namespace, descriptor.ttl, sub_key=sub_key)
            rows = self._rows(spec, form, descriptor.ttl)
            return MapState(MapColumns(rows, ValueForm(name, serializer)), self._context)

        asked = ("map", serializer, form.serializer, namespace, descriptor.ttl)
        return self._state(name, asked, make)

    def get_reducing_state(
        self, descriptor: ReducingStateDescriptor, namespace: pa.Schema = _NO_NAMESPACE
    ) -> ReducingState:
        """The reducing state of that name. All else is as for `get_state`."""
        form = ValueForm(descriptor.name, descriptor.serializer)
        function = descriptor.function
        functions: tuple[KnownFunction, ...] = ()
        if isinstance(function, Mapping):
            functions = tuple(function[field.name] for field in form.schema)
        elif isinstance(function, str):
            functions = (function,)

        def make() -> ReducingState:
            folds = tuple(map(fold_of, functions))
            spec = _spec("reducing", self._key, form, namespace, descriptor.ttl, folds=folds)
            rows = self._rows(spec, form, descriptor.ttl)
            columns: FoldingColumns | CombiningColumns
            if callable(function):
                columns = CombiningColumns(rows, function)
            else:
                columns = FoldingColumns(rows, functions)
            return ReducingState(columns, function, self._context)

        known = functions or "a function"
        asked = ("reducing", known, form.serializer, namespace, descriptor.ttl)
        return self._state(descriptor.name, asked, make)

    def get_aggregating_state(
        self, descriptor: AggregatingStateDescriptor, namespace: pa.Schema = _NO_NAMESPACE
    ) -> AggregatingState:
        """The aggregating state of that name. All else is as for `get_state`."""
        form = ValueForm(descriptor.name, descriptor.serializer)
        function = descriptor.function
        is_known = not isinstance(function, AggregateFunction)

        def make() -> AggregatingState:
            folds: tuple[Any, ...] = ("sum", "sum") if is_known else ()
            spec = _spec("aggregating", self._key, form, namespace, descriptor.ttl, folds=folds)
            rows = self._rows(spec, form, descriptor.ttl)
            if isinstance(function, AggregateFunction):
                columns = AggregatingColumns(rows, function)
                return AggregatingState(columns, function, self._context)
            return AggregatingState(AverageColumns(rows), Average(), self._context)

        known = function if is_known else "a function"
        asked = ("aggregating", known, form.serializer, namespace, descriptor.ttl)
        return self._state(descriptor.name, asked, make)

    def event_time_timers(
        self, name: str = "timers", namespace: pa.Schema = _NO_NAMESPACE
    ) -> TimerService:
        """The timers of event time of that name; the same object each time.

        Raises:
            StateMigrationError: They were stored, or asked for before, with other namespaces.
        """
        return self._timers(f"{_TIMERS}event/{name}", namespace)

    def processing_time_timers(
        self, name: str = "timers", namespace: pa.Schema = _NO_NAMESPACE
    ) -> TimerService:
        """The timers of processing time of that name. All else is as for `event_time_timers`."""
        return self._timers(f"{_TIMERS}processing/{name}", namespace)

    def state_names(self) -> frozenset[str]:
        """Names of all states, restored ones included; timers are none."""
        return frozenset(
            name for name in {*self._tables.specs(), *self._states} if not name.startswith(_TIMERS)
        )

    def advance_time(self, now_ms: int) -> None:
        """Set the time of the batch: milliseconds since 1970, of processing. By it values expire."""
        self._settle()
        self._now_ms = now_ms
        self._tables.advance_time(now_ms)

    def begin_batch(self, keys: Keys) -> None:
        """Let states be used by the current key, which is to be set among these keys.

        Raises:
            InvalidRequestError: What was changed before can't be written back, or a key belongs to another
                subtask.
        """
        self.end_batch()
        keys.check(self._key_groups)
        self._context.begin(keys)

    def set_current_key(self, index: int) -> None:
        """Make a key of the batch the current one.

        Args:
            index: Which one: `keys.codes` has it for each row of the batch.

        Raises:
            InvalidRequestError: No batch has begun, or it has no such key.
        """
        context = self._context
        if not 0 <= index < context.count:
            message = f"key {index} is none of the {context.count} keys of the batch"
            raise InvalidRequestError(message)
        context.index = index

    def set_current_namespace(self, *namespace: Any) -> None:
        """Make a namespace the current one, for the states that have namespaces: a value for each of its columns."""
        self._context.namespace = namespace
        for _, state in self._states.values():
            state.leave_namespace()

    def end_batch(self) -> None:
        """Write back what has changed; no key is current any more.

        Raises:
            InvalidRequestError: A value is of another type than its state.
        """
        try:
            self._settle()
        finally:
            self._context.end()

    def snapshot(self, checkpoint_id: int, factory: CheckpointStreamFactory) -> SnapshotPart:
        """Capture all states, those that were restored and never asked for, too.

        Args:
            checkpoint_id: The checkpoint that the snapshot is for.
            factory: Where the part will write.

        Returns:
            The part that writes them, in any thread. Later changes of the states don't show in it.

        Raises:
            InvalidRequestError: A value is of another type than its state.
        """
        self.end_batch()
        return self._tables.snapshot(checkpoint_id, factory)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """The checkpoint exists: later ones may refer to its files."""
        self._tables.notify_checkpoint_complete(checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """The checkpoint was given up: its files are gone, the states are not."""
        self._tables.notify_checkpoint_aborted(checkpoint_id)

    def close(self) -> None:
        """Let go of memory and files; what was not written back is lost. May be called twice."""
        self._states.clear()
        self._tables.close()

    def _timers(self, name: str, namespace: pa.Schema) -> TimerService:
        def make() -> TimerService:
            spec = TableSpec(name, "timers", self._key, pa.schema([]), namespace, TIME)
            self._check_stored(spec)
            rows = KeyedRows(self._tables.table(spec), self._key_groups, self._hash_of)
            return TimerService(Timers(rows, self._key_groups), self._context)

        return self._state(name, ("timers", namespace), make)

    def _state(self, name: str, asked: tuple[Any, ...], make: Callable[[], _State]) -> _State:
        """A state that was asked for before, or a new one."""
        known = self._states.get(name)
        if known is None:
            if asked[0] != "timers" and name.startswith(_TIMERS):
                raise InvalidRequestError(f"state name {name!r} begins as those of timers do")
            namespace = asked[-1] if asked[0] == "timers" else asked[-2]
            _check_hashable(f"state {name!r}: the namespace", namespace)
            state = make()
            self._states[name] = (asked, state)
            return state
        before, state = known
        if before != asked:
            message = (
                f"state {name!r} was asked for as {_described(before)} before, and as {_described(asked)} "
                "now; give one of them another name"
            )
            raise StateMigrationError(message)
        return state

    def _rows(self, spec: TableSpec, form: ValueForm, ttl: StateTtlConfig | None) -> StateRows:
        self._check_stored(spec)
        stored = self._tables.specs().get(spec.name)
        if stored is not None and not stored.values.equals(spec.values, check_metadata=True):
            # Here it fails when the state is asked for, not when the first row is read.
            form.migrated(stored, [pa.array([], field.type) for field in stored.values])
        table = self._tables.table(spec, form.migrated)
        return StateRows(table, form, self._key_groups, self._hash_of, ttl)

    def _settle(self) -> None:
        for _, state in self._states.values():
            state.settle()

    def _check_stored(self, spec: TableSpec) -> None:
        """Refuse what a stored state can't become."""
        stored = self._tables.specs().get(spec.name)
        if stored is None:
            return
        before: str = stored.kind
        now: str = spec.kind
        if before == now:
            before, now = (
                f"{known.kind} state with namespaces {_shown(known.namespace)}, map keys "
                f"{_shown(known.sub_key)} and folds {list(known.folds)}"
                for known in (stored, spec)
            )
        if before != now:
            message = (
                f"state {spec.name!r} was stored as a {before}, but is asked for as a {now}; give the state "
                "that is asked for another name"
            )
            raise StateMigrationError(message)

    def _check_key(self, spec: TableSpec) -> None:
        if not spec.key.equals(self._key):
            message = (
                f"state {spec.name!r} was stored with the key {_shown(spec.key)}, but the key is "
                f"{_shown(self._key)} now; keys can't be migrated: take the key that it was stored with, or "
                "begin with a new operator uid"
            )
            raise StateMigrationError(message)


def _spec(
    kind: StateKind,
    key: pa.Schema,
    form: ValueForm,
    namespace: pa.Schema,
    ttl: StateTtlConfig | None,
    *,
    sub_key: pa.Schema = _NO_NAMESPACE,
    folds: tuple[Fold, ...] = (),
) -> TableSpec:
    """What the table of a state holds."""
    return TableSpec(
        name=form.name,
        kind=kind,
        key=key,
        values=form.schema,
        namespace=namespace,
        sub_key=sub_key,
        folds=folds,
        ttl_ms=None if ttl is None else ttl.ttl_ms,
        is_struct=form.is_struct,
    )


def _check_hashable(what: str, schema: pa.Schema) -> None:
    for field in schema:
        try:
            xxhash64([pa.array([], field.type)])
        except InvalidRequestError as error:
            raise InvalidRequestError(f"{what}, {field.name!r}: {error.args[0]}") from None


def _arrays(columns: Iterable[pa.Array | pa.ChunkedArray]) -> list[pa.Array]:
    return [
        column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        for column in columns
    ]


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema) or "of no column"


def _described(asked: tuple[Any, ...]) -> str:
    """A state that was asked for, in words."""
    words = []
    for part in asked:
        if isinstance(part, pa.Schema):
            words += [f"namespaces {_shown(part)}"] if len(part) else []
        elif part is not None:
            words.append(part.name if isinstance(part, Serializer) else str(part))
    return ", ".join(words)
