"""Readers of the states of a checkpoint or savepoint as Arrow data, without the job that wrote them."""

from collections.abc import Iterator
from os import PathLike
from typing import Any, Literal

import pyarrow as pa

from holdfast.backends.inspection.catalogue import find_state, stored_states
from holdfast.backends.inspection.key_choice import filter_by_key
from holdfast.backends.inspection.state_parts import ReadableState
from holdfast.errors import CheckpointCorruptedError
from holdfast.locations.coordination import find_checkpoint

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
    readable = readable_state(pointer, operator, state, raw=raw, kind=kind, key=key)
    return pa.Table.from_batches(readable.batches(), readable.schema)


def iter_state(
    pointer: str | PathLike[str],
    operator: str | None = None,
    state: str | None = None,
    *,
    raw: Raw | None = None,
    kind: str | None = None,
    key: Any = None,
) -> Iterator[pa.RecordBatch]:
    """Read a state as record batches; only one stored block is in memory at a time.

    Arguments and errors are those of `read_state`.
    """
    readable = readable_state(pointer, operator, state, raw=raw, kind=kind, key=key)
    return readable.batches()


def readable_state(
    pointer: str | PathLike[str],
    operator: str | None = None,
    state: str | None = None,
    *,
    raw: Raw | None = None,
    kind: str | None = None,
    key: Any = None,
) -> ReadableState:
    """Open a state without a read of its elements. Arguments and errors are those of `read_state`."""
    metadata = find_checkpoint(pointer).metadata
    stored = find_state(metadata, operator, state, raw=raw, kind=kind, is_keyed=key is not None)
    readable = stored.readable()
    if key is None:
        return readable
    return filter_by_key(readable, stored, key, metadata.operators[stored.operator].max_parallelism)


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
