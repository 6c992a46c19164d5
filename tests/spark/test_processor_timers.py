"""Timers and times to live of processors: when timers fire, and when values expire."""

from typing import Any

import pytest
from jobs.processor_jobs import (
    NUMBER,
    TEXT,
    CallbackProcessor,
    number_state,
    outputs,
    processor_job,
    run_callbacks,
)


def _rows(*keys: str) -> list[dict[str, Any]]:
    return [{"k": key, "v": 0} for key in keys]


def _register(times: dict[str, list[int]], deleted: dict[str, list[int]] | None = None) -> Any:
    def body(p: Any, _: Any, key: Any, rows: Any) -> None:
        for time in times.get(key[0], []):
            p.handle.registerTimer(time)
        for time in (deleted or {}).get(key[0], []):
            p.handle.deleteTimer(time)

    return body


def _key_and_time(_: Any, __: Any, key: Any, time: int) -> Any:
    return [(*key, time)]


@pytest.mark.parametrize("parallelism", [1, 3])
def test_timers_fire_in_the_order_of_spark(memory_directory: str, parallelism: int) -> None:
    times = {
        "a": [50_000, 90_000, 91_000, 50_000, 200_000],
        "b": [60_000, 89_000, 90_000],
        "c": [-5000, 0],
    }
    processor = CallbackProcessor(rows=_register(times, {"a": [77_000]}), timer=_key_and_time)
    job = processor_job(memory_directory, processor, time_mode="EventTime", parallelism=parallelism)
    assert outputs(job.run(_rows("a", "b", "c"), times=(1, 0))) == [("c", -5000), ("c", 0)]
    fired = outputs(job.run([], times=(2, 90_000)))
    if parallelism > 1:
        fired.sort(key=lambda each: (each[1], each[0]))
    assert fired == [("a", 50_000), ("b", 60_000), ("b", 89_000), ("a", 90_000), ("b", 90_000)]
    assert outputs(job.run([], times=(3, 90_000))) == []
    assert outputs(job.run([], times=(4, 300_000))) == [("a", 91_000), ("a", 200_000)]


def test_changes_by_a_timer_take_effect_in_the_next_batch(memory_directory: str) -> None:
    def timer(p: Any, _: Any, key: Any, time: int) -> Any:
        if key[0] == "re":
            for other in (time - 1000, time + 1, time + 1_000_000, time):
                p.handle.registerTimer(other)
        else:
            p.handle.deleteTimer(time + 1000)
        return [(key[0], time)]

    times = {"re": [80_000, 90_000], "del": [81_000, 82_000, 83_000]}
    job = processor_job(
        memory_directory,
        CallbackProcessor(rows=_register(times), timer=timer),
        time_mode="EventTime",
    )
    assert outputs(job.run(_rows("re", "del"), times=(1, 90_000))) == [
        ("re", 80_000),
        ("del", 81_000),
        ("del", 82_000),
        ("del", 83_000),
        ("re", 90_000),
    ]
    assert outputs(job.run([], times=(2, 90_000))) == [
        ("re", 79_000),
        ("re", 80_001),
        ("re", 89_000),
    ]
    assert outputs(job.run([], times=(3, 90_000)))[:2] == [("re", 78_000), ("re", 79_001)]


def test_firing_timer_is_listed_until_its_call_ends(memory_directory: str) -> None:
    def timer(p: Any, _: Any, key: Any, time: int) -> Any:
        return [(time, list(p.handle.listTimers()))]

    processor = CallbackProcessor(rows=_register({"a": [10, 20, 30, 99]}), timer=timer)
    job = processor_job(memory_directory, processor, time_mode="ProcessingTime")
    assert outputs(job.run(_rows("a", "b"), times=(5, 0))) == []
    assert outputs(job.run([], times=(25, 0))) == [(10, [10, 20, 30, 99]), (20, [20, 30, 99])]


def test_timers_are_listed_by_key_and_registered_once(memory_directory: str) -> None:
    def body(p: Any, _: Any, key: Any, rows: Any) -> Any:
        early = p.handle.listTimers()
        if key[0] != "c":
            p.handle.registerTimer(100)
            p.handle.registerTimer(100)
            p.handle.registerTimer(200 + ord(key[0]))
            p.handle.deleteTimer(5)
        if key[0] == "b":
            p.handle.deleteTimer(100)
        return [(key[0], list(early))]

    job = processor_job(memory_directory, CallbackProcessor(rows=body), time_mode="EventTime")
    expected = [("a", [100, 297]), ("b", [298]), ("c", [])]
    assert outputs(job.run(_rows("a", "b", "c"))) == expected
    assert outputs(job.run(_rows("c", "b", "a"))) == expected


def test_timer_of_a_key_without_rows_has_its_state(memory_directory: str) -> None:
    def body(p: Any, v: Any, key: Any, rows: Any) -> None:
        v.update((v.get()[0] + 1 if v.exists() else 1,))
        p.handle.registerTimer(10)
        p.handle.registerTimer(20)

    def timer(p: Any, v: Any, key: Any, time: int) -> Any:
        before = v.get()
        if time == 10:
            v.clear()
        return [(key.k, key == (key.k,), before)]

    processor = CallbackProcessor(number_state, body, timer)
    job = processor_job(memory_directory, processor, time_mode="EventTime")
    job.run(_rows("a", "b"))
    assert outputs(job.run(_rows("b"), times=(0, 100))) == [
        ("a", True, (1,)),
        ("b", True, (2,)),
        ("a", True, None),
        ("b", True, None),
    ]


