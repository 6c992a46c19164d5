"""The distinct keys of a batch, sorted once and shared by all states of an operator; and lookups of a single key."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.backends.arrow import conform, nullable_type, plain_floats
from holdfast.backends.keyed.columns import combine_chunks, from_arrow, same_rows, take_arrow
from holdfast.backends.keyed.compatibility import describe_columns
from holdfast.backends.keyed.grouping import (
    Grouping,
    Positions,
    dictionary_encode_if_useful,
    group_rows,
    has_vector_sort,
)
from holdfast.backends.keyed.segments import RestoredTable, SortedRows, take_rows
from holdfast.backends.keyed.table import Identities, Migration, SortKeys, TableRows, TableSpec
from holdfast.backends.keys import (
    KeyGroupRange,
    check_key_type,
    check_parallelism,
    key_hash,
    xxhash64,
)
from holdfast.errors import InvalidRequestError

Hash = Callable[[Sequence[pa.Array]], npt.NDArray[np.uint64]]
"""Computes a 64-bit hash of each row."""

_U = np.uint64
_HASH_BITS = 48
SUB_BITS = _U(24)
"""The lowest bits of a sort key, from the hash of the namespace and sub key, if the state has them."""
_LOW = (_U(1) << SUB_BITS) - _U(1)
_COLUMN = (pa.Array, pa.ChunkedArray)


class Keys:
    """The distinct keys of a batch, ascending by sort key, with the rows of each.

    Attributes:
        sort_keys: For each key the number that orders rows of state (see `table`).
        columns: The key's columns, one row per distinct key, followed by those of the namespace and sub key.
        rows: The rows of the batch by key.
        width: Number of columns that belong to the key itself.
    """

    def __init__(
        self,
        sort_keys: SortKeys,
        columns: Sequence[pa.Array],
        rows: Grouping,
        width: int | None = None,
    ) -> None:
        self.sort_keys = sort_keys
        self.columns = tuple(columns)
        self.rows = rows
        self.width = len(self.columns) if width is None else width

    @classmethod
    def of(
        cls,
        columns: Sequence[pa.Array | pa.ChunkedArray],
        max_parallelism: int,
        hashes: npt.NDArray[np.uint64] | None = None,
    ) -> "Keys":
        """Find the distinct keys of a batch.

        Keys with equal columns are equal: null equals null, NaN equals NaN, 0.0 equals -0.0.

        Args:
            columns: The key's columns, in the order that the operator is keyed by, as long as the batch. Any types
                that `key_hash` accepts.
            max_parallelism: Number of key groups, 1 to 32768.
            hashes: The `xxhash64` of each row's key, if already computed.

        Raises:
            InvalidRequestError: There are no columns, or they differ in length, or a type can't be a key's,
                or `max_parallelism` is out of bounds.
        """
        check_parallelism(max_parallelism, 1)
        arrays = [_plain(column) for column in columns]
        if hashes is None and len(arrays) == 1:
            check_key_type(arrays[0].type)  # other types may have no encoding
            encoded = dictionary_encode_if_useful(arrays[0])
            if encoded is not None:
                values, value_of_row = encoded
                distinct = cls.of([values], max_parallelism)
                rows = Grouping.of_codes(distinct.codes.take(value_of_row), len(distinct))
                return cls(distinct.sort_keys, distinct.columns, rows)
        sort_keys = _groups(key_hash(arrays).to_numpy(), max_parallelism).view(_U)
        if hashes is None:
            hashes = xxhash64(arrays)
        elif len(hashes) != len(sort_keys):
            raise InvalidRequestError(f"got {len(hashes)} hashes for {len(sort_keys)} rows")
        sort_keys <<= _U(_HASH_BITS)
        sort_keys |= hashes >> _U(64 - _HASH_BITS)
        rows = group_rows(sort_keys, arrays, by_counting=not has_vector_sort())
        firsts = rows.firsts
        return cls(sort_keys.take(firsts), [take_arrow(array, firsts) for array in arrays], rows)

    def __len__(self) -> int:
        return len(self.sort_keys)

    @property
    def codes(self) -> Positions:
        """The index of each row's key."""
        return self.rows.codes

    @property
    def key_groups(self) -> Positions:
        """The key group of each key."""
        return (self.sort_keys >> _U(_HASH_BITS)).astype(np.int64)

    @property
    def identities(self) -> Identities:
        """The keys as identities of a table with these id columns."""
        return Identities(self.sort_keys, self.columns)

    def take(self, indices: npt.ArrayLike) -> "Keys":
        """Select keys by strictly ascending indices, each with itself as its only row."""
        chosen = np.asarray(indices, np.int64)
        every = np.arange(len(chosen))
        columns = [take_arrow(column, chosen) for column in self.columns]
        return Keys(self.sort_keys.take(chosen), columns, Grouping(every, every), self.width)

    def of_rows(self, first: int, end: int) -> "Keys":
        """Select the keys of the batch's rows from `first` up to `end`, with these rows."""
        distinct, codes = np.unique(self.codes[first:end], return_inverse=True)
        columns = [take_arrow(column, distinct) for column in self.columns]
        rows = Grouping.of_codes(codes.astype(np.int64, copy=False), len(distinct))
        return Keys(self.sort_keys.take(distinct), columns, rows, self.width)

    def with_columns(
        self, indices: Positions, columns: Sequence[pa.Array], hash_of: Hash = xxhash64
    ) -> "Keys":
        """Find the distinct pairs of a key, given by its index, with a namespace or sub key.

        Raises `InvalidRequestError` if the columns differ in length, or a type can't be hashed.
        """
        arrays = [_plain(column) for column in columns]
        for array in arrays:
            if len(array) != len(indices):
                raise InvalidRequestError(f"got {len(array)} values for {len(indices)} rows")
        hashed = [*(take_arrow(column, indices) for column in self.columns[self.width :]), *arrays]
        sort_keys = self.sort_keys.take(indices)
        sort_keys &= ~_LOW
        sort_keys |= hash_of(hashed) >> _U(64) - SUB_BITS
        rows = group_rows(sort_keys, [pa.array(indices), *arrays])
        firsts = rows.firsts
        keys = indices.take(firsts)
        joined = [take_arrow(column, keys) for column in self.columns]
        joined += [take_arrow(array, firsts) for array in arrays]
        return Keys(sort_keys.take(firsts), joined, rows, self.width)

    def in_namespace(self, namespace: Sequence[pa.Scalar], hash_of: Hash = xxhash64) -> "Keys":
        """Return the keys in one namespace, in the same order."""
        columns = [_plain(pa.repeat(value, 1)) for value in namespace]
        sort_keys = self.sort_keys & ~_LOW | hash_of(columns) >> _U(64) - SUB_BITS
        every = np.zeros(len(self), np.int64)
        joined = [*self.columns, *(column.take(pa.array(every)) for column in columns)]
        return Keys(sort_keys, joined, self.rows, self.width)

    def check(self, key_groups: KeyGroupRange) -> None:
        """Reject keys outside of the key groups. Raises `InvalidRequestError`."""
        if not len(self):
            return
        for number in (int(self.sort_keys[0]), int(self.sort_keys[-1])):
            group = number >> _HASH_BITS
            if group not in key_groups:
                message = (
                    f"a key of key group {group} reached the subtask of key groups {key_groups.start_key_group} to "
                    f"{key_groups.end_key_group}: the key was changed after partitioning, its expression is not "
                    "deterministic, or rows were partitioned with another hash or max parallelism; partition rows "
                    "by the columns that are the key here, with the same types"
                )
                raise InvalidRequestError(message)


