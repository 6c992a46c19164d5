"""Inputs that once gave wrong results; each comparison begins with its own."""

from typing import Any

import pyarrow as pa

from proof.values.aggregates import AggregateCase, Batch, Change
from proof.values.call_cases import CallBatch, CallCase, Operation
from proof.values.history_cases import Event, HistoryCase
from proof.values.model import Spec
from proof.values.states import StateCase, StateKind, Step
from proof.values.windows import Kind, WindowBatch, WindowCase

_KEY = pa.schema([("k", pa.int64())])
_LONG = pa.schema([("n", pa.int64())])
_MAX_LONG = 2**63 - 1
_LAST_MICROS = 253_402_300_799_999_999

_RENAMED = Change(renamed=(("orders", "n"),))
_COUNT = {"n": Spec("count")}


def _of_decimals(digits: int, scale: int, *values: int, key: pa.Schema = _KEY) -> AggregateCase:
    columns = pa.schema([("n", pa.decimal128(digits, scale))])
    rows = tuple((1, value) for value in values)
    return AggregateCase(
        key, columns, {"s": Spec("sum", "n"), "m": Spec("avg", "n")}, (Batch(rows),)
    )


AGGREGATES = (
    # A renamed aggregate, undeclared and declared.
    AggregateCase(
        _KEY,
        _LONG,
        _COUNT,
        (
            Batch(((1, 1),) * 4),
            Batch(((1, 1),) * 4, change=Change(_RENAMED.renamed, is_declared=False)),
        ),
    ),
    AggregateCase(
        _KEY, _LONG, _COUNT, (Batch(((1, 1),) * 4), Batch(((1, 1),) * 4, 3, change=_RENAMED))
    ),
    # Sums that wrapped around, or were one digit too long.
    _of_decimals(38, 18, *[9 * 10**37] * 4),
    _of_decimals(38, 18, *[9 * 10**37] * 2),
    _of_decimals(38, 0, 5 * 10**37, 5 * 10**37 + 14),
    # Means that do not fit.
    _of_decimals(38, 0, -38405898858775192930159587703669210),
    # Keys that RocksDB did not find among others.
    AggregateCase(
        pa.schema([("k", pa.decimal128(18, 2))]),
        _LONG,
        {"s": Spec("sum", "n")},
        (Batch(((4, 1),), backend="rocksdb"), Batch(((5, 5), (4, 2)), backend="rocksdb")),
    ),
    # A change after another one, with fewer subtasks.
    AggregateCase(
        _KEY,
        _LONG,
        {"a": Spec("sum", "n")},
        (
            Batch(((1, 1),)),
            Batch(((2, 1),), 3, change=Change(added=(("c", Spec("sum", "n")),))),
            Batch((), 1, change=Change(renamed=(("b", "c"),))),
        ),
    ),
)

_WITHOUT_ANSI = (("spark.sql.ansi.enabled", "false"),)

AGGREGATES_ON_SPARK = (
    # Sums that overflow in the JVM where the session is not in ANSI mode.
    AggregateCase(
        _KEY,
        _LONG,
        {"s": Spec("sum", "n"), "m": Spec("avg", "n")},
        (Batch(((1, _MAX_LONG), (1, 1)), is_combined=True), Batch(((1, 10),), is_combined=True)),
        _WITHOUT_ANSI,
    ),
    AggregateCase(
        _KEY,
        pa.schema([("n", pa.decimal128(38, 0))]),
        {"s": Spec("sum", "n"), "m": Spec("avg", "n")},
        (Batch(((1, 10**38 - 1), (1, 1)), is_combined=True), Batch(((1, 7),), is_combined=True)),
        _WITHOUT_ANSI,
    ),
)

_EACH = (False, True)

STATES = (
    # Decimals of more than 28 digits, one by one.
    *(
        StateCase(
            _KEY,
            StateKind("reducing", pa.decimal128(38, 18), function="sum"),
            (
                Step(
                    "add",
                    (((1,), 12345678901123456789012345678), *[((1,), 1)] * 3),
                    by_key=by_key,
                ),
            ),
        )
        for by_key in _EACH
    ),
    # Arrays of nothing but nulls.
    *(
        StateCase(
            _KEY,
            StateKind("value", pa.list_(pa.null())),
            (Step("put", (((1,), [None, None]),), by_key=by_key),),
        )
        for by_key in _EACH
    ),
    # Elements of a list that expire in another order than they were added in.
    *(
        StateCase(
            _KEY,
            StateKind("list", pa.int64(), ttl_ms=10),
            (
                Step("append", (((1,), 1),), by_key=by_key, now_ms=100),
                Step("append", (((1,), 2),), by_key=by_key, now_ms=109),
                Step("append", (((1,), 3),), by_key=by_key, now_ms=111),
            ),
        )
        for by_key in _EACH
    ),
)

STATES_WITHOUT_TTL = tuple(case for case in STATES if case.kind.ttl_ms is None)

_FIRST_MS = -(2**63)

FUNCTIONS = (
    # A timer of the first time that there is fired twice.
    CallCase(
        "function",
        _KEY,
        (StateKind("value", pa.int64()),),
        "event",
        (),
        (
            CallBatch(
                (((1,), (Operation("register", argument=_FIRST_MS, domain="event"),)),),
                1_000,
                _FIRST_MS,
            ),
            CallBatch((), 1_000, _FIRST_MS),
            CallBatch((), 1_000, 0),
        ),
    ),
)

WINDOWS = (
    # A row at the end of the calendar.
    WindowCase(
        _KEY,
        pa.schema([("t", pa.timestamp("us", "UTC")), ("n", pa.int64())]),
        Kind("tumbling", 10),
        0,
        "append",
        {},
        (WindowBatch(((1, _LAST_MICROS, 1),), _LAST_MICROS // 1000 + 20),),
    ),
    # Several windows fire, and some of them are kept for late rows.
    WindowCase(
        _KEY,
        pa.schema([("t", pa.timestamp("us", "UTC")), ("n", pa.int64())]),
        Kind("tumbling", 10),
        5,
        "append",
        {"c": Spec("count")},
        (WindowBatch(((1, 1_000, 1), (1, 19_000, 1)), 20), WindowBatch(((1, 18_000, 1),), 24)),
    ),
)

_ROWS = ((1, 5, 1), (2, 6, 7))


def _history(*events: tuple[str, int], **options: Any) -> HistoryCase:
    """Return a history of a sum; an event's number chooses what happens."""
    made = tuple(Event(name, number, _ROWS) for name, number in events)
    usual: dict[str, Any] = {"window": None, "expires": False, "num_retained": 3}
    return HistoryCase({"s": Spec("sum", "n")}, events=made, **{**usual, **options})


HISTORIES = (
    # Rollback to the first batch: a sink by application and batch ids skipped repeated batches.
    _history(("batch", 0), ("batch", 0), ("batch", 0), ("roll back", 2), ("batch", 0)),
    # A fork, and the original after it.
    _history(("batch", 0), ("fork", 1), ("batch", 0)),
    # A clock that goes back by a minute after state has expired.
    HistoryCase(
        {"s": Spec("sum", "n")},
        None,
        expires=True,
        num_retained=3,
        events=(
            Event("batch", 6, _ROWS),
            Event("batch", 0, ()),  # 12 s later
            Event("the clock goes back", 6, _ROWS),
        ),
    ),
    # Windows of another size under the same uid.
    _history(("batch", 0), ("windows", 7), window=Kind("tumbling", 10)),
    # A column that becomes an array.
    *(_history(("batch", 0), ("type", number)) for number in range(4)),
)
