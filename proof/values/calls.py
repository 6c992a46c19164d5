"""Operators that are called key by key, with states and timers, compared with a model.

The rows of a case are scripts: each has operations that the operator runs when it is called with the row.
`KeyedProcessFunction` runs them here, `StatefulProcessor` in `processors`; the model is the same.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Literal

import pyarrow as pa
from jobs.keyed_subtasks import KeyedSubtasks

from holdfast import KeyedProcessFunction, StatefulFunction
from holdfast.backends import FunctionInitializationContext
from holdfast.backends.keyed import BackendName
from proof.values.aggregates import BACKENDS
from proof.values.checking import Comparisons, without_each
from proof.values.drawing import Drawer, columns_of
from proof.values.model import Expected
from proof.values.plain import from_arrow, frozen, order_of, to_arrow
from proof.values.states import (
    StateKind,
    StateModel,
    Step,
    change_state,
    draw_argument,
    draw_kind,
    open_state,
    plain_value,
    read_state,
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
            or emit, which yields a row, or column, which reads the column `v` of its own row.
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
        replays: How often the batch runs before its checkpoint completes.
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
        """Return what rows do, with the values that they have in the column `v`."""
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
        """Return what a timer does."""
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
        """Whether the output has the value of the first state."""
        return self.operator != "pandas" and self.kinds[0].name == "value"

    def output_row(self, key: PlainTuple, number: int, value: Any) -> PlainTuple:
        """Return a row of the output."""
        row = (*key, number) if self.operator == "function" else (number,)
        return (*row, value) if self.has_value else row


@dataclass(slots=True)
class Call:
    """A call of an operator.

    Attributes:
        what: rows, or the domain of a timer.
        key: The plain key.
        time_ms: The time of the timer.
        rows: The numbers of the rows.
        reads: What each `read` and `list` of the script returned.
        subtask: The subtask that was called.
    """

    what: str
    key: PlainTuple
    time_ms: int | None = None
    rows: list[int] = field(default_factory=list)
    reads: list[Any] = field(default_factory=list)
    subtask: int = 0

    @property
    def identity(self) -> Any:
        """What is called at most once in a batch."""
        return self.what, frozen(self.key), self.time_ms


# Drawing


def draw_case(random: Random) -> CallCase:
    """Draw a case for a function."""
    drawer = Drawer(random)
    kinds: list[StateKind] = []
    while len(kinds) < random.randint(1, 3):
        kind = draw_kind(drawer)
        is_exact = kind.function != "sum" or pa.types.is_floating(kind.type)
        if kind.name != "reducing" or is_exact:  # a sum that does not fit ends a case
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
    if operator == "pandas":  # its frames have no null in most types, or NaN in its place
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
        if operator == "pandas" or drawer.chance(0.5):  # frames have values in forms of their own
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
    if operator != "function" and argument == []:  # Spark takes no empty list
        name = "clear"
    return Operation(name, number, argument)


# The model


@dataclass(slots=True)
class CallModel:
    """What the calls of a case see and leave, worked out row by row."""

    case: CallCase
    timers: dict[Any, set[tuple[str, int]]] = field(default_factory=dict)
    keys: dict[Any, PlainTuple] = field(default_factory=dict)
    states: list[StateModel] = field(init=False)

    def __post_init__(self) -> None:
        self.states = [StateModel(kind) for kind in self.case.kinds]

    def run(self, batch: CallBatch) -> dict[Any, tuple[Call, list[Any]]]:
        """Return the calls of a batch by their identity, each with the rows that it emits."""
        calls = {}
        rows: dict[Any, list[int]] = {}
        for number, (key, _) in enumerate(batch.rows):
            self.keys.setdefault(frozen(key), key)
            rows.setdefault(frozen(key), []).append(number)
        for name, numbers in rows.items():
            script = [each for number in numbers for each in batch.rows[number][1]]
            call = Call("rows", self.keys[name], None, numbers)
            calls[call.identity] = call, self._do(call, script, batch)
        bounds = {"event": batch.watermark, "processing": batch.now_ms}
        for name, timers in self.timers.items():
            for domain, time_ms in sorted(each for each in timers if each[1] <= bounds[each[0]]):
                call = Call(domain, self.keys[name], time_ms)
                script = list(self.case.script_of_timer(time_ms))
                calls[call.identity] = call, self._do(call, script, batch)
                timers.discard((domain, time_ms))  # even if its own call registered it again
        return calls

    def _do(self, call: Call, script: Sequence[Operation], batch: CallBatch) -> list[Any]:
        emitted = []
        name = frozen(call.key)
        timers = self.timers.setdefault(name, set())
        for operation in script:
            timer = operation.domain, operation.argument
            if operation.name == "register":
                timers.add(timer)
            elif operation.name == "delete":
                timers.discard(timer)
            elif operation.name == "list":
                call.reads.append(Expected(sorted(time for _, time in timers)))
            elif operation.name == "column":
                call.reads.append(Expected(operation.argument))
            elif operation.name == "emit":
                value = self._read(0, name, batch) if self.case.has_value else Expected()
                emitted.append((operation.argument, value))
            elif operation.name == "read":
                call.reads.append(self._read(operation.state, name, batch))
            else:
                done = ((call.key, operation.argument),)
                self.states[operation.state].take(Step(operation.name, done, now_ms=batch.now_ms))
        return emitted

    def _read(self, number: int, name: Any, batch: CallBatch) -> Expected:
        return self.states[number].read(name, batch.now_ms)

    def earliest(self, domain: Domain) -> int | None:
        """Return the time of the earliest timer that is left."""
        times = [time for timers in self.timers.values() for each, time in timers if each == domain]
        return min(times, default=None)


# The function


class Calls(KeyedProcessFunction):
    """Runs the scripts of rows and timers, and notes its calls.

    Args:
        case: What the states are.
        batch: What the rows do.
        seen: Where calls are noted.
    """

    def __init__(self, case: CallCase, batch: CallBatch, seen: list[Call]) -> None:
        self._case, self._batch, self._seen = case, batch, seen
        self.time_mode: Any = case.time_mode

    def open(self, context: FunctionInitializationContext) -> None:
        store = context.keyed_state_store
        self._subtask = context.subtask_index
        self._states = [
            open_state(store, f"s{number}", kind) for number, kind in enumerate(self._case.kinds)
        ]

    def process_key(self, key: Any, rows: pa.RecordBatch) -> Iterable[Any] | None:
        numbers = rows.column("row").to_pylist()
        script = self._batch.script_of_rows(numbers, from_arrow(rows.column("v")))
        return self._run("rows", key, None, numbers, script)

    def on_timer(self, key: Any, time_ms: int, domain: Domain) -> Iterable[Any] | None:
        return self._run(domain, key, time_ms, [], self._case.script_of_timer(time_ms))

    def _run(
        self,
        what: str,
        key: Any,
        time_ms: int | None,
        numbers: list[int],
        script: Sequence[Operation],
    ) -> Iterable[Any] | None:
        types = [each.type for each in self._case.key]
        plain_key = tuple(map(plain_value, key, types))
        call = Call(what, plain_key, time_ms, numbers, subtask=self._subtask)
        self._seen.append(call)
        rows = self._rows(call, key, script)
        if self._batch.is_lazy:
            return rows
        return list(rows) or None

    def _rows(self, call: Call, key: Any, script: Sequence[Operation]) -> Iterator[Any]:
        for operation in script:
            kind, state = self._case.kinds[operation.state], self._states[operation.state]
            if operation.name == "emit":
                yield self._row(key, operation.argument)
            elif operation.name == "read":
                call.reads.append(read_state(state, kind))
            elif operation.name == "column":
                call.reads.append(operation.argument)
            elif operation.name in {"register", "delete"}:
                self._change_timer(operation)
            else:
                change_state(state, kind, operation.name, operation.argument)

    def _change_timer(self, operation: Operation) -> None:
        changes: dict[Any, Callable[[int], None]] = {
            ("register", "event"): self.register_event_time_timer,
            ("register", "processing"): self.register_processing_time_timer,
            ("delete", "event"): self.delete_event_time_timer,
            ("delete", "processing"): self.delete_processing_time_timer,
        }
        changes[operation.name, operation.domain](operation.argument)

    def _row(self, key: Any, number: int) -> Any:
        """Return a row in one of the forms that a function can return."""
        names = self._case.output.names
        value = self._states[0].value() if self._case.has_value else None
        row = self._case.output_row(key, number, value)
        if number % 3 == 0:
            return row
        if number % 3 == 1:
            return dict(zip(names, row, strict=True))
        columns = [
            pa.array([each], field.type) for each, field in zip(row, self._case.output, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._case.output)


# Comparing


def run_case(case: CallCase) -> Comparisons:
    """Run all batches of a function, and compare its calls, states, timers and output."""
    seen: list[Call] = []
    return compare_calls(case, lambda batch: Calls(case, batch, seen), seen)


def compare_calls(
    case: CallCase, make: Callable[[CallBatch], StatefulFunction], seen: list[Call]
) -> Comparisons:
    """Run all batches, and compare.

    Args:
        case: The case.
        make: Makes the operator for a batch.
        seen: Where the operator notes its calls.
    """
    compared = Comparisons()
    model = CallModel(case)
    current: list[CallBatch] = []
    subtasks = KeyedSubtasks(lambda: make(current[0]), case.key, output=case.output)
    schema = pa.schema([*case.key, ("row", pa.int64()), ("v", case.column)])
    for number, batch in enumerate(case.batches):
        current[:] = [batch]
        pairs = zip(batch.rows, batch.values(), strict=True)
        rows = [(*key, row, value) for row, ((key, _), value) in enumerate(pairs)]
        table = pa.Table.from_arrays(columns_of(rows, schema, to_arrow), schema=schema)
        subtasks.parallelism, subtasks.backend = batch.parallelism, batch.backend
        expected = model.run(batch)
        seen.clear()
        try:
            out = subtasks.run(
                table, watermark=batch.watermark, batch_time=batch.now_ms, replays=batch.replays
            )
        except Exception as error:  # noqa: BLE001  # whatever comes is a finding
            compared.unexpected(f"{case.operator}: a batch", error)
            return compared
        _compare_batch(
            compared,
            f"batch {number}",
            case,
            replays=batch.replays,
            expected=expected,
            seen=seen,
            out=out,
        )
        if case.operator == "function" and case.time_mode == "event":
            earliest = model.earliest("event")
            compared.check(
                subtasks.next_timer == earliest,
                f"{case.operator}: next timer",
                f"batch {number}: {subtasks.next_timer}, not {earliest}",
            )
        if compared.problems:
            return compared
    return compared


def _compare_batch(
    compared: Comparisons,
    where: str,
    case: CallCase,
    *,
    replays: int,
    expected: dict[Any, tuple[Call, list[Any]]],
    seen: list[Call],
    out: list[pa.RecordBatch],
) -> None:
    name = case.operator
    count = len(expected)
    runs = [seen[first : first + count] for first in range(0, len(seen), count or 1)]
    if replays:
        texts = {repr([(frozen(call.key), call) for call in run]) for run in runs}
        compared.check(len(texts) <= 1, f"{name}: a replay differs", where, texts)
    calls = runs[-1] if runs else []
    times_called = Counter(call.identity for call in calls)
    is_called_once = set(times_called) == set(expected) and set(times_called.values()) <= {1}
    compared.check(
        is_called_once and len(seen) == count * (replays + 1),
        f"{name}: other calls",
        f"{where}: {[call.identity for call in seen]}, not {list(expected)}",
    )
    if not is_called_once:
        return
    rows = []
    for call in calls:
        right, emitted = expected[call.identity]
        what = f"{name}: a call for {'rows' if call.what == 'rows' else 'a timer'}"
        compared.check(
            call.rows == right.rows,
            f"{what}, other rows",
            f"{where}: {call.identity} has rows {call.rows}, not {right.rows}",
        )
        is_same = len(call.reads) == len(right.reads) and all(
            cell.allows(value) for cell, value in zip(right.reads, call.reads, strict=True)
        )
        compared.check(
            is_same,
            f"{what}, other reads",
            f"{where}: {call.identity} reads {call.reads}, not {[x.value for x in right.reads]}",
        )
        rows += [case.output_row(call.key, number, cell.value) for number, cell in emitted]
    _compare_order(compared, where, name, calls)
    _compare_output(compared, where, case, rows, out)


def _compare_order(compared: Comparisons, where: str, name: str, calls: list[Call]) -> None:
    """In each subtask rows come first, then timers of event time, then those of processing time, ascending."""
    places = {"rows": 0, "event": 1, "processing": 2}
    order = [(call.subtask, places[call.what], call.time_ms or 0) for call in calls]
    if name != "function":  # Spark sorts keys, too
        keyed = [(*place, order_of(call.key)) for place, call in zip(order, calls, strict=True)]
        compared.check(keyed == sorted(keyed), f"{name}: order of calls", where, keyed)
    compared.check(order == sorted(order), f"{name}: order of calls", where, order)


def _compare_output(
    compared: Comparisons,
    where: str,
    case: CallCase,
    rows: list[PlainTuple],
    out: list[pa.RecordBatch],
) -> None:
    columns = [
        [value for batch in out for value in from_arrow(batch.column(index))]
        for index in range(len(case.output))
    ]
    returned = [frozen(row) for row in zip(*columns, strict=True)]
    expected = list(map(frozen, rows))
    compared.check(
        returned == expected,
        f"{case.operator}: other output",
        f"{where}: {returned}, not {expected}",
    )


def smaller_cases(case: CallCase) -> Iterator[CallCase]:
    """Yield cases with less in them."""
    for batches in without_each(case.batches):
        yield replace(case, batches=batches)
    for index, script in enumerate(case.fired):
        for less in without_each(script):
            yield replace(case, fired=(*case.fired[:index], less, *case.fired[index + 1 :]))
    for index, batch in enumerate(case.batches):
        before, after = case.batches[:index], case.batches[index + 1 :]
        for rows in without_each(batch.rows):
            yield replace(case, batches=(*before, replace(batch, rows=rows), *after))
        for number, (key, script) in enumerate(batch.rows):
            for less in without_each(script):
                rows = (*batch.rows[:number], (key, less), *batch.rows[number + 1 :])
                yield replace(case, batches=(*before, replace(batch, rows=rows), *after))
        plain = replace(batch, parallelism=1, backend="columnar", replays=0)
        if batch != plain:
            yield replace(case, batches=(*before, plain, *after))