def key_columns(
    given: Sequence[pa.Array | pa.ChunkedArray] | pa.RecordBatch | pa.Table, key: pa.Schema
) -> list[pa.Array]:
    """Return the columns of a key, given as arrays in order, or as rows that have columns of these names.

    Raises `InvalidRequestError` if a column is missing or duplicate, has another type, is not an Arrow array, or has
    more values than an array can hold.
    """
    if isinstance(given, pa.RecordBatch | pa.Table):
        columns = [_find_column(given, name) for name in key.names]
    else:
        columns = arrow_columns(given, f"the key's columns {describe_columns(key)}")
    types = [column.type for column in columns]
    if types != key.types and list(map(nullable_type, types)) != key.types:
        listed = ", ".join(map(str, types)) or "no columns"
        message = f"the key's columns must be {describe_columns(key)}, got {listed}"
        raise InvalidRequestError(message)
    return list(map(conform, map(combine_chunks, columns), key.types))


def arrow_columns(given: Iterable[Any], label: str) -> list[pa.Array | pa.ChunkedArray]:
    """Return the columns of a list; `label` names them in errors. Raises `InvalidRequestError`."""
    is_column = isinstance(given, _COLUMN)  # a single column, whose values would pass for columns
    columns = list(given)
    if is_column or not all(isinstance(column, _COLUMN) for column in columns):
        types = ", ".join(sorted({type(column).__name__ for column in columns})) or "nothing"
        message = f"{label} must be a list of Arrow arrays, got {type(given).__name__} of {types}"
        raise InvalidRequestError(message)
    return columns


def _find_column(rows: pa.RecordBatch | pa.Table, name: str) -> pa.Array | pa.ChunkedArray:
    count = rows.schema.names.count(name)
    if count != 1:
        message = f"the batch has {count or 'no'} columns {name!r}; the key needs exactly one"
        raise InvalidRequestError(message)
    return rows.column(name)


def rows_of_keys(
    table: RestoredTable, keys: Keys, migration: Migration | None = None
) -> Iterator[TableRows]:
    """Read the rows of each key: one row, or one per namespace, map key or time of a timer.

    Reads only the sort keys that a key can have; in a table of timers, which is sorted by time, the whole key group.
    Other arguments and errors are those of `RestoredTable.rows`.
    """
    columns = [from_arrow(column) for column in keys.columns]
    for index, sort_key in enumerate(keys.sort_keys.tolist()):
        first, end = _sort_key_range(table.spec, sort_key)
        for rows in table.between(first, end).rows(migration=migration):
            source = SortedRows.from_table_rows(rows)
            every, wanted = np.arange(len(rows)), np.full(len(rows), index, np.int64)
            chosen = same_rows(source.ids[: len(columns)], every, columns, wanted).nonzero()[0]
            if len(chosen):
                yield take_rows(source, chosen).table_rows(table.spec)


def _sort_key_range(spec: TableSpec, sort_key: int) -> tuple[int, int]:
    """Return the bounds of the sort keys that rows of a key can have; the upper one is exclusive."""
    bits = 0
    if spec.kind == "timers":
        bits = _HASH_BITS
    elif len(spec.namespace) or len(spec.sub_key):
        bits = int(SUB_BITS)
    first = sort_key >> bits << bits
    return first, first + (1 << bits)


def _plain(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return plain_floats(combine_chunks(column))


def _groups(numbers: npt.NDArray[np.int32], max_parallelism: int) -> npt.NDArray[np.int64]:
    """Compute the key group of each hash: its non-negative remainder."""
    wide = numbers.astype(np.int64)
    if max_parallelism & (max_parallelism - 1) == 0:
        wide &= max_parallelism - 1
        return wide
    return wide - wide // max_parallelism * max_parallelism  # a third of the time of %
