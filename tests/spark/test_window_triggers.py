"""Results of windows before they end, count windows, and sessions with gaps from a column."""

import random
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from contracts.window_model import KEY, Row, bound, ms, table
from hypothesis import given
from hypothesis import strategies as st
from jobs.job import Job, keyed_stream, run_keyed
from jobs.keyed_subtasks import KeyedSubtasks

import holdfast as hf
from holdfast import count_windows, keyed, read_state, session_windows, tumbling_windows
from holdfast.backends import NO_WATERMARK
from holdfast.errors import InvalidRequestError, StateMigrationError
from holdfast.spark.by_key import KeyedRows
from holdfast.spark.windows import (
    CountWindow,
    Early,
    WindowAssigner,
    WindowedAggregation,
    WindowedFunction,
)

S = 1_000_000
"""Microseconds of a second."""

TEN = tumbling_windows(ms(10))


def counting(windows: WindowAssigner, **options: Any) -> KeyedSubtasks:
    """Return subtasks that count the rows of windows."""
    return KeyedSubtasks(
        lambda: WindowedAggregation({"n": hf.count()}, windows, time="ts", **options), KEY
    )


def results(subtasks: KeyedSubtasks, rows: list[Row], watermark: int) -> list[tuple[int, ...]]:
    """Run a batch, and return the key, start, end and number of rows of each window."""
    out = subtasks.batch(table(rows), watermark=watermark)
    return [
        (row["k"], bound(row["window_start"]), bound(row["window_end"]), row["n"]) for row in out
    ]


def rows_at(*times: int) -> list[Row]:
    return [(1, time, 0) for time in times]


@pytest.mark.usefixtures("state_backend")
def test_window_is_emitted_early_after_a_number_of_new_rows() -> None:
    subtasks = counting(TEN, early=3)
    assert results(subtasks, rows_at(0, 1), 0) == []
    assert results(subtasks, rows_at(2, 12), 0) == [(1, 0, 10, 3)]
    assert results(subtasks, rows_at(3, 3), 0) == []
    assert results(subtasks, rows_at(3, 3, 3, 3, 4), 0) == [(1, 0, 10, 10)]
    assert results(subtasks, rows_at(5), 9) == [(1, 0, 10, 11)]
    assert results(subtasks, [], 100) == [(1, 10, 20, 1)]


@pytest.mark.usefixtures("state_backend")
def test_window_is_emitted_early_once_an_interval_if_it_has_new_rows() -> None:
    subtasks = counting(TEN, early=ms(4))
    assert results(subtasks, rows_at(0, 1), 3) == []
    assert results(subtasks, rows_at(1), 4) == [(1, 0, 10, 3)]
    assert results(subtasks, [], 8) == []
    assert results(subtasks, rows_at(8, 21), 8) == []
    assert results(subtasks, [], 9) == [(1, 0, 10, 4)]
    assert results(subtasks, [], 12) == [(1, 20, 30, 1)]
    assert results(subtasks, [], 40) == [(1, 20, 30, 1)]
    assert subtasks.next_timer is None


@pytest.mark.parametrize("windows", [TEN, session_windows(ms(10))])
def test_first_watermark_emits_windows_early(windows: WindowAssigner) -> None:
    subtasks = counting(windows, early=ms(4))
    subtasks.watermark = NO_WATERMARK
    assert results(subtasks, rows_at(0), NO_WATERMARK) == []
    assert results(subtasks, [], 1) == [(1, 0, 10, 1)]
    assert results(subtasks, [], 9) == [(1, 0, 10, 1)]
    assert subtasks.next_timer is None


def test_late_rows_emit_a_complete_window_at_once_whatever_early_is() -> None:
    for early in (5, ms(4)):
        subtasks = counting(TEN, early=early, allowed_lateness=ms(100))
        results(subtasks, rows_at(1), 10)
        assert results(subtasks, rows_at(2), 10) == [(1, 0, 10, 2)]


def test_reopened_session_counts_rows_since_its_last_result() -> None:
    subtasks = counting(session_windows(ms(10)), early=2, allowed_lateness=ms(100))
    assert results(subtasks, rows_at(1), 10) == [(1, 1, 11, 1)]
    assert results(subtasks, rows_at(9), 10) == []
    assert results(subtasks, rows_at(9), 10) == [(1, 1, 19, 3)]


