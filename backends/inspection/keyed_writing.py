"""Writers of tables as keyed states, in the form in which the subtasks of a job would have stored them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from holdfast.backends.arrow import conform_column
from holdfast.backends.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from holdfast.backends.inspection.catalogue import StoredState
from holdfast.backends.inspection.keyed_parts import GETTERS, KeyedDescriptor, Table, shown_schema
from holdfast.backends.inspection.operator_writing import StateRows, check_name, encode_column
from holdfast.backends.inspection.state_parts import CHANGED, KEY, SUBTASK, VALUE
from holdfast.backends.keyed import (
    HeapStateTables,
    Identities,
    KeyedStateBackend,
    Keys,
    TableRows,
    TableSpec,
    encode_manifest,
    read_manifest,
    readable_handles,
    write_tables,
)
from holdfast.backends.keys import KeyGroupRange, key_group_range
from holdfast.backends.serializers import Serializer, serializer_of, stored_serializer
from holdfast.backends.snapshot import SnapshotStreams
from holdfast.common import raise_shortage
from holdfast.errors import InvalidRequestError
from holdfast.locations.handles import ByteStreamStateHandle, SegmentsStateHandle
from holdfast.locations.storages import CheckpointStreamFactory

RowsOf = Callable[[KeyGroupRange], Iterable[StateRows]]
"""Returns the rows of a state in some key groups."""


def is_keyed(name: str, rows: StateRows | None, stored: Iterable[StoredState]) -> bool:
    """Return whether a state to write or remove is keyed state, by its rows or else by the stored state.

    Args:
        name: The state's name.
        rows: The rows to write; None removes the state.
        stored: The states of the operator so far.
    """
    if rows is not None and (rows.kind or "").startswith("keyed"):
        return True
    if rows is not None and isinstance(rows.descriptor, _ONLY_KEYED):
        return True
    there = [state.is_keyed for state in stored if state.name == name]
    return bool(there) and all(there)


_ONLY_KEYED = tuple(set(GETTERS) - {ListStateDescriptor, MapStateDescriptor})


def without_tables(handle: SegmentsStateHandle, names: set[str]) -> SegmentsStateHandle | None:
    """Remove tables from a handle, with the segments that only they use; returns None if no table remains.

    Raises:
        CheckpointNotFoundError: The manifest is gone.
        CheckpointCorruptedError: The manifest is damaged.
    """
    (handle,) = readable_handles([handle])
    manifest = read_manifest([handle], KeyGroupRange(*handle.key_groups))
    left = {name: table for name, table in manifest.tables.items() if name not in names}
    if len(left) == len(manifest.tables):
        return handle
    manifest = msgspec.structs.replace(manifest, tables=left)
    segments = {name: handle.segments[name] for name in manifest.segments}
    if not left:
        return None
    stream = ByteStreamStateHandle(encode_manifest(manifest))
    return SegmentsStateHandle(handle.key_groups, segments, stream)


def write_keyed_states(
    states: Mapping[str, StateRows],
    factory: CheckpointStreamFactory,
    *,
    parallelism: int,
    max_parallelism: int,
    key: Sequence[str],
    stored: Iterable[StoredState],
) -> dict[int, SegmentsStateHandle]:
    """Write keyed states of one operator: a canonical segment for each subtask, which has the rows of its keys.

    Args:
        states: The states by name; their rows are tables.
        factory: Opens the files.
        parallelism: Number of the operator's subtasks.
        max_parallelism: Number of its key groups.
        key: Names of the key's columns, if no stored state has them.
        stored: The operator's stored states; a state that is replaced keeps its types.

    Raises:
        InvalidRequestError: Rows are not of the state's type, or have other columns, or a key twice.
        StateMigrationError: The descriptor is of another kind than the stored state.
        StorageUnavailableError: The store did not take it.
    """
    specs = {
        part.name: part.table.spec
        for state in stored
        for part in state.parts
        if isinstance(part, Table)
    }
    tables = [
        (_spec_of(name, rows, specs, key, max_parallelism), rows) for name, rows in states.items()
    ]
    return write_keyed_tables(
        tables, factory, parallelism=parallelism, max_parallelism=max_parallelism
    )


def write_keyed_tables(
    tables: Iterable[tuple[TableSpec, StateRows]],
    factory: CheckpointStreamFactory,
    *,
    parallelism: int,
    max_parallelism: int,
) -> dict[int, SegmentsStateHandle]:
    """Write keyed states, timers among them, whose specifications are known.

    Args:
        tables: The specification of each state, and its rows as a table with the columns of `shown_schema`.

    Other arguments, the result and errors are those of `write_keyed_states`.
    """
    written = [(spec, _rows_of(spec, rows, max_parallelism)) for spec, rows in tables]

    def parts(groups: KeyGroupRange) -> Iterable[tuple[TableSpec, Iterable[TableRows]]]:
        return ((spec, _within(rows, groups)) for spec, rows in written)

    return _write(parts, factory, parallelism, max_parallelism)


def write_partitioned_tables(
    tables: Sequence[tuple[TableSpec, RowsOf]],
    factory: CheckpointStreamFactory,
    *,
    parallelism: int,
    max_parallelism: int,
) -> dict[int, SegmentsStateHandle]:
    """Write keyed states with too many rows for the memory.

    Args:
        tables: The specification of each state, and the function that returns its rows of some key groups, in steps: all
            rows of a key group are in one step, and the key groups ascend from step to step and from call to call.

    Other arguments, the result and errors are those of `write_keyed_tables`.
    """

    def parts(groups: KeyGroupRange) -> Iterable[tuple[TableSpec, Iterable[TableRows]]]:
        for spec, rows_of in tables:
            yield spec, (_rows_of(spec, rows, max_parallelism) for rows in rows_of(groups))

    return _write(parts, factory, parallelism, max_parallelism)


def _write(
    parts_of: Callable[[KeyGroupRange], Iterable[tuple[TableSpec, Iterable[TableRows]]]],
    factory: CheckpointStreamFactory,
    parallelism: int,
    max_parallelism: int,
) -> dict[int, SegmentsStateHandle]:
    """Write the tables of each subtask; return the handles by subtask."""
    ranges = [key_group_range(max_parallelism, parallelism, each) for each in range(parallelism)]
    return {
        subtask: write_tables(parts_of(groups), groups, SnapshotStreams(factory))
        for subtask, groups in enumerate(ranges)
    }


def _spec_of(
    name: str,
    rows: StateRows,
    stored: Mapping[str, TableSpec],
    key: Sequence[str],
    max_parallelism: int,
) -> TableSpec:
    """Return the specification of a table to write."""
    before = stored.get(name)
    if before is not None and rows.descriptor is None:
        return before
    if before is not None:
        schema, namespace = before.key, before.namespace
    else:
        other = next(iter(stored.values()), None)
        schema = _schema_of(name, rows.rows, key) if other is None else other.key
        namespace = _schema_of(name, rows.rows, rows.namespace)
    if not len(schema):
        message = f"keyed state {name!r} needs the names of its key columns: operators={{uid: NewOperator(key=...)}}"
        raise InvalidRequestError(message)
    descriptor = rows.descriptor or _descriptor_of(name, rows)
    check_name(name, descriptor)
    return described_table(descriptor, schema, namespace, max_parallelism)


def described_table(
    descriptor: KeyedDescriptor, key: pa.Schema, namespace: pa.Schema, max_parallelism: int
) -> TableSpec:
    """Return the specification of the table of a keyed state with this descriptor.

    Args:
        descriptor: The state.
        key: The key's columns.
        namespace: The columns of its namespaces, if it has any.
        max_parallelism: Number of key groups.

    Raises:
        InvalidRequestError: A column of key, namespace or map key has a type that is not hashable.
    """
    backend = empty_backend(key, max_parallelism)
    GETTERS[type(descriptor)](backend, descriptor, namespace)
    return backend.specs()[descriptor.name]


def timers_table(domain: str, key: pa.Schema, max_parallelism: int) -> TableSpec:
    """Return the specification of the table of a function's timers, with the key's columns and `time`.

    Args:
        domain: `event` or `processing`.
        key: The key's columns.
        max_parallelism: Number of key groups.
    """
    backend = empty_backend(key, max_parallelism)
    timers = backend.event_time_timers if domain == "event" else backend.processing_time_timers
    timers()
    [spec] = backend.specs().values()
    return spec


def empty_backend(key: pa.Schema, max_parallelism: int) -> KeyedStateBackend:
    """Return a backend without state, for the specifications of states."""
    tables = HeapStateTables(KeyGroupRange(0, max_parallelism - 1))
    return KeyedStateBackend(tables, key, max_parallelism)


def _schema_of(name: str, table: pa.Table, names: Sequence[str]) -> pa.Schema:
    missing = [column for column in names if column not in table.column_names]
    if missing:
        raise InvalidRequestError(f"rows of state {name!r} have no columns {missing}")
    return pa.schema([table.schema.field(column).remove_metadata() for column in names])


def _descriptor_of(name: str, rows: StateRows) -> KeyedDescriptor:
    """Return the descriptor for the types of a state's rows."""
    schema = rows.rows.schema
    needed = {"keyed value": {VALUE}, "keyed list": {VALUE}, "keyed map": {KEY, VALUE}}
    missing = needed.get(rows.kind or "", set()) - set(schema.names)
    if missing or rows.kind not in needed:
        message = (
            f"kind of state {name!r} is unknown; pass its descriptor, or kind='keyed value', 'keyed list' or "
            f"'keyed map', and columns {sorted(needed.get(rows.kind or '', {VALUE}))}"
        )
        raise InvalidRequestError(message)
    type = schema.field(VALUE).type
    if rows.kind == "keyed map":
        return MapStateDescriptor(name, schema.field(KEY).type, type)
    if rows.kind == "keyed list":
        if not pa.types.is_list(type):
            raise InvalidRequestError(f"state {name!r} needs values of a list type, got {type}")
        return ListStateDescriptor(name, type.value_type)
    return ValueStateDescriptor(name, type)


