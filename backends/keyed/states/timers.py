"""Timers of keys: registered and deleted without reading, fired in order of time.

The sort key of a timer is the key group, the time and the upper 16 bits of the key's hash, so timers that are due are adjacent.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.backends.keyed.grouping import Positions, group_rows
from holdfast.backends.keyed.keys import Keys
from holdfast.backends.keyed.states.current_key import CurrentKeyView, KeyCursor
from holdfast.backends.keyed.states.state_rows import CheckedRows
from holdfast.backends.keyed.table import (
    MIN_TIME_MS,
    Identities,
    Operation,
    SortKeys,
    time_part,
    whole_ms,
)
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
    """Timers that are due, in order of time.

    Attributes:
        key: The key's columns, a row for each timer.
        namespace: The namespace's columns.
        times_ms: The time of each timer, milliseconds.
    """

    key: tuple[pa.Array, ...]
    namespace: tuple[pa.Array, ...]
    times_ms: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.times_ms)


class Timers:
    """Timers of many keys at once. A key has one timer for a time and a namespace, however often it is registered.

    Times are milliseconds since 1970; the key of each is given by its index in `keys`, None for the rows of the batch.
    Methods raise `InvalidRequestError` as those of states do, also for times that are not integers of 64 bits.

    Args:
        rows: The rows of the state, one for each timer.
        key_groups: The key groups of the subtask.
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
        """Register timers."""
        self._write(keys, times_ms, indices, Operation.PUT)

    def delete(
        self, keys: Keys, times_ms: npt.ArrayLike, indices: npt.ArrayLike | None = None
    ) -> None:
        """Delete timers, if they exist."""
        self._write(keys, times_ms, indices, Operation.DELETE)

    def fire(self, until_ms: int) -> FiredTimers:
        """Delete the timers up to this time, and return them in order of time.

        A timer that is registered later for such a time fires with the next call.
        """
        due = self._due(until_ms)
        if len(due):
            if until_ms == MIN_TIME_MS:  # this bound means that no timer has fired
                self.rows.table.write(due, (), Operation.DELETE)
            else:
                self.rows.table.delete_up_to(until_ms)
            self._is_earliest_known = False
        return self._in_order_of_time(due)

    def due(self, until_ms: int) -> FiredTimers:
        """Return the timers up to this time, in order of time, without deleting them."""
        return self._in_order_of_time(self._due(until_ms))

    def _due(self, until_ms: int) -> Identities:
        """Return the timers up to this time, ascending by sort key."""
        until_ms = whole_ms(until_ms)
        earliest = self.earliest()
        if earliest is None or earliest > until_ms:
            fields = self.rows.table.spec.id_fields
            return Identities(np.empty(0, _U), tuple(pa.array([], field.type) for field in fields))
        end = time_part(np.array([until_ms], np.int64))[0] | _U((1 << 16) - 1)
        rows = self.rows.table.rows_between(self._groups, (self._groups | end) + _U(1)).identities
        due = np.flatnonzero(rows.columns[-1].to_numpy() <= until_ms)
        at = pa.array(due)
        return Identities(rows.sort_keys[due], tuple(column.take(at) for column in rows.columns))

    def _in_order_of_time(self, timers: Identities) -> FiredTimers:
        at = pa.array(np.argsort(timers.columns[-1].to_numpy(), kind="stable"))
        *columns, times = (column.take(at) for column in timers.columns)
        width = len(self.rows.table.spec.key)
        return FiredTimers(tuple(columns[:width]), tuple(columns[width:]), times.to_numpy())

    def get(self, keys: Keys) -> tuple[Positions, npt.NDArray[np.int64]]:
        """Return the timers of keys without deleting them: the index of the key and the time of each, in no particular order."""
        self.rows.begin(keys)
        return self.peek(keys)

    def peek(self, keys: Keys) -> tuple[Positions, npt.NDArray[np.int64]]:
        """Return the stored timers of keys, as `get` does.

        Timers are stored by time. Of the keys' key groups only the sort keys are read, 8 bytes per timer; other columns
        are read if a sort key ends like that of one of the keys.
        """
        own_endings = _ending(keys.sort_keys)
        endings = np.zeros(1 << 16, bool)
        endings[own_endings] = True
        own_groups = keys.sort_keys & ~_LAST
        first = np.unique(own_groups)
        rows = self.rows.table.rows_between(first, (first | _LAST) + _U(1), endings=endings)
        *columns, times = rows.identities.columns
        stored = rows.identities.sort_keys
        # Both without the time: equal for a key and its timers.
        prefixes = np.concatenate(
            [own_groups | own_endings, stored & ~_LAST | stored & _U((1 << 16) - 1)]
        )
        both = [
            pa.concat_arrays([own, other]) for own, other in zip(keys.columns, columns, strict=True)
        ]
        codes = group_rows(prefixes, both).codes
        owners = np.full(codes.max(initial=-1) + 1, -1, np.int64)
        owners[codes[: len(keys)]] = np.arange(len(keys))
        indices = owners[codes[len(keys) :]]
        known = np.flatnonzero(indices >= 0)
        return indices[known], times.to_numpy()[known]

    def earliest(self) -> int | None:
        """Return the time of the earliest timer; None if there are no timers."""
        self.rows.flush()
        if not self._is_earliest_known:
            self._earliest = self.rows.table.earliest_time()
            self._is_earliest_known = True
        return self._earliest

    def store(
        self, keys: Keys, indices: Positions, times_ms: npt.NDArray[np.int64], operation: Operation
    ) -> None:
        """Put or delete timers: a row for each distinct one."""
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
            self._update_earliest(int(times_ms.min()), operation)

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
            message = f"times of timers {self.rows.name!r} must be integers, in milliseconds, got {times.dtype}"
            raise InvalidRequestError(message)
        at = self.rows.key_indices(keys, indices, len(times))
        self.rows.flush()
        self.store(keys, at, times.astype(np.int64), operation)

    def _update_earliest(self, time_ms: int, operation: Operation) -> None:
        """Update the time of the earliest timer, after timers from this time on were written."""
        if not self._is_earliest_known:
            return
        earliest = self._earliest
        if operation is Operation.PUT:
            self._earliest = time_ms if earliest is None else min(earliest, time_ms)
        elif earliest is not None and time_ms <= earliest:
            self._is_earliest_known = False


