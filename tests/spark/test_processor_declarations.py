"""Declarations of processors, and calls at the wrong time: Spark errors, with its classes."""

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from jobs.processor_jobs import (
    NUMBER,
    NUMBER_AND_TEXT,
    OUT,
    ROWS,
    TEXT,
    CallbackProcessor,
    outputs,
    processor_job,
    run_callbacks,
)
from jobs.pyspark_versions import requires_pyspark
from jobs.stateful_processor import ListState, MapState, ValueState
from pyspark.errors import AnalysisException, IllegalArgumentException, PySparkRuntimeError
from pyspark.sql import types as spark

from holdfast.errors import InvalidRequestError, StateMigrationError
from holdfast.spark.processors import ProcessorFunction, StatefulProcessorError


def _declare(init: Callable[[Any], Any], time_mode: str = "None") -> ProcessorFunction:
    return ProcessorFunction(CallbackProcessor(init), OUT, "Update", time_mode)


def _get(handle: Any, kind: str, name: str, ttl: Any = None) -> Any:
    if kind == "map":
        return handle.getMapState(name, TEXT, NUMBER, ttl)
    get = handle.getValueState if kind == "value" else handle.getListState
    return get(name, NUMBER, ttl)


def test_states_have_the_classes_of_spark(memory_directory: str) -> None:
    def init(handle: Any) -> Any:
        states = [_get(handle, kind, kind) for kind in ("value", "list", "map")]
        assert [type(s).__mro__[-2] for s in states] == [ValueState, ListState, MapState]
        return states

    run_callbacks(memory_directory, init)


@pytest.mark.parametrize(
    ("first", "second"), [("value", "list"), ("value", "map"), ("list", "value"), ("map", "map")]
)
def test_state_name_can_be_declared_once(first: str, second: str) -> None:
    with pytest.raises(
        PySparkRuntimeError,
        match=r"\[STATEFUL_PROCESSOR_DUPLICATE_STATE_VARIABLE_DEFINED\] State variable with name v ",
    ):
        _declare(lambda handle: (_get(handle, first, "v"), _get(handle, second, "v")))


def test_two_value_states_with_one_name_raise_the_spark_error() -> None:
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
def test_state_names_refused_by_spark_are_refused(name: str, condition: str) -> None:
    with pytest.raises(PySparkRuntimeError, match=condition):
        _declare(lambda handle: _get(handle, "list", name))


def test_state_names_may_be_unusual(memory_directory: str) -> None:
    names = ["a b", "_a", "ü", "a.b", "a/b", 300 * "x", "v", "V"]

    def body(_: Any, states: Any, key: Any, rows: Any) -> Any:
        for number, state in enumerate(states):
            state.update((number,))

    def read(_: Any, states: Any, key: Any, rows: Any) -> Any:
        return [[state.get()[0] for state in states]]

    def init(handle: Any) -> Any:
        return [_get(handle, "value", name) for name in names]

    run_callbacks(memory_directory, init, body)
    assert run_callbacks(memory_directory, init, read) == [list(range(len(names)))]