def _rows_of(spec: TableSpec, state: StateRows, max_parallelism: int) -> TableRows:
    """Convert the rows of a state to those of its table, ascending by sort key."""
    shown = shown_schema(spec)
    table = state.rows
    names = [column for column in table.column_names if column != SUBTASK]  # the key decides
    if sorted(names) != sorted(shown.names):
        message = f"rows of state {spec.name!r} have columns {names}; they need {shown.names}, as read_state returns them"
        raise InvalidRequestError(message)
    ids = [
        _cast(spec.name, field.name, table[field.name], field.type)
        for field in list(shown)[: len(spec.id_fields)]
    ]
    if spec.kind == "timers":
        return _timers(spec, ids, max_parallelism)
    keys = Keys.of(ids[: len(spec.key)], max_parallelism)
    extra = ids[len(spec.key) :]
    entries = keys.with_columns(keys.codes, extra) if extra else keys
    if len(entries) < len(table):
        message = f"rows of state {spec.name!r} have a key twice; 0.0 and -0.0 are the same key, and so are all NaN"
        raise InvalidRequestError(message)
    order = pa.array(entries.rows.firsts)
    values = [column.take(order) for column in _values(spec, table[VALUE], state.descriptor)]
    times = None
    if spec.ttl_ms is not None:
        changed = _cast(spec.name, CHANGED, table[CHANGED], shown.field(CHANGED).type)
        if changed.null_count:
            message = f"rows of state {spec.name!r} must have the time of their last change in column {CHANGED!r}"
            raise InvalidRequestError(message)
        times = changed.take(order).cast(pa.int64()).to_numpy()
    return TableRows(entries.identities, tuple(values), times)