@given(
    st.sampled_from([TEN, session_windows(ms(7)), session_windows("gap")]),
    st.lists(
        st.tuples(
            st.sampled_from([None, 1, 3, ms(4), ms(9)]),
            st.lists(st.integers(0, 40), max_size=6),
            st.integers(0, 15),
        ),
        max_size=5,
    ),
)
def test_changed_early_results_do_not_change_complete_results(
    windows: WindowAssigner, batches: list[tuple[Early | None, list[int], int]]
) -> None:
    changing, plain = counting(windows), counting(windows)
    watermark = 0
    for early, times, advance in [*batches, (None, [], 1000)]:
        watermark += advance
        changing.make = counting(windows, early=early).make
        expected = results(plain, rows_at(*times), watermark)
        emitted = results(changing, rows_at(*times), watermark)
        complete = [row for row in emitted if row[2] - 1 <= watermark]
        assert sorted(complete) == sorted(expected)
    assert changing.next_timer is None
    state = (
        read_state(changing.complete("u"), "u", "new_rows")
        if any(isinstance(early, int) for early, _, _ in batches)
        else []
    )
    assert len(state) == 0


def test_unsuitable_early_results_are_refused() -> None:
    refused: list[tuple[WindowAssigner, dict[str, Any], str]] = [
        (TEN, {"early": 0}, "the threshold of early results of windows must be a number of rows"),
        (TEN, {"early": True}, "must be a number of rows, an integer >= 1, got True"),
        (TEN, {"early": ms(0)}, "must be >= 1 ms"),
        (TEN, {"early": 2, "emit": "update"}, "leave out early=2"),
        (count_windows(2), {"early": 1}, "windows of 2 rows have no event time"),
        (count_windows(4, 2), {"allowed_lateness": ms(1)}, "windows of 4 rows every 2 rows have"),
    ]
    for windows, options, text in refused:
        with pytest.raises(InvalidRequestError, match=text):
            WindowedAggregation({"n": hf.count()}, windows, time="ts", **options)
    for windows, early in ((TEN, 2), (count_windows(2), None)):
        with pytest.raises(InvalidRequestError, match=r"aggregates \['n'\] count distinct values"):
            distinct = {"n": hf.approx_count_distinct("v")}
            WindowedAggregation(distinct, windows, time="ts", early=early)


@pytest.mark.usefixtures("state_backend")
def test_count_window_is_emitted_with_its_last_row() -> None:
    subtasks = counting(count_windows(3))
    assert results(subtasks, rows_at(5, 7), 0) == []
    subtasks.parallelism = 2
    assert results(subtasks, [*rows_at(1, 2, 3, 4, 5), (2, 1, 1)], 0) == [
        (1, 0, 3, 3),
        (1, 3, 6, 3),
    ]
    assert results(subtasks, rows_at(1), 1000) == []


def test_first_sliding_count_windows_have_fewer_rows() -> None:
    subtasks = counting(count_windows(4, 2))
    assert results(subtasks, rows_at(*range(7)), 0) == [(1, 0, 2, 2), (1, 0, 4, 4), (1, 2, 6, 4)]