@pytest.mark.parametrize(
    ("time", "error"), [(5.5, TypeError), ("5", TypeError), (None, TypeError), (2**63, ValueError)]
)
def test_time_of_a_timer_must_be_an_int(
    memory_directory: str, time: Any, error: type[Exception]
) -> None:
    def body(p: Any, *_: Any) -> Any:
        with pytest.raises(error):
            p.handle.registerTimer(time)
        with pytest.raises(error):
            p.handle.deleteTimer(time)
        return [list(p.handle.listTimers())]

    assert run_callbacks(memory_directory, rows=body, time_mode="EventTime") == [[]]


@pytest.mark.parametrize(
    ("mode", "times"), [("None", (-1, -1)), ("ProcessingTime", (700, 40)), ("EventTime", (700, 40))]
)
def test_times_are_those_of_the_batch(
    memory_directory: str, mode: str, times: tuple[int, int]
) -> None:
    def body(p: Any, *_: Any) -> Any:
        return [(p.times.getCurrentProcessingTimeInMs(), p.times.getCurrentWatermarkInMs())]

    def rows(p: Any, *_: Any) -> Any:
        if mode != "None":
            p.handle.registerTimer(-1)
        return body(p)

    seen = run_callbacks(memory_directory, rows=rows, timer=body, times=(700, 40), time_mode=mode)
    assert seen == [times] * (1 if mode == "None" else 2)


def test_timers_survive_another_parallelism(memory_directory: str) -> None:
    keys = [str(number) for number in range(40)]
    processor = CallbackProcessor(
        rows=_register({key: [int(key), 1000] for key in keys}), timer=_key_and_time
    )
    job = processor_job(memory_directory, processor, time_mode="EventTime", parallelism=3)
    assert outputs(job.run(_rows(*keys), times=(0, -1))) == []
    job = processor_job(memory_directory, processor, time_mode="EventTime", parallelism=2)
    assert sorted(outputs(job.run([], times=(0, 100)))) == sorted((key, int(key)) for key in keys)


def _states(ttl: int | None) -> Any:
    return lambda handle: (
        handle.getValueState("v", NUMBER, ttl),
        handle.getListState("l", NUMBER, ttl),
        handle.getMapState("m", TEXT, NUMBER, ttl),
    )


def _observe(states: Any) -> Any:
    v, s, m = states
    keys = sorted(m.keys())
    assert v.exists() == (v.get() is not None)
    assert s.exists() == bool(list(s.get()))
    assert m.exists() == bool(keys)
    assert all(m.containsKey(key) and m.getValue(key) is not None for key in keys)
    return v.get(), list(s.get()), keys


def test_values_elements_and_entries_expire_separately(memory_directory: str) -> None:
    def write(first: bool) -> Any:  # noqa: FBT001
        def body(_: Any, states: Any, key: Any, rows: Any) -> None:
            v, s, m = states
            if first:
                v.update((1,))
                m.updateValue(("x",), (1,))
            s.appendValue((1 if first else 2,))
            m.updateValue(("y",), (1,))

        return body

    def read(_: Any, states: Any, key: Any, rows: Any) -> Any:
        return [_observe(states)]

    def run(body: Any, at: int) -> list[Any]:
        times = (1_000_000 + at, 0)
        return run_callbacks(
            memory_directory, _states(4000), body, times=times, time_mode="ProcessingTime"
        )

    run(write(first=True), 0)
    run(write(first=False), 2000)
    assert run(read, 3999) == [((1,), [(1,), (2,)], [("x",), ("y",)])]
    assert run(read, 4000) == [(None, [(2,)], [("y",)])]
    assert run(read, 6000) == [(None, [], [])]


def test_each_write_renews_the_time_to_live(memory_directory: str) -> None:
    def body(_: Any, states: Any, key: Any, rows: Any) -> Any:
        v, s, m = states
        before = _observe(states)
        v.update((1,))
        s.put([(1,)])
        m.updateValue(("x",), (1,))
        return [before, _observe(states)]

    job = processor_job(
        memory_directory, CallbackProcessor(_states(1), body), time_mode="ProcessingTime"
    )
    full = ((1,), [(1,)], [("x",)])
    for time in (5, 6, 7):
        assert outputs(job.run(_rows("a"), times=(time, 0))) == [(None, [], []), full]
    assert outputs(job.run(_rows("a"), times=(7, 0))) == [full, full]


def test_replaced_map_entry_has_its_own_time_to_live(memory_directory: str) -> None:
    def put(_: Any, states: Any, *__: Any) -> None:
        states[2].updateValue(("x",), (1,))

    def replace(_: Any, states: Any, *__: Any) -> None:
        states[2].removeKey(("x",))
        states[2].updateValue(("x",), (2,))

    def read(_: Any, states: Any, *__: Any) -> Any:
        return [states[2].getValue(("x",))]

    results = []
    for time, body in ((0, put), (3, replace), (10, read), (13, read)):
        results += run_callbacks(
            memory_directory, _states(10), body, times=(time, 0), time_mode="ProcessingTime"
        )
    assert results == [(2,), None]
