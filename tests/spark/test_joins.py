"""Joins of two streams: the output equals that of a model with all rows, over replays, rescaling and late rows."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jobs.keyed_subtasks import KeyedSubtasks

from holdfast.backends.keyed import BackendName
from holdfast.errors import StateMigrationError
from holdfast.spark.joins import AsofJoin, IntervalJoin, JoinKind
from holdfast.spark.operators import StatefulFunction

KEY = pa.schema([("k", pa.int64())])
TIME = pa.timestamp("us", "UTC")
FIRST = pa.struct([("k", pa.int64()), ("at", TIME), ("n", pa.int64())])
SECOND = pa.struct([("k", pa.int64()), ("paid", TIME), ("m", pa.int64()), ("text", pa.string())])
OUTPUT = ("k", "at", "n", "paid", "m", "text")

Row = tuple[int | None, int | None]
"""A key and a time in microseconds."""

Out = tuple[int | None, ...]
"""The key, and the numbers of a first and a second row."""


def table(first: Sequence[tuple[Row, int]], second: Sequence[tuple[Row, int]]) -> pa.Table:
    """Return the rows of both streams, each with a number."""
    empty: list[Any] = [None] * (len(first) + len(second))
    firsts, seconds = list(empty), list(empty)
    for index, ((key, time), number) in enumerate(first):
        firsts[index] = {"k": key, "at": time, "n": number}
    for index, ((key, time), number) in enumerate(second, len(first)):
        seconds[index] = {"k": key, "paid": time, "m": number, "text": f"row {number}"}
    rows = [row for row, _ in [*first, *second]]
    return pa.table(
        {
            "k": pa.array([key for key, _ in rows], pa.int64()),
            "first": pa.array(firsts, FIRST),
            "second": pa.array(seconds, SECOND),
            "event_time": pa.array([time for _, time in rows], pa.int64()).cast(TIME),
        }
    )


def numbers(row: dict[str, Any]) -> Out:
    """Return the key and the numbers of an output row, whose other columns are those of the numbered rows."""
    assert tuple(row) == OUTPUT
    assert (row["text"] is None) == (row["m"] is None)
    assert row["text"] in (None, f"row {row['m']}")
    return row["k"], row["n"], row["m"]


@dataclass
class Model:
    """All rows that were not late, in the order of arrival, each with its number."""

    first: list[tuple[Row, int]] = field(default_factory=list)
    second: list[tuple[Row, int]] = field(default_factory=list)


@dataclass
class IntervalModel(Model):
    """An interval join. `singles` are the numbers of rows that were emitted without a match."""

    kind: JoinKind = "inner"
    lower: int = 0
    upper: int = 0
    emitted: Counter[Out] = field(default_factory=Counter)

    def batch(self, watermark_ms: int) -> Counter[Out]:
        """Return the rows that the watermark allows, without those of earlier batches."""
        allowed: Counter[Out] = Counter()
        matched: tuple[set[int], set[int]] = set(), set()
        for (key, at), n in self.first:
            for (other, paid), m in self.second:
                if None not in (key, at, paid) and key == other and self.includes(at, paid):
                    allowed[key, n, m] += 1
                    matched[0].add(n)
                    matched[1].add(m)
        sides = (
            (self.first, self.upper, ("left", "full")),
            (self.second, -self.lower, ("right", "full")),
        )
        for (rows, offset, kinds), own in zip(sides, matched, strict=True):
            for (key, time), number in rows:
                is_single = None in (key, time)
                if not is_single and number not in own and time is not None:
                    is_single = math.ceil((time + offset) / 1000) <= watermark_ms
                if self.kind in kinds and is_single:
                    is_first = own is matched[0]
                    allowed[(key, number, None) if is_first else (key, None, number)] += 1
        new = allowed - self.emitted
        self.emitted = allowed
        return new

    def includes(self, at: int | None, paid: int | None) -> bool:
        return at is not None and paid is not None and self.lower <= paid - at <= self.upper

    def operator(self) -> StatefulFunction:
        lower, upper = (timedelta(microseconds=each) for each in (self.lower, self.upper))
        return IntervalJoin("at", "paid", lower, upper, kind=self.kind, second_key=["k"])


@dataclass
class AsofModel(Model):
    """An as-of join."""

    kind: Literal["inner", "left"] = "inner"
    tolerance: int | None = None
    done: set[int] = field(default_factory=set)

    def batch(self, watermark_ms: int) -> Counter[Out]:
        """Return the first rows that the watermark completes, with their second rows."""
        out: Counter[Out] = Counter()
        for (key, at), n in self.first:
            if n in self.done:
                continue
            match: int | None = None
            if key is not None and at is not None:
                if math.ceil(at / 1000) > watermark_ms:
                    continue
                earlier = [
                    (paid, m)
                    for (other, paid), m in self.second
                    if other == key and paid is not None and paid <= at
                ]
                if earlier and (self.tolerance is None or at - max(earlier)[0] <= self.tolerance):
                    match = max(earlier)[1]
            self.done.add(n)
            if match is not None or self.kind == "left":
                out[key, n, match] += 1
        return out

    def operator(self) -> StatefulFunction:
        limit = None if self.tolerance is None else timedelta(microseconds=self.tolerance)
        return AsofJoin("at", "paid", limit, kind=self.kind, second_key=["k"])


TIMES = st.none() | st.integers(-20, 100).map(lambda ms: 1000 * ms) | st.integers(-20_000, 100_000)
ROWS = st.lists(st.tuples(st.sampled_from([None, 1, 2, 3]), TIMES), max_size=8)
BATCHES = st.lists(
    st.tuples(ROWS, ROWS, st.integers(0, 40), st.integers(1, 3), st.integers(0, 1)),
    min_size=1,
    max_size=6,
)
KINDS: st.SearchStrategy[JoinKind] = st.sampled_from(["inner", "left", "right", "full"])
INTERVALS = st.sampled_from([(0, 0), (-10_000, 20_000), (5_000, 15_500), (-30_000, -1)])
ASOF_KINDS: st.SearchStrategy[Literal["inner", "left"]] = st.sampled_from(["inner", "left"])


def check(model: IntervalModel | AsofModel, batches: list[Any], backend: BackendName) -> None:
    subtasks = KeyedSubtasks(model.operator, KEY, backend=backend)
    now = number = 0
    for first, second, advance, parallelism, replays in [*batches, ([], [], 1000, 1, 0)]:
        late, now = now, now + advance
        new: list[list[tuple[Row, int]]] = []
        for rows in (first, second):  # late rows are dropped before
            rows = [row for row in rows if row[1] is None or row[1] > 1000 * late]  # noqa: PLW2901
            new.append([(row, number + index) for index, row in enumerate(rows)])
            number += len(rows)
        model.first += new[0]
        model.second += new[1]
        subtasks.parallelism = parallelism
        out = subtasks.batch(table(*new), watermark=now, replays=replays)
        assert Counter(map(numbers, out)) == model.batch(now)
    assert subtasks.next_timer is None


@given(KINDS, INTERVALS, BATCHES)
def test_interval_join_equals_the_model(
    kind: JoinKind, interval: tuple[int, int], batches: list[Any]
) -> None:
    check(IntervalModel(kind=kind, lower=interval[0], upper=interval[1]), batches, "columnar")


@example("inner", None, [([(1, 2000)], [(1, 2000), (1, 2000)], 0, 1, 0)])
@given(ASOF_KINDS, st.sampled_from([None, 0, 12_500]), BATCHES)
def test_asof_join_equals_the_model(
    kind: Literal["inner", "left"], tolerance: int | None, batches: list[Any]
) -> None:
    check(AsofModel(kind=kind, tolerance=tolerance), batches, "columnar")


@pytest.mark.exhaustive  # a database is opened for each subtask of each batch
@settings(max_examples=5)
@given(KINDS, INTERVALS, ASOF_KINDS, BATCHES)
def test_joins_in_rocksdb_equal_the_models(
    kind: JoinKind, interval: tuple[int, int], asof: Literal["inner", "left"], batches: list[Any]
) -> None:
    check(IntervalModel(kind=kind, lower=interval[0], upper=interval[1]), batches, "rocksdb")
    check(AsofModel(kind=asof, tolerance=12_500), batches, "rocksdb")


def test_stored_rows_stay_with_their_join() -> None:
    subtasks = KeyedSubtasks(IntervalModel(upper=5000).operator, KEY)
    subtasks.batch(table([((1, 1000), 0)], []))
    others: list[Callable[[], StatefulFunction]] = [
        IntervalModel(upper=6000).operator,
        IntervalModel(upper=5000, kind="left").operator,
        AsofModel().operator,
    ]
    for make in others:
        subtasks.make = make
        with pytest.raises(StateMigrationError, match="inner interval join from 0 to 5000 micro"):
            subtasks.batch(table([], []))
