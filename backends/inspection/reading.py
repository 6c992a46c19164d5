"""Readers of the states of a checkpoint or savepoint as Arrow data, without the job that wrote them."""

import base64
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from os import PathLike
from typing import Any, Literal

import pyarrow as pa
from pyarrow import types

from holdfast.backends.inspection.catalogue import find_state, stored_states
from holdfast.backends.inspection.keyed_parts import Table
from holdfast.backends.inspection.state_parts import ReadableState
from holdfast.backends.keyed import Keys
from holdfast.errors import CheckpointCorruptedError, InvalidRequestError
from holdfast.locations.coordination import find_checkpoint, hold_found_checkpoint
from holdfast.locations.metadata import CheckpointMetadata

Raw = Literal["operator", "keyed"]

_STATES = pa.schema(
    [
        ("operator", pa.string()),
        ("state", pa.string()),
        ("kind", pa.string()),
        ("subtasks", pa.int32()),
        ("stored_elements", pa.int64()),
        ("bytes", pa.int64()),
        ("type", pa.string()),
        ("arrow_type", pa.string()),
        ("stored_as", pa.string()),
    ]
)

_DURATION = re.compile(r"(-?)PT(\d+)(?:\.(\d{1,6}))?S")
_WHOLE_NUMBER = re.compile(r"-?\d+")


def read_state(
    pointer: str | PathLike[str],
    operator: str | None = None,
    state: str | None = None,
    *,
    raw: Raw | None = None,
    kind: str | None = None,
    key: Any = None,
) -> pa.Table:
    """Read a state of a checkpoint or savepoint as a table.

    Elements of a list or union list are rows of `subtask` and `value`, entries of a broadcast state
    rows of `key` and `value`, from one subtask's copy. Keyed states have a row for each key, and sub key: `subtask`,
    the columns of key, namespace and sub key, `value`, and `changed` if they have a time to live, with expired rows as
    long as these are stored. Arrow data has its stored type. Objects are read without the job's classes: structs and
    dataclasses as structs, dicts as maps, and types that Arrow lacks, such as unions, as JSON text. Pickles stay bytes.

    Args:
        pointer: URI or path of the checkpoint or savepoint, or of its metadata file; or of a checkpoint directory or
            a job's directory in it, for the newest checkpoint there.
        operator: The operator's uid; may be left out where there is only one operator.
        state: The state's name; may be left out where there is only one state, or one keyed state if `key` is given.
        raw: `operator` reads raw operator state instead: rows of `subtask`, `partition` and `value`,
            the bytes. `keyed` reads raw keyed state: `subtask`, `key_group` and `value`.
        kind: The state's kind, in the words of `states`, if operator state and keyed state have the same name.
        key: Reads only the rows of this key of keyed state: a value for each of the key's columns, by name, or the
            value if there is one column. Text for a column of another type has the form in which `holdfast cat` prints
            values: base64 for bytes, ISO 8601 for times, JSON for structs and lists. None reads all keys.

    Raises:
        InvalidRequestError: There is no such state, or its key has other columns or types, or a value doesn't fit the
            type in which it is read.
        StateMigrationError: Values were stored before the type was changed, and only the job can change them.
        CheckpointNotFoundError: There is no such checkpoint, or a state file is gone.
        CheckpointCorruptedError: Stored bytes are damaged.
    """
    with hold_found_checkpoint(pointer) as checkpoint:
        metadata = checkpoint.metadata
        readable = readable_state(metadata, operator, state, raw=raw, kind=kind, key=key)
        return pa.Table.from_batches(readable.batches(), readable.schema)


def iter_state(
    pointer: str | PathLike[str],
    operator: str | None = None,
    state: str | None = None,
    *,
    raw: Raw | None = None,
    kind: str | None = None,
    key: Any = None,
) -> pa.RecordBatchReader:
    """Read a state as a stream of record batches; only one stored block is in memory at a time.

    The stream is an iterator, and DuckDB, Polars and other libraries with Arrow's C stream interface take it as it is. The job
    does not delete the checkpoint until the stream ends or is closed. Arguments and errors are those of `read_state`.
    """
    batches = _held_batches(pointer, operator, state, raw=raw, kind=kind, key=key)
    return pa.RecordBatchReader.from_batches(next(batches), batches)


def _held_batches(
    pointer: str | PathLike[str], *names: str | None, **selection: Any
) -> Iterator[Any]:
    """Yield the schema of a state, once its checkpoint is held, then its record batches."""
    with hold_found_checkpoint(pointer) as checkpoint:
        readable = readable_state(checkpoint.metadata, *names, **selection)
        yield readable.schema
        yield from readable.batches()


def readable_state(
    metadata: CheckpointMetadata,
    operator: str | None = None,
    state: str | None = None,
    *,
    raw: Raw | None = None,
    kind: str | None = None,
    key: Any = None,
) -> ReadableState:
    """Open a state of a checkpoint without a read of its elements. Arguments and errors are those of `read_state`."""
    stored = find_state(metadata, operator, state, raw=raw, kind=kind, is_keyed=key is not None)
    groups = metadata.operators[stored.operator].max_parallelism
    readable = replace(stored.readable(), max_parallelism=groups)
    if key is None:
        return readable
    tables = tables_in(readable)
    if not tables:
        message = f"state {stored.label!r} of operator {stored.operator!r} is {stored.kind}, which has no keys"
        raise InvalidRequestError(message)
    return at_keys(readable, key_columns(stored.label, tables[0], key))


