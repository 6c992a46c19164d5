"""Changes of processors between runs: other fields, types and variables; and initial state."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from jobs.processor_jobs import (
    NUMBER,
    SCHEMA,
    TEXT,
    CallbackProcessor,
    number_state,
    outputs,
    processor_job,
    run_callbacks,
)
from pyspark.sql import types as spark

from holdfast.errors import StateMigrationError
from holdfast.spark.processors import INITIAL_STATE

INT, LONG, DOUBLE, STRING = (
    spark.IntegerType(),
    spark.LongType(),
    spark.DoubleType(),
    spark.StringType(),
)


def _struct(**fields: spark.DataType) -> spark.StructType:
    return spark.StructType([spark.StructField(name, kind) for name, kind in fields.items()])


BEFORE = _struct(n=INT, s=STRING)


def _all(schema: spark.StructType) -> Callable[[Any], Any]:
    return lambda handle: (
        handle.getValueState("v", schema),
        handle.getListState("l", schema),
        handle.getMapState("m", TEXT, schema),
    )


def _write(directory: str, schema: spark.StructType, values: Any) -> None:
    def body(_: Any, states: Any, key: Any, rows: Any) -> None:
        v, s, m = states
        v.update(values)
        s.appendValue(values)
        m.updateValue(("x",), values)

    run_callbacks(directory, _all(schema), body)


def _read(directory: str, schema: spark.StructType) -> list[Any]:
    def body(_: Any, states: Any, key: Any, rows: Any) -> Any:
        v, s, m = states
        return [v.get(), *s.get(), *m.values()]

    return run_callbacks(directory, _all(schema), body)


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        (_struct(s=STRING, n=INT), ("x", 1)),
        (_struct(n=LONG, s=STRING), (1, "x")),
        (_struct(n=DOUBLE, s=STRING), (1.0, "x")),
        (_struct(n=INT, s=STRING, new=DOUBLE), (1, "x", None)),
        (_struct(s=STRING), ("x",)),
    ],
    ids=lambda each: each.simpleString() if isinstance(each, spark.StructType) else "",
)
def test_fields_are_matched_by_name(
    memory_directory: str, schema: spark.StructType, values: Any
) -> None:
    _write(memory_directory, BEFORE, (1, "x"))
    assert _read(memory_directory, schema) == [values] * 3


@pytest.mark.parametrize(
    "schema",
    [
        _struct(n=STRING, s=STRING),
        _struct(number=INT, s=STRING),
        _struct(new=DOUBLE, s=STRING),
        _struct(a=INT, b=STRING),
    ],
    ids=lambda schema: schema.simpleString(),
)
def test_lossy_change_of_a_schema_is_refused(
    memory_directory: str, schema: spark.StructType
) -> None:
    _write(memory_directory, BEFORE, (1, "x"))
    with pytest.raises(
        StateMigrationError,
        match=r"\[STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION\] Schema evolution is not possible: ",
    ):
        _read(memory_directory, schema)
    with pytest.raises(StateMigrationError, match="state 'l'"):
        run_callbacks(memory_directory, lambda h: h.getListState("l", schema))
    assert _read(memory_directory, BEFORE) == [(1, "x")] * 3


def test_narrower_type_is_refused(memory_directory: str) -> None:
    _write(memory_directory, _struct(n=LONG), (1,))
    with pytest.raises(StateMigrationError):
        _read(memory_directory, NUMBER)


def test_value_state_does_not_become_a_list(memory_directory: str) -> None:
    _write(memory_directory, BEFORE, (1, "x"))
    with pytest.raises(
        StateMigrationError, match=r"\[STATE_STORE_INVALID_VARIABLE_TYPE_CHANGE\] .*'v'"
    ):
        run_callbacks(memory_directory, lambda h: h.getListState("v", BEFORE))


def test_undeclared_variable_is_kept(memory_directory: str) -> None:
    _write(memory_directory, BEFORE, (1, "x"))
    run_callbacks(memory_directory, lambda h: h.getValueState("new", NUMBER))
    assert _read(memory_directory, BEFORE) == [(1, "x")] * 3


def test_deleted_variable_may_return_with_another_type(memory_directory: str) -> None:
    _write(memory_directory, BEFORE, (1, "x"))
    run_callbacks(memory_directory, lambda h: h.deleteIfExists("v"))
    run_callbacks(memory_directory, lambda h: h.getListState("v", BEFORE))


@pytest.mark.parametrize("parallelism", [1, 3])
def test_state_survives_another_parallelism(memory_directory: str, parallelism: int) -> None:
    keys = [{"k": str(number), "v": number} for number in range(50)]

    def write(_: Any, v: Any, key: Any, rows: Any) -> None:
        v.update((int(key[0]),))

    run_callbacks(memory_directory, number_state, write, batch=keys, parallelism=2)
    values = run_callbacks(
        memory_directory,
        number_state,
        lambda _, v, key, __: [(key[0], v.get()[0])],
        batch=keys,
        parallelism=parallelism,
    )
    assert sorted(values) == sorted((row["k"], row["v"]) for row in keys)


def test_initial_state_comes_before_the_rows_of_a_key(memory_directory: str) -> None:
    def initial(p: Any, v: Any, key: Any, row: Any) -> None:
        assert row.__fields__ == ["name", "n"]
        v.update(((v.get() or (0,))[0] + row.n,))
        p.handle.registerTimer(3)

    def rows(_: Any, v: Any, key: Any, rows: Any) -> Any:
        return [(key[0], v.get(), len(list(rows)))]

    def timer(_: Any, v: Any, key: Any, time: int) -> Any:
        return [("timer", key.k, v.get())]

    state = pa.struct([("name", pa.string()), ("n", pa.int64())])
    schema = SCHEMA.append(pa.field(INITIAL_STATE, state))
    processor = CallbackProcessor(number_state, rows, timer, initial)
    states = [
        {"k": k, INITIAL_STATE: {"name": k, "n": n}} for k, n in (("c", 5), ("a", 1), ("c", 6))
    ]
    job = processor_job(memory_directory, processor, schema=schema, time_mode="EventTime")
    batch: list[dict[str, Any]] = [{"k": "b", "v": 1}, *states, {"k": "a", "v": 1}]
    assert outputs(job.run(batch, times=(0, 3))) == [
        ("a", (1,), 1),
        ("b", None, 1),
        ("timer", "a", (1,)),
        ("timer", "c", (11,)),
    ]
    job = processor_job(memory_directory, processor, time_mode="EventTime")
    assert outputs(job.run([{"k": "c", "v": 1}], times=(0, 3))) == [("c", (11,), 1)]
