"""The turns that keys and timers take in a micro-batch: one key is current at a time."""

import itertools
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.backends.arrow import named_conversion, take_rows
from holdfast.backends.keyed import KeyedStateBackend, Keys, TimerService, whole_ms
from holdfast.errors import InvalidRequestError

TimeDomain = Literal["event", "processing"]
"""Which time a timer goes by."""

_Timer = tuple[int, int, TimeDomain]
"""The index of its key among those of the batch, its time in milliseconds, and what that goes by."""


class TurnsOfKeys:
    """Makes the keys of a batch the current one in turn, then those whose timers are due.

    Args:
        states: The subtask's keyed states.
        timers: The timers, by what they go by; none where the operator has no such timers.
    """

    def __init__(
        self, states: KeyedStateBackend, timers: Mapping[TimeDomain, TimerService]
    ) -> None:
        self._states = states
        self._timers = timers
        self._make = _tuples_named(states.key.names)
        self._index = 0
        self._turn = 0
        self._due: list[_Timer] = []  # while they fire
        self._turns: dict[_Timer, int] | None = None

    def of_rows(self, parts: Sequence[pa.RecordBatch]) -> Iterator[tuple[Any, pa.RecordBatch]]:
        """Each key of the rows, which is current until the next is asked for, and its rows.

        Args:
            parts: The rows, in at least one batch.

        Raises:
            InvalidRequestError: The rows of a key are more than a record batch holds.
        """
        keys = self._states.keys(pa.Table.from_batches(parts))
        grouping = keys.rows
        bounds = np.append(grouping.starts, len(grouping.order))
        set_current_key = self._states.set_current_key
        self._states.begin_batch(keys)
        values = zip(*self._values(keys), strict=True)
        rows_of_keys = _rows_of_keys(parts, grouping.order, bounds)
        for number, (key, rows) in enumerate(zip(values, rows_of_keys, strict=True)):
            set_current_key(number)
            yield self._make(key), rows

    def of_timers(
        self, until_ms: Mapping[TimeDomain, int]
    ) -> Iterator[tuple[Any, int, TimeDomain]]:
        """Each timer that is due now: its key, which is current until the next is asked for, and its time.

        Args:
            until_ms: Up to which time timers are due.
        """
        fired = [
            (domain, service.fire(until_ms[domain])) for domain, service in self._timers.items()
        ]
        if not any(len(timers) for _, timers in fired):
            return
        columns = zip(*(timers.key for _, timers in fired), strict=True)
        keys = self._states.keys([pa.concat_arrays(column) for column in columns])
        times = np.concatenate([timers.times_ms for _, timers in fired])
        domains = [domain for domain, timers in fired for _ in range(len(timers))]
        self._due = list(zip(keys.codes.tolist(), times.tolist(), domains, strict=True))
        made = list(map(self._make, zip(*self._values(keys), strict=True)))
        self._states.begin_batch(keys)
        for turn, (number, time_ms, domain) in enumerate(self._due):
            self._turn, self._index = turn, number
            self._states.set_current_key(number)
            yield made[number], time_ms, domain
        self._due, self._turns = [], None

    def end(self) -> None:
        """Write back what the turns have changed. Raises `InvalidRequestError` if a value is none of its state's."""
        self._states.end_batch()

    def register(self, domain: TimeDomain, time_ms: int) -> None:
        """Register a timer of the current key, unless it is there: it may be one whose turn is now, or to come.

        Raises:
            InvalidRequestError: The operator has no such timers, or the time is no whole number of 64 bits.
        """
        service, time_ms = self._service(domain), whole_ms(time_ms)
        if not self._is_to_come((self._index, time_ms, domain)):
            service.register(time_ms)

    def delete(self, domain: TimeDomain, time_ms: int) -> None:
        """Delete a timer of the current key, if it is there and not due. Raises what `register` does."""
        self._service(domain).delete(whole_ms(time_ms))

    def _values(self, keys: Keys) -> list[list[Any]]:
        """The keys' values, column by column. Raises `InvalidRequestError`."""
        columns = []
        for name, column in zip(self._states.key.names, keys.columns, strict=True):
            with named_conversion(f"key column {name!r}", column.type):
                columns.append(column.to_pylist())
        return columns

    def _is_to_come(self, timer: _Timer) -> bool:
        """Whether a timer is among those that fire, and not through with its turn."""
        if not self._due:
            return False
        if self._turns is None:
            self._turns = {due: turn for turn, due in enumerate(self._due)}
        return self._turns.get(timer, -1) >= self._turn

    def _service(self, domain: TimeDomain) -> TimerService:
        service = self._timers.get(domain)
        if service is None:
            message = (
                f"timers of {domain} time need the time_mode {domain!r} of the function's class, so that "
                "batches come for them"
            )
            raise InvalidRequestError(message)
        return service


def _rows_of_keys(
    parts: Sequence[pa.RecordBatch], order: npt.NDArray[np.int64], bounds: npt.NDArray[np.int64]
) -> Iterator[pa.RecordBatch]:
    """The rows of each key.

    Args:
        parts: The rows.
        order: Their positions, by key.
        bounds: Where each key begins there, and where the last one ends.
    """
    start, end = int(bounds[0]), int(bounds[-1])
    taken = list(take_rows(parts, order[start:end]))
    if len(taken) == 1:
        of_key = (bounds - start).tolist()
        for first, behind in itertools.pairwise(of_key):
            yield taken[0].slice(first, behind - first)
    elif len(bounds) == 2:
        message = (
            f"a key has {end - start} rows in a micro-batch with more text, bytes or lists than the 2 GiB that a "
            "record batch holds; let sources give less at once, such as by maxFilesPerTrigger or maxOffsetsPerTrigger"
        )
        raise InvalidRequestError(message)
    else:
        middle = len(bounds) // 2
        yield from _rows_of_keys(parts, order, bounds[: middle + 1])
        yield from _rows_of_keys(parts, order, bounds[middle:])


def _tuples_named(names: list[str]) -> Callable[[Iterable[Any]], tuple[Any, ...]]:
    """Makes named tuples; a field whose name is none of Python's is called by its number."""
    kind: Any = namedtuple("Key", names, rename=True)  # type: ignore[misc]  # noqa: PYI024
    return kind._make
