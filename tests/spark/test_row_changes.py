"""Changes and greatest rows by key: the output equals that of a model, over replays and rescaling."""

import math
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs.job import Job, keyed_stream, run_keyed
from jobs.keyed_subtasks import KeyedSubtasks
from pyspark.sql.types import (
    BooleanType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from holdfast import keyed
from holdfast.errors import InvalidRequestError
from holdfast.spark.row_changes import RowChanges
from holdfast.spark.top_rows import TopRows

KEY = pa.schema([("k", pa.int64())])
ROW = pa.schema(
    [("k", pa.int64()), ("v", pa.float64()), ("text", pa.string()), ("gone", pa.bool_())]
)
SCHEMA = StructType(
    [
        StructField("k", LongType()),
        StructField("v", DoubleType()),
        StructField("text", StringType()),
        StructField("gone", BooleanType()),
    ]
)
CHANGE = pa.schema(
    [
        ("k", pa.int64()),
        ("change", pa.string()),
        ("before", pa.struct(list(ROW))),
        ("after", pa.struct(list(ROW))),
    ]
)
TOP = pa.schema([*ROW, ("rank", pa.int32())])

Row = dict[str, Any]


def rank(value: float | None) -> tuple[int, float]:
    """Return a value that orders a column: null first, NaN last, and -0.0 equals 0.0."""
    if value is None:
        return (0, 0.0)
    return (2, 0.0) if math.isnan(value) else (1, value)


@dataclass
class ChangesModel:
    """The latest row of each key."""

    by: bool
    known: dict[int | None, Row] = field(default_factory=dict)

    def batch(self, rows: list[Row]) -> set[tuple[str, ...]]:
        out = set()
        for key in {row["k"] for row in rows}:
            own = [row for row in rows if row["k"] == key]
            row = max(own, key=lambda each: rank(each["v"])) if self.by else own[-1]
            before = self.known.get(key)
            if self.by and before is not None and rank(row["v"]) < rank(before["v"]):
                continue
            after = None if row["gone"] else row
            if repr(before).replace("-0.0", "0.0") == repr(after).replace("-0.0", "0.0"):
                continue  # the known row stays, also if only the sign of its zero differs
            if after is None:
                del self.known[key]
            else:
                self.known[key] = after
            change = "delete" if after is None else "insert" if before is None else "update"
            out.add(tuple(map(str, (key, change, before, after))))
        return out


VALUES = st.sampled_from([None, math.nan, -0.0, 0.0, 1.5, -2.0, 7.0])
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "k": st.sampled_from([None, 1, 2, 3]),
            "v": VALUES,
            "text": st.sampled_from([None, "", "ü"]),
            "gone": st.sampled_from([None, False, False, True]),
        }
    ).map(lambda row: {name: row[name] for name in ROW.names}),
    max_size=8,
)
BATCHES = st.lists(st.tuples(ROWS, st.integers(1, 3), st.integers(0, 1)), min_size=1, max_size=6)


@given(st.booleans(), BATCHES)
def test_changes_equal_the_model(by: bool, batches: list[Any]) -> None:  # noqa: FBT001  # drawn
    model = ChangesModel(by)
    column = "v" if by else None
    subtasks = KeyedSubtasks(lambda: RowChanges(SCHEMA, column, "gone"), KEY, output=CHANGE)
    for rows, parallelism, replays in batches:
        subtasks.parallelism = parallelism
        out = subtasks.batch(pa.Table.from_pylist(rows, ROW), replays=replays)
        changes = {
            tuple(map(str, (row["k"], row["change"], row["before"], row["after"]))) for row in out
        }
        assert len(changes) == len(out)
        assert changes == model.batch(rows)


@given(st.booleans(), st.integers(1, 3), BATCHES)
def test_top_rows_equal_the_model(
    ascending: bool,  # noqa: FBT001  # drawn
    count: int,
    batches: list[Any],
) -> None:
    tops: dict[int | None, list[Row]] = {}
    subtasks = KeyedSubtasks(
        lambda: TopRows(SCHEMA, count, "v", ascending=ascending), KEY, output=TOP
    )

    def place(row: Row) -> tuple[bool, tuple[int, float]]:
        kind, value = rank(row["v"])
        return row["v"] is None, (kind, value) if ascending else (-kind, -value)

    for rows, parallelism, replays in batches:
        subtasks.parallelism = parallelism
        out = subtasks.batch(pa.Table.from_pylist(rows, ROW), replays=replays)
        expected = []
        for key in {row["k"] for row in rows}:
            old = tops.get(key, [])
            new = [row for row in rows if row["k"] == key]
            top = sorted([*old, *new], key=place)[:count]
            if any(each is row for each in top for row in new):
                expected += [(*row.values(), number) for number, row in enumerate(top, 1)]
            tops[key] = top
        assert sorted(map(str, (tuple(row.values()) for row in out))) == sorted(map(str, expected))


def test_changes_and_top_rows_continue_after_restarts(job: Job) -> None:
    changes, top = [], []
    for _ in range(2):
        job.feed(files=1, rows=3)
        rows = keyed(keyed_stream(job).drop("at"), "key", uid="changes", parallelism=2)
        (out,) = run_keyed(job, rows.changes(by="value"), job.directory / "first").values()
        changes.append([(key, change, before, tuple(after)) for key, change, before, after in out])
        rows = keyed(keyed_stream(job).drop("at"), "key", uid="top", parallelism=2)
        (out,) = run_keyed(job, rows.top_n(2, by="value"), job.directory / "second").values()
        top.append(out)
    assert changes[0] == [(key, "insert", None, (key, key)) for key in range(3)]
    assert changes[1] == [(key, "update", (key, key), (key, key + 3)) for key in range(3)]
    assert top[0] == [(key, key, 1) for key in range(3)]
    assert top[1] == [row for key in range(3) for row in ((key, key, 2), (key, key + 3, 1))]


def test_bad_arguments_of_changes_and_top_rows_are_refused(job: Job) -> None:
    rows: Any = keyed(keyed_stream(job), "key", uid="changes")
    named: Any = keyed(
        keyed_stream(job).selectExpr("key as before", "1 as rank"), "before", uid="x"
    )
    for call, message in (
        (lambda: rows.changes(by="x"), "no column by='x'"),
        (lambda: rows.changes(deleted="value"), "must name a boolean column"),
        (lambda: rows.changes(deleted="x"), "must name a boolean column"),
        (named.changes, r"can't be named \['before'\]"),
        (lambda: rows.top_n(0, by="value"), "n must be an integer >= 1"),
        (lambda: rows.top_n(True, by="value"), "n must be an integer >= 1"),
        (lambda: rows.top_n(1, by="x"), "no column by='x'"),
        (lambda: named.top_n(1, by="rank"), "already have a column 'rank'"),
    ):
        with pytest.raises(InvalidRequestError, match=message):
            call()