def states(pointer: str | PathLike[str]) -> pa.Table:
    """List the states of a checkpoint or savepoint, one row for each; no elements are read.

    The pointer is that of `read_state`.

    Columns: `operator`; `state`, null for raw state; `kind`: `list`, `union`, `broadcast`, `raw operator`,
    `raw keyed`, or `keyed` and the kind of keyed state, as in `keyed value`; `subtasks`, the number that have stored it;
    `stored_elements`: elements, entries, partitions or key groups, a broadcast state's counted once, and of keyed state
    stored rows, with those that were replaced, deleted or expired and not yet merged; `bytes` stored; `type` of its
    elements for people; `arrow_type` that `read_state` returns; `stored_as`: `arrow`, `messagepack`, `pickle` or `raw`.
    For broadcast and keyed states the last three have a part for each column.

    Raises:
        CheckpointNotFoundError: There is no such checkpoint, or a state file is gone.
        CheckpointCorruptedError: Stored bytes are damaged.
    """
    metadata = find_checkpoint(pointer).metadata
    rows = [state.row(state.readable().content) for state in stored_states(metadata)]
    try:
        return pa.Table.from_pylist(rows, _STATES)
    except OverflowError as error:
        message = (
            "metadata is invalid: the numbers of a state's elements add up to more than 64 bits"
        )
        raise CheckpointCorruptedError(message, str(pointer)) from error


def key_schema(readable: ReadableState) -> pa.Schema | None:
    """Return the columns of the keys in the rows of keyed state; None if rows of a key can't be looked up."""
    tables = tables_in(readable)
    if not tables or any(table.keys is not None for table in tables):
        return None
    columns = readable.columns[: len(tables[0].table.spec.key)]
    if not all(column.is_arrow for column in columns):
        return None
    return pa.schema([(column.name, column.type) for column in columns])


def at_keys(readable: ReadableState, keys: tuple[pa.Array, ...]) -> ReadableState:
    """Reduce keyed state to the rows of some keys, given as columns; other keys are not scanned."""
    wanted = Keys.of(keys, readable.max_parallelism)
    chosen = (table.at_keys(wanted) for table in tables_in(readable))
    return replace(readable, parts=tuple(table for table in chosen if table is not None))


def tables_in(readable: ReadableState) -> list[Table]:
    """Return the parts of keyed state; none if the state has parts that are not tables by key."""
    tables = [part for part in readable.parts if isinstance(part, Table)]
    return tables if len(tables) == len(readable.parts) else []


def key_columns(state: str, table: Table, key: Any) -> tuple[pa.Array, ...]:
    """Return the columns of a key, of one row each. Raises `InvalidRequestError`; `state` is the name for that."""
    return _columns(state, table.table.spec.key, key)


def _columns(state: str, schema: pa.Schema, key: Any) -> tuple[pa.Array, ...]:
    values = key if isinstance(key, Mapping) else {schema.names[0]: key}
    if set(values) != set(schema.names) or (not isinstance(key, Mapping) and len(schema) > 1):
        given = sorted(values) if isinstance(key, Mapping) else "a single value"
        message = f"state {state!r} has the key columns {schema.names}, got {given}; give a value for each column"
        raise InvalidRequestError(message)
    return tuple(_column(state, field, values[field.name]) for field in schema)


def _column(state: str, field: pa.Field, value: Any) -> pa.Array:
    try:
        return pa.array([_parse_value(value, field.type)], field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError, RecursionError):
        message = (
            f"key column {field.name!r} of state {state!r} has the type {field.type}, and the given value is not of "
            "that type; as text it must have the form in which `holdfast cat` prints it, such as base64 for bytes"
        )
        raise InvalidRequestError(message) from None


def _parse_value(value: Any, type: pa.DataType) -> Any:
    """Return the value that `pyarrow.array` takes for a type that a key can have.

    Texts have the form in which `holdfast cat` prints values: bytes are in base64, times in ISO 8601, decimals are
    texts, structs are objects, or lists of pairs if two fields have the same name, and lists are lists. Other Python
    values stay unchanged. Raises `ValueError`, such as `pyarrow.ArrowInvalid`, if the value is not of the type.
    """
    if isinstance(value, str) and types.is_nested(type):
        value = json.loads(value)
    if isinstance(value, Mapping | list) and types.is_struct(type):
        return _struct(value, type)
    if isinstance(value, list):
        return [_parse_value(item, type.value_type) for item in value]
    if not isinstance(value, str) or types.is_string(type) or types.is_large_string(type):
        return value
    if types.is_binary(type) or types.is_large_binary(type):
        return base64.b64decode(value, validate=True)
    if types.is_duration(type):
        return pa.scalar(_microseconds(value), type)
    if types.is_temporal(type) and _WHOLE_NUMBER.fullmatch(value):
        return int(value)  # days or microseconds, in years that don't have four digits
    return pa.array([value]).cast(type)[0]


def _struct(value: Mapping[str, Any] | list[Any], type: pa.StructType) -> tuple[Any, ...]:
    """Return the values of the fields in their order, for two fields may have the same name."""
    names = [field.name for field in type]
    if isinstance(value, Mapping):
        value = sorted(value.items(), key=lambda item: names.index(item[0]))
    if [name for name, _ in value] != names:
        raise ValueError(f"the struct has the fields {names}")
    return tuple(
        _parse_value(item, field.type) for (_, item), field in zip(value, type, strict=True)
    )


def _microseconds(text: str) -> int:
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a duration such as PT1.500000S")
    sign, seconds, fraction = match.groups(default="")
    return int(f"{sign}{seconds}{fraction:0<6}")
