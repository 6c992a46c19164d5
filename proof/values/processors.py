"""`StatefulProcessor`s of PySpark in both flavours, without Spark, compared with the model of `calls`."""

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pandas as pd
import pyarrow as pa
from pyarrow import types
from pyspark.sql import Row
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from holdfast.spark.processors import InputSettings, ProcessorFunction
from proof.values.call_cases import CallBatch, CallCase, Operation, draw_calls
from proof.values.calls import Call, compare_calls
from proof.values.checking import Comparisons
from proof.values.drawing import FIRST_DAY, LAST_DAY, Drawer
from proof.values.states import StateKind, plain_value, python_object

_TIME_MODES = {"none": "None", "processing": "ProcessingTime", "event": "EventTime"}
_DAYS = {"row": (FIRST_DAY + 2, LAST_DAY - 2), "pandas": (-106_749, 106_749)}
"""The valid days of local times and frames; processors refuse others."""
_SETTINGS = InputSettings(max_rows=2)


def draw_case(random: Random) -> CallCase:
    """Draw a case."""
    operator = random.choice(["row", "pandas"])
    drawer = Drawer(random, has_void=False, days=_DAYS[operator])
    time_mode = random.choice(["none", "processing", "processing", "event"])
    kinds = []
    for _ in range(random.randint(1, 3)):
        name = random.choice(["value", "list", "map"])
        ttl_ms = 10 if time_mode == "processing" and drawer.chance(0.3) else None
        map_key = pa.struct([("k", drawer.key_type())]) if name == "map" else None
        kinds.append(StateKind(name, _draw_type(drawer), map_key, ttl_ms=ttl_ms))
    return draw_calls(drawer, operator, tuple(kinds), time_mode, _draw_type(drawer))


def _draw_type(drawer: Drawer) -> pa.DataType:
    fields = []
    for number in range(drawer.random.randint(1, 2)):
        kind = drawer.atomic_type()
        if drawer.chance(0.3):
            kind = drawer.random.choice(
                [
                    pa.list_(kind),
                    pa.map_(pa.string(), kind),
                    pa.struct([("x", kind), ("y", drawer.atomic_type())]),
                ]
            )
        fields.append((f"f{number}", kind))
    return pa.struct(fields)


@dataclass(slots=True)
class Notes:
    """Records of processors, which are copied for each batch and so can't keep them.

    Attributes:
        calls: The calls.
        subtask: The current subtask.
    """

    calls: list[Call] = field(default_factory=list)
    subtask: int = 0


NOTES = Notes()


class Processor(StatefulProcessor):
    """Runs the scripts of rows and timers, and records its calls.

    Args:
        case: Defines the states.
        batch: Defines the scripts of rows.
    """

    def __init__(self, case: CallCase, batch: CallBatch) -> None:
        self._case, self._batch = case, batch

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._states = [
            _open_state(handle, f"s{number}", kind) for number, kind in enumerate(self._case.kinds)
        ]

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        del timerValues
        if self._case.operator == "row":
            pairs = [(row.row, plain_value(row.v, self._case.column)) for row in rows]
        else:
            pairs = [(number, None) for frame in rows for number in frame["row"].tolist()]
        numbers = [number for number, _ in pairs]
        script = self._batch.script_of_rows(numbers, [value for _, value in pairs])
        return self._run(Call("rows", key, None, numbers), script)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        del timerValues
        time_ms = expiredTimerInfo.getExpiryTimeInMs()
        call = Call(self._case.time_mode, tuple(key), time_ms)
        return self._run(call, self._case.script_of_timer(time_ms))

    def close(self) -> None:
        pass

    def _run(self, call: Call, script: Sequence[Operation]) -> Iterator[Any]:
        key_types = [each.type for each in self._case.key]
        call.key = tuple(map(plain_value, call.key, key_types))
        call.subtask = NOTES.subtask
        NOTES.calls.append(call)
        rows = self._rows(call, script)
        return rows if self._batch.is_lazy else iter(list(rows))

    def _rows(self, call: Call, script: Sequence[Operation]) -> Iterator[Any]:
        for operation in script:
            kind, state = self._case.kinds[operation.state], self._states[operation.state]
            if operation.name == "emit":
                yield self._row(operation.argument)
            elif operation.name == "read":
                call.reads.append(_read_state(state, kind))
            elif operation.name == "column":
                call.reads.append(operation.argument)
            elif operation.name == "list":
                call.reads.append(list(self._handle.listTimers()))
            elif operation.name == "register":
                self._handle.registerTimer(operation.argument)
            elif operation.name == "delete":
                self._handle.deleteTimer(operation.argument)
            else:
                _change_state(state, kind, operation)

    def _row(self, number: int) -> Any:
        if self._case.operator == "pandas":
            return pd.DataFrame({"number": [number]})
        if self._case.has_value:
            return Row(number=number, value=self._states[0].get())
        return Row(number=number)


