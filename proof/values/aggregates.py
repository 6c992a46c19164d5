"""Aggregates of keys over batches, compared with the model and with Spark's own aggregates of all rows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pyarrow as pa
from jobs.keyed_subtasks import KeyedSubtasks
from pyarrow import types
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.backends.keyed import BackendName
from holdfast.errors import StateMigrationError
from holdfast.spark.aggregates import Aggregate, Aggregation, operands_of
from holdfast.spark.operators import read_table
from proof.values.checking import (
    Comparisons,
    is_clear,
    with_smaller_parts,
    without_entries,
    without_parts,
)
from proof.values.drawing import Drawer, columns_of
from proof.values.model import Expected, PlainRow, Spec, aggregate, result_type
from proof.values.plain import from_arrow, frozen, short_name, to_arrow
from proof.values.spark_batches import (
    Settings,
    draw_settings,
    frame_of,
    session_of,
    spark_aggregates,
)

BACKENDS: tuple[BackendName, ...] = ("columnar", "columnar", "heap", "rocksdb")

PlainTuple = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Counted:
    """An aggregate, and the number of the first batch whose rows it has."""

    spec: Spec
    since: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a job's aggregates at a restart.

    Attributes:
        renamed: Old names by new names.
        added: New aggregates by name.
        dropped: Names of removed aggregates.
        is_declared: Whether the job declares the change.
        is_reordered: Whether the order of the aggregates changes.
    """

    renamed: tuple[tuple[str, str], ...] = ()
    added: tuple[tuple[str, Spec], ...] = ()
    dropped: tuple[str, ...] = ()
    is_declared: bool = True
    is_reordered: bool = False

    @property
    def is_refused(self) -> bool:
        """True if the product must refuse it."""
        return not self.is_declared and bool(self.renamed or self.added or self.dropped)

    def apply(self, counted: Mapping[str, Counted], number: int) -> dict[str, Counted]:
        """Return the aggregates after the change, which begins with a batch."""
        names = {before: now for now, before in self.renamed}
        after = {
            names.get(name, name): each
            for name, each in counted.items()
            if name not in self.dropped
        }
        after |= {name: Counted(spec, number) for name, spec in self.added}
        return dict(reversed(after.items())) if self.is_reordered else after

    @property
    def options(self) -> dict[str, Any]:
        """The options of the job that declare it."""
        if not self.is_declared:
            return {}
        added = [name for name, _ in self.added]
        return {"renamed": dict(self.renamed), "added": added, "dropped": self.dropped}


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch, and the settings of its subtasks.

    Attributes:
        rows: Plain rows: the key's columns, then the others.
        parallelism: Number of subtasks.
        backend: The state backend.
        is_combined: Whether Spark combines the rows.
        replays: Number of times the batch is repeated before it completes.
        change: The change of the aggregates since the previous batch.
    """

    rows: tuple[PlainTuple, ...]
    parallelism: int = 1
    backend: BackendName = "columnar"
    is_combined: bool = False
    replays: int = 0
    change: Change | None = None


@dataclass(frozen=True, slots=True)
class AggregateCase:
    """A job of aggregates.

    Attributes:
        key: The key's columns.
        columns: The other columns of rows.
        specs: The aggregates by name.
        batches: The batches; each is a start of the job.
        settings: Settings of the Spark session.
    """

    key: pa.Schema
    columns: pa.Schema
    specs: Mapping[str, Spec]
    batches: tuple[Batch, ...]
    settings: Settings = ()

    @property
    def schema(self) -> pa.Schema:
        """All columns of rows."""
        return pa.schema([*self.key, *self.columns])


def draw_case(random: Random, *, with_spark: bool = False) -> AggregateCase:
    """Draw a case."""
    drawer = Drawer(random, has_void=not with_spark)
    key = pa.schema([(f"k{i}", drawer.key_type()) for i in range(random.choice([1, 1, 1, 2]))])
    columns, specs, mild = _draw_aggregates(
        drawer, 16 if with_spark else 6
    )  # a job of Spark takes long
    keys = drawer.distinct_keys(key, random.randint(1, 4))
    batches: list[Batch] = []
    names = [*specs]
    changes = drawer.chance(0.4)
    for number in range(random.randint(1, 4)):
        change = _draw_change(drawer, names, columns, number) if changes and number else None
        count = random.choice([0, 1, 2, 5, 12])
        rows = tuple(
            (*random.choice(keys), *_draw_values(drawer, columns, mild)) for _ in range(count)
        )
        batches.append(
            Batch(
                rows,
                random.randint(1, 3),
                random.choice(BACKENDS),
                with_spark and drawer.chance(0.75),
                int(drawer.chance(0.2)),
                change,
            )
        )
    settings = draw_settings(random) if with_spark else ()
    return AggregateCase(key, columns, specs, tuple(batches), settings)


def _draw_aggregates(
    drawer: Drawer, max_specs: int
) -> tuple[pa.Schema, dict[str, Spec], frozenset[str]]:
    """Draw columns, aggregates of them, and the columns with numbers small enough for sums."""
    random = drawer.random
    numbers = [(f"n{i}", drawer.number_type()) for i in range(random.randint(1, 3))]
    others = [(f"v{i}", drawer.spark_type()) for i in range(random.randint(1, 3))]
    columns = pa.schema([*numbers, *others, ("t", drawer.random.choice(_ORDERS))])
    specs = {
        f"a{index}": _draw_spec(drawer, columns) for index in range(random.randint(1, max_specs))
    }
    mild = frozenset(name for name, _ in numbers if drawer.chance(0.75))
    return columns, specs, mild


def _draw_spec(drawer: Drawer, columns: pa.Schema) -> Spec:
    random = drawer.random
    kind = random.choice(["count", "sum", "sum", "min", "max", "avg", "first", "last", "collect"])
    names = [name for name in columns.names if name.startswith("n")]
    if kind in {"count", "collect", "first", "last"} or (
        kind in {"min", "max"} and drawer.chance(0.6)
    ):
        names = [field.name for field in columns if _is_taken(kind, field.type)] or names
    column = None if kind == "count" and drawer.chance(0.3) else random.choice(names)
    return Spec(kind, column, "t" if kind in {"first", "last"} else None)


def _draw_change(drawer: Drawer, names: list[str], columns: pa.Schema, number: int) -> Change:
    """Draw a change, and apply it to the names."""
    random = drawer.random
    renamed, added, dropped = [], [], []
    for name in random.sample(names, random.randint(0, len(names))):
        if drawer.chance(0.6):
            renamed.append((f"b{number}{name}", name))
            names[names.index(name)] = f"b{number}{name}"
        elif len(names) > 1:
            dropped.append(name)
            names.remove(name)
    if drawer.chance(0.4):
        added.append((f"c{number}", _draw_spec(drawer, columns)))
        names.append(f"c{number}")
    is_declared = drawer.chance(0.8)
    return Change(tuple(renamed), tuple(added), tuple(dropped), is_declared, drawer.chance(0.3))


_ORDERS = [pa.timestamp("us", "UTC"), pa.int64(), pa.string(), pa.float64(), pa.date32()]


def _is_taken(kind: str, column: pa.DataType) -> bool:
    """Return whether an aggregate accepts a type, according to the documentation."""
    if kind in {"count", "collect"}:
        return not types.is_null(column)
    return not (types.is_nested(column) or types.is_null(column))


def _draw_values(drawer: Drawer, columns: pa.Schema, mild: frozenset[str]) -> Iterator[Any]:
    for field in columns:
        value = drawer.value(field.type)
        if field.name in mild and isinstance(value, int):
            value = int(value / 200) if abs(value) < 2**50 else value // 200
        yield value


def run_case(case: AggregateCase, spark: SparkSession | None = None) -> Comparisons:
    """Run the job batch by batch, and compare its output; with Spark, compare the model with Spark as well."""
    compared = Comparisons()
    session = None if spark is None else session_of(spark, case.settings)
    counted = {name: Counted(spec) for name, spec in case.specs.items()}
    change = Change()
    number = 0
    subtasks = KeyedSubtasks(
        lambda: Aggregation(
            {name: aggregate_of(each.spec) for name, each in counted.items()}, **change.options
        ),
        case.key,
    )
    batches: list[Sequence[PlainTuple]] = []
    for number, batch in enumerate(case.batches):
        change = batch.change or Change()
        counted = change.apply(counted, number)
        batches.append(batch.rows)
        touched = {frozen(row[: len(case.key)]) for row in batch.rows}
        results = expected_results(case, counted, batches)
        expected = {key: cells for key, cells in results.items() if key in touched}
        cells = [cell for of_key in expected.values() for cell in of_key.values()]
        must_fail = any(cell.must_fail for cell in cells)
        may_fail = any(cell.may_fail for cell in cells)
        had_rows = any(batches[:-1])
        subtasks.parallelism, subtasks.backend = batch.parallelism, batch.backend
        try:
            operands = _operands(case, batch, counted, session)
            given = subtasks.run(operands, replays=batch.replays)
        except StateMigrationError as error:
            if not change.is_refused:
                compared.add_error("agg", error)
            named = [name for pair in change.renamed for name in pair] + [*change.dropped]
            compared.check(
                all(repr(name) in str(error) for name in named),
                "agg: a change is refused without the names of aggregates",
                error,
            )
            return compared
        except Exception as error:  # noqa: BLE001  # checked below
            if not (must_fail or may_fail):
                compared.add_error("agg", error)
            elif not (is_clear(error) or is_overflow(error)):
                compared.add_error("agg of numbers that do not fit", error)
            compared.count += 1
            return compared
        if change.is_refused and had_rows:
            compared.check(False, "agg: an undeclared change is not refused", change)
            return compared
        if must_fail:
            compared.check(False, "agg: a result that does not fit is not an error", number, given)
            return compared
        compare_results(compared, "agg", case, counted, given=given, expected=expected)
        if change.is_refused:  # without rows a refusal is optional
            return compared
    if spark is not None and len(batches) == len(case.batches):
        _compare_with_spark(compared, case, batches, session_of(spark, ()))
    return compared


def _compare_with_spark(
    compared: Comparisons,
    case: AggregateCase,
    batches: Sequence[Sequence[PlainTuple]],
    session: SparkSession,
) -> None:
    """Compare the model with Spark's own aggregates of all rows."""
    counted = {name: Counted(spec) for name, spec in case.specs.items()}
    expected = expected_results(case, counted, batches)
    if any(
        cell.must_fail or cell.may_fail for cells in expected.values() for cell in cells.values()
    ):
        return
    rows = [row for batch in batches for row in batch]
    table = spark_aggregates(frame_of(session, rows, case.schema), case.key.names, case.specs)
    given = table.to_batches()
    compare_results(compared, "Spark", case, counted, given=given, expected=expected)


