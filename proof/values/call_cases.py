"""Cases of operators that are called key by key: scripts of rows and timers, drawn at random.

Each row has a script: operations that the operator runs when it is called with the row.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Literal

import pyarrow as pa

from holdfast.backends.keyed import BackendName
from proof.values.aggregates import BACKENDS
from proof.values.checking import with_smaller_parts, without_each, without_parts
from proof.values.drawing import Drawer
from proof.values.states import (
    StateKind,
    draw_argument,
    draw_kind,
)

PlainTuple = tuple[Any, ...]
Domain = Literal["event", "processing"]

_FIRST_MS, _LAST_MS = -(2**63), 2**63 - 1
_NOW_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of a script.

    Attributes:
        name: An operation of a state (put, append, remove, clear, read), of a timer (register, delete, list),
            or emit, which yields a row, or column, which reads the column `v` of the row.
        state: The number of the state.
        argument: The argument of the state's operation, the time of a timer, the number of the row, or the
            value of the column.
        domain: The time that the timer uses.
    """

    name: str
    state: int = 0
    argument: Any = None
    domain: Domain = "processing"


Script = tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class CallBatch:
    """A batch.

    Attributes:
        rows: The key of each row, and its script.
        now_ms: The time of the batch.
        watermark: The watermark of the batch.
        replays: Number of times the batch is repeated before its checkpoint completes.
        is_lazy: Whether the operator yields rows, instead of returning a list.
    """

    rows: tuple[tuple[PlainTuple, Script], ...]
    now_ms: int
    watermark: int
    parallelism: int = 1
    backend: BackendName = "columnar"
    replays: int = 0
    is_lazy: bool = True

    def values(self) -> list[Any]:
        """Return the value of each row in the column `v`."""
        return [
            next((each.argument for each in script if each.name == "column"), None)
            for _, script in self.rows
        ]

    def script_of_rows(self, numbers: Sequence[int], values: Sequence[Any]) -> list[Operation]:
        """Return the operations of rows, with their values in the column `v`."""
        return [
            replace(each, argument=value) if each.name == "column" else each
            for number, value in zip(numbers, values, strict=True)
            for each in self.rows[number][1]
        ]


@dataclass(frozen=True, slots=True)
class CallCase:
    """An operator that is called key by key, and its batches.

    Attributes:
        operator: function, or the flavour of a processor: row or pandas.
        kinds: The states.
        time_mode: none, event or processing.
        fired: The scripts of timers; the time of a timer chooses one.
        column: The type of the column `v` of rows.
    """

    operator: str
    key: pa.Schema
    kinds: tuple[StateKind, ...]
    time_mode: str
    fired: tuple[Script, ...]
    batches: tuple[CallBatch, ...]
    column: pa.DataType = field(default_factory=pa.int64)

    def script_of_timer(self, time_ms: int) -> Script:
        """Return the script of a timer."""
        return self.fired[time_ms % len(self.fired)] if self.fired else ()

    @property
    def output(self) -> pa.Schema:
        """The columns of the output: the key, the number of `emit`, and the value of the first state.

        Processors leave out the key, and those of pandas the value, which frames change.
        """
        fields = [*self.key] if self.operator == "function" else []
        fields.append(pa.field("number", pa.int64()))
        if self.has_value:
            fields.append(pa.field("value", self.kinds[0].type))
        return pa.schema(fields)

    @property
    def has_value(self) -> bool:
        """True if the output has the value of the first state."""
        return self.operator != "pandas" and self.kinds[0].name == "value"

    def output_row(self, key: PlainTuple, number: int, value: Any) -> PlainTuple:
        """Return a row of the output."""
        row = (*key, number) if self.operator == "function" else (number,)
        return (*row, value) if self.has_value else row


def draw_case(random: Random) -> CallCase:
    """Draw a case for a function."""
    drawer = Drawer(random)
    kinds: list[StateKind] = []
    while len(kinds) < random.randint(1, 3):
        kind = draw_kind(drawer)
        is_exact = kind.function != "sum" or pa.types.is_floating(kind.type)
        if kind.name != "reducing" or is_exact:  # an overflow ends a case
            refreshes = kind.ttl_ms is not None and drawer.chance(0.5)
            kinds.append(replace(kind, is_refreshed_by_reading=refreshes))
    time_mode = random.choice(["none", *_TIMED])
    return draw_calls(drawer, "function", tuple(kinds), time_mode, drawer.arrow_type())


_TIMED = ("processing", "event", "event")