def _open_state(handle: Any, name: str, kind: StateKind) -> Any:
    schema = from_arrow_type(kind.type, prefer_timestamp_ntz=True)
    if kind.name == "map":
        return handle.getMapState(
            name, from_arrow_type(kind.map_key, prefer_timestamp_ntz=True), schema, kind.ttl_ms
        )
    get = handle.getValueState if kind.name == "value" else handle.getListState
    return get(name, schema, kind.ttl_ms)


def _change_state(state: Any, kind: StateKind, operation: Operation) -> None:
    name, argument = operation.name, operation.argument
    if name == "clear":
        state.clear()
    elif kind.name == "map":
        map_key = _spark_object(argument[0], kind.map_key)
        if name == "remove":
            state.removeKey(map_key)
        else:
            state.updateValue(map_key, _spark_object(argument[1], kind.type))
    elif kind.name == "value":
        state.update(_spark_object(argument, kind.type))
    elif name == "append":
        state.appendValue(_spark_object(argument, kind.type))
    else:
        state.put([_spark_object(each, kind.type) for each in argument])


def _read_state(state: Any, kind: StateKind) -> Any:
    if kind.name == "value":
        value = _plain(state.get(), kind.type)
        assert state.exists() == (value is not None)
        return value
    if kind.name == "list":
        return [_plain(each, kind.type) for each in state.get()]
    return [
        [_plain(key, kind.map_key), _plain(value, kind.type)] for key, value in state.iterator()
    ]


def _spark_object(value: Any, kind: Any) -> Any:
    """Return the object of a plain value in a processor of Spark."""
    if value is None:
        return None
    if types.is_struct(kind):
        return tuple(_spark_object(value[each.name], each.type) for each in kind)
    if types.is_map(kind):
        return {key: _spark_object(item, kind.item_type) for key, item in value}
    if types.is_list(kind):
        return [_spark_object(each, kind.value_type) for each in value]
    usual = python_object(value, kind)
    if types.is_timestamp(kind) and kind.tz is not None:  # Spark's have the process's time zone
        return usual.astimezone().replace(tzinfo=None)
    return usual


def _plain(value: Any, kind: Any) -> Any:
    """Return the plain value of an object in a processor."""
    if value is None:
        return None
    if types.is_struct(kind):
        pairs = zip(kind, value, strict=True)
        return {each.name: _plain(part, each.type) for each, part in pairs}
    if types.is_map(kind):
        return [(key, _plain(item, kind.item_type)) for key, item in value.items()]
    if types.is_list(kind):
        return [_plain(each, kind.value_type) for each in value]
    if types.is_timestamp(kind) and kind.tz is not None:
        return plain_value(value.astimezone(dt.UTC), kind)
    return plain_value(value, kind)


def run_case(case: CallCase) -> Comparisons:
    """Run all batches of a processor, and compare its calls, states, timers and output."""
    output: Any = from_arrow_type(pa.struct(list(case.output)), prefer_timestamp_ntz=True)
    made: list[CallBatch] = []

    def make(batch: CallBatch) -> ProcessorFunction:
        if made and made[-1] is not batch:
            made.clear()
        NOTES.subtask = len(made) % batch.parallelism
        made.append(batch)
        return ProcessorFunction(
            Processor(case, batch),
            output,
            "Update",
            _TIME_MODES[case.time_mode],
            flavour="row" if case.operator == "row" else "pandas",
            settings=_SETTINGS,
        )

    return compare_calls(case, make, NOTES.calls)