def compare_results(
    compared: Comparisons,
    label: str,
    case: AggregateCase,
    counted: Mapping[str, Counted],
    *,
    given: Sequence[pa.RecordBatch],
    expected: Mapping[Any, Mapping[str, Expected]],
) -> None:
    """Compare the results of keys with the expected ones."""
    results = _results_of(given, case, counted)
    keys = sorted(repr(key) for key, _ in results)
    wanted = sorted(map(repr, expected))
    compared.check(keys == wanted, f"{label}: other keys", keys, "not", wanted)
    for key, cells in results:
        for name, value in cells.items():
            if key not in expected:
                continue
            right, spec = expected[key][name], counted[name].spec
            column = "" if spec.column is None else short_name(case.columns.field(spec.column).type)
            compared.check(
                right.allows(value),
                f"{label}: wrong {spec.kind} of {column}",
                f"{name} of key {key} is {value!r}, not {right.value!r}",
            )


def _results_of(
    batches: Sequence[pa.RecordBatch], case: AggregateCase, counted: Mapping[str, Counted]
) -> list[tuple[Any, PlainRow]]:
    """Return the results of each key as plain values."""
    rows: list[tuple[Any, PlainRow]] = []
    for batch in batches:
        by_key = [from_arrow(batch.column(name)) for name in case.key.names]
        columns = [
            from_arrow(_cast(batch.column(name), result_type(each.spec, case.columns)))
            for name, each in counted.items()
        ]
        keys = zip(*by_key, strict=True)
        cells = zip(*columns, strict=True)
        rows += [
            (frozen(each), dict(zip(counted, row, strict=True)))
            for each, row in zip(keys, cells, strict=True)
        ]
    return rows


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast a column to the type of the output. Nested columns are unchanged, because Arrow's cast breaks lists of void."""
    return column if types.is_nested(kind) else column.cast(kind)


