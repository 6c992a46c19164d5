"""Windows of event time: aggregates and functions of them, compared with a model that takes rows one by one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from random import Random
from typing import Any

import pyarrow as pa
from jobs.keyed_subtasks import KeyedSubtasks
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from holdfast import session_windows, sliding_windows, tumbling_windows
from holdfast.backends.keyed import BackendName
from holdfast.spark.windows import Window, WindowAssigner, WindowedAggregation, WindowedFunction
from proof.values.aggregates import BACKENDS, aggregate_of, is_overflow
from proof.values.checking import (
    Comparisons,
    is_clear,
    with_smaller_parts,
    without_entries,
    without_parts,
)
from proof.values.drawing import DAY_US, LAST_DAY, Drawer, columns_of
from proof.values.model import Spec, aggregate
from proof.values.plain import from_arrow, frozen, to_arrow
from proof.values.spark_batches import frame_of, session_of, spark_aggregates

PlainTuple = tuple[Any, ...]

TIMES = [pa.timestamp("us", "UTC"), pa.timestamp("us", "UTC"), pa.timestamp("us")]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of windows; times are in milliseconds.

    Attributes:
        name: tumbling, sliding or session.
        size: Size of a window, or the gap of sessions.
        slide: Interval between the starts of windows.
        offset: Offset of the starts.
    """

    name: str
    size: int
    slide: int = 0
    offset: int = 0

    @property
    def assigner(self) -> WindowAssigner:
        """The product's windows."""
        size, slide, offset = (
            timedelta(milliseconds=n) for n in (self.size, self.slide, self.offset)
        )
        if self.name == "session":
            return session_windows(size)
        return (
            tumbling_windows(size, offset=offset)
            if self.name == "tumbling"
            else sliding_windows(size, slide, offset=offset)
        )


@dataclass(frozen=True, slots=True)
class WindowBatch:
    """A batch: its rows, its watermark in milliseconds, and the settings of its subtasks."""

    rows: tuple[PlainTuple, ...]
    watermark: int
    parallelism: int = 1
    backend: BackendName = "columnar"
    replays: int = 0


@dataclass(frozen=True, slots=True)
class WindowCase:
    """A job of windows.

    Attributes:
        key: The key's columns.
        columns: The other columns; the first is the time.
        kind: The windows.
        lateness: Time to keep windows for late rows, in milliseconds.
        emit: "append" or "update".
        specs: Aggregates by name; none to call a function with the rows of each window.
        batches: The batches; each is a start of the job.
        first: The watermark before the first batch.
    """

    key: pa.Schema
    columns: pa.Schema
    kind: Kind
    lateness: int
    emit: str
    specs: dict[str, Spec]
    batches: tuple[WindowBatch, ...]
    first: int = 0

    @property
    def schema(self) -> pa.Schema:
        """All columns of rows."""
        return pa.schema([*self.key, *self.columns])


def draw_case(random: Random) -> WindowCase:
    """Draw a case."""
    drawer = Drawer(random)
    key = pa.schema([("k", drawer.key_type())])
    kind = random.choice(
        [
            Kind("tumbling", 10),
            Kind("tumbling", 10, offset=random.choice([0, 3, -4])),
            Kind("sliding", 10, 4),
            Kind("sliding", 7, 10, random.choice([0, 1])),
            Kind("session", 5),
        ]
    )
    columns = pa.schema(
        [
            ("t", random.choice(TIMES)),
            ("n", pa.int64()),
            ("d", drawer.decimal_type()),
            ("v", drawer.atomic_type()),
        ]
    )
    kinds = ["count", "sum", "min", "max", "avg", "first", "last", "collect"]
    specs = {
        f"a{index}": _draw_spec(random, name)
        for index, name in enumerate(random.sample(kinds, random.randint(1, 5)))
    }
    keys = drawer.distinct_keys(key, random.randint(1, 3))
    base = random.choice([0, 0, -20, -(10**12), 1_774_746_000_000, _LAST_MS - 60, _LAST_MS - 30])
    batches, watermark = [], 0
    for _ in range(random.randint(1, 5)):
        count = random.choice([0, 1, 2, 6])
        rows = tuple(
            (*random.choice(keys), *_draw_row(drawer, columns, base)) for _ in range(count)
        )
        watermark = max(watermark, random.choice([watermark, base + random.randint(0, 45)]))
        batches.append(
            WindowBatch(
                rows,
                watermark,
                random.randint(1, 3),
                random.choice(BACKENDS),
                int(drawer.chance(0.2)),
            )
        )
    return WindowCase(
        key,
        columns,
        kind,
        random.choice([0, 0, 5, 12]),
        random.choice(["append", "append", "update"]),
        {} if drawer.chance(0.3) else specs,
        tuple(batches),
    )


