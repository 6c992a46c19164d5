"""Operators that are called key by key, with states and timers, compared with a model.

`KeyedProcessFunction` runs the scripts of `call_cases` here, `StatefulProcessor` in `processors`; the model is the same.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from jobs.keyed_subtasks import KeyedSubtasks

from holdfast import KeyedProcessFunction, StatefulFunction
from holdfast.backends import FunctionInitializationContext
from proof.values.call_cases import CallBatch, CallCase, Domain, Operation, PlainTuple
from proof.values.checking import Comparisons
from proof.values.drawing import columns_of
from proof.values.model import Expected
from proof.values.plain import from_arrow, frozen, order_of, to_arrow
from proof.values.states import (
    StateModel,
    Step,
    change_state,
    open_state,
    plain_value,
    read_state,
)


@dataclass(slots=True)
class Call:
    """A call of an operator.

    Attributes:
        trigger: rows, or the domain of a timer.
        key: The plain key.
        time_ms: The time of the timer.
        rows: The numbers of the rows.
        reads: The results of each `read` and `list` of the script.
        subtask: The subtask that was called.
    """

    trigger: str
    key: PlainTuple
    time_ms: int | None = None
    rows: list[int] = field(default_factory=list)
    reads: list[Any] = field(default_factory=list)
    subtask: int = 0

    @property
    def identity(self) -> Any:
        """The identity of a call, which occurs at most once in a batch."""
        return self.trigger, frozen(self.key), self.time_ms


# The model


@dataclass(slots=True)
class CallModel:
    """The reads and effects of the calls of a case, computed row by row."""

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
                timers.discard((domain, time_ms))  # even if its call registered it again
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
        """Return the time of the earliest remaining timer."""
        times = [time for timers in self.timers.values() for each, time in timers if each == domain]
        return min(times, default=None)


# The function


class Calls(KeyedProcessFunction):
    """Runs the scripts of rows and timers, and records its calls.

    Args:
        case: Defines the states.
        batch: Defines the scripts of rows.
        seen: Receives the calls.
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
        trigger: str,
        key: Any,
        time_ms: int | None,
        numbers: list[int],
        script: Sequence[Operation],
    ) -> Iterable[Any] | None:
        types = [each.type for each in self._case.key]
        plain_key = tuple(map(plain_value, key, types))
        call = Call(trigger, plain_key, time_ms, numbers, subtask=self._subtask)
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
        make: Creates the operator for a batch.
        seen: Receives the calls of the operator.
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
        except Exception as error:  # noqa: BLE001  # each error is a finding
            compared.add_error(f"{case.operator}: a batch", error)
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
    place: str,
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
        compared.check(len(texts) <= 1, f"{name}: a replay differs", place, texts)
    calls = runs[-1] if runs else []
    times_called = Counter(call.identity for call in calls)
    is_called_once = set(times_called) == set(expected) and set(times_called.values()) <= {1}
    compared.check(
        is_called_once and len(seen) == count * (replays + 1),
        f"{name}: other calls",
        f"{place}: {[call.identity for call in seen]}, not {list(expected)}",
    )
    if not is_called_once:
        return
    rows = []
    for call in calls:
        right, emitted = expected[call.identity]
        label = f"{name}: a call for {'rows' if call.trigger == 'rows' else 'a timer'}"
        compared.check(
            call.rows == right.rows,
            f"{label}, other rows",
            f"{place}: {call.identity} has rows {call.rows}, not {right.rows}",
        )
        is_same = len(call.reads) == len(right.reads) and all(
            cell.allows(value) for cell, value in zip(right.reads, call.reads, strict=True)
        )
        compared.check(
            is_same,
            f"{label}, other reads",
            f"{place}: {call.identity} reads {call.reads}, not {[x.value for x in right.reads]}",
        )
        rows += [case.output_row(call.key, number, cell.value) for number, cell in emitted]
    _compare_order(compared, place, name, calls)
    _compare_output(compared, place, case, rows, out)


def _compare_order(compared: Comparisons, place: str, name: str, calls: list[Call]) -> None:
    """Check the order of calls in each subtask: rows, timers of event time, timers of processing time, each ascending."""
    places = {"rows": 0, "event": 1, "processing": 2}
    order = [(call.subtask, places[call.trigger], call.time_ms or 0) for call in calls]
    if name != "function":  # Spark also sorts keys
        keyed = [(*place, order_of(call.key)) for place, call in zip(order, calls, strict=True)]
        compared.check(keyed == sorted(keyed), f"{name}: order of calls", place, keyed)
    compared.check(order == sorted(order), f"{name}: order of calls", place, order)


def _compare_output(
    compared: Comparisons,
    place: str,
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
        f"{place}: {returned}, not {expected}",
    )
