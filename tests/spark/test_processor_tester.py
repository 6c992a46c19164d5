"""`ProcessorTester`, which users test their processors with."""

from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest
from jobs.processor_jobs import NUMBER, TEXT
from jobs.stateful_processor import StatefulProcessor
from pyspark.errors import IllegalArgumentException, PySparkAssertionError, PySparkValueError
from pyspark.sql import Row

from holdfast.errors import InvalidRequestError
from holdfast.testing import ProcessorTester


class Count(StatefulProcessor):
    """Counts rows; a timer yields the count and clears it."""

    def __init__(
        self, *, timers: bool = False, ttl: int | None = None, pandas: bool = False
    ) -> None:
        self._has_timers, self._ttl, self._pandas = timers, ttl, pandas

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", NUMBER, self._ttl)
        self.last = handle.getListState("last", TEXT, self._ttl)
        self.by_text = handle.getMapState("by text", TEXT, NUMBER, self._ttl)

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        n = initialState["n"].sum() if self._pandas else initialState.n
        self.count.update((n,))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        given = rows
        if self._pandas:
            given = [Row(value=value) for frame in rows for value in frame["value"]]
        count = (self.count.get() or (0,))[0]
        for row in given:
            count += 1
            self.last.put([(row.value,)])
            known = self.by_text.getValue((row.value,))
            self.by_text.updateValue((row.value,), ((known.n if known else 0) + 1,))
        self.count.update((count,))
        if self._has_timers:
            self.handle.registerTimer(100)
        yield self._row(key[0], count)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        yield self._row(key.key, -self.count.get()[0])
        self.count.clear()

    def close(self) -> None:
        pass

    def _row(self, key: Any, count: int) -> Any:
        return (
            pd.DataFrame({"key": [key], "count": [count]})
            if self._pandas
            else Row(key=key, count=count)
        )


def _rows(*values: str) -> list[Row]:
    return [Row(value=value) for value in values]


def test_processor_gets_the_rows_of_a_key() -> None:
    tester = ProcessorTester(Count())
    assert tester.test("a", _rows("x", "y")) == [Row(key="a", count=2)]
    assert tester.test("b", _rows("x")) == [Row(key="b", count=1)]
    assert tester.test("a", _rows("x")) == [Row(key="a", count=3)]
    assert tester.peekValueState("count", "a") == (3,)
    assert tester.peekValueState("count", "unknown") is None
    assert tester.peekListState("last", "a") == [("x",)]
    assert tester.peekMapState("by text", "a") == {("x",): (2,), ("y",): (1,)}


def test_state_can_be_set_and_removed() -> None:
    tester = ProcessorTester(Count())
    tester.updateValueState("count", 7, (5,))
    tester.updateListState("last", 7, [("u",), ("v",)])
    tester.updateMapState("by text", 7, {("x",): (9,)})
    assert tester.test(7, _rows("x")) == [Row(key=7, count=6)]
    assert tester.peekMapState("by text", 7) == {("x",): (10,)}
    for name in ("count", "last", "by text"):
        tester.deleteState(name, 7)
    assert tester.peekValueState("count", 7) is None
    assert tester.peekListState("last", 7) == []
    assert tester.peekMapState("by text", 7) == {}
    with pytest.raises(PySparkAssertionError):
        tester.deleteState("nothing", 7)
    with pytest.raises(AssertionError, match="has not been initialized"):
        tester.peekListState("count", 7)


def test_pandas_processor_gets_frames() -> None:
    tester = ProcessorTester(
        Count(pandas=True), initialStatePandas=[("a", pd.DataFrame({"n": [2, 3]}))]
    )
    result = tester.testInPandas("a", pd.DataFrame({"value": ["x", "y"]}))
    assert result.to_dict("list") == {"key": ["a"], "count": [7]}


def test_initial_state_is_set_before_the_first_rows() -> None:
    tester = ProcessorTester(Count(), initialStateRow=[("a", Row(n=10)), ("b", Row(n=20))])
    assert tester.test("a", _rows("x")) == [Row(key="a", count=11)]
    assert tester.peekValueState("count", "b") == (20,)