def test_rows_of_a_count_window_do_not_depend_on_the_order_of_arrival() -> None:
    rows: list[Row] = [
        (1, index // 5, None if index % 7 == 0 else index * 3 % 11) for index in range(40)
    ]
    outputs = []
    for seed in range(5):
        subtasks = KeyedSubtasks(
            lambda: WindowedAggregation(
                {"all": hf.collect("v"), "last": hf.max("ts")}, count_windows(3), time="ts"
            ),
            KEY,
        )
        random.Random(seed).shuffle(rows)
        out = subtasks.batch(table(rows))
        outputs.append([row | {"all": sorted(row["all"])} for row in out])
    assert len(outputs[0]) == 13
    assert outputs[1:] == outputs[:1] * 4


def test_rows_of_nested_columns_are_numbered_by_the_other_columns() -> None:
    rows = table([(1, 0, value) for value in (3, 1, 2)])
    lists = pa.array([[1], [2], [3]], pa.list_(pa.int64()))
    rows = rows.append_column("lists", lists).append_column("none", pa.nulls(3))
    calls: list[Any] = []
    subtasks = KeyedSubtasks(
        lambda: WindowedFunction(
            lambda key, window, rows: calls.append((window, rows["v"].to_pylist())),
            count_windows(2),
            time="ts",
        ),
        KEY,
    )
    subtasks.batch(rows)
    assert [(window, sorted(values)) for window, values in calls] == [(CountWindow(0, 2), [1, 2])]


def test_other_windows_than_the_stored_count_windows_are_refused() -> None:
    subtasks = counting(count_windows(3))
    results(subtasks, rows_at(1), 0)
    for other in (count_windows(4), count_windows(3, 1), TEN):
        subtasks.make = counting(other).make
        with pytest.raises(StateMigrationError, match=r"windows of 3 rows.*another uid"):
            subtasks.batch(table(rows_at(2)))
    for size, slide in ((0, None), (True, None), (2, 0), (2.0, 1)):
        with pytest.raises(InvalidRequestError, match=r"an integer >= 1"):
            count_windows(size, slide)  # type: ignore[arg-type]


def test_unsuitable_gap_is_refused() -> None:
    subtasks = counting(session_windows("v"))
    with pytest.raises(InvalidRequestError, match="'v' of gaps must be a day-time interval, got"):
        subtasks.batch(table(rows_at(1)))
    subtasks = counting(session_windows("gap"))
    rows = table(rows_at(1))
    for micros in (999, -5_000_000):
        gaps = pa.array([micros], pa.int64()).cast(pa.duration("us"))
        with pytest.raises(InvalidRequestError, match="column 'gap' has"):
            subtasks.batch(rows.set_column(3, "gap", gaps))


def by_key(job: Job) -> KeyedRows:
    return keyed(keyed_stream(job), "key", uid="sums", parallelism=2)


def test_count_windows_of_a_stream_need_no_watermark(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    for count in (4, 9, 1):
        job.feed_at(*(index * S for index in range(count)))
    rows = keyed(
        job.stream().selectExpr("id % 2 as key", "id as value", "at"), "key", uid="n", parallelism=2
    )
    windowed = rows.window(count_windows(3), time="at")
    totals = windowed.agg(first=hf.min("value"), total=hf.sum("value"))
    assert run_keyed(job, totals) == {
        0: [],
        1: [(0, 0, 3, 0, 6), (0, 3, 6, 6, 24), (1, 0, 3, 1, 9), (1, 3, 6, 7, 27)],
        2: [],
    }
    assert "watermark" not in caplog.text


def test_function_of_count_windows_gets_row_numbers(job: Job) -> None:
    job.feed_at(*(index * S for index in range(9)))
    output = (
        by_key(job)
        .window(count_windows(2, 1), time="at")
        .apply(
            lambda key, window, rows: [
                (key[0], window.start, window.end, rows["value"].to_pylist())
            ],
            "key long, first long, end long, all array<long>",
        )
    )
    assert run_keyed(job, output)[0][:3] == [(0, 0, 1, [0]), (0, 0, 2, [0, 3]), (0, 1, 3, [3, 6])]


@pytest.mark.parametrize("distinct", [False, True])
def test_gaps_of_sessions_are_a_column_of_the_stream(distinct: bool, job: Job) -> None:  # noqa: FBT001
    job.feed_at(0, 4 * S, 9 * S, 12 * S)
    job.feed_at(100 * S)
    stream = job.stream().selectExpr(
        "0 as key", "at", "make_dt_interval(0, 0, 0, if(id = 1, 5, 3)) as gap", "id"
    )
    rows = keyed(stream.withWatermark("at", "0 seconds"), "key", uid="sessions", parallelism=1)
    windowed = rows.window(session_windows("gap"), time="at")
    output = windowed.agg(n=hf.approx_count_distinct("id") if distinct else hf.count())
    out = [row for rows in run_keyed(job, output).values() for row in rows]
    times = [(start.timestamp(), end.timestamp(), n) for _, start, end, n in out]
    assert times == [(0, 3, 1), (4, 15, 3)]
    for gap in ("id", "missing"):
        with pytest.raises(InvalidRequestError, match="must be a column of day-time intervals"):
            rows.window(session_windows(gap), time="at")


def test_early_results_of_a_stream_come_before_the_complete_ones(job: Job) -> None:
    for moments in ([0, 1 * S], [2 * S], [6 * S], [12 * S]):
        job.feed_at(*moments)
    rows = keyed(
        job.stream().select("at").selectExpr("0 as key", "at").withWatermark("at", "0 seconds"),
        "key",
        uid="early",
        parallelism=1,
    )
    windowed = rows.window(
        tumbling_windows(timedelta(seconds=10)), time="at", early=timedelta(seconds=5)
    )
    batches = run_keyed(job, windowed.agg(n=hf.count()))
    counts = {batch: [row[-1] for row in rows] for batch, rows in sorted(batches.items())}
    assert counts == {0: [], 1: [3], 2: [], 3: [4, 1], 4: [4]}
