"""Keyed states by columns and by the current key, of any type and on every backend, compared with a model."""

import datetime as dt
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from decimal import Context, Decimal
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
from jobs.keyed_subtasks import KeyedSubtasks
from pyarrow import types

from holdfast import StatefulFunction
from holdfast.backends import FunctionInitializationContext
from holdfast.backends.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    UpdateType,
    ValueStateDescriptor,
)
from holdfast.backends.keyed import BackendName, KeyedStateBackend, Keys
from proof.values.aggregates import BACKENDS
from proof.values.checking import Comparisons, is_clear, with_smaller_parts, without_parts
from proof.values.drawing import Drawer, columns_of
from proof.values.model import Expected, reduce_values
from proof.values.plain import from_arrow, frozen, short_name, to_arrow

PlainTuple = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class StateKind:
    """A state.

    Attributes:
        name: value, list, map or reducing.
        type: The type of its values or elements.
        map_key: The type of a map's keys.
        function: The function of a reducing state.
        ttl_ms: Time to live of values, or None.
        is_refreshed_by_reading: Whether reads renew it.
    """

    name: str
    type: pa.DataType
    map_key: pa.DataType | None = None
    function: str = ""
    ttl_ms: int | None = None
    is_refreshed_by_reading: bool = False

    @property
    def ttl(self) -> StateTtlConfig | None:
        """The product's time to live."""
        if self.ttl_ms is None:
            return None
        update_type = UpdateType.ON_CREATE_AND_WRITE
        if self.is_refreshed_by_reading:
            update_type = UpdateType.ON_READ_AND_WRITE
        return StateTtlConfig(timedelta(milliseconds=self.ttl_ms), update_type)


@dataclass(frozen=True, slots=True)
class Step:
    """The operation of a batch, performed once for each row.

    Attributes:
        operation: put, append, add, remove or clear.
        rows: The key of each row, and its argument: a value, a list, an entry, or None.
        by_key: Whether the states are used by the current key.
        now_ms: The time of the batch.
        form: Representation of values: 0 for the objects of Arrow, otherwise equivalent ones.
    """

    operation: str
    rows: tuple[tuple[PlainTuple, Any], ...]
    by_key: bool = False
    now_ms: int = 0
    form: int = 0
    parallelism: int = 1
    backend: BackendName = "columnar"


@dataclass(frozen=True, slots=True)
class StateCase:
    """An operator with a state, and its steps."""

    key: pa.Schema
    kind: StateKind
    steps: tuple[Step, ...]


_ORDERED = (
    types.is_integer,
    types.is_floating,
    types.is_decimal,
    types.is_boolean,
    types.is_temporal,
    types.is_string,
    types.is_large_string,
    types.is_binary,
)


def draw_case(random: Random) -> StateCase:
    """Draw a case."""
    drawer = Drawer(random)
    key = pa.schema([(f"k{i}", drawer.key_type()) for i in range(random.choice([1, 1, 2]))])
    kind = draw_kind(drawer)
    keys = drawer.distinct_keys(key, random.randint(1, 4))
    steps = []
    now = 1_000_000
    for _ in range(random.randint(1, 6)):
        now += random.choice([0, 1, 4, 6])
        operation = random.choice(_OPERATIONS[kind.name])
        rows = tuple(
            (random.choice(keys), draw_argument(drawer, kind, operation))
            for _ in range(random.choice([1, 2, 3, 6]))
        )
        if operation in {"put", "clear"} and kind.name != "map":  # one value for each key
            rows = tuple({frozen(each): (each, argument) for each, argument in rows}.values())
        steps.append(
            Step(
                operation,
                rows,
                drawer.chance(0.5),
                now,
                random.choice([0, 0, 1, 2]),
                random.randint(1, 3),
                random.choice(BACKENDS),
            )
        )
    return StateCase(key, kind, tuple(steps))


_OPERATIONS = {
    "value": ["put", "put", "put", "clear"],
    "list": ["append", "append", "put", "clear"],
    "map": ["put", "put", "put", "remove", "clear"],
    "reducing": ["add", "add", "add", "add", "clear"],
}