def draw_calls(
    drawer: Drawer,
    operator: str,
    kinds: tuple[StateKind, ...],
    time_mode: str,
    column: pa.DataType,
) -> CallCase:
    """Draw the key, the scripts and the batches for an operator with these states."""
    random = drawer.random
    key = pa.schema([(f"k{i}", drawer.key_type()) for i in range(random.choice([1, 1, 2]))])
    keys = drawer.distinct_keys(key, random.randint(1, 4))
    if operator == "pandas":  # its frames have NaN or nothing instead of most nulls
        keys = [_without_nulls(drawer, key) for _ in keys]
    times = _draw_times(random)
    domains: list[Domain] = []
    if time_mode == "event":
        domains.append("event")
    if time_mode == "processing" or (domains and operator == "function"):
        domains.append("processing")

    def script(max_operations: int) -> Script:
        count = random.randint(0, max_operations)
        return tuple(_draw_operation(drawer, operator, kinds, domains, times) for _ in range(count))

    def script_of_row() -> Script:
        if operator == "pandas" or drawer.chance(0.5):  # frames represent values differently
            return script(4)
        return (Operation("column", argument=drawer.value(column)), *script(4))

    fired = tuple(script(4) for _ in range(random.randint(0, 3)))
    has_ttl = any(kind.ttl_ms is not None for kind in kinds)
    now, watermark = _NOW_MS, _NOW_MS
    batches = []
    for _ in range(random.randint(1, 5)):
        now = min(now + random.choice([0, 1, 4, 6, 1000]), _LAST_MS)
        if not has_ttl and drawer.chance(0.3):  # states with a time to live need time that advances
            now = random.choice(times)
        watermark = random.choice([watermark, min(watermark + 1, _LAST_MS), *times])
        count = random.choice([0, 1, 2, 3, 6])
        batches.append(
            CallBatch(
                tuple((random.choice(keys), script_of_row()) for _ in range(count)),
                now if operator == "function" else max(now, 0),
                watermark if operator == "function" else max(watermark, 0),
                random.randint(1, 3),
                random.choice(BACKENDS),
                int(drawer.chance(0.15)),
                drawer.chance(0.5),
            )
        )
    reads = tuple(Operation("read", number) for number in range(len(kinds)))
    last = CallBatch(tuple((each, reads) for each in keys), now, watermark)
    if operator != "function":
        last = replace(last, now_ms=max(now, 0), watermark=max(watermark, 0))
    return CallCase(operator, key, kinds, time_mode, fired, (*batches, last), column)


def _without_nulls(drawer: Drawer, key: pa.Schema) -> PlainTuple:
    """Draw a key without null and NaN."""
    while True:
        values = tuple(drawer.value(each.type, null=0) for each in key)
        if all(value == value for value in values):  # noqa: PLR0124  # NaN is not
            return values


def _draw_times(random: Random) -> list[int]:
    """Draw a few times of timers: near the time of batches, near each other, and the limits."""
    near = [_NOW_MS + offset for offset in (-1000, -1, 0, 1, 2, 5, 10, 999, 1000, 2000, 65_536_000)]
    edges = [_FIRST_MS, _FIRST_MS + 1, -1, 0, 1, _LAST_MS - 1, _LAST_MS]
    return [random.choice(random.choice([near, near, edges])) for _ in range(5)]


_STATE_OPERATIONS = {
    "value": ["put", "put", "clear", "read", "read"],
    "list": ["append", "append", "put", "clear", "read", "read"],
    "map": ["put", "put", "remove", "clear", "read", "read"],
    "reducing": ["add", "add", "add", "clear", "read", "read"],
}


def _draw_operation(
    drawer: Drawer,
    operator: str,
    kinds: tuple[StateKind, ...],
    domains: list[Domain],
    times: list[int],
) -> Operation:
    random = drawer.random
    if drawer.chance(0.15):
        return Operation("emit", argument=random.randint(-9, 9))
    if domains and drawer.chance(0.4):
        names = ["register", "register", "register", "delete"]
        if operator != "function":
            names.append("list")
        return Operation(random.choice(names), 0, random.choice(times), random.choice(domains))
    number = random.randrange(len(kinds))
    kind = kinds[number]
    name = random.choice(_STATE_OPERATIONS[kind.name])
    if name == "read":
        return Operation(name, number)
    argument = draw_argument(drawer, kind, name)
    if operator != "function" and argument == []:  # Spark refuses empty lists
        name = "clear"
    return Operation(name, number, argument)


def smaller_cases(case: CallCase) -> Iterator[CallCase]:
    """Yield cases with fewer parts."""
    yield from without_parts(case, "batches")
    yield from with_smaller_parts(case, "fired", without_each)
    yield from with_smaller_parts(case, "batches", _smaller_batches)


def _smaller_batches(batch: CallBatch) -> Iterator[CallBatch]:
    yield from without_parts(batch, "rows")
    yield from with_smaller_parts(batch, "rows", _smaller_rows)
    yield replace(batch, parallelism=1, backend="columnar", replays=0)


def _smaller_rows(row: tuple[PlainTuple, Script]) -> Iterator[tuple[PlainTuple, Script]]:
    key, script = row
    return ((key, less) for less in without_each(script))
