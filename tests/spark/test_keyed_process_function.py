"""Operators that are called key by key, without Spark: input, output, state and timers."""

import math
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Literal

import pyarrow as pa
import pytest
from jobs.keyed import KeyedJob
from jobs.operators import StatelessFunction

from holdfast import KeyedProcessFunction, stateful
from holdfast.backends import (
    FunctionInitializationContext,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueState,
    ValueStateDescriptor,
)
from holdfast.errors import InvalidRequestError
from holdfast.locations.adapters import file_system_for

pytestmark = pytest.mark.usefixtures("state_backend")

ROWS = pa.schema([("key", pa.string()), ("n", pa.int64())])
TIMERS = pa.schema([("key", pa.string()), ("time", pa.int64()), ("domain", pa.string())])


class Sums(KeyedProcessFunction):
    """Adds up `n` by key, and yields the sum of each key that has rows."""

    def open(self, context: FunctionInitializationContext) -> None:
        store = context.keyed_state_store
        self.sums: ValueState = store.get_state(ValueStateDescriptor("sums", int, default=0))

    def process_key(self, key: Any, rows: pa.RecordBatch) -> Iterable[Any]:
        self.sums.update(self.sums.value() + sum(rows["n"].to_pylist()))
        yield {"key": key.key, "n": self.sums.value()}


def rows(*pairs: tuple[Any, int]) -> list[dict[str, Any]]:
    return [{"key": key, "n": n} for key, n in pairs]


def sums_job(directory: str, **options: Any) -> KeyedJob:
    return KeyedJob(directory, Sums(), schema=ROWS, **options)


def sums(job: KeyedJob, *pairs: tuple[Any, int], **options: Any) -> dict[Any, int]:
    """Run a batch, and return its output; each key is in it once."""
    output = job.run(rows(*pairs), **options)
    assert len({row["key"] for row in output}) == len(output)
    return {row["key"]: row["n"] for row in output}


@pytest.mark.parametrize("bound", [1, 60])
def test_key_in_several_arrays_is_called_once(
    memory_directory: str, monkeypatch: pytest.MonkeyPatch, bound: int
) -> None:
    job = sums_job(memory_directory)
    pairs = [("a", 1), ("b", 10), ("c", 2), (None, 5), ("d", 4)]
    monkeypatch.setattr("holdfast.backends.arrow.batches.MAX_BATCH_BYTES", bound)
    assert sums(job, *pairs) == dict(pairs)
    if bound == 1:  # two rows are more than fit into a batch
        with pytest.raises(
            InvalidRequestError, match="a key has 2 rows in a micro-batch with more"
        ):
            sums(job, *pairs, ("d", 5))
    else:
        assert sums(job, *pairs, ("d", 5)) == {"a": 2, "b": 20, "c": 4, None: 10, "d": 13}


def test_key_is_called_once_with_its_rows_and_state(memory_directory: str) -> None:
    job = sums_job(memory_directory)
    assert sums(job, ("a", 1), ("b", 10), ("a", 2), (None, 5)) == {"a": 3, "b": 10, None: 5}
    assert sums(job, ("a", 1), (None, 1), ("c", 7)) == {"a": 4, None: 6, "c": 7}
    assert sums(job) == {}
    assert sums(job, ("b", 0)) == {"b": 10}


def test_each_key_has_its_state_at_another_parallelism(memory_directory: str) -> None:
    keys = [f"key {number}" for number in range(100)]
    job = sums_job(memory_directory, parallelism=2)
    sums(job, *((key, 1) for key in keys))
    for parallelism in (3, 1, 4):
        job = sums_job(memory_directory, parallelism=parallelism)
        before = sums(job, *((key, 0) for key in keys))
        assert set(before) == set(keys)
        assert len(set(before.values())) == 1
        after = sums(job, *((key, 1) for key in keys))
        assert after == {key: value + 1 for key, value in before.items()}


def test_restored_job_does_not_need_the_other_job(memory_directory: str) -> None:
    keys = [f"key {number}" for number in range(3000)]  # more than stay in memory
    other = sums_job(memory_directory, job_id="other")
    sums(other, *((key, 1) for key in keys))
    start = other.latest.location.external_pointer
    job = sums_job(memory_directory, parallelism=3, start=start)
    assert sums(job, (keys[0], 1)) == {keys[0]: 2}
    file_system_for(memory_directory).delete_tree(f"{memory_directory}/other")
    again = sums_job(memory_directory, parallelism=2)
    assert set(sums(again, *((key, 0) for key in keys[1:])).values()) == {1}