def draw_kind(drawer: Drawer) -> StateKind:
    """Draw a state."""
    random = drawer.random
    name = random.choice(["value", "list", "map", "reducing", "reducing"])
    ttl = 10 if drawer.chance(0.25) else None
    if name != "reducing":
        kind = drawer.arrow_type()
        while types.is_null(kind):  # no element may be null
            kind = drawer.arrow_type()
        return StateKind(name, kind, drawer.key_type() if name == "map" else None, ttl_ms=ttl)
    function = random.choice(["sum", "sum", "min", "max", "any", "all", "concatenate"])
    if function == "sum":
        numbers = [drawer.number_type(), drawer.decimal_type(), pa.duration("us"), pa.uint64()]
        return StateKind(name, random.choice(numbers), function=function, ttl_ms=ttl)
    if function in {"any", "all"}:
        return StateKind(name, pa.bool_(), function=function, ttl_ms=ttl)
    if function == "concatenate":
        return StateKind(name, pa.list_(drawer.spark_type(1)), function=function, ttl_ms=ttl)
    kind = drawer.arrow_type(0)
    while not any(is_kind(kind) for is_kind in _ORDERED):
        kind = drawer.arrow_type(0)
    return StateKind(name, kind, function=function, ttl_ms=ttl)


def draw_argument(drawer: Drawer, kind: StateKind, operation: str) -> Any:
    """Draw the argument of an operation: a value, a list, an entry, or None."""
    if operation == "clear":
        return None
    if kind.name == "map":
        assert kind.map_key is not None
        value = None if operation == "remove" else drawer.value(kind.type, null=0)
        return drawer.value(kind.map_key, null=0), value
    if kind.name == "list" and operation == "put":
        return [drawer.value(kind.type, null=0) for _ in range(drawer.random.randint(0, 3))]
    value = drawer.value(kind.type, null=0)
    if kind.function == "sum" and isinstance(value, int) and drawer.chance(0.8):
        return int(value / 50) if abs(value) < 2**50 else value // 50
    return value


@dataclass(slots=True)
class StateModel:
    """The state of each key: values, lists of elements or entries, each with the time when it was written."""

    kind: StateKind
    held: dict[Any, list[tuple[Any, int]]] = field(default_factory=dict)

    def take(self, step: Step) -> None:
        """Perform a step."""
        self._expire(step.now_ms)
        for key, argument in step.rows:
            held = self.held.setdefault(frozen(key), [])
            if step.operation == "clear":
                held.clear()
            elif self.kind.name == "map":
                map_key, value = argument
                held[:] = [each for each in held if frozen(each[0][0]) != frozen(map_key)]
                if step.operation == "put":
                    held.append(((map_key, value), step.now_ms))
            elif self.kind.name == "value":
                held[:] = [] if argument is None else [(argument, step.now_ms)]
            elif step.operation == "put":
                held[:] = [(each, step.now_ms) for each in argument]
            elif self.kind.name == "reducing":
                held[:] = [(value, step.now_ms) for value, _ in held] + [(argument, step.now_ms)]
            else:
                held.append((argument, step.now_ms))

    def read(self, key: Any, now_ms: int) -> Expected:
        """Return the state of a key, and renew its time to live if reads do that."""
        self._expire(now_ms)
        if self.kind.is_refreshed_by_reading:
            self.held[key] = [(value, now_ms) for value, _ in self.held.get(key, [])]
        return self.value_of(key)

    def _expire(self, now: int) -> None:
        if self.kind.ttl_ms is not None:
            for key, held in self.held.items():
                self.held[key] = [each for each in held if each[1] + self.kind.ttl_ms > now]

    def value_of(self, key: Any) -> Expected:
        """Return the state of a key."""
        values = [value for value, _ in self.held.get(key, [])]
        if self.kind.name == "value":
            return Expected(values[0] if values else None)
        if self.kind.name == "list":
            return Expected(values)
        if self.kind.name == "map":
            return Expected([list(pair) for pair in values], is_unordered=True)
        return reduce_values(self.kind.function, values, self.kind.type)