def _timers(spec: TableSpec, ids: Sequence[pa.Array], max_parallelism: int) -> TableRows:
    """Convert the rows of timers, which are ordered by time."""
    backend = empty_backend(spec.key, max_parallelism)
    keys = backend.keys(list(ids[: len(spec.key)]))
    if len(spec.namespace):
        keys = backend.in_namespaces(keys, ids[len(spec.key) : -1])
    timers = backend.event_time_timers("written", spec.namespace)
    timers.columns.register(keys, ids[-1].cast(pa.int64()).to_numpy())
    rows = list(timers.columns.rows.table.scan(max(1, len(ids[0]))))
    return _join(spec, rows)


def _join(spec: TableSpec, rows: Sequence[TableRows]) -> TableRows:
    if not rows:
        none = tuple(pa.array([], field.type) for field in spec.id_fields)
        return TableRows(Identities(np.empty(0, np.uint64), none), ())
    columns = zip(*(part.identities.columns for part in rows), strict=True)
    sort_keys = np.concatenate([part.identities.sort_keys for part in rows])
    return TableRows(
        Identities(sort_keys, tuple(pa.concat_arrays(list(parts)) for parts in columns)), ()
    )


def _values(
    spec: TableSpec, shown: pa.ChunkedArray, descriptor: KeyedDescriptor | None
) -> list[pa.Array]:
    """Return the columns of values."""
    type = pa.struct(list(spec.values)) if spec.is_struct else spec.values.field(0).type
    if descriptor is None:
        stored = stored_serializer(pa.field(VALUE, type, metadata=_metadata(spec)), spec.name)
        if stored.kind != "arrow":
            message = f"state {spec.name!r} has values of {stored.name}; give the job's descriptor"
            raise InvalidRequestError(message)
        values = _encode(spec.name, serializer_of(type), shown, type)
    elif isinstance(descriptor, ListStateDescriptor):
        lists = shown.combine_chunks()
        if not pa.types.is_list(lists.type):
            message = f"state {spec.name!r} needs values of a list type, got {lists.type}"
            raise InvalidRequestError(message)
        if spec.ttl_ms is not None:  # elements have their times
            values = _encode(spec.name, serializer_of(type), shown, type)
        else:
            elements = pa.chunked_array([lists.flatten()])
            flat = _encode(spec.name, descriptor.serializer, elements, type.value_type)
            lengths = np.diff(lists.offsets.to_numpy())
            offsets = np.concatenate([[0], np.cumsum(lengths)])
            values = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), flat, type=type)
    elif isinstance(descriptor, MapStateDescriptor):
        values = _encode(spec.name, descriptor.value_serializer, shown, type)
    else:
        values = _encode(spec.name, descriptor.serializer, shown, type)
    return list(values.flatten()) if spec.is_struct else [values]


