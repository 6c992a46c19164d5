"""The loop over the keys of a micro-batch, and over the timers that fire in it: one key is current at a time."""

from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.backends.arrow import named_conversion
from holdfast.backends.keyed import KeyedStateBackend, Keys, TimerService
from holdfast.common import gc_paused

TimeDomain = Literal["event", "processing"]
"""The time that decides when a timer fires."""

Order = npt.NDArray[np.int64]
"""The indices of keys in the order in which they become current."""


class KeyLoop:
    """Makes the keys of a batch current one after the other, then the keys of timers that fire.

    Args:
        states: The keyed states of the subtask.
        timers: The timers by their time domain.
        values: Converts a key column to Python objects.
        make_key: Makes a key from the values of its columns.
    """

    def __init__(
        self,
        states: KeyedStateBackend,
        timers: Mapping[TimeDomain, TimerService],
        values: Callable[[pa.Array], list[Any]],
        make_key: Callable[[tuple[Any, ...]], tuple[Any, ...]] = tuple,
    ) -> None:
        self._states = states
        self._timers = timers
        self._values = values
        self._make_key = make_key

    def keys(self, keys: Keys, order: Order | None = None) -> Iterator[tuple[Any, ...]]:
        """Yield each key of a batch, which is current until the next one is requested.

        Keys become current in the given order, or their own; lists and maps are read ahead in it.
        """
        self._states.begin_batch(keys, order)
        seek, objects = self._states.cursor.seek, self._objects(keys)
        for position, index in enumerate(range(len(keys)) if order is None else order.tolist()):
            seek(position, index)
            yield objects[index]

    def timers(
        self,
        until_ms: Mapping[TimeDomain, int],
        sort: Callable[[Sequence[pa.Array]], Order] | None = None,
    ) -> Iterator[tuple[tuple[Any, ...], int, TimeDomain]]:
        """Yield each timer that fires: its key, which is current until the next one is requested, its time and domain.

        Timers fire by domain and time. A timer that is registered while others fire has to wait for the next batch.

        Args:
            until_ms: The time up to which timers fire, by domain.
            sort: Returns the order of keys whose timers have the same time; lists and maps are read ahead in it.
        """
        fired = [
            (domain, service.fire(until_ms[domain])) for domain, service in self._timers.items()
        ]
        if not any(len(timers) for _, timers in fired):
            return
        columns = zip(*(timers.key for _, timers in fired), strict=True)
        keys = self._states.keys([pa.concat_arrays(column) for column in columns])
        indices, times = keys.codes, np.concatenate([timers.times_ms for _, timers in fired])
        if sort is not None:
            domains = np.repeat(np.arange(len(fired)), [len(timers) for _, timers in fired])
            order = np.lexsort((inverse(sort(keys.columns))[indices], times, domains))
            indices, times = indices[order], times[order]
        self._states.begin_batch(keys, None if sort is None else indices)
        seek, objects = self._states.cursor.seek, self._objects(keys)
        rows = zip(indices.tolist(), times.tolist(), strict=True)
        calls = [(domain, list(islice(rows, len(timers)))) for domain, timers in fired]
        position = -1
        try:
            for domain, domain_calls in calls:
                self._timers[domain].begin_calls(domain_calls)
            for domain, domain_calls in calls:
                end_call = self._timers[domain].end_call
                for index, time_ms in domain_calls:
                    position += 1
                    seek(position, index)
                    yield objects[index], time_ms, domain
                    end_call()
        finally:
            for service in self._timers.values():
                service.begin_calls(())

    def end(self) -> None:
        """Write back changes of state. Raises `InvalidRequestError` if a value is of another type than its state."""
        self._states.end_batch()

    def _objects(self, keys: Keys) -> list[tuple[Any, ...]]:
        return key_tuples(self._states.key.names, keys, self._make_key, self._values)


def key_tuples(
    names: Sequence[str],
    keys: Keys,
    make_key: Callable[[tuple[Any, ...]], tuple[Any, ...]],
    values: Callable[[pa.Array], list[Any]] = pa.Array.to_pylist,
) -> list[tuple[Any, ...]]:
    """Return keys as tuples. Raises `InvalidRequestError` if Python has no object for a value."""
    columns = []
    with gc_paused():
        for name, column in zip(names, keys.columns, strict=True):
            with named_conversion(f"key column {name!r}", column.type):
                columns.append(values(column))
        return list(map(make_key, zip(*columns, strict=True)))


def named_key(names: Sequence[str]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """Return a function that makes a named tuple of a key."""
    key: Any = namedtuple("Key", names, rename=True)  # type: ignore[misc]  # noqa: PYI024  # known at run time
    make: Callable[[tuple[Any, ...]], tuple[Any, ...]] = key._make
    return make


def inverse(order: Order) -> Order:
    """Return the position of each index in an order."""
    positions = np.empty(len(order), np.int64)
    positions[order] = np.arange(len(order))
    return positions
