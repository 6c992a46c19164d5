"""Timers of the current key as Spark has them: by the backend's, but those that fire are there until their turn is over."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from operator import index
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.backends.keyed import KeyedStateBackend, Operation, TimerService
from holdfast.spark.processors import errors
from holdfast.spark.processors.turns import CurrentKey, Numbers, inverse

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


class ProcessorTimers:
    """The timers of a processor.

    Args:
        backend: Where states and timers are.
        service: The timers of the processor's time mode; None if there are none in its mode.
        current: The current key.
    """

    def __init__(
        self,
        backend: KeyedStateBackend | None,
        service: TimerService | None,
        current: CurrentKey,
    ) -> None:
        self._backend = backend
        self._service = service
        self._current = current
        self._changes: dict[int, dict[int, Operation]] = {}  # by key, then by time
        self._stored: dict[int, set[int]] | None = None
        self._firing: dict[int, set[int]] = {}

    def register(self, time_ms: Any) -> None:
        """Register a timer of the current key."""
        time = _checked(time_ms)
        self._change(self._number("register timer", "register_timer"), time, Operation.PUT)

    def delete(self, time_ms: Any) -> None:
        """Delete a timer of the current key, if it is there."""
        time = _checked(time_ms)
        self._change(self._number("deleting timer", "delete_timer"), time, Operation.DELETE)

    def all(self) -> Iterator[int]:
        """The times of the current key's timers, ascending; as they are when the first is asked for."""
        self._number("listing timers", "list_timers")
        return self._listed()

    def begin(self, firing: dict[int, set[int]] | None = None) -> None:
        """Begin a phase.

        Args:
            firing: Times of the timers that fire in it, by the number of their key.
        """
        self._firing = firing or {}
        self._stored = None

    def fired(self, time_ms: int) -> None:
        """The turn of a timer of the current key is over: it is gone, even if it was registered again."""
        number = self._current.number
        assert number is not None
        self._firing[number].discard(time_ms)
        self._changes.get(number, {}).pop(time_ms, None)

    def store(self) -> None:
        """Write back what has changed."""
        changes, self._changes = self._changes, {}
        self._stored = None
        if not changes or self._service is None:
            return
        keys, numbers = self._current.keys_of()
        positions = inverse(numbers)
        numbers_of, times, operations = _columns(changes)
        for operation in (Operation.DELETE, Operation.PUT):
            chosen = operations == operation
            if chosen.any():
                columns = self._service.columns
                columns.store(keys, positions[numbers_of[chosen]], times[chosen], operation)

    def _listed(self) -> Iterator[int]:
        number = self._number("listing timers", "list_timers")
        if self._stored is None:
            self._stored = self._load()
        times = self._stored.get(number, set()) | self._firing.get(number, set())
        for time, operation in self._changes.get(number, {}).items():
            (times.add if operation is Operation.PUT else times.discard)(time)
        yield from sorted(times)

    def _change(self, number: int, time: int, operation: Operation) -> None:
        self._changes.setdefault(number, {})[time] = operation

    def _number(self, doing: str, operation: str) -> int:
        """The number of the current key."""
        handle_state, number = self._current.handle_state, self._current.number
        if self._service is None and handle_state != "PRE_INIT":
            raise errors.invalid_time_mode(doing, operation)
        if number is None:
            raise errors.invalid_handle_state(doing, operation, handle_state)
        return number

    def _load(self) -> dict[int, set[int]]:
        """The stored timers of all keys of the phase, by the number of the key."""
        assert self._service is not None
        assert self._backend is not None
        keys, numbers = self._current.keys_of()
        times: dict[int, set[int]] = defaultdict(set)
        timers = self._service.columns.of_keys(keys)
        both = [
            pa.concat_arrays([own, other])
            for own, other in zip(keys.columns, timers.key, strict=True)
        ]
        codes = self._backend.keys(both).codes
        owner = np.full(codes.max(initial=-1) + 1, -1, np.int64)
        owner[codes[: len(keys)]] = numbers
        owners = owner[codes[len(keys) :]]
        known = np.flatnonzero(owners >= 0)
        for number, time in zip(
            owners[known].tolist(), timers.times_ms[known].tolist(), strict=True
        ):
            times[number].add(time)
        return times


def _columns(changes: Mapping[int, Mapping[int, Operation]]) -> tuple[Numbers, Numbers, Numbers]:
    """The number of the key, the time and the operation of each change."""
    of_keys = [len(times) for times in changes.values()]
    numbers = np.repeat(np.fromiter(changes, np.int64, len(changes)), of_keys)
    rows = [row for times in changes.values() for row in times.items()]
    times, operations = np.array(rows, np.int64).reshape(-1, 2).T
    return numbers, times, operations


def _checked(time_ms: Any) -> int:
    time = index(time_ms)  # a TypeError for what is no whole number
    if not _LEAST <= time <= _MOST:
        message = f"Value out of range: {time}"
        raise ValueError(message)
    return time