def test_aborted_batch_changes_no_state(memory_directory: str) -> None:
    job = sums_job(memory_directory)
    sums(job, ("a", 1))
    assert sums(job, ("a", 5), completes=False) == {"a": 6}
    assert sums(job, ("a", 5)) == {"a": 6}
    again = sums_job(memory_directory)
    assert sums(again, ("a", 0)) == {"a": 6}


def test_undeclared_state_is_kept_and_none_is_created(memory_directory: str) -> None:
    job = KeyedJob(memory_directory, StatelessFunction(), schema=ROWS)
    job.run(rows(("a", 1)))
    assert job.latest.metadata.streams() == []
    job = sums_job(memory_directory)
    sums(job, ("a", 1), ("b", 2))
    job = KeyedJob(memory_directory, StatelessFunction(), schema=ROWS, parallelism=3)
    for _ in range(3):
        job.run(rows(("a", 1)))
    job = sums_job(memory_directory)
    assert sums(job, ("a", 0), ("b", 0)) == {"a": 1, "b": 2}


class Recent(KeyedProcessFunction):
    """Remembers the last `n` of a key for a second."""

    def open(self, context: FunctionInitializationContext) -> None:
        ttl = StateTtlConfig(timedelta(seconds=1))
        descriptor = ValueStateDescriptor("recent", int, ttl=ttl)
        self.recent = context.keyed_state_store.get_state(descriptor)

    def process_key(self, key: Any, rows: pa.RecordBatch) -> Iterable[Any]:
        before = self.recent.value()
        if rows["n"][0].as_py():
            self.recent.update(rows["n"][0].as_py())
        yield key.key, before


def test_values_expire_by_the_time_of_the_batch(memory_directory: str) -> None:
    job = KeyedJob(memory_directory, Recent(), schema=ROWS)
    assert sums(job, ("a", 7), times=(5_000, 0)) == {"a": None}
    assert sums(job, ("a", 0), times=(5_999, 0)) == {"a": 7}
    assert sums(job, ("a", 0), times=(6_000, 0)) == {"a": None}


class Pairs(KeyedProcessFunction):
    """Counts the rows of keys of two columns; yields tuples."""

    def open(self, context: FunctionInitializationContext) -> None:
        descriptor = ReducingStateDescriptor("counts", "count", pa.int64())
        self.counts = context.keyed_state_store.get_reducing_state(descriptor)

    def process_key(self, key: Any, rows: pa.RecordBatch) -> Iterable[Any]:
        for _ in range(rows.num_rows):
            self.counts.add(1)
        return [(*key, self.counts.get())]


def test_key_may_have_several_columns_and_nan_is_one_key(memory_directory: str) -> None:
    schema = pa.schema([("x", pa.float64()), ("y", pa.int32())])
    output = pa.schema([*schema, ("count", pa.int64())])
    job = KeyedJob(memory_directory, Pairs(), schema=schema, key=["x", "y"], output=output)
    batch = [{"x": x, "y": y} for x in (math.nan, None, 0.0, -0.0) for y in (1, None)]
    for count in (1, 2):
        yielded = [(str(row["x"]), row["y"], row["count"]) for row in job.run([*batch, batch[0]])]
        assert sorted(yielded, key=str) == sorted(
            [
                ("nan", 1, 2 * count),
                ("nan", None, count),
                ("None", 1, count),
                ("None", None, count),
                ("0.0", 1, 2 * count),
                ("0.0", None, 2 * count),
            ],
            key=str,
        )


class Alarms(KeyedProcessFunction):
    """Registers `n` as a timer of the key, and calls a hook when it fires."""

    time_mode = "event"

    def process_key(self, key: Any, rows: pa.RecordBatch) -> None:
        for time_ms in rows["n"].to_pylist():
            self.register_event_time_timer(time_ms)

    def on_timer(self, key: Any, time_ms: int, domain: str) -> Iterable[Any]:
        self.handle_timer(key.key, time_ms)
        yield key.key, time_ms, domain

    def handle_timer(self, key: str, time_ms: int) -> None:
        pass


