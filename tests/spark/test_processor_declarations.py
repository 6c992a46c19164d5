"""What processors may declare, and what they may do when: errors of Spark, with its classes."""

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from jobs.processor_jobs import (
    NUMBER,
    NUMBER_AND_TEXT,
    OUT,
    TEXT,
    CallbackProcessor,
    outputs,
    processor_job,
)
from pyspark.errors import AnalysisException, IllegalArgumentException, PySparkRuntimeError
from pyspark.sql import types as spark
from pyspark.sql.streaming.stateful_processor import ListState, MapState, ValueState

from holdfast.errors import InvalidRequestError, StateMigrationError
from holdfast.spark.processors import ProcessorFunction, StatefulProcessorError

ROWS = [{"k": "a", "v": 1}]


def _declare(init: Callable[[Any], Any], time_mode: str = "None") -> ProcessorFunction:
    return ProcessorFunction(CallbackProcessor(init), OUT, "Update", time_mode)


def _get(handle: Any, kind: str, name: str, ttl: Any = None) -> Any:
    if kind == "map":
        return handle.getMapState(name, TEXT, NUMBER, ttl)
    get = handle.getValueState if kind == "value" else handle.getListState
    return get(name, NUMBER, ttl)


def test_states_are_of_sparks_classes(memory_directory: str) -> None:
    def init(handle: Any) -> Any:
        states = [_get(handle, kind, kind) for kind in ("value", "list", "map")]
        assert [type(s).__mro__[-2] for s in states] == [ValueState, ListState, MapState]
        return states

    processor_job(memory_directory, CallbackProcessor(init)).run(ROWS)


@pytest.mark.parametrize(
    ("first", "second"), [("value", "list"), ("value", "map"), ("list", "value"), ("map", "map")]
)
def test_a_name_is_declared_once(first: str, second: str) -> None:
    with pytest.raises(
        PySparkRuntimeError,
        match=r"\[STATEFUL_PROCESSOR_DUPLICATE_STATE_VARIABLE_DEFINED\] State variable with name v ",
    ):
        _declare(lambda handle: (_get(handle, first, "v"), _get(handle, second, "v")))