@pytest.mark.parametrize(
    "operation", ["get_value_state", "get_list_state", "get_map_state", "delete_if_exists"]
)
def test_state_is_declared_only_in_init(memory_directory: str, operation: str) -> None:
    def body(p: Any, *_: Any) -> Any:
        kind = operation.split("_")[1]
        with pytest.raises(PySparkRuntimeError) as caught:
            if kind == "if":
                p.handle.deleteIfExists("v")
            else:
                _get(p.handle, kind, "v")
        return [str(caught.value).partition(": ")[2]]

    assert run_callbacks(memory_directory, rows=body) == [
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
def test_state_calls_in_init_are_refused(use: Any, operation: str) -> None:
    message = f"operation={operation} with invalid handle state=PRE_INIT"
    with pytest.raises(PySparkRuntimeError, match=message):
        _declare(use, "EventTime")


def test_timers_in_time_mode_none_are_refused(memory_directory: str) -> None:
    def body(p: Any, *_: Any) -> Any:
        for call in (
            lambda: p.handle.registerTimer(5),
            lambda: p.handle.deleteTimer(5),
            p.handle.listTimers,
        ):
            with pytest.raises(PySparkRuntimeError, match="timeMode=NoTime") as caught:
                call()
            yield str(caught.value).split("[")[1].split("]")[0]

    expected = "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_TIME_MODE"
    assert run_callbacks(memory_directory, rows=body) == [expected] * 3


@pytest.mark.parametrize(("mode", "shown"), [("None", "NoTime"), ("EventTime", "EventTime")])
def test_time_to_live_needs_processing_time(mode: str, shown: str) -> None:
    with pytest.raises(PySparkRuntimeError) as caught:
        _declare(lambda handle: _get(handle, "map", "v", 5), mode)
    assert str(caught.value) == (
        "Error initializing map state: [STATEFUL_PROCESSOR_INCORRECT_TIME_MODE_TO_ASSIGN_TTL] Cannot use TTL for "
        f"state=v in timeMode={shown}, use TimeMode.ProcessingTime() instead."
    )


def test_negative_or_fractional_time_to_live_is_refused() -> None:
    _declare(lambda handle: _get(handle, "value", "v", 0))
    _declare(lambda handle: _get(handle, "value", "v", 1), "processingtime")
    with pytest.raises(
        PySparkRuntimeError, match="STATEFUL_PROCESSOR_TTL_DURATION_MUST_BE_POSITIVE"
    ):
        _declare(lambda handle: _get(handle, "value", "v", -1), "ProcessingTime")
    with pytest.raises(TypeError):
        _declare(lambda handle: _get(handle, "value", "v", 1.5), "ProcessingTime")


def test_schema_must_be_a_struct() -> None:
    with pytest.raises(PySparkRuntimeError, match="FAILED_PARSE_STRUCT_TYPE"):
        _declare(lambda handle: handle.getValueState("v", spark.IntegerType()))


def test_schema_with_two_fields_of_one_name_is_refused() -> None:
    twice = spark.StructType([*NUMBER.fields, *NUMBER.fields])
    with pytest.raises(InvalidRequestError, match="two fields of the name 'n'"):
        _declare(lambda handle: handle.getValueState("v", twice))


@requires_pyspark("4.0", "types for calendar intervals and collations")
def test_unsupported_type_is_refused_on_the_driver() -> None:
    schema = spark.StructType([spark.StructField("x", spark.CalendarIntervalType())])
    with pytest.raises(InvalidRequestError, match="interval"):
        _declare(lambda handle: handle.getValueState("v", schema))
    collated = spark.StructType([spark.StructField("x", spark.StringType("UNICODE_CI"))])
    _declare(lambda handle: handle.getValueState("v", collated))  # only kept, never compared
    with pytest.raises(InvalidRequestError, match=r"keys of map state 'm' have type .*UNICODE_CI"):
        _declare(lambda handle: handle.getMapState("m", collated, NUMBER))


def test_non_nullable_field_is_accepted(memory_directory: str) -> None:
    schema = spark.StructType([spark.StructField("n", spark.IntegerType(), nullable=False)])
    run_callbacks(
        memory_directory,
        lambda handle: handle.getValueState("v", schema),
        lambda _, v, *__: v.update((1,)),
    )


def test_modes_are_parsed_like_in_spark() -> None:
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


def test_objects_other_than_processors_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="StatefulProcessor"):
        ProcessorFunction(object(), OUT)  # type: ignore[arg-type]


def test_declared_and_deleted_state_can_not_be_used(memory_directory: str) -> None:
    def init(handle: Any) -> Any:
        state = _get(handle, "value", "v")
        handle.deleteIfExists("v")
        handle.deleteIfExists("unknown")
        return state

    def body(_: Any, v: Any, *__: Any) -> Any:
        with pytest.raises(PySparkRuntimeError) as caught:
            v.get()
        return [str(caught.value)]

    message = "Error getting value state: Value state v is not initialized."
    assert run_callbacks(memory_directory, init, body) == [message]


@pytest.mark.parametrize("kind", ["value", "list", "map"])
def test_deleted_state_is_deleted_for_all_keys(memory_directory: str, kind: str) -> None:
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
    run_callbacks(memory_directory, init, write, batch=rows)
    run_callbacks(memory_directory, lambda handle: handle.deleteIfExists("v"), batch=[])
    exist = run_callbacks(
        memory_directory, init, lambda _, state, *__: [state.exists()], batch=rows
    )
    assert exist == [False] * 3


def test_state_deleted_and_declared_again_is_empty(memory_directory: str) -> None:
    def init(handle: Any) -> Any:
        handle.deleteIfExists("v")
        return _get(handle, "value", "v")

    def body(_: Any, v: Any, *__: Any) -> Any:
        before = v.get()
        v.update((1,))
        return [before, v.get()]

    job = processor_job(memory_directory, CallbackProcessor(init, body))
    assert outputs(job.run(ROWS)) + outputs(job.run(ROWS)) == [None, (1,), None, (1,)]


def test_subtask_with_other_declarations_than_the_driver_fails(memory_directory: str) -> None:
    def init(handle: Any) -> None:
        is_driver = "PRE_INIT" in repr(_timer_error(handle))
        handle.getValueState("v", NUMBER if is_driver else NUMBER_AND_TEXT)

    with pytest.raises(InvalidRequestError, match="'v' with other arguments than when"):
        run_callbacks(memory_directory, init, time_mode="EventTime")


def _timer_error(handle: Any) -> Exception:
    with pytest.raises(PySparkRuntimeError) as caught:
        handle.registerTimer(1)
    return caught.value


def test_timers_of_another_time_mode_are_kept(memory_directory: str) -> None:
    def body(p: Any, *_: Any) -> None:
        p.handle.registerTimer(5000)

    run_callbacks(memory_directory, rows=body, time_mode="EventTime")
    with pytest.raises(StateMigrationError, match="eventtime"):
        run_callbacks(memory_directory, time_mode="ProcessingTime")
    run_callbacks(memory_directory, batch=[], times=(0, 9000), time_mode="EventTime")
    run_callbacks(memory_directory, time_mode="None")
