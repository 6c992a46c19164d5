"""Aggregates and windows that change with a restart: no state is lost unless it is requested."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from jobs.keyed_subtasks import KeyedSubtasks

import holdfast as hf
from holdfast import StatefulFunction, session_windows, sliding_windows, tumbling_windows
from holdfast.errors import InvalidRequestError, StateMigrationError
from holdfast.spark.aggregates import Aggregate, Aggregation
from holdfast.spark.windows import WindowAssigner, WindowedAggregation, WindowedFunction

KEY = pa.schema([("k", pa.int64())])
COUNTED = pa.schema([("k", pa.int64()), ("rows", pa.int64())])
LONG = pa.int64()
MINUTE = timedelta(minutes=1)


def table(values: list[int], key: int = 1, *, of: pa.DataType = LONG) -> pa.Table:
    times = [datetime(2026, 1, 1, tzinfo=UTC)] * len(values)
    return pa.table(
        {
            "k": pa.array([key] * len(values), pa.int64()),
            "v": pa.array(values, of),
            "ts": pa.array(times, pa.timestamp("us", "UTC")),
        }
    )


def aggregation(changes: dict[str, Any] | None = None, /, **aggregates: Aggregate) -> Any:
    return lambda: Aggregation(aggregates, **(changes or {}))


def windowed_aggregation(
    windows: WindowAssigner, changes: dict[str, Any] | None = None, /, **aggregates: Aggregate
) -> Callable[[], StatefulFunction]:
    return lambda: WindowedAggregation(aggregates, windows, time="ts", **(changes or {}))


def start(**aggregates: Aggregate) -> KeyedSubtasks:
    """Return an operator that has run a batch with the values 5 and 7 of key 1."""
    subtasks = KeyedSubtasks(aggregation(**aggregates), KEY)
    subtasks.batch(table([5, 7]))
    return subtasks


@pytest.mark.usefixtures("state_backend")
def test_renamed_aggregate_keeps_its_values() -> None:
    subtasks = start(n=hf.count(), mean=hf.avg("v"))
    subtasks.batch(table([1], key=2))  # another run, in the old form
    renamed = {"renamed": {"orders": "n", "average": "mean"}}
    subtasks.make = aggregation(renamed, average=hf.avg("v"), orders=hf.count())
    subtasks.parallelism = 3
    assert subtasks.batch(table([9])) == [{"k": 1, "average": 7.0, "orders": 3}]
    # The option may stay or go; keys without rows since then have the new names, too.
    assert subtasks.batch(table([11])) == [{"k": 1, "average": 8.0, "orders": 4}]
    subtasks.make = aggregation(average=hf.avg("v"), orders=hf.count())
    subtasks.parallelism = 2
    assert subtasks.batch(table([3], key=2)) == [{"k": 2, "average": 2.0, "orders": 2}]


@pytest.mark.usefixtures("state_backend")
def test_added_aggregate_starts_without_earlier_rows() -> None:
    subtasks = start(n=hf.count())
    subtasks.batch(table([1], key=2))
    added = {"new": hf.count(), "most": hf.max("v"), "all": hf.collect("v"), "mean": hf.avg("v")}
    subtasks.make = aggregation({"added": [*added]}, n=hf.count(), **added)
    assert subtasks.batch(table([2])) == [
        {"k": 1, "n": 3, "new": 1, "most": 2, "all": [2], "mean": 2.0}
    ]
    subtasks.make = aggregation(n=hf.count(), **added)
    assert subtasks.batch(table([], key=2)) == []
    assert subtasks.batch(table([4], key=2)) == [
        {"k": 2, "n": 2, "new": 1, "most": 4, "all": [4], "mean": 4.0}
    ]


@pytest.mark.usefixtures("state_backend")
def test_last_change_counts_after_scaling_down() -> None:
    subtasks = start(n=hf.count())
    subtasks.parallelism = 3
    subtasks.make = aggregation({"added": ["new"]}, n=hf.count(), new=hf.count())
    # Some of the subtasks have rows neither in this batch nor in the one before.
    subtasks.batch(table([1], key=2))
    subtasks.parallelism = 1
    subtasks.make = aggregation({"renamed": {"newer": "new"}}, n=hf.count(), newer=hf.count())
    assert subtasks.batch(table([1], key=2)) == [{"k": 2, "n": 2, "newer": 2}]


@pytest.mark.usefixtures("state_backend")
def test_dropped_aggregate_does_not_return_with_its_name() -> None:
    subtasks = start(n=hf.count(), most=hf.max("v"))
    subtasks.batch(table([1], key=2))
    subtasks.make = aggregation({"dropped": ["most"]}, n=hf.count())
    assert subtasks.batch(table([6], key=3)) == [{"k": 3, "n": 1}]
    subtasks.make = aggregation({"added": ["most"]}, n=hf.count(), most=hf.max("v"))
    assert subtasks.batch(table([6])) == [{"k": 1, "n": 3, "most": 6}]
    assert subtasks.batch(table([0], key=2)) == [{"k": 2, "n": 2, "most": 0}]


def test_order_of_aggregates_does_not_matter() -> None:
    subtasks = start(n=hf.count(), most=hf.max("v"), least=hf.min("v"))
    subtasks.make = aggregation(least=hf.min("v"), n=hf.count(), most=hf.max("v"))
    assert subtasks.batch(table([6])) == [{"k": 1, "least": 5, "n": 3, "most": 7}]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            aggregation(orders=hf.count()),
            r"\['n'\] are stored.*\['orders'\] are requested.*'orders': 'n'",
        ),
        (aggregation(n=hf.count(), more=hf.count()), r"\['more'\] are requested.*added=\['more'\]"),
        (
            aggregation({"added": ["a"]}, a=hf.count()),
            r"\['n'\] are stored.*dropped=\['n'\] to delete",
        ),
        (
            aggregation(n=hf.sum("v")),
            r"'n' is stored as count\(\), and is sum\('v'\) now.*dropped=\['n'\]",
        ),
        (
            aggregation({"renamed": {"orders": "n"}}, orders=hf.sum("v")),
            r"'orders' is stored as count\(\), and is sum",
        ),
    ],
)
def test_aggregates_other_than_the_stored_ones_are_refused(make: Any, message: str) -> None:
    subtasks = start(n=hf.count())
    subtasks.make = make
    with pytest.raises(StateMigrationError, match=message):
        subtasks.batch(table([1]))
    subtasks.make = aggregation(n=hf.count())
    assert subtasks.batch(table([1])) == [{"k": 1, "n": 3}]


def test_aggregate_of_a_narrower_type_is_refused() -> None:
    subtasks = start(most=hf.max("v"))
    with pytest.raises(StateMigrationError, match=r"'most', max\('v'\), is stored as int64.*cast"):
        subtasks.batch(table([1], of=pa.int32()))
    subtasks = KeyedSubtasks(aggregation(most=hf.max("v")), KEY)
    subtasks.batch(table([3], of=pa.int32()))
    assert subtasks.batch(table([2])) == [{"k": 1, "most": 3}]


def test_aggregation_with_an_unknown_option_is_refused() -> None:
    options: dict[str, Any] = {"addded": ["n"]}
    with pytest.raises(TypeError, match="addded"):
        Aggregation({"n": hf.count()}, **options)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"renamed": {"m": "n"}}, r"name \['m'\], but the aggregates are \['a', 'b'\]"),
        ({"renamed": {"a": "b"}}, r"\['b'\] are renamed or dropped"),
        ({"dropped": ["a"]}, r"\['a'\] are renamed or dropped"),
        ({"dropped": "a"}, "must be a list of names"),
        ({"dropped": hf.count()}, "must be a list of names"),
        ({"renamed": ["a"]}, "must map new names to stored names"),
        ({"renamed": {"a": "n", "b": "n"}}, "two aggregates can't have the same stored name"),
        ({"renamed": {"a": "n"}, "added": ["a"]}, "both renamed and added"),
    ],
)
def test_contradictory_changes_are_refused(changes: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        aggregation(changes, a=hf.count(), b=hf.count())()


@pytest.mark.usefixtures("state_backend")
@pytest.mark.parametrize("windows", [tumbling_windows(MINUTE), session_windows(MINUTE)], ids=str)
def test_aggregates_of_open_windows_are_renamed_added_and_dropped(windows: Any) -> None:
    subtasks = KeyedSubtasks(windowed_aggregation(windows, n=hf.count(), most=hf.max("v")), KEY)
    subtasks.batch(table([5, 7]))
    subtasks.batch(table([1], key=2))
    changes = {"renamed": {"rows": "n"}, "dropped": ["most"], "added": ["seen", "least"]}
    now = {"rows": hf.count(), "seen": hf.count(), "least": hf.min("v")}
    subtasks.make = windowed_aggregation(windows, changes, **now)
    subtasks.batch(table([3]))
    subtasks.make = windowed_aggregation(windows, **now)
    out = subtasks.batch(table([]), watermark=1 << 42)
    results = [{name: row[name] for name in ("k", *now)} for row in out]
    assert sorted(results, key=lambda row: row["k"]) == [
        {"k": 1, "rows": 3, "seen": 1, "least": 3},
        {"k": 2, "rows": 1, "seen": 0, "least": None},
    ]


@pytest.mark.parametrize(
    "other",
    [
        tumbling_windows(2 * MINUTE),
        tumbling_windows(MINUTE, offset=MINUTE / 2),
        sliding_windows(MINUTE, MINUTE / 2),
        session_windows(MINUTE),
    ],
    ids=str,
)
def test_windows_other_than_the_stored_ones_are_refused(other: Any) -> None:
    subtasks = KeyedSubtasks(windowed_aggregation(tumbling_windows(MINUTE), n=hf.count()), KEY)
    subtasks.batch(table([5]))
    subtasks.make = windowed_aggregation(other, n=hf.count())
    with pytest.raises(
        StateMigrationError, match=r"tumbling windows of 0:01:00.*another uid"
    ) as caught:
        subtasks.batch(table([5]))
    assert str(other) in str(caught.value)
    same = tumbling_windows(MINUTE, offset=MINUTE)
    subtasks.make = windowed_aggregation(same, n=hf.count())
    assert [row["n"] for row in subtasks.batch(table([5]), watermark=1 << 42)] == [2]


def test_another_session_gap_is_refused() -> None:
    subtasks = KeyedSubtasks(windowed_aggregation(session_windows(MINUTE), n=hf.count()), KEY)
    subtasks.batch(table([5]))
    subtasks.make = windowed_aggregation(session_windows(2 * MINUTE), n=hf.count())
    with pytest.raises(
        StateMigrationError,
        match=r"gap of 0:01:00, and the operator now has aggregates of session.*0:02:00",
    ):
        subtasks.batch(table([5]))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (aggregation(n=hf.count()), windowed_aggregation(tumbling_windows(MINUTE), n=hf.count())),
        (windowed_aggregation(tumbling_windows(MINUTE), n=hf.count()), aggregation(n=hf.count())),
        (
            windowed_aggregation(tumbling_windows(MINUTE), n=hf.count()),
            lambda: WindowedFunction(lambda *_: None, tumbling_windows(MINUTE), time="ts"),
        ),
        (
            lambda: WindowedFunction(lambda *_: None, tumbling_windows(MINUTE), time="ts"),
            windowed_aggregation(tumbling_windows(MINUTE), n=hf.count()),
        ),
    ],
    ids=["totals to windows", "windows to totals", "aggregates to rows", "rows to aggregates"],
)
def test_another_operator_with_the_same_uid_is_refused(before: Any, after: Any) -> None:
    subtasks = KeyedSubtasks(before, KEY, output=COUNTED)
    subtasks.batch(table([5]))
    subtasks.make = after
    with pytest.raises(StateMigrationError, match="give the operator another uid"):
        subtasks.batch(table([5]))


def test_pending_windows_can_not_switch_to_updates() -> None:
    def operator(emit: Any) -> Callable[[], StatefulFunction]:
        return lambda: WindowedAggregation(
            {"n": hf.count()}, tumbling_windows(MINUTE), time="ts", emit=emit
        )

    subtasks = KeyedSubtasks(operator("append"), KEY)
    subtasks.batch(table([5]))
    subtasks.make = operator("update")
    with pytest.raises(StateMigrationError, match="keep emit='append'"):
        subtasks.batch(table([5]))


@pytest.mark.parametrize(("before", "after"), [(0, 5), (5, 0), (5, 9)])
def test_windows_are_deleted_after_a_changed_lateness(before: int, after: int) -> None:
    def operator(lateness: int) -> Callable[[], StatefulFunction]:
        return lambda: WindowedAggregation(
            {"n": hf.count()},
            tumbling_windows(MINUTE),
            time="ts",
            allowed_lateness=lateness * MINUTE,
        )

    subtasks = KeyedSubtasks(operator(before), KEY)
    subtasks.batch(table([5]))
    subtasks.make = operator(after)
    end = int(datetime(2026, 1, 1, 0, 1, tzinfo=UTC).timestamp() * 1000)
    assert [row["n"] for row in subtasks.batch(table([]), watermark=end - 1)] == [1]
    assert [row["n"] for row in subtasks.batch(table([5]), watermark=end)] == [2] * bool(after)
    subtasks.batch(table([]), watermark=end + 60_000 * 10)
    assert subtasks.next_timer is None


def test_columns_of_open_windows_are_renamed_and_dropped() -> None:
    def rows_of(key: Any, window: Any, rows: pa.Table) -> list[dict[str, Any]]:
        seen.append(rows.drop_columns("ts").to_pylist())
        return []

    def operator(**options: Any) -> Callable[[], StatefulFunction]:
        return lambda: WindowedFunction(rows_of, tumbling_windows(MINUTE), time="ts", **options)

    seen: list[Any] = []
    other = table([6]).rename_columns(["k", "value", "ts"])
    subtasks = KeyedSubtasks(operator(), KEY, output=COUNTED)
    subtasks.batch(table([5]))
    subtasks.make = operator()
    with pytest.raises(StateMigrationError, match=r"have columns \['v'\].*new columns \['value'\]"):
        subtasks.batch(other)
    subtasks.make = operator(renamed={"value": "v"})
    subtasks.batch(other)
    subtasks.make = operator(dropped=["value"])
    subtasks.batch(table([0]).drop_columns("v"), watermark=1 << 42)
    assert seen == [[{"k": 1}, {"k": 1}, {"k": 1}]]