class Steps(StatefulFunction):
    """Performs a step, and records the state of each key afterwards, read by columns and by the current key.

    Args:
        case: Defines the state.
        step: The step.
        seen: Receives each key with its state.
    """

    def __init__(self, case: StateCase, step: Step, seen: list[tuple[str, Any, Any]]) -> None:
        self._case, self._step, self._seen = case, step, seen

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self._store = context.keyed_state_store
        self._state: Any = open_state(self._store, "s", self._case.kind)

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        given = [batch for batch in batches if batch.num_rows]
        if not given:
            return
        rows = pa.Table.from_batches(given)
        keys = self._store.keys(rows)
        arguments = [self._step.rows[row][1] for row in rows["row"].to_pylist()]
        if self._step.by_key:
            self._change_by_key(keys, arguments)
        else:
            self._change_by_columns(keys, arguments)
        names = [frozen(key) for key in zip(*map(from_arrow, keys.columns), strict=True)]
        self._note("by columns", names, self._read_by_columns(keys))
        self._note("by key", names, self._read_by_key(keys))
        yield from ()

    def _note(self, access: str, names: list[Any], values: list[Any]) -> None:
        self._seen += [(access, key, value) for key, value in zip(names, values, strict=True)]

    def _change_by_columns(self, keys: Keys, arguments: list[Any]) -> None:
        kind, columns, operation = self._case.kind, self._state.columns, self._step.operation
        if operation == "clear":
            columns.clear(keys)
        elif kind.name == "map":
            map_keys = to_arrow([key for key, _ in arguments], kind.map_key)
            if operation == "remove":
                columns.remove(keys, map_keys)
            else:
                columns.put(keys, map_keys, to_arrow([value for _, value in arguments], kind.type))
        elif operation == "put":
            in_order = [arguments[row] for row in keys.rows.firsts.tolist()]
            type_ = pa.list_(kind.type) if kind.name == "list" else kind.type
            columns.put(keys, to_arrow(in_order, type_))
        else:
            getattr(columns, operation)(keys, to_arrow(arguments, kind.type))

    def _change_by_key(self, keys: Keys, arguments: list[Any]) -> None:
        step = self._step
        self._store.begin_batch(keys)
        for code, argument in zip(keys.codes.tolist(), arguments, strict=True):
            self._store.set_current_key(code)
            change_state(self._state, self._case.kind, step.operation, argument, step.form)
        self._store.end_batch()

    def _read_by_columns(self, keys: Keys) -> list[Any]:
        kind, columns = self._case.kind, self._state.columns
        if kind.name == "map":
            entries = columns.items(keys)
            maps: list[list[Any]] = [[] for _ in range(len(keys))]
            pairs = zip(from_arrow(entries.map_keys), from_arrow(entries.values), strict=True)
            for index, pair in zip(entries.indices.tolist(), pairs, strict=True):
                maps[index].append(list(pair))
            return maps
        values = from_arrow(columns.get(keys))
        return (
            [[] if value is None else value for value in values] if kind.name == "list" else values
        )

    def _read_by_key(self, keys: Keys) -> list[Any]:
        values = []
        self._store.begin_batch(keys)
        for index in range(len(keys)):
            self._store.set_current_key(index)
            values.append(read_state(self._state, self._case.kind))
        self._store.end_batch()
        return values


def open_state(store: KeyedStateBackend, name: str, kind: StateKind) -> Any:
    """Return the state of this kind and name."""
    if kind.name == "value":
        return store.get_state(ValueStateDescriptor(name, kind.type, ttl=kind.ttl))
    if kind.name == "list":
        return store.get_list_state(ListStateDescriptor(name, kind.type, ttl=kind.ttl))
    if kind.name == "map":
        assert kind.map_key is not None
        return store.get_map_state(MapStateDescriptor(name, kind.map_key, kind.type, ttl=kind.ttl))
    function: Any = kind.function
    return store.get_reducing_state(
        ReducingStateDescriptor(name, function, kind.type, ttl=kind.ttl)
    )


def change_state(state: Any, kind: StateKind, operation: str, argument: Any, form: int = 0) -> None:
    """Perform an operation on the state of the current key."""
    if operation == "clear":
        state.clear()
    elif kind.name == "map":
        map_key = python_object(argument[0], kind.map_key, form)
        if operation == "remove":
            state.remove(map_key)
        else:
            state.put(map_key, python_object(argument[1], kind.type, form))
    elif kind.name == "list" and operation == "put":
        state.update([python_object(each, kind.type, form) for each in argument])
    elif operation == "put":
        state.update(python_object(argument, kind.type, form))
    else:
        state.add(python_object(argument, kind.type, form))


def read_state(state: Any, kind: StateKind) -> Any:
    """Return the plain value of the state of the current key."""
    if kind.name == "value":
        return plain_value(state.value(), kind.type)
    if kind.name == "list":
        return [plain_value(each, kind.type) for each in state.get()]
    if kind.name == "map":
        return [
            [plain_value(key, kind.map_key), plain_value(value, kind.type)]
            for key, value in state.items().items()
        ]
    return plain_value(state.get(), kind.type)


