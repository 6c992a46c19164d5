"""Timers of keys: registered and deleted without reading, fired in order of time."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.backends.keyed.grouping import Positions, group_rows
from holdfast.backends.keyed.keys import Keys
from holdfast.backends.keyed.states.state_rows import CheckedRows, check_length, key_indices
from holdfast.backends.keyed.table import Identities, Operation, SortKeys
from holdfast.backends.keyed.times import MIN_TIME_MS, time_part, whole_ms
from holdfast.backends.keys import KeyGroupRange
from holdfast.errors import InvalidRequestError

_U = np.uint64
_GROUP_BITS = _U(48)
_HASH_BITS = _U(16)
_LAST = _U((1 << 48) - 1)

TIME = pa.schema([pa.field("time", pa.int64(), nullable=False)])
"""The sub key of timers: their time in milliseconds."""


@dataclass(frozen=True)
class FiredTimers:
    """Timers, as a rule those whose time has come, in order of time.

    Attributes:
        key: The key's columns, a row for each timer.
        namespace: The namespace's columns.
        times_ms: For which time each was registered, milliseconds.
    """

    key: tuple[pa.Array, ...]
    namespace: tuple[pa.Array, ...]
    times_ms: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.times_ms)


class Timers:
    """The timers of a name, by arrays. For a time a key has one timer in each namespace, however often it is registered.

    Args:
        rows: The rows of the state, one for each timer.
        key_groups: The key groups that the subtask has.
    """

    def __init__(self, rows: CheckedRows, key_groups: KeyGroupRange) -> None:
        self.rows = rows
        self._earliest: int | None = None
        self._is_earliest_known = False
        groups = np.arange(key_groups.start_key_group, key_groups.end_key_group + 1)
        self._groups = groups.astype(_U) << _GROUP_BITS

    def register(
        self, keys: Keys, times_ms: npt.ArrayLike, indices: npt.ArrayLike | None = None
    ) -> None:
        """Register timers.

        Args:
            keys: The keys of the timers.
            times_ms: The time of each, milliseconds since 1970.
            indices: The index of each timer's key in `keys`; None if there is one for each row of the batch.

        Raises:
            InvalidRequestError: The keys have other types, namespaces or key groups than the state, or times are no whole numbers, or an
                index is none of a key.
        """
        self._write(keys, times_ms, indices, Operation.PUT)

    def delete(
        self, keys: Keys, times_ms: npt.ArrayLike, indices: npt.ArrayLike | None = None
    ) -> None:
        """Delete timers; those that don't exist are passed over. Arguments and errors are those of `register`."""
        self._write(keys, times_ms, indices, Operation.DELETE)

    def fire(self, until_ms: int) -> FiredTimers:
        """The timers of this time and before, in order of time; they are gone afterwards.

        A timer that is registered afterwards for such a time is among the next that fire. Raises what `due` does.
        """
        due = self._due(until_ms)
        if len(due):
            if until_ms == MIN_TIME_MS:  # as a bound it means that no timer is dead
                self.rows.table.write(due, (), Operation.DELETE)
            else:
                self.rows.table.delete_up_to(until_ms)
            self._is_earliest_known = False
        return self._in_order_of_time(due)

    def due(self, until_ms: int) -> FiredTimers:
        """The timers of this time and before, in order of time; they are there until they are deleted.

        Who deletes each after its turn has what Spark has: those that fire are known when the first one does.

        Raises:
            InvalidRequestError: The time is no whole number of milliseconds.
        """
        return self._in_order_of_time(self._due(until_ms))

    def _due(self, until_ms: int) -> Identities:
        """The timers of this time and before, ascending by sort key."""
        until_ms = whole_ms(until_ms)
        earliest = self.earliest()
        if earliest is None or earliest > until_ms:
            fields = self.rows.table.spec.id_fields
            nothing = tuple(pa.array([], field.type) for field in fields)
            return Identities(np.empty(0, np.uint64), nothing)
        end = time_part(np.array([until_ms], np.int64))[0] | _U((1 << 16) - 1)
        rows = self.rows.table.rows_between(self._groups, (self._groups | end) + _U(1)).identities
        due = np.flatnonzero(rows.columns[-1].to_numpy() <= until_ms)
        at = pa.array(due)
        return Identities(rows.sort_keys[due], tuple(column.take(at) for column in rows.columns))

    def _in_order_of_time(self, timers: Identities) -> FiredTimers:
        at = pa.array(np.argsort(timers.columns[-1].to_numpy(), kind="stable"))
        return self._columns_of([column.take(at) for column in timers.columns])

    def of_keys(self, keys: Keys) -> FiredTimers:
        """The timers of some keys, and perhaps of others, whose hashes end alike; they stay.

        Timers lie by time: of those of the keys' key groups the sort keys are read, which are 8 bytes a timer, and
        the rest only of those that can be of a key.

        Args:
            keys: The keys of the timers.

        Raises:
            InvalidRequestError: The keys have other types, namespaces or key groups than the state.
        """
        self.rows.check(keys)
        self.rows.settle()
        endings = np.zeros(1 << 16, bool)
        endings[_ending(keys.sort_keys)] = True
        first = np.unique(keys.sort_keys & ~_LAST)
        rows = self.rows.table.rows_between(first, (first | _LAST) + _U(1), endings=endings)
        return self._columns_of(rows.identities.columns)

    def earliest(self) -> int | None:
        """The time of the earliest timer that is left; None if none is."""
        self.rows.settle()
        if not self._is_earliest_known:
            self._earliest = self.rows.table.earliest_time()
            self._is_earliest_known = True
        return self._earliest

    def store(
        self, keys: Keys, indices: Positions, times_ms: npt.NDArray[np.int64], operation: Operation
    ) -> None:
        """Write timers: a row for each that differs from the others."""
        at = pa.array(indices)
        base = keys.sort_keys[indices]
        sort_keys = (base & ~_LAST) | time_part(times_ms) | _ending(base)
        groups = group_rows(sort_keys, [at, pa.array(times_ms)])
        firsts = groups.firsts
        if len(firsts):
            chosen = pa.array(indices[firsts])
            columns = [column.take(chosen) for column in keys.columns]
            identities = Identities(sort_keys[firsts], (*columns, pa.array(times_ms[firsts])))
            self.rows.table.write(identities, (), operation)
            self._note(int(times_ms.min()), operation)

    def _columns_of(self, ids: Sequence[pa.Array]) -> FiredTimers:
        """Timers by their id columns."""
        width = len(self.rows.table.spec.key)
        *columns, times = ids
        return FiredTimers(tuple(columns[:width]), tuple(columns[width:]), times.to_numpy())

    def _write(
        self,
        keys: Keys,
        times_ms: npt.ArrayLike,
        indices: npt.ArrayLike | None,
        operation: Operation,
    ) -> None:
        self.rows.check(keys)
        times = np.asarray(times_ms)
        if len(times) and times.dtype.kind != "i":
            message = (
                f"timers {self.rows.name!r} take times in whole milliseconds, not {times.dtype}"
            )
            raise InvalidRequestError(message)
        at = key_indices(self.rows.name, keys, indices)
        check_length(self.rows.name, len(times), len(at), "rows")
        self.rows.settle()
        self.store(keys, at, times.astype(np.int64), operation)

    def _note(self, time_ms: int, operation: Operation) -> None:
        """Keep in mind which timer is the earliest, after the first of some were written."""
        if not self._is_earliest_known:
            return
        earliest = self._earliest
        if operation is Operation.PUT:
            self._earliest = time_ms if earliest is None else min(earliest, time_ms)
        elif earliest is not None and time_ms <= earliest:
            self._is_earliest_known = False


def _ending(sort_keys: SortKeys) -> SortKeys:
    """The last part of the sort keys of a key's timers: the upper 16 bits of the key's hash."""
    return sort_keys >> (_GROUP_BITS - _HASH_BITS) & _U((1 << 16) - 1)
