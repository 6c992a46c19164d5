"""Writers of tables as operator states, in the form in which the subtasks of a job would have stored them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.backends.arrow import IncompatibleValueError
from holdfast.backends.descriptors import ListStateDescriptor, MapStateDescriptor
from holdfast.backends.inspection.keyed_parts import KeyedDescriptor
from holdfast.backends.inspection.state_parts import KEY, SUBTASK, VALUE, ReadableState
from holdfast.backends.serializers import Serializer
from holdfast.backends.snapshot import (
    LIST_COLUMNS,
    MAP_COLUMNS,
    Compression,
    WrittenState,
    WrittenStates,
)
from holdfast.errors import InvalidRequestError
from holdfast.locations.handles import OperatorStateHandle, OperatorStateMode
from holdfast.locations.storages import CheckpointedStateScope, CheckpointStreamFactory

Descriptor = ListStateDescriptor | MapStateDescriptor


@dataclass(frozen=True, slots=True)
class StateRows:
    """The rows of a state to write.

    Attributes:
        rows: A `pyarrow.Table`, or a DataFrame of pandas or Spark, with the columns that `read_state` returns. Rows of a
            list with a column `subtask` go to that subtask; without that column they are distributed evenly. Rows of
            keyed state go to the subtasks of their keys.
        descriptor: The state's descriptor in the job. Needed for types that Arrow lacks; otherwise the type is that of
            the state that is replaced, or else that of the column.
        union: Whether it is a union list state. None: as the state that is replaced, else not.
        kind: The state's kind, if neither the descriptor nor a state that is replaced has it: `keyed value`, `keyed list`
            or `keyed map`.
        namespace: Names of the columns of a new keyed state's namespaces.
    """

    rows: Any
    descriptor: KeyedDescriptor | None = None
    union: bool | None = None
    kind: str | None = None
    namespace: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A state in its stored form, with the subtask of each row; without subtasks rows are distributed evenly."""

    mode: OperatorStateMode
    rows: pa.Table
    subtasks: pa.ChunkedArray | None

    def of_subtask(self, subtask: int, parallelism: int) -> pa.Table:
        """Return the rows of a subtask."""
        # The restore copies the first subtask's part to each subtask.
        if self.mode is OperatorStateMode.BROADCAST:
            return self.rows if subtask == 0 else self.rows.slice(0, 0)
        if self.subtasks is not None:
            return self.rows.filter(pc.equal(self.subtasks, subtask))
        share, remainder = divmod(len(self.rows), parallelism)
        first = subtask * share + min(subtask, remainder)
        return self.rows.slice(first, share + (subtask < remainder))


def write_states(
    states: Mapping[str, StateRows],
    factory: CheckpointStreamFactory,
    *,
    parallelism: int,
    replaced: Mapping[str, ReadableState],
    needs_subtasks: bool = False,
    compression: Compression | None = None,
) -> dict[int, OperatorStateHandle]:
    """Write states of one operator.

    Args:
        states: The states by name; their rows are tables.
        factory: Opens the files.
        parallelism: Number of the operator's subtasks.
        replaced: The states that are stored under these names so far.
        needs_subtasks: Whether rows of lists must have a column `subtask`, because the operator partitions its rows by
            key.
        compression: The compression of sections; None for none.

    Returns:
        Handles by subtask. A subtask without rows has none, except the first, which has all types.

    Raises:
        InvalidRequestError: Rows are not of the state's type, or have other columns.
        StorageUnavailableError: The store did not take it.
    """
    prepared = {
        name: _prepare(name, state, replaced.get(name), parallelism, needs_subtasks=needs_subtasks)
        for name, state in states.items()
    }
    handles = {}
    for subtask in range(parallelism):
        tables = {
            name: WrittenState(state.mode, rows)
            for name, state in prepared.items()
            if len(rows := state.of_subtask(subtask, parallelism)) or subtask == 0
        }
        if not tables:
            continue
        scope = CheckpointedStateScope.EXCLUSIVE
        with factory.create_checkpoint_state_output_stream(scope) as stream:
            partitions = WrittenStates(tables).write(stream, compression)
            handle = stream.close_and_get_handle()
        assert handle is not None  # sections have bytes, also of no rows
        handles[subtask] = OperatorStateHandle(partitions, handle)
    return handles


