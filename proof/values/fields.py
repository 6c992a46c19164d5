"""Structs in keyed state whose fields are renamed, added, dropped, reordered and widened between runs."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from jobs.keyed_subtasks import KeyedSubtasks

from holdfast import StatefulFunction
from holdfast.backends import FunctionInitializationContext
from holdfast.backends.descriptors import ListStateDescriptor, ValueStateDescriptor
from holdfast.backends.keyed import BackendName
from holdfast.errors import StateMigrationError
from proof.values.aggregates import BACKENDS
from proof.values.checking import Comparisons, with_smaller_parts, without_parts
from proof.values.drawing import Drawer
from proof.values.plain import from_arrow, frozen, to_arrow

_KEY = pa.schema([("k", pa.int64())])
_WIDER = {
    pa.int8(): pa.int16(),
    pa.int16(): pa.int64(),
    pa.int32(): pa.int64(),
    pa.float32(): pa.float64(),
    pa.string(): pa.large_string(),
}

Fields = tuple[tuple[str, pa.DataType], ...]


@dataclass(frozen=True, slots=True)
class Stage:
    """A run of the job: its fields, what has changed since the run before, and a batch.

    Attributes:
        fields: The fields of the struct.
        renamed: Old names by new names.
        dropped: Names of removed fields.
        is_declared: Whether the job declares the renamed and dropped fields.
        writes: Keys and their new values, or elements to append.
        parallelism: Number of subtasks.
        backend: The state backend.
    """

    fields: Fields
    renamed: tuple[tuple[str, str], ...] = ()
    dropped: tuple[str, ...] = ()
    is_declared: bool = True
    writes: tuple[tuple[int, dict[str, Any]], ...] = ()
    parallelism: int = 1
    backend: BackendName = "columnar"

    @property
    def is_refused(self) -> bool:
        """True if the product must refuse it."""
        return not self.is_declared and bool(self.renamed or self.dropped)


@dataclass(frozen=True, slots=True)
class FieldsCase:
    """A job whose state changes its type; it is a value or a list of structs."""

    is_list: bool
    stages: tuple[Stage, ...]


def draw_case(random: Random) -> FieldsCase:
    """Draw a case."""
    drawer = Drawer(random)
    fields: Fields = tuple((f"f{i}", _draw_type(drawer)) for i in range(random.randint(1, 4)))
    is_list = drawer.chance(0.4)
    stages = [_with_writes(drawer, Stage(fields))]
    for number in range(random.randint(1, 4)):
        stages.append(_with_writes(drawer, _draw_change(drawer, stages[-1].fields, number)))
    return FieldsCase(is_list, tuple(stages))


def _draw_type(drawer: Drawer) -> pa.DataType:
    return drawer.random.choice([*_WIDER]) if drawer.chance(0.5) else drawer.atomic_type()


def _draw_change(drawer: Drawer, before: Fields, number: int) -> Stage:
    random = drawer.random
    renamed: list[tuple[str, str]] = []
    dropped: list[str] = []
    fields: list[tuple[str, pa.DataType]] = []
    for name, kind in before:
        now = _WIDER.get(kind, kind) if drawer.chance(0.3) else kind
        if drawer.chance(0.25):
            renamed.append((f"r{number}{name}", name))
            fields.append((f"r{number}{name}", now))
        elif drawer.chance(0.2) and len(before) > 1 + len(dropped):
            dropped.append(name)
        else:
            fields.append((name, now))
    if drawer.chance(0.4) or not fields:
        fields.append((f"n{number}", _draw_type(drawer)))
    if drawer.chance(0.3):
        random.shuffle(fields)
    return Stage(tuple(fields), tuple(renamed), tuple(dropped), drawer.chance(0.85))


def _with_writes(drawer: Drawer, stage: Stage) -> Stage:
    random = drawer.random
    keys = random.sample(range(6), random.randint(0, 4))
    writes = tuple((key, {name: drawer.value(kind) for name, kind in stage.fields}) for key in keys)
    return replace(
        stage, writes=writes, parallelism=random.randint(1, 3), backend=random.choice(BACKENDS)
    )


class Structs(StatefulFunction):
    """Performs the writes of a stage, and records the state of each key afterwards.

    Args:
        case: Defines the state.
        stage: Defines the writes and their type.
        seen: Receives each key with its state.
    """

    def __init__(self, case: FieldsCase, stage: Stage, seen: list[tuple[int, Any]]) -> None:
        self._case, self._stage, self._seen = case, stage, seen

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        store, stage = context.keyed_state_store, self._stage
        self._type = pa.struct(list(stage.fields))
        options: dict[str, Any] = {}
        if stage.is_declared:
            options = {"renamed": dict(stage.renamed), "dropped": stage.dropped}
        if self._case.is_list:
            self._state: Any = store.get_list_state(ListStateDescriptor("s", self._type, **options))
        else:
            self._state = store.get_state(ValueStateDescriptor("s", self._type, **options))
        self._store = store

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = pa.Table.from_batches(batches, pa.schema([*_KEY, ("row", pa.int64())]))
        if len(rows):
            written = rows.filter(pc.greater_equal(rows["row"], 0))
            self._write(written)
            keys = self._store.keys(rows)
            values = from_arrow(self._state.columns.get(keys))
            self._seen += zip(from_arrow(keys.columns[0]), values, strict=True)
        yield from ()

    def _write(self, rows: pa.Table) -> None:
        if not len(rows):
            return
        keys = self._store.keys(rows)
        values = [self._stage.writes[row][1] for row in rows["row"].to_pylist()]
        if self._case.is_list:
            self._state.columns.append(keys, to_arrow(values, self._type))
        else:
            in_order = [values[row] for row in keys.rows.firsts.tolist()]
            self._state.columns.put(keys, to_arrow(in_order, self._type))


def run_case(case: FieldsCase) -> Comparisons:
    """Run the stages one after the other, and compare the state after each."""
    compared = Comparisons()
    held: dict[int, list[dict[str, Any]]] = {key: [] for key in range(6)}
    seen: list[tuple[int, Any]] = []
    current: list[Stage] = []
    subtasks = KeyedSubtasks(lambda: Structs(case, current[0], seen), _KEY)
    subtasks.output = pa.schema([("n", pa.int64())])
    label = f"fields of {'lists' if case.is_list else 'values'}"
    for number, stage in enumerate(case.stages):
        current[:] = [stage]
        names = dict(stage.renamed)
        for key, values in held.items():
            held[key] = [
                {name: value.get(names.get(name, name)) for name, _ in stage.fields}
                for value in values
            ]
        is_stored = any(each.writes for each in case.stages[:number])
        for key, value in stage.writes:
            held[key] = [*held[key], value] if case.is_list else [value]
        rows = {key: row for row, (key, _) in enumerate(stage.writes)}
        table = pa.table({"k": [*held], "row": [rows.get(key, -1) for key in held]})
        subtasks.parallelism, subtasks.backend = stage.parallelism, stage.backend
        seen.clear()
        try:
            subtasks.run(table)
        except StateMigrationError as error:
            if not stage.is_refused:
                compared.add_error(label, error)
            gone = [*(old for _, old in stage.renamed), *stage.dropped]
            compared.check(all(name in str(error) for name in gone), f"{label}: refusal", error)
            return compared
        if stage.is_refused and is_stored:
            compared.check(False, f"{label}: an undeclared change is not refused", stage)
            return compared
        for key, value in seen:
            given = value or [] if case.is_list else [value] * (value is not None)
            compared.check(
                frozen(given) == frozen(held[key]),
                f"{label}: wrong value",
                f"stage {number}, key {key}: {given!r}, not {held[key]!r}",
            )
    return compared


def smaller_cases(case: FieldsCase) -> Iterator[FieldsCase]:
    """Yield cases with fewer parts."""
    if len(case.stages) > 1:
        yield replace(case, stages=case.stages[:-1])
    yield from with_smaller_parts(case, "stages", _smaller_stages)


def _smaller_stages(stage: Stage) -> Iterator[Stage]:
    yield from without_parts(stage, "writes")
    yield replace(stage, parallelism=1, backend="columnar")