def test_two_value_states_of_a_name_have_an_error_of_their_own_as_in_spark() -> None:
    with pytest.raises(StatefulProcessorError) as caught:
        _declare(lambda handle: (_get(handle, "value", "v"), _get(handle, "value", "v")))
    assert isinstance(caught.value, PySparkRuntimeError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert str(caught.value) == "Error initializing value state: Value state v already exists"


@pytest.mark.parametrize(
    ("name", "condition"),
    [
        ("", "STATE_STORE_CANNOT_USE_COLUMN_FAMILY_WITH_INVALID_NAME"),
        ("  ", "STATE_STORE_CANNOT_USE_COLUMN_FAMILY_WITH_INVALID_NAME"),
        (" a", "STATE_STORE_CANNOT_USE_COLUMN_FAMILY_WITH_INVALID_NAME"),
        ("default", "STATE_STORE_CANNOT_USE_COLUMN_FAMILY_WITH_INVALID_NAME"),
        ("$a", "STATE_STORE_CANNOT_CREATE_COLUMN_FAMILY_WITH_RESERVED_CHARS"),
    ],
)
def test_a_name_that_spark_refuses_is_refused(name: str, condition: str) -> None:
    with pytest.raises(PySparkRuntimeError, match=condition):
        _declare(lambda handle: _get(handle, "list", name))


def test_names_may_be_strange(memory_directory: str) -> None:
    names = ["a b", "_a", "ü", "a.b", "a/b", 300 * "x", "v", "V"]

    def body(_: Any, states: Any, key: Any, rows: Any) -> Any:
        for number, state in enumerate(states):
            state.update((number,))

    def read(_: Any, states: Any, key: Any, rows: Any) -> Any:
        return [[state.get()[0] for state in states]]

    def init(handle: Any) -> Any:
        return [_get(handle, "value", name) for name in names]

    processor_job(memory_directory, CallbackProcessor(init, body)).run(ROWS)
    assert outputs(processor_job(memory_directory, CallbackProcessor(init, read)).run(ROWS)) == [
        list(range(len(names)))
    ]


@pytest.mark.parametrize(
    "operation", ["get_value_state", "get_list_state", "get_map_state", "delete_if_exists"]
)
def test_state_is_declared_in_init_alone(memory_directory: str, operation: str) -> None:
    def body(p: Any, *_: Any) -> Any:
        kind = operation.split("_")[1]
        with pytest.raises(PySparkRuntimeError) as caught:
            if kind == "if":
                p.handle.deleteIfExists("v")
            else:
                _get(p.handle, kind, "v")
        return [str(caught.value).partition(": ")[2]]

    job = processor_job(memory_directory, CallbackProcessor(rows=body))
    assert outputs(job.run(ROWS)) == [
        (
            "[STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE] Failed to perform stateful "
            f"processor operation={operation} with invalid handle state=INITIALIZED."
        )
    ]


@pytest.mark.parametrize(
    ("use", "operation"),
    [
        (lambda handle: _get(handle, "value", "v").get(), "v.get"),
        (lambda handle: _get(handle, "value", "v").update((1,)), "v.update"),
        (lambda handle: _get(handle, "list", "v").exists(), "v.exists"),
        (lambda handle: _get(handle, "list", "v").appendValue((1,)), "v.appendValue"),
        (lambda handle: _get(handle, "map", "v").containsKey(("a",)), "v.containsKey"),
        (lambda handle: handle.registerTimer(5), "register_timer"),
        (lambda handle: handle.deleteTimer(5), "delete_timer"),
        (lambda handle: handle.listTimers(), "list_timers"),
    ],
)
def test_nothing_is_read_or_written_in_init(use: Any, operation: str) -> None:
    message = f"operation={operation} with invalid handle state=PRE_INIT"
    with pytest.raises(PySparkRuntimeError, match=message):
        _declare(use, "EventTime")


def test_there_are_no_timers_in_time_mode_none(memory_directory: str) -> None:
    def body(p: Any, *_: Any) -> Any:
        for call in (
            lambda: p.handle.registerTimer(5),
            lambda: p.handle.deleteTimer(5),
            p.handle.listTimers,
        ):
            with pytest.raises(PySparkRuntimeError, match="timeMode=NoTime") as caught:
                call()
            yield str(caught.value).split("[")[1].split("]")[0]

    job = processor_job(memory_directory, CallbackProcessor(rows=body))
    expected = "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_TIME_MODE"
    assert outputs(job.run(ROWS)) == [expected] * 3


@pytest.mark.parametrize(("mode", "shown"), [("None", "NoTime"), ("EventTime", "EventTime")])
def test_state_lives_for_a_time_in_processing_time_alone(mode: str, shown: str) -> None:
    with pytest.raises(PySparkRuntimeError) as caught:
        _declare(lambda handle: _get(handle, "map", "v", 5), mode)
    assert str(caught.value) == (
        "Error initializing map state: [STATEFUL_PROCESSOR_INCORRECT_TIME_MODE_TO_ASSIGN_TTL] Cannot use TTL for "
        f"state=v in timeMode={shown}, use TimeMode.ProcessingTime() instead."
    )


def test_a_time_to_live_is_a_whole_number_from_nought_on() -> None:
    _declare(lambda handle: _get(handle, "value", "v", 0))
    _declare(lambda handle: _get(handle, "value", "v", 1), "processingtime")
    with pytest.raises(
        PySparkRuntimeError, match="STATEFUL_PROCESSOR_TTL_DURATION_MUST_BE_POSITIVE"
    ):
        _declare(lambda handle: _get(handle, "value", "v", -1), "ProcessingTime")
    with pytest.raises(TypeError):
        _declare(lambda handle: _get(handle, "value", "v", 1.5), "ProcessingTime")


def test_a_schema_is_that_of_a_struct() -> None:
    with pytest.raises(PySparkRuntimeError, match="FAILED_PARSE_STRUCT_TYPE"):
        _declare(lambda handle: handle.getValueState("v", spark.IntegerType()))


def test_a_schema_with_two_fields_of_a_name_is_refused() -> None:
    twice = spark.StructType([*NUMBER.fields, *NUMBER.fields])
    with pytest.raises(InvalidRequestError, match="two fields of the name 'n'"):
        _declare(lambda handle: handle.getValueState("v", twice))


def test_a_type_that_cannot_be_kept_is_refused_on_the_driver() -> None:
    schema = spark.StructType([spark.StructField("x", spark.CalendarIntervalType())])
    with pytest.raises(InvalidRequestError, match="interval"):
        _declare(lambda handle: handle.getValueState("v", schema))
    collated = spark.StructType([spark.StructField("x", spark.StringType("UNICODE_CI"))])
    _declare(lambda handle: handle.getValueState("v", collated))  # only kept, never compared
    with pytest.raises(InvalidRequestError, match=r"keys of map state 'm' have type .*UNICODE_CI"):
        _declare(lambda handle: handle.getMapState("m", collated, NUMBER))


def test_a_field_that_must_not_be_null_is_kept_like_any_other(memory_directory: str) -> None:
    schema = spark.StructType([spark.StructField("n", spark.IntegerType(), nullable=False)])
    processor = CallbackProcessor(
        lambda handle: handle.getValueState("v", schema), lambda _, v, *__: v.update((1,))
    )
    processor_job(memory_directory, processor).run(ROWS)


def test_modes_are_those_of_spark() -> None:
    with pytest.raises(AnalysisException, match=r"STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION"):
        ProcessorFunction(CallbackProcessor(), OUT, "Complete")
    with pytest.raises(IllegalArgumentException, match=r"STREAMING_OUTPUT_MODE.INVALID"):
        ProcessorFunction(CallbackProcessor(), OUT, "Bogus")
    with pytest.raises(IllegalArgumentException, match="STATEFUL_PROCESSOR_UNKNOWN_TIME_MODE"):
        ProcessorFunction(CallbackProcessor(), OUT, "Append", "Bogus")
    modes = [
        ProcessorFunction(CallbackProcessor(), OUT, "aPPEND", mode).time_mode
        for mode in ("NONE", "processingTime", "eventtime")
    ]
    assert modes == ["none", "processing", "event"]


def test_what_is_no_processor_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="StatefulProcessor"):
        ProcessorFunction(object(), OUT)  # type: ignore[arg-type]