def expected_results(
    case: AggregateCase,
    counted: Mapping[str, Counted],
    batches: Sequence[Sequence[PlainTuple]],
) -> dict[Any, dict[str, Expected]]:
    """Return the aggregates of each key after these batches."""
    names = case.schema.names
    by_key: dict[Any, list[tuple[int, PlainRow]]] = {}
    for number, batch in enumerate(batches):
        for row in batch:
            numbered = number, dict(zip(names, row, strict=True))
            by_key.setdefault(frozen(row[: len(case.key)]), []).append(numbered)
    return {
        key: {
            name: aggregate(each.spec, [row for at, row in rows if at >= each.since], case.columns)
            for name, each in counted.items()
        }
        for key, rows in by_key.items()
    }


def aggregate_of(spec: Spec) -> Aggregate:
    """Return the product's aggregate."""
    arguments = () if spec.column is None else (spec.column,)
    options = {} if spec.by is None else {"by": spec.by}
    made: Aggregate = getattr(hf, spec.kind)(*arguments, **options)
    return made


def _operands(
    case: AggregateCase,
    batch: Batch,
    counted: Mapping[str, Counted],
    session: SparkSession | None,
) -> pa.Table:
    """Return the input of the operator."""
    if session is None:
        arrays = columns_of(batch.rows, case.schema, to_arrow)
        used = {name for each in counted.values() for name in (each.spec.column, each.spec.by)}
        names = [name for name in case.schema.names if name in {*case.key.names, *used}]
        return pa.Table.from_arrays(arrays, schema=case.schema).select(names)
    frame = frame_of(session, batch.rows, case.schema)
    aggregates = {name: aggregate_of(each.spec) for name, each in counted.items()}
    operands = operands_of(frame, case.key.names, aggregates, combine=batch.is_combined)
    return read_table(operands, uid="values")


def is_overflow(error: BaseException) -> bool:
    """Return whether an error reports an overflow: a Spark error, or ours raised by Spark."""
    words = ("does not fit its type", "OVERFLOW", "NUMERIC_VALUE_OUT_OF_RANGE")
    return any(each in str(error) for each in words)


def smaller_cases(case: AggregateCase) -> Iterator[AggregateCase]:
    """Yield cases with fewer parts."""
    if not any(batch.change for batch in case.batches):
        yield from without_parts(case, "batches")
        yield from without_entries(case, "specs")
    yield replace(case, batches=case.batches[:-1])
    yield from with_smaller_parts(case, "batches", _smaller_batches)
    yield from without_parts(case, "settings")


def _smaller_batches(batch: Batch) -> Iterator[Batch]:
    yield from without_parts(batch, "rows")
    yield Batch(batch.rows, is_combined=batch.is_combined, change=batch.change)