_LAST_MS = (LAST_DAY + 1) * DAY_US // 1000 - 1


def _draw_spec(random: Random, kind: str) -> Spec:
    if kind == "count":
        return Spec(kind, random.choice([None, "v"]))
    if kind in {"first", "last"}:
        return Spec(kind, random.choice(["n", "v"]), random.choice(["t", "n"]))
    return Spec(kind, random.choice(["n", "d"] if kind in {"sum", "avg"} else ["n", "d", "v"]))


def _draw_row(drawer: Drawer, columns: pa.Schema, base: int) -> Iterator[Any]:
    """Draw the values of a row; its time is near the base, in microseconds."""
    micros = (base + drawer.random.randint(0, 40)) * 1000 + drawer.random.choice([0, 0, 999])
    yield None if drawer.chance(0.05) else min(micros, _LAST_MS * 1000 + 999)
    yield drawer.random.choice([None, 1, -1, 7, 2**40])
    value = drawer.value(columns.field("d").type)
    yield None if value is None else int(value // 100)
    yield drawer.value(columns.field("v").type)


@dataclass(slots=True)
class _Held:
    """A window of the model."""

    start: int
    end: int
    rows: list[dict[str, Any]] = field(default_factory=list)
    is_touched: bool = False


@dataclass(slots=True)
class WindowModel:
    """Windows according to the documentation: row by row, with late rows by the watermark of the previous batch."""

    kind: Kind
    lateness: int
    emit: str
    held: dict[Any, list[_Held]] = field(default_factory=dict)
    late: int = 0

    def batch(
        self, rows: Sequence[tuple[Any, dict[str, Any]]], before: int, watermark: int
    ) -> list[tuple[Any, _Held]]:
        """Add the rows of a batch. Returns the emitted windows with their keys."""
        self.late = 0
        for windows in self.held.values():
            for window in windows:
                window.is_touched = False
        fresh: list[tuple[Any, dict[str, Any], int]] = []
        for key, row in rows:
            if row["t"] is not None:
                fresh.append((key, row, row["t"] // 1000))
        if self.kind.name == "session":
            self._add_to_sessions(fresh, before)
        else:
            for key, row, time in fresh:
                self._add_to_fixed(key, row, time, before)
        out = []
        for key, windows in self.held.items():
            for window in [*windows]:
                last = window.end - 1
                is_complete = before < last <= watermark or (window.is_touched and last <= before)
                if is_complete if self.emit == "append" else window.is_touched:
                    out.append((key, replace(window, rows=[*window.rows])))
                if last + self.lateness <= watermark:
                    windows.remove(window)
        return out

    def _add_to_fixed(self, key: Any, row: dict[str, Any], time: int, before: int) -> None:
        kind = self.kind
        slide = kind.slide or kind.size
        last_start = time - (time - kind.offset) % slide
        starts = [
            start
            for start in range(last_start, time - kind.size, -slide)
            if start <= time < start + kind.size
        ]
        living = [start for start in starts if start + kind.size - 1 + self.lateness > before]
        if not living and time + self.lateness <= before:
            self.late += 1
        for start in living:
            windows = self.held.setdefault(key, [])
            window = next((each for each in windows if each.start == start), None)
            if window is None:
                window = _Held(start, start + kind.size)
                windows.append(window)
            window.rows.append(row)
            window.is_touched = True

    def _add_to_sessions(self, fresh: list[tuple[Any, dict[str, Any], int]], before: int) -> None:
        """Merge all rows of the batch with the stored sessions; then drop new sessions that have ended."""
        for key in {key for key, _, _ in fresh}:
            known = self.held.get(key, [])
            windows = [
                _Held(time, time + self.kind.size, [row], is_touched=True)
                for each, row, time in fresh
                if each == key
            ]
            merged: list[tuple[_Held, bool]] = []
            for window, is_known in sorted(
                [*((each, True) for each in known), *((each, False) for each in windows)],
                key=lambda pair: (pair[0].start, pair[0].end),
            ):
                if merged and window.start <= merged[-1][0].end:
                    last, was_known = merged[-1]
                    last.end = max(last.end, window.end)
                    last.rows += window.rows
                    last.is_touched |= window.is_touched
                    merged[-1] = last, was_known or is_known
                else:
                    merged.append((replace(window, rows=[*window.rows]), is_known))
            self.held[key] = []
            for window, is_known in merged:
                if is_known or window.end - 1 + self.lateness > before:
                    self.held[key].append(window)
                else:
                    self.late += len(window.rows)


def draw_case_for_spark(random: Random) -> WindowCase:
    """Draw a case that Spark can run as a batch: without late rows, and with complete windows at the end."""
    case = draw_case(random)
    while not case.specs or case.kind.slide > case.kind.size:
        case = draw_case(random)
    ends = [
        row[len(case.key)] // 1000
        for batch in case.batches
        for row in batch.rows
        if row[len(case.key)] is not None
    ]
    last = max([*ends, 0]) + 2 * case.kind.size
    batches = [replace(batch, watermark=_BEGIN_MS) for batch in case.batches[:-1]]
    batches.append(replace(case.batches[-1], watermark=last))
    offset = case.kind.offset % (case.kind.slide or case.kind.size)
    return replace(
        case,
        kind=replace(case.kind, offset=offset),
        emit="append",
        lateness=0,
        first=_BEGIN_MS,
        batches=tuple(batches),
    )


_BEGIN_MS = -(10**14)


def run_case_on_spark(case: WindowCase, spark: SparkSession) -> Comparisons:
    """Compare the job with the model, and the model with Spark's own windows of all rows."""
    compared = run_case(case)
    rows = [row for batch in case.batches for row in batch.rows]
    width = len(case.key)
    model = WindowModel(case.kind, 0, "append")
    named = [(frozen(row[:width]), dict(zip(case.schema.names, row, strict=True))) for row in rows]
    due = model.batch(named, case.first, case.batches[-1].watermark)
    expected = {(key, window.start, window.end): window.rows for key, window in due}
    cells = [
        aggregate(spec, each, case.columns)
        for each in expected.values()
        for spec in case.specs.values()
    ]
    if any(cell.must_fail or cell.may_fail for cell in cells):
        return compared
    size, slide, offset = (
        f"{n} milliseconds"
        for n in (case.kind.size, case.kind.slide or case.kind.size, case.kind.offset)
    )
    window = (
        F.session_window("t", size)
        if case.kind.name == "session"
        else F.window("t", size, slide, offset)
    )
    frame = frame_of(session_of(spark, ()), rows, case.schema).where("t is not null")
    table = spark_aggregates(frame, [*case.key.names, window.alias("w")], case.specs)
    label = f"Spark, {case.kind.name} windows"
    results = []
    for row in _rows_of(table):
        bounds = (row["w"]["start"] // 1000, row["w"]["end"] // 1000)
        key = frozen(tuple(row[name] for name in case.key.names))
        results.append(((key, *bounds), {name: row[name] for name in case.specs}))
    given, wanted = sorted(repr(key) for key, _ in results), sorted(map(repr, expected))
    compared.check(given == wanted, f"{label}: other windows", given, "not", wanted)
    for each, values in results:
        if each in expected:
            _compare_window(compared, label, case, each, values=values, rows=expected[each])
    return compared


def run_case(case: WindowCase) -> Comparisons:
    """Run the job batch by batch, and compare the emitted windows."""
    compared = Comparisons()
    seen: list[tuple[Any, Any, pa.Table]] = []
    subtasks = KeyedSubtasks(lambda: _operator(case, seen), case.key)
    if not case.specs:
        subtasks.output = pa.schema([("n", pa.int64())])
    model = WindowModel(case.kind, case.lateness, case.emit)
    width = len(case.key)
    before = case.first
    if before:
        subtasks.run(case.schema.empty_table(), watermark=before)
    for number, batch in enumerate(case.batches):
        rows = [
            (frozen(row[:width]), dict(zip(case.schema.names, row, strict=True)))
            for row in batch.rows
        ]
        due = model.batch(rows, before, batch.watermark)
        # A function gets bounds that Python can represent; see its documentation.
        last = max([_LAST_MS, *(window.end for _, window in due)]) if case.specs else _LAST_MS
        expected = {(key, window.start, min(window.end, last)): window.rows for key, window in due}
        cells = [
            aggregate(spec, rows, case.columns)
            for rows in expected.values()
            for spec in case.specs.values()
        ]
        seen.clear()
        subtasks.parallelism, subtasks.backend = batch.parallelism, batch.backend
        table = pa.Table.from_arrays(
            columns_of(batch.rows, case.schema, to_arrow), schema=case.schema
        )
        label = f"{case.kind.name} windows"
        try:
            given = subtasks.run(table, watermark=batch.watermark, replays=batch.replays)
        except Exception as error:  # noqa: BLE001  # checked below
            fits = not any(cell.must_fail or cell.may_fail for cell in cells)
            if fits or not (is_clear(error) or is_overflow(error)):
                compared.add_error(label, error)
            compared.count += 1
            return compared
        compared.check(
            subtasks.late_rows == model.late,
            f"{label}: late rows",
            f"batch {number}: {subtasks.late_rows} late rows, not {model.late}",
        )
        calls = len(seen) // (batch.replays + 1)
        results: list[tuple[Any, Any]] = [
            ((frozen(_plain_key(key, case.key)), *_bounds(window)), _rows_of(table))
            for key, window, table in seen[len(seen) - calls :]
        ]
        if case.specs:
            results = _results_of(given, case)
        keys = sorted(repr(key) for key, _ in results)
        wanted = sorted(map(repr, expected))
        compared.check(
            keys == wanted,
            f"{label}, {case.emit}: other windows",
            f"batch {number}: {keys}, not {wanted}",
        )
        for key, values in results:
            if key in expected:
                _compare_window(compared, label, case, key, values=values, rows=expected[key])
        before = batch.watermark
    return compared


def _compare_window(
    compared: Comparisons,
    label: str,
    case: WindowCase,
    key: Any,
    *,
    values: Any,
    rows: list[dict[str, Any]],
) -> None:
    if not case.specs:
        given, wanted = (sorted(repr(frozen(row)) for row in each) for each in (values, rows))
        compared.check(given == wanted, f"{label}: other rows", key, given, "not", wanted)
        times = [row["t"] for row in values]
        compared.check(times == sorted(times), f"{label}: order", key, times)
        return
    for name, value in values.items():
        right = aggregate(case.specs[name], rows, case.columns)
        compared.check(
            right.allows(value),
            f"{label}: wrong {case.specs[name].kind}",
            f"{name} of {key} is {value!r}, not {right.value!r}{' but an error' * right.must_fail}",
        )


def _operator(case: WindowCase, seen: list[Any]) -> WindowedAggregation | WindowedFunction:
    options: dict[str, Any] = {
        "time": "t",
        "allowed_lateness": timedelta(milliseconds=case.lateness),
        "emit": case.emit,
    }
    if case.specs:
        aggregates = {name: aggregate_of(spec) for name, spec in case.specs.items()}
        return WindowedAggregation(aggregates, case.kind.assigner, **options)

    def note(key: Any, window: Window, rows: pa.Table) -> list[Any]:
        seen.append((key, window, rows))
        return []

    return WindowedFunction(note, case.kind.assigner, **options)


def _plain_key(key: Any, schema: pa.Schema) -> tuple[Any, ...]:
    return tuple(
        from_arrow(pa.array([value], each.type))[0] for value, each in zip(key, schema, strict=True)
    )


def _bounds(window: Window) -> tuple[int, int]:
    bounds = pa.array(
        [window.start, window.end], pa.timestamp("us", "UTC" if window.start.tzinfo else None)
    )
    start, end = from_arrow(bounds)
    return start // 1000, end // 1000


def _rows_of(table: pa.Table) -> list[dict[str, Any]]:
    columns = [from_arrow(column) for column in table.columns]
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def _results_of(batches: Sequence[pa.RecordBatch], case: WindowCase) -> list[tuple[Any, Any]]:
    results: list[tuple[Any, Any]] = []
    for batch in batches:
        for row in _rows_of(pa.Table.from_batches([batch])):
            key = frozen(tuple(row[name] for name in case.key.names))
            bounds = (row["window_start"] // 1000, row["window_end"] // 1000)
            results.append(((key, *bounds), {name: row[name] for name in case.specs}))
    return results


def smaller_cases(case: WindowCase) -> Iterator[WindowCase]:
    """Yield cases with fewer parts."""
    yield from without_parts(case, "batches")
    yield from without_entries(case, "specs")
    yield from with_smaller_parts(case, "batches", _smaller_batches)


def _smaller_batches(batch: WindowBatch) -> Iterator[WindowBatch]:
    yield from without_parts(batch, "rows")
    yield WindowBatch(batch.rows, batch.watermark)
