"""Sizes of the keys of a state by key, which are found by a read of its rows."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from holdfast.backends.arrow import size_of
from holdfast.backends.inspection.catalogue import StoredState
from holdfast.backends.inspection.keyed_parts import Table
from holdfast.backends.inspection.state_parts import SUBTASK
from holdfast.backends.keyed import Keys

_Sizes = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class KeySize:
    """The size of a key.

    Attributes:
        key: The key's columns, of one row.
        rows: Number of its rows: one, or one for each namespace, sub key or timer.
        bytes: Size of these rows in Arrow.
    """

    key: pa.RecordBatch
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class KeySizes:
    """Sizes of the keys of a state.

    Attributes:
        rows: Number of current rows in each key group.
        bytes: Size of these rows in Arrow, in each key group.
        largest: The largest keys, the largest first.
        is_complete: Whether all rows were read; if not, the numbers are those of the first subtasks.
    """

    rows: list[int]
    bytes: list[int]
    largest: list[KeySize]
    is_complete: bool


def key_sizes(
    state: StoredState, max_parallelism: int, *, max_keys: int, max_bytes: int
) -> KeySizes | None:
    """Return the sizes of the keys of a state; None if it has no keys that can be read.

    Args:
        state: The state.
        max_parallelism: Number of key groups of its operator.
        max_keys: Number of largest keys to return.
        max_bytes: Size of rows in Arrow after which no more are read.

    Raises:
        CheckpointNotFoundError: A state file is gone.
        CheckpointCorruptedError: Stored bytes are damaged.
        StateMigrationError: As for `read_state`.
    """
    first = state.parts[0]
    if not isinstance(first, Table):
        return None
    width = len(first.table.spec.key)
    rows_of = np.zeros(max_parallelism, np.int64)
    bytes_of = np.zeros(max_parallelism, np.float64)
    largest: list[tuple[int, KeySize]] = []
    is_complete = True
    for batch in state.readable().batches():
        if bytes_of.sum() > max_bytes:
            is_complete = False
            break
        columns = [name for name in batch.schema.names if name != SUBTASK][:width]
        keys = Keys.of([batch.column(name) for name in columns], max_parallelism)
        sizes = np.bincount(keys.codes, _row_sizes(batch), len(keys))
        counts = np.bincount(keys.codes, minlength=len(keys))
        np.add.at(rows_of, keys.key_groups, counts)
        np.add.at(bytes_of, keys.key_groups, sizes)
        for index in np.argsort(-sizes)[:max_keys].tolist():
            key = pa.record_batch([column[index : index + 1] for column in keys.columns], columns)
            size = KeySize(key, int(counts[index]), round(sizes[index]))
            largest.append((int(keys.sort_keys[index]), size))
        largest = sorted(_merge_batches(largest), key=lambda each: -each[1].bytes)[:max_keys]
    return KeySizes(
        rows_of.tolist(),
        np.round(bytes_of).astype(np.int64).tolist(),
        [size for _, size in largest],
        is_complete,
    )


def _merge_batches(sizes: list[tuple[int, KeySize]]) -> Iterator[tuple[int, KeySize]]:
    """Unite the sizes of keys whose rows are in several batches."""
    by_sort_key: dict[int, list[KeySize]] = {}
    for sort_key, size in sizes:
        same = by_sort_key.setdefault(sort_key, [])
        for index, other in enumerate(same):
            if other.key.equals(size.key):
                same[index] = KeySize(size.key, other.rows + size.rows, other.bytes + size.bytes)
                break
        else:
            same.append(size)
    for sort_key, same in by_sort_key.items():
        for size in same:
            yield sort_key, size


def _row_sizes(batch: pa.RecordBatch) -> _Sizes:
    """Return the size of each row in Arrow, shape (rows,), bytes."""
    sizes = np.zeros(len(batch))
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name != SUBTASK:
            sizes += _sizes(column)
    return sizes


def _sizes(column: pa.Array) -> _Sizes:
    """Return the size of each value, shape (values,), bytes; an equal share for types whose values can't be measured."""
    type = column.type
    if types.is_struct(type):
        return sum(map(_sizes, column.flatten()), np.zeros(len(column)))
    if types.is_list(type) or types.is_large_list(type) or types.is_map(type):
        offsets = np.asarray(column.offsets)
        values = (
            pa.StructArray.from_arrays([column.keys, column.items], ["k", "v"])
            if (types.is_map(type))
            else column.values
        )
        ends = np.concatenate([[0.0], np.cumsum(_sizes(values))])
        return np.asarray(ends[offsets[1:]] - ends[offsets[:-1]])
    if any(check(type) for check in _WITH_LENGTHS):
        lengths = pc.fill_null(pc.binary_length(column), 0)
        return np.asarray(lengths.to_numpy(zero_copy_only=False), np.float64)
    return np.full(len(column), size_of(column) / max(len(column), 1))


_WITH_LENGTHS = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