def fire_timers(job: KeyedJob, *pairs: tuple[Any, int], **options: Any) -> list[tuple[str, int]]:
    """Run a batch, and return the timers that fire in it, sorted."""
    return sorted((row["key"], row["time"]) for row in job.run(rows(*pairs), **options))


def alarms(directory: str, function: KeyedProcessFunction, **options: Any) -> KeyedJob:
    return KeyedJob(directory, function, schema=ROWS, output=TIMERS, **options)


def test_timers_fire_once_in_order_up_to_the_watermark(memory_directory: str) -> None:
    job = alarms(memory_directory, Alarms(), parallelism=1)
    batch = ("a", 50), ("a", 90), ("b", 60), ("a", 50), ("c", -5), ("c", 0)
    assert fire_timers(job, *batch) == [("c", -5), ("c", 0)]
    output = job.run(times=(1000, 89))
    assert [(row["key"], row["time"], row["domain"]) for row in output] == [
        ("a", 50, "event"),
        ("b", 60, "event"),
    ]
    assert fire_timers(job, times=(2000, 89)) == []
    assert fire_timers(job, times=(2000, 90)) == [("a", 90)]


class ChangingAlarms(Alarms):
    """Registers and deletes timers in a handler, as in section 2.5 of Spark's semantics."""

    def handle_timer(self, key: str, time_ms: int) -> None:
        if key == "again":
            for later in (time_ms - 1000, time_ms, time_ms + 1, time_ms + 1_000_000):
                self.register_event_time_timer(later)
        elif key == "deletes":
            self.delete_event_time_timer(time_ms + 1000)
        elif key == "next":
            self.register_event_time_timer(time_ms + 1000)


def test_timers_registered_by_timers_fire_in_the_next_batch(memory_directory: str) -> None:
    job = alarms(memory_directory, ChangingAlarms())
    assert fire_timers(job, ("again", 80_000), ("again", 90_000), times=(0, 90_000)) == [
        ("again", 80_000),
        ("again", 90_000),
    ]
    assert fire_timers(job, times=(0, 90_000)) == [("again", t) for t in (79_000, 80_001, 89_000)]


def test_due_timer_fires_although_it_is_deleted(memory_directory: str) -> None:
    job = alarms(memory_directory, ChangingAlarms())
    due = [(key, t) for key in ("deletes", "next") for t in (1000, 2000, 3000)]
    assert fire_timers(job, *due, times=(0, 5000)) == [*due]
    assert fire_timers(job, times=(0, 5000)) == [("next", 4000)]
    assert fire_timers(job, times=(0, 5000)) == [("next", 5000)]


def test_next_timers_are_reported_to_the_driver(memory_directory: str) -> None:
    job = alarms(memory_directory, Alarms())
    keys = [f"key {number}" for number in range(50)]
    hour = 3_600_000
    job.run(rows(*((key, hour + number) for number, key in enumerate(keys))))
    assert min(event or math.inf for event, _ in job.next_timers) == hour
    assert {processing for _, processing in job.next_timers} == {None}
    job.run(times=(0, hour + 48))
    assert {event for event, _ in job.next_timers} == {None, hour + 49}
    job.run(times=(0, hour + 49))
    assert job.next_timers == [(None, None)] * 2


def test_each_timer_fires_once_at_another_parallelism(memory_directory: str) -> None:
    timers = sorted((f"key {number}", 1000 * number) for number in range(100))
    job = alarms(memory_directory, Alarms(), parallelism=2)
    assert fire_timers(job, *timers, times=(0, 20_000)) == [t for t in timers if t[1] <= 20_000]
    for parallelism, before, until in (
        (3, 20_000, 40_000),
        (1, 40_000, 41_000),
        (4, 41_000, 99_000),
    ):
        job = alarms(memory_directory, Alarms(), parallelism=parallelism)
        due = [timer for timer in timers if before < timer[1] <= until]
        assert fire_timers(job, times=(0, until)) == due
        assert fire_timers(job, times=(0, until)) == []


