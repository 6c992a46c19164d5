"""The distinct keys of a batch, sorted once and shared by all states of an operator."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.backends.arrow import plain_floats
from holdfast.backends.keyed.columns import combine_chunks, take_arrow
from holdfast.backends.keyed.grouping import (
    Grouping,
    Positions,
    encoded_if_repeated,
    grouped,
    sorts_by_vectors,
)
from holdfast.backends.keyed.table import Identities, SortKeys
from holdfast.backends.keys import (
    KeyGroupRange,
    check_hashed,
    check_parallelism,
    key_hash,
    xxhash64,
)
from holdfast.errors import InvalidRequestError

Hash = Callable[[Sequence[pa.Array]], npt.NDArray[np.uint64]]
"""Computes a hash of 64 bits for each row of some columns."""

_U = np.uint64
_HASH_BITS = 48
SUB_BITS = _U(24)
"""The lowest bits of a sort key, which are of the namespace's and sub key's hash where there is one."""
_LOW = (_U(1) << SUB_BITS) - _U(1)


class Keys:
    """The distinct keys of a batch, ascending by sort key, and which rows of the batch each has.

    Attributes:
        sort_keys: A number for each key by which rows of state are sorted: the key group in the upper 16 bits, then
            bits of the hash of the key, and of the namespace and sub key if there are some.
        columns: The key's columns, a row for each distinct key; behind them those of namespace and sub key.
        rows: Which rows of the batch have each of the keys.
        width: How many of the columns are the key's own.
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
        """The distinct keys of a batch.

        Equal keys are those with equal columns: null equals null, NaN equals NaN, 0.0 equals -0.0.

        Args:
            columns: The key's columns, in the order in which the operator is keyed by them, a row for each
                row of the batch. Any types that `key_hash` takes.
            max_parallelism: Number of key groups, 1 to 32768.
            hashes: The `xxhash64` of each row's key where it is known.

        Raises:
            InvalidRequestError: There are no columns, or they differ in length, or a type can't be a key's,
                or `max_parallelism` is out of bounds.
        """
        check_parallelism(max_parallelism, 1)
        arrays = [_plain(column) for column in columns]
        if hashes is None and len(arrays) == 1:
            check_hashed(arrays[0].type)  # other types may have no encoding
            encoded = encoded_if_repeated(arrays[0])
            if encoded is not None:
                values, value_of_row = encoded
                distinct = cls.of([values], max_parallelism)
                rows = Grouping.of_codes(distinct.codes.take(value_of_row), len(distinct))
                return cls(distinct.sort_keys, distinct.columns, rows)
        sort_keys = _groups(key_hash(arrays).to_numpy(), max_parallelism).view(_U)
        if hashes is None:
            hashes = xxhash64(arrays)
        elif len(hashes) != len(sort_keys):
            message = f"{len(hashes)} hashes were given for the keys of {len(sort_keys)} rows"
            raise InvalidRequestError(message)
        sort_keys <<= _U(_HASH_BITS)
        sort_keys |= hashes >> _U(64 - _HASH_BITS)
        rows = grouped(sort_keys, arrays, by_counting=not sorts_by_vectors())
        firsts = rows.firsts
        return cls(sort_keys.take(firsts), [take_arrow(array, firsts) for array in arrays], rows)

    def __len__(self) -> int:
        """The number of distinct keys."""
        return len(self.sort_keys)

    @property
    def codes(self) -> Positions:
        """For each row of the batch the index of its key."""
        return self.rows.codes

    @property
    def key_groups(self) -> Positions:
        """The key group of each key."""
        return (self.sort_keys >> _U(_HASH_BITS)).astype(np.int64)

    @property
    def identities(self) -> Identities:
        """The keys as identities of a table whose id columns these are."""
        return Identities(self.sort_keys, self.columns)

    def take(self, indices: npt.ArrayLike) -> "Keys":
        """Some of the keys, each with itself as its only row.

        Args:
            indices: Which keys, ascending, none twice.
        """
        chosen = np.asarray(indices, np.int64)
        every = np.arange(len(chosen))
        columns = [take_arrow(column, chosen) for column in self.columns]
        return Keys(self.sort_keys.take(chosen), columns, Grouping(every, every), self.width)

    def of_rows(self, first: int, end: int) -> "Keys":
        """The keys of the batch's rows from `first` up to `end`, with those rows."""
        distinct, codes = np.unique(self.codes[first:end], return_inverse=True)
        columns = [take_arrow(column, distinct) for column in self.columns]
        rows = Grouping.of_codes(codes.astype(np.int64, copy=False), len(distinct))
        return Keys(self.sort_keys.take(distinct), columns, rows, self.width)

    def with_columns(
        self, indices: Positions, columns: Sequence[pa.Array], hash_of: Hash = xxhash64
    ) -> "Keys":
        """The distinct pairs of a key with a namespace or sub key.

        Args:
            indices: The key of each row.
            columns: The namespace or sub key of each row.
            hash_of: The function that hashes them.

        Raises:
            InvalidRequestError: The columns differ in length, or a type can't be hashed.
        """
        arrays = [_plain(column) for column in columns]
        for array in arrays:
            if len(array) != len(indices):
                message = f"{len(array)} values were given for {len(indices)} rows"
                raise InvalidRequestError(message)
        hashed = [*(take_arrow(column, indices) for column in self.columns[self.width :]), *arrays]
        sort_keys = self.sort_keys.take(indices)
        sort_keys &= ~_LOW
        sort_keys |= hash_of(hashed) >> _U(64) - SUB_BITS
        rows = grouped(sort_keys, [pa.array(indices), *arrays])
        firsts = rows.firsts
        keys = indices.take(firsts)
        joined = [
            *(take_arrow(column, keys) for column in self.columns),
            *(take_arrow(array, firsts) for array in arrays),
        ]
        return Keys(sort_keys.take(firsts), joined, rows, self.width)

    def in_namespace(self, namespace: Sequence[pa.Scalar], hash_of: Hash = xxhash64) -> "Keys":
        """The keys, each in the same namespace, in the same order."""
        columns = [_plain(pa.repeat(value, 1)) for value in namespace]
        sort_keys = self.sort_keys & ~_LOW | hash_of(columns) >> _U(64) - SUB_BITS
        every = np.zeros(len(self), np.int64)
        joined = [*self.columns, *(column.take(pa.array(every)) for column in columns)]
        return Keys(sort_keys, joined, self.rows, self.width)

    def check(self, key_groups: KeyGroupRange) -> None:
        """Refuse keys of other key groups than those.

        Raises:
            InvalidRequestError: A key belongs to another subtask.
        """
        if not len(self):
            return
        for number in (int(self.sort_keys[0]), int(self.sort_keys[-1])):
            group = number >> _HASH_BITS
            if group not in key_groups:
                message = (
                    f"a key of key group {group} came to the subtask of key groups "
                    f"{key_groups.start_key_group} to {key_groups.end_key_group}: the key was changed after "
                    "its row was dealt, or its hash is not deterministic, or its row was dealt by another hash "
                    "or max parallelism; deal rows by the same columns, of the same types, that are given as "
                    "the key here"
                )
                raise InvalidRequestError(message)


def _plain(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return plain_floats(combine_chunks(column))


def _groups(numbers: npt.NDArray[np.int32], max_parallelism: int) -> npt.NDArray[np.int64]:
    """The key group of each hash: its remainder, which is never negative."""
    wide = numbers.astype(np.int64)
    if max_parallelism & (max_parallelism - 1) == 0:
        wide &= max_parallelism - 1
        return wide
    return wide - wide // max_parallelism * max_parallelism  # a third of the time of %