def test_a_state_that_is_declared_and_deleted_cannot_be_used(memory_directory: str) -> None:
    def init(handle: Any) -> Any:
        state = _get(handle, "value", "v")
        handle.deleteIfExists("v")
        handle.deleteIfExists("unknown")
        return state

    def body(_: Any, v: Any, *__: Any) -> Any:
        with pytest.raises(PySparkRuntimeError) as caught:
            v.get()
        return [str(caught.value)]

    job = processor_job(memory_directory, CallbackProcessor(init, body))
    assert outputs(job.run(ROWS)) == [
        "Error getting value state: Value state v is not initialized."
    ]


@pytest.mark.parametrize("kind", ["value", "list", "map"])
def test_state_that_is_deleted_is_gone_for_all_keys(memory_directory: str, kind: str) -> None:
    def init(handle: Any) -> Any:
        return _get(handle, kind, "v")

    def write(_: Any, state: Any, key: Any, rows: Any) -> None:
        if kind == "value":
            state.update((1,))
        elif kind == "list":
            state.appendValue((1,))
        else:
            state.updateValue(("a",), (1,))

    rows = [{"k": letter, "v": 1} for letter in "abc"]
    processor_job(memory_directory, CallbackProcessor(init, write)).run(rows)
    processor_job(
        memory_directory, CallbackProcessor(lambda handle: handle.deleteIfExists("v"))
    ).run([])
    job = processor_job(
        memory_directory, CallbackProcessor(init, lambda _, state, *__: [state.exists()])
    )
    assert outputs(job.run(rows)) == [False] * 3


def test_state_that_is_deleted_and_declared_anew_begins_empty(memory_directory: str) -> None:
    def init(handle: Any) -> Any:
        handle.deleteIfExists("v")
        return _get(handle, "value", "v")

    def body(_: Any, v: Any, *__: Any) -> Any:
        before = v.get()
        v.update((1,))
        return [before, v.get()]

    job = processor_job(memory_directory, CallbackProcessor(init, body))
    assert outputs(job.run(ROWS)) + outputs(job.run(ROWS)) == [None, (1,), None, (1,)]


def test_a_subtask_that_declares_something_else_than_the_driver_fails(
    memory_directory: str,
) -> None:
    def init(handle: Any) -> None:
        is_driver = "PRE_INIT" in repr(_refusal(handle))
        handle.getValueState("v", NUMBER if is_driver else NUMBER_AND_TEXT)

    job = processor_job(memory_directory, CallbackProcessor(init), time_mode="EventTime")
    with pytest.raises(InvalidRequestError, match="'v' with other arguments than when"):
        job.run(ROWS)


def _refusal(handle: Any) -> Exception:
    with pytest.raises(PySparkRuntimeError) as caught:
        handle.registerTimer(1)
    return caught.value


def test_timers_of_another_time_mode_are_not_forgotten(memory_directory: str) -> None:
    def body(p: Any, *_: Any) -> None:
        p.handle.registerTimer(5000)

    processor_job(memory_directory, CallbackProcessor(rows=body), time_mode="EventTime").run(ROWS)
    with pytest.raises(StateMigrationError, match="eventtime"):
        processor_job(memory_directory, CallbackProcessor(), time_mode="ProcessingTime").run(ROWS)
    processor_job(memory_directory, CallbackProcessor(), time_mode="EventTime").run(
        [], times=(0, 9000)
    )
    processor_job(memory_directory, CallbackProcessor(), time_mode="None").run(ROWS)