def _ending(sort_keys: SortKeys) -> SortKeys:
    """Return the end of the sort keys of the timers of each key: the upper 16 bits of the key's hash."""
    return sort_keys >> (_GROUP_BITS - _HASH_BITS) & _U((1 << 16) - 1)


class TimerService(CurrentKeyView["TimerPage", Timers]):
    """Timers of the current key, in the current namespace if there are namespaces.

    Source:
        Flink, InternalTimerService: there one service has timers of event time and of processing time, here
        each has its own.
    """

    def __init__(self, columns: Timers, cursor: KeyCursor) -> None:
        super().__init__(columns, cursor, partial(TimerPage, columns))
        self._calls: Sequence[tuple[int, int]] = ()
        self._ended_calls = 0
        self._fired: dict[int, dict[int, int]] | None = None

    def register(self, time_ms: int) -> None:
        """Register a timer of the current key; a second registration for the same time has no effect.

        Raises `InvalidRequestError` if the time is not an integer of 64 bits.
        """
        page, index = self._current()
        time_ms = whole_ms(time_ms)
        # A fired timer whose call has not ended exists, unless it was deleted before.
        is_fired = self._calls and time_ms in self._times_to_call(index)
        page.change(index, time_ms, None if is_fired else Operation.PUT)

    def delete(self, time_ms: int) -> None:
        """Delete a timer of the current key, if it exists. Raises the same as `register`."""
        page, index = self._current()
        page.change(index, whole_ms(time_ms), Operation.DELETE)

    def times(self) -> list[int]:
        """Return the times of the current key's timers, ascending."""
        page, index = self._current()
        times = {*page.read(index), *self._times_to_call(index)}
        for time_ms, operation in page.changes_of(index).items():
            if operation is not None:
                (times.add if operation is Operation.PUT else times.discard)(time_ms)
        return sorted(times)

    def fire(self, until_ms: int) -> FiredTimers:
        """Delete the timers of all keys up to this time, and return them in order of time."""
        return self._columns.fire(until_ms)

    def due(self, until_ms: int) -> FiredTimers:
        """Return the timers of all keys up to this time, in order of time, without deleting them."""
        return self._columns.due(until_ms)

    def earliest(self) -> int | None:
        """Return the time of the earliest timer of all keys; None if there are no timers."""
        return self._columns.earliest()

    def begin_calls(self, calls: Sequence[tuple[int, int]]) -> None:
        """Begin the calls for timers that have fired, each with the index of its key and its time, in their order.

        Until its call has ended, a timer still exists for its key.
        """
        self._calls, self._ended_calls, self._fired = calls, 0, None

    def end_call(self) -> None:
        """End the next call: its timer no longer exists, even if it was registered again in the meantime."""
        self._ended_calls += 1

    def _times_to_call(self, index: int) -> list[int]:
        """Return the times of a key's fired timers whose calls have not ended."""
        if self._fired is None:
            self._fired = {}
            for call, (owner, time_ms) in enumerate(self._calls):
                self._fired.setdefault(owner, {})[time_ms] = call
        fired = self._fired.get(index, {})
        return [time_ms for time_ms, call in fired.items() if call >= self._ended_calls]


class TimerPage:
    """The timers of the keys of a batch.

    A change is the last operation on a timer; None if it takes back the timer's earlier operations.
    """

    def __init__(self, columns: Timers, keys: Keys) -> None:
        self._changes: dict[tuple[int, int], Operation | None] = {}
        self._by_key: dict[int, dict[int, Operation | None]] | None = None  # if they are read
        self._columns = columns
        self._keys = keys
        self._stored: dict[int, list[int]] | None = None

    def change(self, index: int, time_ms: int, operation: Operation | None) -> None:
        """Change a timer of a key."""
        self._changes[index, time_ms] = operation
        if self._by_key is not None:
            self._by_key.setdefault(index, {})[time_ms] = operation

    def read(self, index: int) -> Sequence[int]:
        """Return the times of a key's stored timers."""
        if self._stored is None:
            self._stored = {}
            indices, times_ms = self._columns.peek(self._keys)
            for owner, time_ms in zip(indices.tolist(), times_ms.tolist(), strict=True):
                self._stored.setdefault(owner, []).append(time_ms)
        return self._stored.get(index, ())

    def changes_of(self, index: int) -> dict[int, Operation | None]:
        """Return the changes of a key's timers, by their time."""
        if self._by_key is None:
            self._by_key = {}
            for (owner, time_ms), operation in self._changes.items():
                self._by_key.setdefault(owner, {})[time_ms] = operation
        return self._by_key.get(index, {})

    def store(self) -> None:
        for operation in (Operation.DELETE, Operation.PUT):
            chosen = [timer for timer, known in self._changes.items() if known is operation]
            if chosen:
                pairs = np.array(chosen, np.int64)
                self._columns.store(self._keys, pairs[:, 0], pairs[:, 1], operation)
