"""Times of batches without Spark: by its log, and the time of the next batch for timers."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.backends.functions import NO_WATERMARK, BatchTimes
from holdfast.spark.event_time import (
    earliest_timers,
    is_due,
    is_tick_only,
    next_batch_time,
    times_of_batch,
)
from holdfast.spark_progress import SparkProgress

TICK = '{"holdfast-ticks": %d}'


def entry(batch_time: int, watermark: int, *sources: str) -> str:
    """Return an entry of Spark's offset log."""
    settings = {"batchWatermarkMs": watermark, "batchTimestampMs": batch_time, "conf": {}}
    return "\n".join(["v1", json.dumps(settings), *sources])


def progress(offsets: str, watermark: int = 0, batch_time: int = 0) -> SparkProgress:
    """Return Spark's progress in a checkpoint."""
    return SparkProgress(
        query_id="query",
        run_id="run",
        batch_id=7,
        offsets=offsets,
        checkpoint_location="file:///spark",
        spark_version="4.3.0",
        watermark=watermark,
        batch_time=batch_time,
    )


def test_first_batch_has_no_watermark() -> None:
    first = times_of_batch(entry(1_700, 0), None)
    assert first == BatchTimes(1_700, NO_WATERMARK, NO_WATERMARK)
    last = progress(entry(1_700, 0), watermark=0)
    assert times_of_batch(entry(1_800, 5), last) == BatchTimes(1_800, 5, NO_WATERMARK)


def test_rows_are_late_by_the_previous_watermark() -> None:
    last = progress(entry(1_700, 90_000), watermark=90_000)
    assert times_of_batch(entry(1_800, 95_000), last) == BatchTimes(1_800, 95_000, 90_000)


def test_watermark_of_a_savepoint_holds_until_it_is_passed() -> None:
    last = progress(entry(1_700, 90_000), watermark=90_000)
    first = times_of_batch(entry(5_000, 0), last)
    assert first == BatchTimes(5_000, 90_000, 90_000)
    second = times_of_batch(entry(6_000, 20_000), progress(entry(5_000, 0), first.watermark))
    assert second == BatchTimes(6_000, 90_000, 90_000)
    third = times_of_batch(entry(7_000, 91_000), progress(entry(6_000, 20_000), second.watermark))
    assert third == BatchTimes(7_000, 91_000, 90_000)


def test_watermark_missing_in_a_checkpoint_is_in_the_log() -> None:
    times = times_of_batch(entry(1_800, 95_000), progress(entry(1_700, 90_000)))
    assert times.late_watermark == 90_000


@given(st.lists(st.integers(0, 10_000), min_size=2, max_size=8), st.integers(0, 6))
def test_batch_time_never_decreases(clock: list[int], repeated: int) -> None:
    last: SparkProgress | None = None
    highest = 0
    for number, batch_time in enumerate(clock):
        times = times_of_batch(entry(batch_time, 0), last)
        highest = max(highest, batch_time)
        assert times.batch_time == highest
        if number == repeated:
            assert times_of_batch(entry(batch_time, 0), last) == times
        last = progress(entry(batch_time, 0), batch_time=times.batch_time)
        stored = msgspec.msgpack.decode(msgspec.msgpack.encode(last), type=SparkProgress)
        assert stored.times == (highest, 0)


def test_batch_time_missing_in_a_checkpoint_is_in_the_log() -> None:
    last = progress(entry(1_700, 0))
    assert times_of_batch(entry(1_600, 0), last).batch_time == 1_700


TIMES = BatchTimes(5_000, 90, 80)


@pytest.mark.parametrize(
    ("event", "processing", "has_input", "expected"),
    [
        (None, None, True, None),
        (91, None, True, 0),  # rows can advance the watermark
        (91, None, False, None),
        (90, None, False, 0),  # a timer that was set in the past
        (None, 7_000, True, 7_000),
        (91, 7_000, False, 7_000),
        (91, 7_000, True, 0),
        (None, 4_000, False, 0),
    ],
)
def test_batch_is_requested_when_timers_need_it(
    event: int | None, processing: int | None, *, has_input: bool, expected: int | None
) -> None:
    assert next_batch_time(event, processing, TIMES, has_input=has_input) == expected


@pytest.mark.parametrize(
    ("event", "processing", "fires"),
    [
        (None, None, False),
        (90, None, True),
        (91, None, False),
        (None, 5_000, True),
        (None, 5_001, False),
        (91, 5_000, True),
    ],
)
def test_timer_is_due_at_its_time(
    event: int | None, processing: int | None, *, fires: bool
) -> None:
    assert is_due(event, processing, TIMES) == fires


@given(st.lists(st.tuples(st.none() | st.integers(), st.none() | st.integers())))
def test_earliest_timers_are_those_of_all_subtasks(
    timers: list[tuple[int | None, int | None]],
) -> None:
    for domain, time in enumerate(earliest_timers(timers)):
        of_domain = [left for each in timers if (left := each[domain]) is not None]
        assert time == min(of_domain, default=None)


def test_batch_is_tick_only_if_other_offsets_are_unchanged() -> None:
    assert is_tick_only(['{"logOffset":3}', TICK % 9], ['{"logOffset":3}', TICK % 5], 1)
    assert not is_tick_only(['{"logOffset":4}', TICK % 9], ['{"logOffset":3}', TICK % 5], 1)
    assert not is_tick_only(['{"logOffset":3}', TICK % 9], None, 1)
