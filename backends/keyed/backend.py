"""The keyed state backend: the states of one subtask that belong to keys."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from holdfast.backends.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from holdfast.backends.keyed.compatibility import check_hashable, check_key
from holdfast.backends.keyed.grouping import Positions
from holdfast.backends.keyed.key_columns import arrow_columns, key_columns
from holdfast.backends.keyed.keys import Hash, Keys
from holdfast.backends.keyed.known_states import TIMERS, KnownStates
from holdfast.backends.keyed.states import (
    AggregatingState,
    KeyCursor,
    KeyedListState,
    MapState,
    ReducingState,
    TimerService,
    ValueState,
)
from holdfast.backends.keyed.table import StateTables, TableSpec, plain_schema
from holdfast.backends.keyed.whole_ms import whole_ms
from holdfast.backends.keys import KeyGroupRange, check_parallelism, xxhash64
from holdfast.backends.snapshot import SnapshotPart
from holdfast.errors import InvalidRequestError
from holdfast.locations.storages import CheckpointStreamFactory

_NO_NAMESPACE = pa.schema([])
_EVENT_TIMERS = f"{TIMERS}event/"
_PROCESSING_TIMERS = f"{TIMERS}processing/"


class KeyedStateBackend:
    """Keeps the keyed states of a subtask, in the tables of a backend.

    Each state is there by arrays, for many keys at once (`state.columns`), and by the current key:

        keys(columns)                        the distinct keys of a batch
        state.columns.get(keys), put, …      by arrays, at any time
        begin_batch(keys)                    from here on by the current key
        set_current_key(index), set_current_namespace(…), state.value(), state.update(…), …
        end_batch                            writes the changes; `snapshot` does so, too

    Restored states are there under their names; a state that nobody asks for is carried on into the next snapshot.

    Args:
        tables: Where rows are kept, such as `ColumnarStateTables`; new, or restored.
        key: The key's columns.
        max_parallelism: Number of key groups of the job, 1 to 32768.
        key_groups: The key groups that the subtask has, which are those of the tables; None for all.
        hash_of: The hash by which rows are sorted inside of a key group; only tests give another one.

    Raises:
        InvalidRequestError: The key has no columns, or one has a type that can't be a key's, or numbers are
            out of bounds, or the tables are of other key groups.
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
        check_hashable("the key", key)
        if not 0 < len(key) == len(set(key.names)):
            raise InvalidRequestError(f"the key needs columns of different names, not {key.names}")
        key = plain_schema(key)
        self._tables = tables
        self._key = key
        self._max_parallelism = max_parallelism
        self._key_groups = key_groups or KeyGroupRange(0, max_parallelism - 1)
        self._check_key_groups()
        self._hash_of = hash_of
        self._cursor = KeyCursor()
        self._states = KnownStates(tables, key, self._key_groups, hash_of, self._cursor)
        for stored in tables.specs().values():
            check_key(stored, key)

    @property
    def key(self) -> pa.Schema:
        """The key's columns."""
        return self._key

    @property
    def cursor(self) -> KeyCursor:
        """The current key."""
        return self._cursor

    def keys(
        self, columns: Sequence[pa.Array | pa.ChunkedArray] | pa.RecordBatch | pa.Table
    ) -> Keys:
        """The distinct keys of a batch.

        Args:
            columns: The key's columns, in order; or a batch or table that has columns of their names.

        Raises:
            InvalidRequestError: A column is missing or has another type than the key, or a key belongs to
                another subtask.
        """
        arrays = key_columns(columns, self._key)
        hashes = None if self._hash_of is xxhash64 else self._hash_of(arrays)
        keys = Keys.of(arrays, self._max_parallelism, hashes)
        keys.check(self._key_groups)
        return keys

    def in_namespaces(self, keys: Keys, namespaces: Sequence[pa.Array]) -> Keys:
        """The distinct pairs of key and namespace of a batch, for states with namespaces.

        Args:
            keys: The keys of the batch.
            namespaces: The namespace's columns, a row for each row of the batch.

        Raises:
            InvalidRequestError: The columns have another length, or are none of Arrow.
        """
        columns = arrow_columns(namespaces, "a namespace's columns")
        return keys.with_columns(keys.codes, columns, self._hash_of)

    def get_state(
        self, descriptor: ValueStateDescriptor, namespace: pa.Schema = _NO_NAMESPACE
    ) -> ValueState:
        """The value state of that name; the same object each time. A new state begins empty.

        Args:
            descriptor: The state's name and type.
            namespace: The columns of its namespaces; none for a state without.

        Raises:
            StateMigrationError: The state was stored, or asked for before, as another kind, with other
                namespaces or with a type that can't become this one; or it was stored without a time to
                live, and is asked for with one; or it was asked for with another default before.
            InvalidRequestError: The name can't be a state's, or a column of the namespace can't be hashed.
        """
        return self._states.value_state(descriptor, plain_schema(namespace))

    def get_list_state(
        self, descriptor: ListStateDescriptor, namespace: pa.Schema = _NO_NAMESPACE
    ) -> KeyedListState:
        """The list state of that name. All else is as for `get_state`."""
        return self._states.list_state(descriptor, plain_schema(namespace))

    def get_map_state(
        self, descriptor: MapStateDescriptor, namespace: pa.Schema = _NO_NAMESPACE
    ) -> MapState:
        """The map state of that name. All else is as for `get_state`; map keys must be of a type that can be hashed."""
        return self._states.map_state(descriptor, plain_schema(namespace))

    def get_reducing_state(
        self, descriptor: ReducingStateDescriptor, namespace: pa.Schema = _NO_NAMESPACE
    ) -> ReducingState:
        """The reducing state of that name. All else is as for `get_state`."""
        return self._states.reducing_state(descriptor, plain_schema(namespace))

    def get_aggregating_state(
        self, descriptor: AggregatingStateDescriptor, namespace: pa.Schema = _NO_NAMESPACE
    ) -> AggregatingState:
        """The aggregating state of that name. All else is as for `get_state`."""
        return self._states.aggregating_state(descriptor, plain_schema(namespace))

    def event_time_timers(
        self, name: str = "timers", namespace: pa.Schema = _NO_NAMESPACE
    ) -> TimerService:
        """The timers of event time of that name; the same object each time.

        Raises:
            StateMigrationError: The timers were stored, or asked for before, with other namespaces.
        """
        return self._states.timers(_EVENT_TIMERS + name, plain_schema(namespace))

    def processing_time_timers(
        self, name: str = "timers", namespace: pa.Schema = _NO_NAMESPACE
    ) -> TimerService:
        """The timers of processing time of that name. All else is as for `event_time_timers`."""
        return self._states.timers(_PROCESSING_TIMERS + name, plain_schema(namespace))

    def next_timers(self) -> tuple[int | None, int | None]:
        """The times of the earliest timers that are left, whatever their names: of event time, and of processing time.

        Timers that were restored and that nobody has asked for count, too. None if there are none.
        """
        event = self._states.earliest_timer(_EVENT_TIMERS)
        return event, self._states.earliest_timer(_PROCESSING_TIMERS)

    def drop_state(self, name: str) -> None:
        """Remove the state of that name, of all keys, without reading it; nothing happens if there is none.

        A state of any kind may have the name afterwards. Further use of the dropped state is refused.
        """
        self._states.drop(name)

    def state_names(self) -> frozenset[str]:
        """Names of all states, restored ones included; timers are none."""
        return self._states.names()

    def specs(self) -> Mapping[str, TableSpec]:
        """The specification of each state's table, by the state's name; timers are among them."""
        self._states.check_open()
        return self._tables.specs()

    def advance_time(self, now_ms: int) -> None:
        """Set the time of the batch: milliseconds since 1970, of processing. By it values expire.

        Raises:
            InvalidRequestError: It is no whole number, or earlier changes can't be written back.
        """
        now_ms = whole_ms(now_ms)
        self._states.settle()
        self._states.now_ms = now_ms
        self._tables.advance_time(now_ms)

    def begin_batch(self, keys: Keys, order: Positions | None = None) -> None:
        """Begin the use of states by the current key, which is then chosen among these keys.

        Args:
            keys: The keys of the batch.
            order: The indices of keys in the order in which `cursor.seek` will choose them, if that is known: lists and
                maps are then read for some keys ahead instead of for all keys.

        Raises:
            InvalidRequestError: Earlier changes can't be written back, or a key belongs to another
                subtask, or the keys have other columns.
        """
        self.end_batch()
        keys.check(self._key_groups)
        key_columns(keys.columns, self._key)
        self._cursor.begin(keys, order)

    def set_current_key(self, index: int) -> None:
        """Make a key of the batch the current one.

        Args:
            index: The key's index: `keys.codes` has it for each row of the batch.

        Raises:
            InvalidRequestError: No batch has begun, or it has no such key.
        """
        cursor = self._cursor
        if not 0 <= index < cursor.count:
            message = f"key {index} is out of range: the batch has {cursor.count} keys"
            raise InvalidRequestError(message)
        cursor.index = index

    def set_current_namespace(self, *namespace: Any) -> None:
        """Make a namespace the current one, for the states that have namespaces: a value for each of its columns."""
        self._cursor.namespace = namespace
        for state in self._states:
            state.leave_namespace()

    def end_batch(self) -> None:
        """Write back all changes; no key is current any more.

        Raises:
            InvalidRequestError: A value is of another type than its state: no change of that state since
                `begin_batch` is written.
        """
        try:
            self._states.settle()
        finally:
            self._cursor.end()

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
        """Let go of memory and files; what was not written back is lost. May be called twice.

        Who uses the backend or one of its states from now on is refused by `InvalidRequestError`.
        """
        self._states.close()
        self._tables.close()

    def _check_key_groups(self) -> None:
        own, tables = self._key_groups, self._tables.key_groups
        if own.end_key_group >= self._max_parallelism:
            message = f"{own} is not below max parallelism {self._max_parallelism}"
            raise InvalidRequestError(message)
        if own != tables:
            message = (
                f"the backend is to have {own}, and its tables have {tables}: rows of other key groups "
                "would be in no checkpoint; give both the same"
            )
            raise InvalidRequestError(message)
