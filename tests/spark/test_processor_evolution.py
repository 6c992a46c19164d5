"""State of processors from one run to the next: other fields, other types, other variables; and initial state."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from jobs.processor_jobs import NUMBER, SCHEMA, TEXT, CallbackProcessor, outputs, processor_job
from pyspark.sql import types as spark

from holdfast.errors import StateMigrationError
from holdfast.spark.processors import INITIAL_STATE

INT, LONG, DOUBLE, STRING = (
    spark.IntegerType(),
    spark.LongType(),
    spark.DoubleType(),
    spark.StringType(),
)
ROWS = [{"k": "a", "v": 1}]


def _struct(**fields: spark.DataType) -> spark.StructType:
    return spark.StructType([spark.StructField(name, kind) for name, kind in fields.items()])


BEFORE = _struct(n=INT, s=STRING)


def _all(schema: spark.StructType, ttl: int | None = None) -> Callable[[Any], Any]:
    return lambda handle: (
        handle.getValueState("v", schema, ttl),
        handle.getListState("l", schema, ttl),
        handle.getMapState("m", TEXT, schema, ttl),
    )


def _write(directory: str, schema: spark.StructType, values: Any, **how: Any) -> None:
    def body(_: Any, states: Any, key: Any, rows: Any) -> None:
        v, s, m = states
        v.update(values)
        s.appendValue(values)
        m.updateValue(("x",), values)

    ttl = how.pop("ttl", None)
    processor_job(directory, CallbackProcessor(_all(schema, ttl), body), **how).run(
        ROWS, times=(0, 0)
    )


def _read(directory: str, schema: spark.StructType) -> list[Any]:
    def body(_: Any, states: Any, key: Any, rows: Any) -> Any:
        v, s, m = states
        return [v.get(), *s.get(), *m.values()]

    return outputs(processor_job(directory, CallbackProcessor(_all(schema), body)).run(ROWS))


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
def test_fields_are_found_by_their_names(
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
def test_a_change_that_would_lose_values_is_refused(
    memory_directory: str, schema: spark.StructType
) -> None:
    _write(memory_directory, BEFORE, (1, "x"))
    with pytest.raises(
        StateMigrationError,
        match=r"\[STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION\] Schema evolution is not possible: ",
    ):
        _read(memory_directory, schema)
    with pytest.raises(StateMigrationError, match="state 'l'"):
        processor_job(
            memory_directory, CallbackProcessor(lambda h: h.getListState("l", schema))
        ).run(ROWS)
    assert _read(memory_directory, BEFORE) == [(1, "x")] * 3


def test_a_wider_type_does_not_become_narrow(memory_directory: str) -> None:
    _write(memory_directory, _struct(n=LONG), (1,))
    with pytest.raises(StateMigrationError):
        _read(memory_directory, NUMBER)


def test_a_value_does_not_become_a_list(memory_directory: str) -> None:
    _write(memory_directory, BEFORE, (1, "x"))
    with pytest.raises(
        StateMigrationError, match=r"\[STATE_STORE_INVALID_VARIABLE_TYPE_CHANGE\] .*'v'"
    ):
        processor_job(
            memory_directory, CallbackProcessor(lambda h: h.getListState("v", BEFORE))
        ).run(ROWS)


def test_a_variable_that_is_not_declared_stays(memory_directory: str) -> None:
    _write(memory_directory, BEFORE, (1, "x"))
    processor_job(
        memory_directory, CallbackProcessor(lambda h: h.getValueState("new", NUMBER))
    ).run(ROWS)
    assert _read(memory_directory, BEFORE) == [(1, "x")] * 3


def test_a_variable_that_was_deleted_may_come_back_as_another_kind(memory_directory: str) -> None:
    _write(memory_directory, BEFORE, (1, "x"))
    processor_job(memory_directory, CallbackProcessor(lambda h: h.deleteIfExists("v"))).run(ROWS)
    processor_job(memory_directory, CallbackProcessor(lambda h: h.getListState("v", BEFORE))).run(
        ROWS
    )


@pytest.mark.parametrize("parallelism", [1, 3])
def test_state_survives_another_parallelism(memory_directory: str, parallelism: int) -> None:
    keys = [{"k": str(number), "v": number} for number in range(50)]

    def write(_: Any, v: Any, key: Any, rows: Any) -> None:
        v.update((int(key[0]),))

    def init(handle: Any) -> Any:
        return handle.getValueState("v", NUMBER)

    processor_job(memory_directory, CallbackProcessor(init, write), parallelism=2).run(keys)
    job = processor_job(
        memory_directory,
        CallbackProcessor(init, lambda _, v, key, __: [(key[0], v.get()[0])]),
        parallelism=parallelism,
    )
    assert sorted(outputs(job.run(keys))) == sorted((row["k"], row["v"]) for row in keys)


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
    processor = CallbackProcessor(lambda h: h.getValueState("v", NUMBER), rows, timer, initial)
    states = [
        {"k": k, INITIAL_STATE: {"name": k, "n": n}} for k, n in (("c", 5), ("a", 1), ("c", 6))
    ]
    job = processor_job(memory_directory, processor, schema=schema, time_mode="EventTime")
    given: list[dict[str, Any]] = [{"k": "b", "v": 1}, *states, {"k": "a", "v": 1}]
    assert outputs(job.run(given, times=(0, 3))) == [
        ("a", (1,), 1),
        ("b", None, 1),
        ("timer", "a", (1,)),
        ("timer", "c", (11,)),
    ]
    job = processor_job(memory_directory, processor, time_mode="EventTime")
    assert outputs(job.run([{"k": "c", "v": 1}], times=(0, 3))) == [("c", (11,), 1)]