class DelayTimers(KeyedProcessFunction):
    """Registers a timer `n` milliseconds after the batch."""

    time_mode = "processing"

    def open(self, context: FunctionInitializationContext) -> None:
        self.now_ms = context.batch_time

    def process_key(self, key: Any, rows: pa.RecordBatch) -> None:
        for wait_ms in rows["n"].to_pylist():
            self.register_processing_time_timer(self.now_ms + wait_ms)
            self.delete_processing_time_timer(self.now_ms + wait_ms + 1)

    def on_timer(self, key: Any, time_ms: int, domain: str) -> list[Any]:
        return [{"key": key.key, "time": time_ms, "domain": domain}]


def test_processing_time_timers_fire_by_the_batch_time(memory_directory: str) -> None:
    job = alarms(memory_directory, DelayTimers())
    job.run(rows(("a", 100), ("a", 101), ("b", 200)), times=(1000, 0))
    times = [processing for _, processing in job.next_timers]
    assert min(time_ms for time_ms in times if time_ms is not None) == 1100
    assert fire_timers(job, times=(1099, 9999)) == []
    assert fire_timers(job, times=(1201, 0)) == [("a", 1100), ("a", 1101), ("b", 1200)]


def test_event_time_timers_need_their_time_mode(memory_directory: str) -> None:
    modes: tuple[Literal["none", "processing"], ...] = ("none", "processing")
    for mode in modes:
        function: KeyedProcessFunction = Alarms()
        function.time_mode = mode
        job = alarms(memory_directory, function)
        with pytest.raises(InvalidRequestError, match="event time need time_mode 'event'"):
            fire_timers(job, ("a", 1))


class Returns(KeyedProcessFunction):
    """Returns something for each key."""

    def __init__(self, returned: Any) -> None:
        self.returned = returned

    def process_key(self, key: Any, rows: pa.RecordBatch) -> Any:
        return self.returned


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ({"key": "a", "n": 1}, "dict was returned"),
        ("ab", "str was returned"),
        (5, "int was returned"),
        ([5], "int was yielded"),
        ([("a",)], r"1 values .* \['key', 'n'\]"),
        ([{"key": "a"}], r"\['key'\] .* \['key', 'n'\]"),
        ([{"key": "a", "N": 1}], r"\['key', 'N'\]"),
        ([("a", "1")], "column 'n'"),
        ([("a", 1.5)], "column 'n'"),
        ([pa.record_batch({"key": ["a"]})], "don't fit"),
    ],
)
def test_output_other_than_its_schema_is_refused(
    memory_directory: str, returned: Any, message: str
) -> None:
    job = KeyedJob(memory_directory, Returns(returned), schema=ROWS)
    with pytest.raises(InvalidRequestError, match=message):
        job.run(rows(("a", 1)))


def test_value_of_another_type_than_its_state_is_refused(memory_directory: str) -> None:
    class Wrong(Sums):
        def process_key(self, key: Any, rows: pa.RecordBatch) -> list[Any]:
            self.sums.update("1")
            return []

    job = KeyedJob(memory_directory, Wrong(), schema=ROWS)
    with pytest.raises(InvalidRequestError, match="state 'sums'"):
        job.run(rows(("a", 1)))


def test_output_rows_keep_their_order(memory_directory: str) -> None:
    batch = pa.record_batch([pa.array(["c"]), pa.array([3], pa.int8())], ROWS.names)
    given = [("a", 1), {"n": 2, "key": None}, batch, pa.Table.from_batches([batch] * 2), ("d", 4)]
    job = KeyedJob(memory_directory, Returns(given), schema=ROWS)
    assert [(row["key"], row["n"]) for row in job.run(rows(("a", 1)))] == [
        ("a", 1),
        (None, 2),
        *[("c", 3)] * 3,
        ("d", 4),
    ]


def test_keyed_process_function_needs_a_key() -> None:
    with pytest.raises(
        InvalidRequestError, match="function of operator 'sums' is called for each key"
    ):
        stateful(Sums(), uid="sums", parallelism=1)
    with pytest.raises(InvalidRequestError, match="each column once"):
        stateful(Sums(), uid="sums", parallelism=1, key=["a", "a"])


def test_keys_outside_of_python_types_are_refused(memory_directory: str) -> None:
    schema = pa.schema([("key", pa.timestamp("us")), ("n", pa.int64())])
    job = KeyedJob(memory_directory, Sums(), schema=schema)
    with pytest.raises(
        InvalidRequestError, match=r"operator 'operator': key column 'key'.*timestamp"
    ):
        job.run([{"key": 1 << 62, "n": 1}])