def python_object(value: Any, kind: Any, form: int = 0) -> Any:
    """Return the Python object of a plain value."""
    usual = to_arrow([value], kind)[0].as_py()
    return _other_object(usual, kind, form) if form else usual


def _other_object(usual: Any, kind: pa.DataType, form: int) -> Any:
    """Return an equivalent object: in another time zone, with other zeros, or of NumPy."""
    if isinstance(usual, bool):
        return np.bool_(usual)
    if isinstance(usual, int):
        return np.uint64(usual) if types.is_unsigned_integer(kind) else np.int64(usual)
    if isinstance(usual, float) and types.is_floating(kind):
        if form == 1 and usual == int(usual) if math.isfinite(usual) else False:
            return int(usual)
        return np.float32(usual) if form == 1 else np.float64(usual)
    if isinstance(usual, Decimal):
        if form == 1 and usual == int(usual):
            return int(usual)
        return _EXACT.normalize(usual)
    if isinstance(usual, dt.datetime) and usual.tzinfo is not None:
        is_inner = (
            dt.datetime(2, 1, 1, tzinfo=dt.UTC) < usual < dt.datetime(9999, 1, 1, tzinfo=dt.UTC)
        )
        return (
            usual.astimezone(ZoneInfo(("Europe/Berlin", "Pacific/Apia")[form - 1]))
            if is_inner
            else usual
        )
    if isinstance(usual, bytes) and not types.is_fixed_size_binary(kind):
        return bytearray(usual) if form == 1 else memoryview(usual)
    return usual


_EXACT = Context(prec=100)


def plain_value(value: Any, kind: Any) -> Any:
    """Return the plain value of a Python object."""
    return from_arrow(pa.array([value], kind))[0]


def run_case(case: StateCase) -> Comparisons:
    """Perform each step in a separate batch, and compare the state after each."""
    compared = Comparisons()
    do_steps(case, compared, StateModel(case.kind))
    return compared


def do_steps(case: StateCase, compared: Comparisons, model: StateModel) -> KeyedSubtasks | None:
    """Perform all steps, and compare. Returns the operator; None if it ended with an error."""
    seen: list[tuple[str, Any, Any]] = []
    current: list[Step] = []
    subtasks = KeyedSubtasks(lambda: Steps(case, current[0], seen), case.key)
    subtasks.output = pa.schema([("n", pa.int64())])
    schema = pa.schema([*case.key, ("row", pa.int64())])
    label = f"{case.kind.name} state{f' ({case.kind.function})' * bool(case.kind.function)}"
    label += f" of {short_name(case.kind.type)}"
    for number, step in enumerate(case.steps):
        current[:] = [step]
        before = {key: model.value_of(key) for key in {frozen(key) for key, _ in step.rows}}
        model.take(step)
        expected = {key: model.value_of(key) for key in before}
        may_fail = any(
            cell.must_fail or cell.may_fail for cell in [*expected.values(), *before.values()]
        )
        rows = [(*key, row) for row, (key, _) in enumerate(step.rows)]
        table = pa.Table.from_arrays(columns_of(rows, schema, to_arrow), schema=schema)
        subtasks.parallelism, subtasks.backend = step.parallelism, step.backend
        try:
            seen.clear()
            subtasks.run(table, batch_time=step.now_ms)
        except Exception as error:  # noqa: BLE001  # whatever comes is judged
            access = "by key" if step.by_key else "by columns"
            if not (may_fail or (step.by_key and step.form)) or not is_clear(error):
                compared.add_error(f"{label}, {step.operation} {access}", error)
            compared.count += 1
            return None
        for access, key, value in seen:
            right = expected[key]
            compared.check(
                right.allows(value),
                f"{label}: {step.operation} {'by key' if step.by_key else 'by columns'}, read {access}",
                f"step {number}: {key} has {value!r}, not {right.value!r}"
                f"{' but an error' * right.must_fail}",
            )
        compared.check(len(seen) == 2 * len(expected), f"{label}: keys", seen, "not", expected)
        if any(cell.must_fail for cell in expected.values()):
            return None
    return subtasks


def smaller_cases(case: StateCase) -> Iterator[StateCase]:
    """Yield cases with fewer parts."""
    yield from without_parts(case, "steps")
    yield from with_smaller_parts(case, "steps", _smaller_steps)


def _smaller_steps(step: Step) -> Iterator[Step]:
    yield from (less for less in without_parts(step, "rows") if less.rows)
    yield replace(step, form=0)
    yield replace(step, parallelism=1, backend="columnar")
