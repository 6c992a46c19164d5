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
from holdfast.backends.keyed.keys import Hash, Keys, arrow_columns, key_columns
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
from holdfast.backends.keyed.table import NO_COLUMNS, StateTables, TableSpec, plain_schema, whole_ms
from holdfast.backends.keys import KeyGroupRange, check_parallelism, xxhash64
from holdfast.backends.snapshot import AsyncSnapshot
from holdfast.errors import InvalidRequestError
from holdfast.locations.storages import CheckpointStreamFactory

_EVENT_TIMERS = f"{TIMERS}event/"
_PROCESSING_TIMERS = f"{TIMERS}processing/"


class KeyedStateBackend:
    """Keeps the keyed states of a subtask, in the tables of a backend.

    Each state can be used by arrays, for many keys at once (`state.columns`), and by the current key:

        keys(columns)                        the distinct keys of a batch
        state.columns.get(keys), put, …      by arrays, at any time
        begin_batch(keys)                    by the current key from now on
        set_current_key(index), set_current_namespace(…), state.value(), state.update(…), …
        end_batch                            writes the changes; `snapshot` does so, too

    Restored states are available by name; restored states that are not requested are still in the next snapshot.

    Args:
        tables: The tables of the states, such as `ColumnarStateTables`, new or restored.
        key: The key's columns.
        max_parallelism: Number of key groups of the job, 1 to 32768.
        key_groups: The key groups of the subtask, which must be those of the tables; None for all.
        hash_of: The hash that orders rows inside of a key group; only tests replace it.

    Raises:
        InvalidRequestError: The key has no columns, a column's type can't be part of a key, a number is out of
            bounds, or the tables have other key groups.
        StateMigrationError: The tables have other keys.

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
            raise InvalidRequestError(
                f"the key must have one or more columns with unique names, got {key.names}"
            )
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
        """Find the distinct keys of a batch.

        Args:
            columns: The key's columns, in order; or a batch or table with columns of these names.

        Raises:
            InvalidRequestError: A column is missing or has another type than the key's, or a key belongs to
                another subtask.
        """
        arrays = key_columns(columns, self._key)
        hashes = None if self._hash_of is xxhash64 else self._hash_of(arrays)
        keys = Keys.of(arrays, self._max_parallelism, hashes)
        keys.check(self._key_groups)
        return keys

    def in_namespaces(self, keys: Keys, namespaces: Sequence[pa.Array]) -> Keys:
        """Find the distinct pairs of key and namespace of a batch, for states with namespaces.

        Args:
            keys: The keys of the batch.
            namespaces: The namespace's columns, as long as the batch.

        Raises:
            InvalidRequestError: The columns have another length, or are not Arrow arrays.
        """
        columns = arrow_columns(namespaces, "a namespace's columns")
        return keys.with_columns(keys.codes, columns, self._hash_of)

    def get_state(
        self, descriptor: ValueStateDescriptor, namespace: pa.Schema = NO_COLUMNS
    ) -> ValueState:
        """Return the value state of that name; the same object each time. A new state is empty.

        Args:
            descriptor: The state's name and type.
            namespace: The columns of its namespaces; empty for a state without namespaces.

        Raises:
            StateMigrationError: The state was stored or requested before as another kind, with other
                namespaces or an incompatible type; or it was stored without a time to live and is requested
                with one; or it was requested with another default before.
            InvalidRequestError: The name is reserved, or a column of the namespace can't be hashed.
        """
        return self._states.value_state(descriptor, plain_schema(namespace))

    def get_list_state(
        self, descriptor: ListStateDescriptor, namespace: pa.Schema = NO_COLUMNS
    ) -> KeyedListState:
        """Return the list state of that name, as `get_state` does."""
        return self._states.list_state(descriptor, plain_schema(namespace))

    def get_map_state(
        self, descriptor: MapStateDescriptor, namespace: pa.Schema = NO_COLUMNS
    ) -> MapState:
        """Return the map state of that name, as `get_state` does; the type of map keys must be hashable."""
        return self._states.map_state(descriptor, plain_schema(namespace))

    def get_reducing_state(
        self, descriptor: ReducingStateDescriptor, namespace: pa.Schema = NO_COLUMNS
    ) -> ReducingState:
        """Return the reducing state of that name, as `get_state` does."""
        return self._states.reducing_state(descriptor, plain_schema(namespace))

    def get_aggregating_state(
        self, descriptor: AggregatingStateDescriptor, namespace: pa.Schema = NO_COLUMNS
    ) -> AggregatingState:
        """Return the aggregating state of that name, as `get_state` does."""
        return self._states.aggregating_state(descriptor, plain_schema(namespace))

    def event_time_timers(
        self, name: str = "timers", namespace: pa.Schema = NO_COLUMNS
    ) -> TimerService:
        """Return the event-time timers of that name; the same object each time.

        Raises:
            StateMigrationError: The timers were stored or requested before with other namespaces.
        """
        return self._states.timers(_EVENT_TIMERS + name, plain_schema(namespace))

    def processing_time_timers(
        self, name: str = "timers", namespace: pa.Schema = NO_COLUMNS
    ) -> TimerService:
        """Return the processing-time timers of that name, as `event_time_timers` does."""
        return self._states.timers(_PROCESSING_TIMERS + name, plain_schema(namespace))

    def next_timers(self) -> tuple[int | None, int | None]:
        """Return the times of the earliest event-time timer and of the earliest processing-time timer, of all names.

        Includes restored timers that were not requested yet. A missing timer has the time None.
        """
        event = self._states.earliest_timer(_EVENT_TIMERS)
        return event, self._states.earliest_timer(_PROCESSING_TIMERS)

    def drop_state(self, name: str) -> None:
        """Remove the state of that name for all keys, if it exists, without reading it.

        Another state can have the name afterwards, of the same or another kind. Calls of the dropped state raise `InvalidRequestError`.
        """
        self._states.drop(name)

    def state_names(self) -> frozenset[str]:
        """Return the names of all states, including restored ones, without timers."""
        return self._states.names()

    def specs(self) -> Mapping[str, TableSpec]:
        """Return the specification of each state's table by the state's name, including timers."""
        self._states.check_open()
        return self._tables.specs()

    def advance_time(self, now_ms: int) -> None:
        """Set the processing time of the batch, in milliseconds since 1970; values expire accordingly.

        Raises:
            InvalidRequestError: The time is not a 64-bit integer, or earlier changes can't be written back.
        """
        now_ms = whole_ms(now_ms)
        self._states.flush()
        self._states.now_ms = now_ms
        self._tables.advance_time(now_ms)

    def begin_batch(self, keys: Keys, order: Positions | None = None) -> None:
        """Begin the use of states by the current key, one of these keys.

        Args:
            keys: The keys of the batch.
            order: The indices of keys in the order in which `cursor.seek` will choose them, if that is known: lists and
                maps are then read for some keys ahead instead of for all keys.

        Raises:
            InvalidRequestError: Earlier changes can't be written back, a key belongs to another subtask, or
                the keys have other columns.
        """
        self.end_batch()
        keys.check(self._key_groups)
        key_columns(keys.columns, self._key)
        self._cursor.begin(keys, order)

    def set_current_key(self, index: int) -> None:
        """Make a key of the batch the current one.

        Args:
            index: The key's index in the batch; `keys.codes` has the index of each row's key.

        Raises:
            InvalidRequestError: No batch has begun, or the index is out of range.
        """
        cursor = self._cursor
        if not 0 <= index < cursor.count:
            raise InvalidRequestError(f"key index {index} is out of range for {cursor.count} keys")
        cursor.index = index

    def set_current_namespace(self, *namespace: Any) -> None:
        """Make a namespace the current one, for states with namespaces: a value for each of its columns."""
        self._cursor.namespace = namespace
        for state in self._states:
            state.leave_namespace()

    def end_batch(self) -> None:
        """Write back all changes, and reset the current key.

        Raises:
            InvalidRequestError: A value doesn't fit the type of its state: no change of that state since
                `begin_batch` is written.
        """
        try:
            self._states.flush()
        finally:
            self._cursor.end()

    def discard_batch(self) -> None:
        """Forget all changes that were not written back; no key is current after that."""
        for state in self._states:
            state.discard()
        self._cursor.end()

    def snapshot(self, checkpoint_id: int, factory: CheckpointStreamFactory) -> AsyncSnapshot:
        """Capture all states, including restored ones that were not requested.

        Args:
            checkpoint_id: The checkpoint of the snapshot.
            factory: Creates the streams that the snapshot is written to.

        Returns:
            The part that writes the snapshot, in any thread, isolated from later changes.

        Raises:
            InvalidRequestError: A value doesn't fit the type of its state.
        """
        self.end_batch()
        return self._tables.snapshot(checkpoint_id, factory)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Handle a completed checkpoint: later ones may refer to its files."""
        self._tables.notify_checkpoint_complete(checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Handle an aborted checkpoint: its files are deleted, the states are unchanged."""
        self._tables.notify_checkpoint_aborted(checkpoint_id)

    def close(self) -> None:
        """Release memory and files; discards changes that were not written back. May be called twice.

        Later calls of the backend or of its states raise `InvalidRequestError`.
        """
        self._states.close()
        self._tables.close()

    def _check_key_groups(self) -> None:
        own, tables = self._key_groups, self._tables.key_groups
        if own.end_key_group >= self._max_parallelism:
            message = f"{own} must be below max parallelism {self._max_parallelism}"
            raise InvalidRequestError(message)
        if own != tables:
            message = (
                f"the backend's key groups {own} differ from its tables' key groups {tables}; create both with "
                "the same key groups"
            )
            raise InvalidRequestError(message)