def test_initial_state_of_rows_and_frames_is_refused() -> None:
    frames = [("a", pd.DataFrame({"n": [1]}))]
    with pytest.raises(AssertionError, match="initialStatePandas"):
        ProcessorTester(Count(), initialStateRow=[("a", Row(n=1))], initialStatePandas=frames)


def test_timers_fire_when_the_processing_time_passes() -> None:
    tester = ProcessorTester(Count(timers=True), timeMode="ProcessingTime")
    tester.test("a", _rows("x"))
    assert tester.setProcessingTime(99) == []
    assert tester.setProcessingTime(100) == [Row(key="a", count=-1)]
    assert tester.setProcessingTime(101) == []
    with pytest.raises(IllegalArgumentException, match="move forward"):
        tester.setProcessingTime(101)
    with pytest.raises(PySparkValueError, match="UNSUPPORTED_OPERATION"):
        tester.setWatermark(5)


def test_timers_fire_and_rows_are_late_by_the_watermark() -> None:
    tester = ProcessorTester(
        Count(timers=True), timeMode="EventTime", eventTimeExtractor=lambda row: int(row.value)
    )
    tester.test("a", _rows("50"))
    assert tester.setWatermark(99) == []
    assert tester.test("a", _rows("99", "100")) == [Row(key="a", count=2)]
    assert tester.test("b", _rows("3", "4")) == []
    assert tester.setWatermark(150) == [Row(key="a", count=-2)]
    with pytest.raises(PySparkValueError, match="ARGUMENT_REQUIRED"):
        ProcessorTester(Count(), timeMode="EventTime")


def test_state_expires_after_its_time_to_live() -> None:
    tester = ProcessorTester(Count(ttl=10), timeMode="ProcessingTime")
    tester.test("a", _rows("x"))
    tester.setProcessingTime(9)
    assert tester.peekValueState("count", "a") == (1,)
    tester.setProcessingTime(10)
    assert tester.peekValueState("count", "a") is None
    assert tester.peekMapState("by text", "a") == {}


def test_value_with_another_type_than_its_schema_is_refused() -> None:
    tester = ProcessorTester(Count())
    with pytest.raises(InvalidRequestError, match="state 'count': field 'n'"):
        tester.updateValueState("count", "a", ("five",))
    assert tester.peekValueState("count", "a") is None


def test_failed_call_leaves_state_unchanged() -> None:
    class Failing(Count):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            yield from super().handleInputRows(key, rows, timerValues)
            if self.count.get() == (3,):
                raise LookupError

    tester = ProcessorTester(Failing())
    tester.test("a", [Row(value="x"), Row(value="y")])
    with pytest.raises(LookupError):
        tester.test("a", [Row(value="z")])
    assert tester.peekValueState("count", "a") == (2,)
    assert tester.peekListState("last", "a") == [("y",)]
    assert tester.peekMapState("by text", "a") == {("x",): (1,), ("y",): (1,)}


def test_key_of_several_columns_is_a_tuple() -> None:
    class Two(Count):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            self.handle.registerTimer(1)
            yield Row(key=key)

        def handleExpiredTimer(
            self, key: Any, timerValues: Any, expiredTimerInfo: Any
        ) -> Iterator[Any]:
            yield Row(a=key.a, b=key.b)

    tester = ProcessorTester(Two(), timeMode="ProcessingTime", keyColumns=["a", "b"])
    assert tester.test(("x", 1), []) == [Row(key=("x", 1))]
    assert tester.setProcessingTime(1) == [Row(a="x", b=1)]
    with pytest.raises(InvalidRequestError, match="2 columns"):
        tester.test("x", [])
    with pytest.raises(InvalidRequestError, match="int64"):
        tester.test(("x", "y"), [])


def test_each_call_has_a_copy_of_the_processor() -> None:
    processor = Count()
    tester = ProcessorTester(processor)
    tester.test("a", _rows("x"))
    assert not hasattr(processor, "count")
