"""Windows: the output equals that of rows one by one, over replays and rescaling."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from contracts.sketches import sketch_of
from contracts.window_model import (
    AGGREGATES,
    KEY,
    TIME,
    Model,
    Row,
    at,
    in_order,
    ms,
    table,
    to_model,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs.keyed_subtasks import KeyedSubtasks

import holdfast as hf
from holdfast import count_windows, session_windows, sliding_windows, tumbling_windows
from holdfast.backends import NO_WATERMARK
from holdfast.backends.keyed import BackendName
from holdfast.errors import InvalidRequestError
from holdfast.spark.windows import (
    CountWindows,
    Early,
    Window,
    WindowAssigner,
    WindowedAggregation,
    WindowedFunction,
)

COUNTED = pa.schema([("k", pa.int64()), ("rows", pa.int64())])

ROWS = st.lists(
    st.tuples(
        st.sampled_from([None, 1, 2, 3]), st.integers(0, 100), st.none() | st.integers(-5, 5)
    ),
    max_size=12,
)
BATCHES = st.lists(
    st.tuples(ROWS, st.integers(0, 30), st.integers(1, 3), st.integers(0, 1)),
    min_size=1,
    max_size=6,
)
ASSIGNERS = st.sampled_from(
    [
        tumbling_windows(ms(10)),
        tumbling_windows(ms(10), offset=ms(-3)),
        sliding_windows(ms(10), ms(5)),
        sliding_windows(ms(10), ms(4), offset=ms(1)),
        sliding_windows(ms(4), ms(10)),
        session_windows(ms(1)),
        session_windows(ms(7)),
        session_windows(ms(20)),
        session_windows("gap"),
    ]
)
COUNTS = st.sampled_from(
    [
        count_windows(1),
        count_windows(3),
        count_windows(4, 2),
        count_windows(5, 3),
        count_windows(2, 5),
    ]
)
EMITS = st.sampled_from(
    [
        ("append", None),
        ("append", 1),
        ("append", 3),
        ("append", ms(4)),
        ("append", ms(25)),
        ("update", None),
    ]
)


@given(ASSIGNERS, st.sampled_from([0, 1, 15]), EMITS, BATCHES)
def test_windows_equal_those_of_rows_one_by_one(
    windows: WindowAssigner, lateness: int, emit: Any, batches: list[Any]
) -> None:
    check_windows(windows, lateness, emit, batches, "columnar")


@given(COUNTS, st.sampled_from(["append", "update"]), BATCHES)
def test_count_windows_equal_those_of_rows_one_by_one(
    windows: WindowAssigner, emit: Any, batches: list[Any]
) -> None:
    check_windows(windows, 0, (emit, None), batches, "columnar")


@pytest.mark.parametrize(
    "windows",
    [
        tumbling_windows(ms(10)),
        sliding_windows(ms(10), ms(5)),
        session_windows(ms(7)),
        session_windows("gap"),
        count_windows(2),
    ],
)
def test_windows_of_rows_in_several_arrays_are_the_same(
    monkeypatch: pytest.MonkeyPatch, windows: WindowAssigner
) -> None:
    monkeypatch.setattr("holdfast.backends.arrow.batches.MAX_BATCH_BYTES", 1)
    rows = [(key, time, time) for time in (20, 3, 28, 11) for key in (1, None, 2)]
    lateness = 0 if isinstance(windows, CountWindows) else 1
    batches = [(rows, 10, 2, 0), (rows, 15, 1, 1)]
    check_windows(windows, lateness, ("append", None), batches, "columnar")


@pytest.mark.exhaustive  # a database is opened for each subtask of each batch
@settings(max_examples=5)
@given(ASSIGNERS, st.sampled_from([0, 15]), EMITS, BATCHES)
def test_windows_in_rocksdb_equal_those_of_rows_one_by_one(
    windows: WindowAssigner, lateness: int, emit: Any, batches: list[Any]
) -> None:
    check_windows(windows, lateness, emit, batches, "rocksdb")


@pytest.mark.exhaustive
@settings(max_examples=5)
@given(COUNTS, st.sampled_from(["append", "update"]), BATCHES)
def test_count_windows_in_rocksdb_equal_those_of_rows_one_by_one(
    windows: WindowAssigner, emit: Any, batches: list[Any]
) -> None:
    check_windows(windows, 0, (emit, None), batches, "rocksdb")


def check_windows(
    windows: WindowAssigner,
    lateness: int,
    emit: tuple[Any, Early | None],
    batches: list[Any],
    backend: BackendName,
) -> None:
    mode, early = emit
    model = Model(windows, lateness, mode, early)
    subtasks = KeyedSubtasks(
        lambda: WindowedAggregation(
            AGGREGATES, windows, time="ts", allowed_lateness=ms(lateness), emit=mode, early=early
        ),
        KEY,
        backend=backend,
    )
    watermark = 0
    for rows, advance, parallelism, replays in batches:
        late, watermark = watermark, watermark + advance
        subtasks.parallelism = parallelism
        moved = [(key, time + late - 20, value) for key, time, value in rows]
        out = subtasks.batch(table(moved), watermark=watermark, replays=replays)
        assert to_model(out) == in_order(model.batch(moved, late, watermark))
        assert subtasks.late_rows == model.late
    late, watermark = watermark, watermark + 1000
    out = subtasks.batch(table([]), watermark=watermark)
    assert to_model(out) == in_order(model.batch([], late, watermark))
    if not isinstance(windows, CountWindows):
        assert not any(model.held.values())
        assert subtasks.next_timer is None


def windowed_function(function: Callable[..., Any], windows: Any, **options: Any) -> KeyedSubtasks:
    return KeyedSubtasks(
        lambda: WindowedFunction(function, windows, **{"time": "ts", **options}),
        KEY,
        output=COUNTED,
    )


def recorder(calls: list[Any]) -> Callable[..., Any]:
    """Return a function that records its calls, and yields the number of rows above 1."""

    def function(key: tuple[Any, ...], window: Window, rows: pa.Table) -> list[dict[str, Any]]:
        calls.append((key, window, rows.to_pylist()))
        return [{"k": key[0], "rows": rows.num_rows}] if rows.num_rows > 1 else []

    return function


@pytest.mark.usefixtures("state_backend")
def test_function_gets_the_rows_of_a_window_ordered_by_time() -> None:
    calls: list[Any] = []
    subtasks = windowed_function(recorder(calls), tumbling_windows(ms(10)))

    def rows_of(rows: list[Row]) -> pa.Table:
        return table(rows).drop_columns("gap")

    assert subtasks.batch(rows_of([(1, 7, 70), (2, 3, None)])) == []
    out = subtasks.batch(rows_of([(1, 2, 20), (1, 12, 0)]), watermark=9)

    assert out == [{"k": 1, "rows": 2}]
    assert sorted(calls, key=lambda call: call[0]) == [
        (
            (1,),
            Window(at(0), at(10)),
            [{"k": 1, "ts": at(2), "v": 20}, {"k": 1, "ts": at(7), "v": 70}],
        ),
        ((2,), Window(at(0), at(10)), [{"k": 2, "ts": at(3), "v": None}]),
    ]


def test_function_may_return_arrow_data_or_none() -> None:
    def function(key: tuple[Any, ...], window: Window, rows: pa.Table) -> Any:
        keys = pa.table({"k": [key[0]]})
        return {1: [keys], 2: keys.to_batches()}.get(key[0])

    subtasks = KeyedSubtasks(
        lambda: WindowedFunction(function, session_windows(ms(10)), time="ts"), KEY, output=KEY
    )
    out = subtasks.batch(table([(1, 7, 70), (2, 3, None), (3, 5, 1)]), watermark=100)
    assert sorted(row["k"] for row in out) == [1, 2]


@pytest.mark.usefixtures("state_backend")
@pytest.mark.parametrize(("lateness", "last_timer"), [(0, 36), (5, 41)])
def test_grown_session_has_no_outdated_timers(lateness: int, last_timer: int) -> None:
    subtasks = KeyedSubtasks(
        lambda: WindowedAggregation(
            {"rows": hf.count()}, session_windows(ms(10)), time="ts", allowed_lateness=ms(lateness)
        ),
        KEY,
    )
    subtasks.batch(table([(1, 7, 1), (1, 27, 1)]))
    assert subtasks.next_timer == 16
    subtasks.batch(table([(1, 17, 1)]))
    assert subtasks.next_timer == 36
    subtasks.batch(table([]), watermark=36)
    assert subtasks.next_timer == (last_timer if lateness else None)


@pytest.mark.usefixtures("state_backend")
def test_merged_sessions_count_distinct_values_of_both() -> None:
    distinct = {"n": hf.approx_count_distinct("value")}
    subtasks = KeyedSubtasks(
        lambda: WindowedAggregation(distinct, session_windows(ms(10)), time="ts"), KEY
    )

    def batch(rows: list[tuple[int, range]], watermark: int = 0) -> list[dict[str, Any]]:
        times = table([(1, time, 1) for time, _ in rows]).select(["k", "ts"])
        sketches = pa.array([sketch_of(values) for _, values in rows], pa.binary())
        operands = times.append_column("n__operand", sketches)
        return subtasks.batch(operands, watermark=watermark)

    assert batch([(0, range(10)), (15, range(5, 20))]) == []
    assert batch([(8, range(15, 30))]) == []
    assert [row["n"] for row in batch([], 100)] == [30]


def test_rows_without_a_time_are_in_no_window() -> None:
    subtasks = windowed_function(recorder([]), tumbling_windows(ms(10)))
    rows = table([(1, 1, 1), (1, 2, 2), (1, 3, 3)])
    times = pa.array([None, 2000, 3000], pa.int64()).cast(TIME)
    out = subtasks.batch(rows.set_column(1, "ts", times), watermark=100)
    assert out == [{"k": 1, "rows": 2}]
    assert subtasks.late_rows == 0


def test_fractions_of_milliseconds_are_rounded_down() -> None:
    calls: list[Any] = []
    subtasks = windowed_function(recorder(calls), tumbling_windows(ms(10)))
    rows = table([(1, 0, 1), (1, 0, 2)])
    times = pa.array([9_999, 10_001], pa.int64()).cast(TIME)
    subtasks.batch(rows.set_column(1, "ts", times), watermark=100)
    assert [call[1] for call in calls] == [Window(at(0), at(10)), Window(at(10), at(20))]


def test_bad_windows_are_refused() -> None:
    refused: list[tuple[Callable[[], object], str]] = [
        (lambda: tumbling_windows(ms(0)), "the size of windows must be >= 1 ms, got 0:00:00"),
        (lambda: sliding_windows(ms(5), ms(0.5)), "the slide of windows"),
        (lambda: session_windows(5), "must be a timedelta of whole milliseconds"),  # type: ignore[arg-type]
        (
            lambda: WindowedFunction(
                recorder([]),
                session_windows(ms(1)),
                time="ts",
                emit="always",  # type: ignore[arg-type]
            ),
            "emit must be 'append' or 'update', got 'always'",
        ),
        (
            lambda: WindowedFunction(
                recorder([]), session_windows(ms(1)), time="ts", allowed_lateness=-ms(1)
            ),
            "the allowed lateness of windows",
        ),
    ]
    for make, text in refused:
        with pytest.raises(InvalidRequestError, match=text):
            make()


def test_rows_need_an_event_time_column() -> None:
    for time, text in [
        ("t", "rows have no column 't'"),
        ("v", "'v' of event time must be a timestamp, got int64"),
    ]:
        subtasks = windowed_function(recorder([]), session_windows(ms(1)), time=time)
        with pytest.raises(InvalidRequestError, match=text):
            subtasks.batch(table([(1, 1, 1)]))


def test_aggregate_with_the_name_of_a_window_column_is_refused() -> None:
    subtasks = KeyedSubtasks(
        lambda: WindowedAggregation({"window_end": hf.count()}, session_windows(ms(1)), time="ts"),
        KEY,
    )
    with pytest.raises(InvalidRequestError, match="window_end"):
        subtasks.batch(table([(1, 1, 1)]))


@pytest.mark.parametrize(
    "windows", [tumbling_windows(ms(10)), sliding_windows(ms(10), ms(5)), session_windows(ms(10))]
)
def test_rows_at_the_ends_of_the_calendar_have_windows(windows: WindowAssigner) -> None:
    calls: list[Any] = []
    subtasks = windowed_function(
        lambda key, window, rows: calls.append((key, window, rows.num_rows)), windows, emit="update"
    )
    micros = [datetime.max, datetime.min]  # noqa: DTZ901
    edges = [pa.scalar(edge, pa.timestamp("us")).value for edge in micros]
    edges += [(1 << 63) - 1, -(1 << 62)]
    times = pa.array(edges, pa.int64()).cast(TIME)
    rows = pa.table({"k": pa.array([1, 2, 3, 4]), "ts": times, "v": pa.array([1, 2, 3, 4])})
    subtasks.watermark = NO_WATERMARK
    subtasks.batch(rows, watermark=NO_WATERMARK)
    assert {key for (key,), _, _ in calls} == {1, 2, 3, 4}
    last = datetime.max.replace(tzinfo=UTC)
    assert {window.end for (key,), window, _ in calls if key == 3} == {last}