def _prepare(
    name: str,
    state: StateRows,
    replaced: ReadableState | None,
    parallelism: int,
    *,
    needs_subtasks: bool,
) -> _Prepared:
    table = state.rows
    descriptor = state.descriptor or _descriptor(name, table, replaced)
    if not isinstance(descriptor, ListStateDescriptor | MapStateDescriptor):
        message = f"state {name!r} is operator state, and {descriptor!r} is only for keyed state"
        raise InvalidRequestError(message)
    check_name(name, descriptor)
    if isinstance(descriptor, MapStateDescriptor):
        if state.union:
            raise InvalidRequestError(f"state {name!r} has keys, and can't be a union list state")
        serializers = (descriptor.key_serializer, descriptor.value_serializer)
        _check_columns(name, table, {KEY, VALUE}, {KEY, VALUE})
        rows = _stored_rows(name, table, (KEY, VALUE), MAP_COLUMNS, serializers)
        _check_keys(name, rows, descriptor.key_serializer)
        return _Prepared(OperatorStateMode.BROADCAST, rows, None)
    _check_columns(name, table, {VALUE}, {SUBTASK, VALUE})
    rows = _stored_rows(name, table, (VALUE,), LIST_COLUMNS, (descriptor.serializer,))
    is_union = state.union
    if is_union is None and replaced is not None:
        is_union = replaced.kind == "union"
    mode = OperatorStateMode.UNION if is_union else OperatorStateMode.SPLIT_DISTRIBUTE
    if SUBTASK in table.column_names:
        return _Prepared(mode, rows, _subtasks(name, table[SUBTASK], parallelism))
    if needs_subtasks and not is_union:
        message = (
            f"list state {name!r} belongs to an operator that partitions rows by key: give its rows a "
            "column 'subtask' with the subtask of their keys, or let it be union list state"
        )
        raise InvalidRequestError(message)
    return _Prepared(mode, rows, None)


def _descriptor(name: str, table: pa.Table, replaced: ReadableState | None) -> Descriptor:
    """Return the descriptor for the type of the state that is replaced, or else of the table."""
    if replaced is not None:
        foreign = [shown.stored_name for shown in replaced.columns if not shown.is_arrow]
        if foreign:
            message = f"state {name!r} has elements of {foreign[0]}; give the job's descriptor"
            raise InvalidRequestError(message)
        types = [shown.type for shown in replaced.columns]
    else:
        names = [KEY, VALUE] if KEY in table.column_names else [VALUE]
        _check_columns(name, table, set(names), {SUBTASK, KEY, VALUE})
        types = [table.schema.field(column_name).type for column_name in names]
    if pa.types.is_null(types[-1]) or pa.types.is_null(types[0]):
        message = (
            f"rows of state {name!r} have no type; give them one, such as "
            "pa.array([], pa.int64()), or give the state's descriptor"
        )
        raise InvalidRequestError(message)
    if len(types) == 1:
        return ListStateDescriptor(name, types[0])
    return MapStateDescriptor(name, *types)


def _check_columns(name: str, table: pa.Table, needed: set[str], known: set[str]) -> None:
    names = table.column_names
    if not needed <= set(names) <= known or len(set(names)) < len(names):
        message = (
            f"rows of state {name!r} have columns {names}; they need {sorted(needed)}"
            f"{' and may have a column subtask' if SUBTASK in known else ''}"
        )
        raise InvalidRequestError(message)


def _check_keys(name: str, rows: pa.Table, serializer: Serializer) -> None:
    keys = serializer.decode(rows[MAP_COLUMNS[0]])
    try:
        # NaN differs from itself, but is a single key to the reader of the rows.
        nans = sum(isinstance(key, float) and math.isnan(key) for key in keys)
        is_unique = len(set(keys)) == len(keys) and nans < 2
    except TypeError:
        raise InvalidRequestError(f"keys of state {name!r} can't be looked up") from None
    if not is_unique:
        raise InvalidRequestError(f"rows of state {name!r} have a key twice")


def _subtasks(name: str, subtasks: pa.ChunkedArray, parallelism: int) -> pa.ChunkedArray:
    is_valid = pa.types.is_integer(subtasks.type) and not subtasks.null_count
    if is_valid and len(subtasks):
        bounds = pc.min_max(subtasks).as_py()
        is_valid = bounds["min"] >= 0 and bounds["max"] < parallelism
    if not is_valid:
        message = (
            f"column subtask of state {name!r} must have integers from 0 to {parallelism - 1}; "
            "an operator that is not in the base has the parallelism in operators=, or 1"
        )
        raise InvalidRequestError(message)
    return subtasks


def _stored_rows(
    name: str,
    table: pa.Table,
    shown: tuple[str, ...],
    stored: tuple[str, ...],
    serializers: tuple[Serializer, ...],
) -> pa.Table:
    named = list(zip(shown, stored, serializers, strict=True))
    columns = [
        encode_column(name, column, serializer, table[column]) for column, _, serializer in named
    ]
    return pa.table(columns, pa.schema([serializer.field(each) for _, each, serializer in named]))


def encode_column(
    state: str, column: str, serializer: Serializer, rows: pa.ChunkedArray
) -> pa.ChunkedArray:
    """Convert a column to its stored form. Raises `InvalidRequestError`."""
    try:
        chunks = serializer.encode_rows(rows)
    except IncompatibleValueError as error:
        message = (
            f"column {column!r} doesn't fit state {state!r} of type {serializer.name}: {error}"
        )
        raise InvalidRequestError(message) from None
    return pa.chunked_array(chunks, serializer.storage_type)


def check_name(state: str, descriptor: KeyedDescriptor) -> None:
    """Refuse a descriptor of another name. Raises `InvalidRequestError`."""
    if descriptor.name != state:
        message = f"descriptor of state {state!r} has the name {descriptor.name!r}; give both the same name"
        raise InvalidRequestError(message)
