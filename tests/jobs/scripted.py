"""A processor that runs the script in its rows and yields all its state, and a model of it in dicts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jobs.stateful_processor import StatefulProcessor
from pyspark.sql import Row
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

V = StructType([StructField("n", LongType()), StructField("s", StringType())])
L = StructType([StructField("n", LongType())])
MK = StructType([StructField("k", IntegerType())])

Script = Sequence[tuple[str, int]]
"""The operations of a row, each with a number."""


def render_script(script: Script) -> str:
    """Return a script as the text of a column."""
    return " ".join(f"{name}{number}" for name, number in script)


class Scripted(StatefulProcessor):
    """Runs the operations in the column `ops` of its rows.

    Args:
        time_mode: The query's; there are timers if it is not None.
        ttl: The time to live of states, milliseconds.
        removes: Whether entries of maps are removed, too. In Spark's own map an entry that is put after a removal
            expires when the removed one would have.
    """

    def __init__(self, time_mode: str, ttl: int | None = None, *, removes: bool = True) -> None:
        self._has_timers = time_mode != "None"
        self._ttl = ttl
        self._removes = removes

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.v = handle.getValueState("v", V, self._ttl)
        self.elements = handle.getListState("l", L, self._ttl)
        self.m = handle.getMapState("m", MK, L, self._ttl)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        yield self._observation("rows", key)
        for row in rows:
            for operation in row.ops.split():
                if operation[0] == "s":
                    yield self._observation("stopped", key)
                    return
                self._do(operation[0], int(operation[1:]))
        yield self._observation("done", key)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        time = expiredTimerInfo.getExpiryTimeInMs()
        yield self._observation(f"timer {time}", key)
        for name, number in on_timer(time):
            self._do(name, number)
        yield self._observation(f"timer {time} done", key)

    def close(self) -> None:
        pass

    def _do(self, name: str, number: int) -> None:  # noqa: C901  # a line an operation
        match name:
            case "v":
                self.v.update((number, str(number)))
            case "V":
                self.v.clear()
            case "a":
                self.elements.appendValue((number,))
            case "A":
                self.elements.appendList([(number,), (number + 1,)])
            case "p":
                self.elements.put([(number,), (-number,)])
            case "L":
                self.elements.clear()
            case "m":
                self.m.updateValue((number % 4,), (number,))
            case "d" if self._removes:
                self.m.removeKey((number % 4,))
            case "M":
                self.m.clear()
            case "+" if self._has_timers:
                self.handle.registerTimer(number)
            case "-" if self._has_timers:
                self.handle.deleteTimer(number)

    def _observation(self, when: str, key: Any) -> Row:
        timers = sorted(self.handle.listTimers()) if self._has_timers else []
        entries = sorted((k, v) for (k,), (v,) in self.m.iterator())
        elements = [n for (n,) in self.elements.get()]
        value = self.v.get()
        exist = self.v.exists(), self.elements.exists(), self.m.exists()
        single = [self.m.getValue((k,)) is not None and self.m.getValue((k,)).n for k in range(4)]
        contains = [self.m.containsKey((k,)) for k in range(4)]
        observation = (when, key[0], value, elements, entries, timers, exist, single, contains)
        return Row(out=repr(observation))


def on_timer(time: int) -> list[tuple[str, int]]:
    """Return the operations of a timer that fires."""
    operations = [("v", time), ("a", time)]
    if time % 3 == 0:
        operations += [("-", time + 3), ("d", time)]
    if time % 4 == 0:
        operations += [("+", time - 1), ("+", time + 7), ("+", time)]
    if time % 5 == 0:
        operations += [("-", time), ("M", 0)]
    return operations


@dataclass
class _Key:
    """The state of a key; each value has the time at which it expires."""

    v: tuple[Any, float] | None = None
    elements: list[tuple[int, float]] = field(default_factory=list)
    m: dict[int, tuple[int, float]] = field(default_factory=dict)
    timers: set[int] = field(default_factory=set)


class Model:
    """The expected behaviour of a `Scripted` processor with the same arguments."""

    def __init__(self, time_mode: str, ttl: int | None = None, *, removes: bool = True) -> None:
        self._time_mode = time_mode
        self._ttl = ttl
        self._removes = removes
        self._keys: dict[str | None, _Key] = {}

    def run(self, rows: Sequence[Mapping[str, Any]], batch_time: int, watermark: int) -> list[Any]:
        """Return the output of a batch."""
        expiry = float("inf") if self._ttl is None else batch_time + self._ttl
        for state in self._keys.values():
            if state.v is not None and batch_time >= state.v[1]:
                state.v = None
            state.elements = [each for each in state.elements if batch_time < each[1]]
            state.m = {k: each for k, each in state.m.items() if batch_time < each[1]}
        seen: list[Any] = []
        keys = {row["k"] for row in rows}
        for key in sorted(keys, key=lambda each: (each is not None, each or "")):
            state = self._keys.setdefault(key, _Key())
            seen.append(self._observation("rows", key))
            when = "done"
            for operation in " ".join(row["ops"] for row in rows if row["k"] == key).split():
                if operation[0] == "s":
                    when = "stopped"
                    break
                self._do(state, operation[0], int(operation[1:]), expiry)
            seen.append(self._observation(when, key))
        until = {"None": -(2**63), "EventTime": watermark, "ProcessingTime": batch_time}
        due = [
            (time, key is not None, key or "", key)
            for key, state in self._keys.items()
            for time in state.timers
            if time <= until[self._time_mode]
        ]
        for time, _, _, key in sorted(due, key=lambda each: each[:3]):
            state = self._keys[key]
            seen.append(self._observation(f"timer {time}", key))
            for name, number in on_timer(time):
                self._do(state, name, number, expiry)
            seen.append(self._observation(f"timer {time} done", key))
            state.timers.discard(time)
        return seen

    def _do(self, state: _Key, name: str, number: int, expiry: float) -> None:  # noqa: C901
        match name:
            case "v":
                state.v = ((number, str(number)), expiry)
            case "V":
                state.v = None
            case "a":
                state.elements.append((number, expiry))
            case "A":
                state.elements += [(number, expiry), (number + 1, expiry)]
            case "p":
                state.elements = [(number, expiry), (-number, expiry)]
            case "L":
                state.elements = []
            case "m":
                state.m[number % 4] = (number, expiry)
            case "d" if self._removes:
                state.m.pop(number % 4, None)
            case "M":
                state.m = {}
            case "+" if self._time_mode != "None":
                state.timers.add(number)
            case "-":
                state.timers.discard(number)

    def _observation(self, when: str, key: str | None) -> Any:
        state = self._keys[key]
        single = [k in state.m and state.m[k][0] for k in range(4)]
        return (
            when,
            key,
            state.v and state.v[0],
            [n for n, _ in state.elements],
            sorted((k, v) for k, (v, _) in state.m.items()),
            sorted(state.timers),
            (state.v is not None, bool(state.elements), bool(state.m)),
            single,
            [k in state.m for k in range(4)],
        )