def _metadata(spec: TableSpec) -> Any:
    return spec.values.metadata if spec.is_struct else spec.values.field(0).metadata


def _encode(
    name: str, serializer: Serializer, rows: pa.ChunkedArray, type: pa.DataType
) -> pa.Array:
    return conform_column(encode_column(name, VALUE, serializer, rows), type).combine_chunks()


def _cast(state: str, name: str, column: pa.ChunkedArray, type: pa.DataType) -> pa.Array:
    try:
        array = conform_column(column, type).combine_chunks()
    except pa.ArrowException as error:
        raise_shortage(error)
        message = f"column {name!r} of state {state!r} must be of type {type}, got {column.type}"
        raise InvalidRequestError(message) from None
    return pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) else array


def _within(rows: TableRows, groups: KeyGroupRange) -> list[TableRows]:
    """Return the rows of some key groups."""
    keys = rows.identities.sort_keys
    edges = np.array([groups.start_key_group, groups.end_key_group + 1], np.uint64) << np.uint64(48)
    first, end = keys.searchsorted(edges).tolist()

    def cut(columns: tuple[pa.Array, ...]) -> tuple[pa.Array, ...]:
        return tuple(column.slice(first, end - first) for column in columns)

    if first == end:
        return []
    times = None if rows.times_ms is None else rows.times_ms[first:end]
    return [
        TableRows(
            Identities(keys[first:end], cut(rows.identities.columns)), cut(rows.values), times
        )
    ]
