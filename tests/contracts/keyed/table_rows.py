"""Requirements of the rows of every backend of keyed tables."""

import datetime as dt
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from contracts.keyed.checkpoints import (
    ALL,
    GROUPS,
    KeyedCheckpoints,
    KeyedSuite,
)

from holdfast.backends.keyed import (
    Identities,
    Keys,
    Operation,
    StateTable,
    StateTables,
    TableRows,
    TableSpec,
    time_part,
)
from holdfast.backends.keys import check_key_type
from holdfast.errors import InvalidRequestError

KEY = pa.schema([("k", pa.string())])
NUMBER = TableSpec("n", "value", KEY, pa.schema([("value", pa.int64())]))
PUT, APPEND, DELETE = Operation

VALUES: dict[pa.DataType, list[Any]] = {
    pa.bool_(): [True, None, False],
    pa.int8(): [-128, None, 127],
    pa.uint64(): [0, None, (1 << 64) - 1],
    pa.float32(): [math.inf, None, -0.0],
    pa.float64(): [1e308, None, 5e-324],
    pa.decimal128(38, 3): [Decimal("-1.500"), None, Decimal("7.250")],
    pa.string(): ["", None, "häßlich"],
    pa.large_string(): ["a", None, "b" * 100],
    pa.binary(): [b"", None, b"\xff\x00"],
    pa.date32(): [dt.date(2026, 1, 1), None, dt.date(1, 1, 1)],
    pa.timestamp("ns", "UTC"): [1, None, -1],
    pa.time64("us"): [dt.time(1, 2, 3, 4), None, dt.time(0)],
    pa.duration("s"): [dt.timedelta(1), None, dt.timedelta(0)],
    pa.list_(pa.float64()): [[], None, [1.5, None]],
    pa.large_list(pa.string()): [["a"], None, ["b", ""]],
    pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))]): [
        {"a": 1, "b": None},
        None,
        {"a": None, "b": ["x"]},
    ],
    pa.map_(pa.string(), pa.int64()): [[("a", 1)], None, []],
    pa.dictionary(pa.int32(), pa.string()): ["a", None, "a"],
    pa.list_(pa.int16(), 2): [[1, 2], None, [3, 4]],
    pa.null(): [None, None, None],
}


def can_be_key(type: pa.DataType) -> bool:
    """Return whether columns of a type can be keys."""
    try:
        check_key_type(type)
    except InvalidRequestError:
        return False
    return True


FOLDS: list[tuple[Any, pa.DataType, list[Any], Any]] = [
    ("sum", pa.int64(), [1, 2, -4], -1),
    ("sum", pa.int8(), [100, 27], 127),
    ("sum", pa.float64(), [0.5, 0.25], 0.75),
    ("sum", pa.float32(), [2.0**127, 2.0**127], math.inf),
    ("sum", pa.decimal128(9, 2), [Decimal("1.10"), Decimal("2.20")], Decimal("3.30")),
    ("sum", pa.duration("us"), [dt.timedelta(1), dt.timedelta(2)], dt.timedelta(3)),
    ("min", pa.int32(), [3, 1, 2], 1),
    ("min", pa.float64(), [math.nan, 2.0], 2.0),
    ("min", pa.string(), ["b", "a", "c"], "a"),
    ("max", pa.string(), ["b", "c", ""], "c"),
    ("max", pa.date32(), [dt.date(2026, 1, 2), dt.date(2026, 1, 1)], dt.date(2026, 1, 2)),
    ("max", pa.bool_(), [False, True], True),
    ("any", pa.bool_(), [False, True, False], True),
    ("all", pa.bool_(), [True, True, False], False),
    ("concatenate", pa.list_(pa.string()), [["a"], ["b", None], ["c"]], ["a", "b", None, "c"]),
    ("sum", pa.int16(), [None, 5, None], 5),
]


def keys_of(texts: Sequence[str | None], *, collide: bool = False) -> Keys:
    """Return the distinct keys of strings; with `collide` they share few hashes."""
    hashes = np.zeros(len(texts), np.uint64) if collide else None
    return Keys.of([pa.array(texts, pa.string())], GROUPS, hashes)


def values_of(table: StateTable, keys: Keys, **options: bool) -> dict[str | None, Any]:
    """Return the first column of values of the keys with a row."""
    present, columns = table.get(keys.identities, **options)
    texts = keys.columns[0].to_pylist()
    rows = columns[0].to_pylist() if columns else texts
    return {text: row for text, row, is_there in zip(texts, rows, present, strict=True) if is_there}


def put(table: StateTable, values: dict[str | None, Any], *, collide: bool = False) -> None:
    """Put the first column of values."""
    keys = keys_of(list(values), collide=collide)
    write(table, keys, [values[text] for text in keys.columns[0].to_pylist()])


def write(
    table: StateTable, keys: Keys, values: Sequence[Any], operation: Any = Operation.PUT
) -> None:
    """Write the first column of values."""
    column = pa.array(values, table.spec.values.field(0).type)
    table.write(keys.identities, (column,), operation)


def rows_of(chunks: Sequence[TableRows]) -> dict[Any, Any]:
    """Return the first column of values by the last id column."""
    pairs: list[tuple[Any, Any]] = []
    for rows in chunks:
        names = rows.identities.columns[-1].to_pylist()
        values = rows.values[0].to_pylist() if rows.values else names
        pairs += zip(names, values, strict=True)
    assert len({repr(name) for name, _ in pairs}) == len(pairs)
    return dict(pairs)


class TableRowsSuite(KeyedSuite):
    """Requirements of rows; `StateTablesContract` includes them."""

    @pytest.fixture
    def tables(self) -> Iterator[StateTables]:
        tables = self.tables_of(ALL)
        tables.advance_time(1000)
        yield tables
        tables.close()
        tables.close()

    @pytest.mark.parametrize("collide", [False, True])
    def test_row_has_last_put_value(self, tables: StateTables, *, collide: bool) -> None:
        table = tables.table(NUMBER)
        keys = keys_of(["a", "b", "", None], collide=collide)
        assert values_of(table, keys) == {}
        put(table, {"a": 1, None: 2}, collide=collide)
        put(table, {"a": 3, "": None}, collide=collide)
        assert values_of(table, keys) == {"a": 3, None: 2, "": None}

    @pytest.mark.parametrize("collide", [False, True])
    def test_a_batch_may_put_append_and_delete(self, tables: StateTables, *, collide: bool) -> None:
        table = tables.table(replace(NUMBER, kind="reducing", folds=("sum",)))
        put(table, {"a": 1, "b": 2, "c": 3}, collide=collide)
        keys = keys_of(["a", "b", "c", "d"], collide=collide)
        operations = {"a": PUT, "b": DELETE, "c": APPEND, "d": APPEND}
        operations_of_rows = np.array(
            [operations[text] for text in keys.columns[0].to_pylist()], np.uint8
        )
        write(table, keys, [10, 10, 10, 10], operations_of_rows)
        assert values_of(table, keys) == {"a": 10, "c": 13, "d": 10}
        write(table, keys, [1, 1, 1, 1], APPEND)
        assert values_of(table, keys) == {"a": 11, "b": 1, "c": 14, "d": 11}

    @pytest.mark.parametrize("type", VALUES, ids=str)
    def test_values_of_every_type_come_back_as_they_are(
        self, tables: StateTables, checkpoints: KeyedCheckpoints, type: pa.DataType
    ) -> None:
        spec = replace(NUMBER, values=pa.schema([("value", type)]))
        table = tables.table(spec)
        keys = keys_of(["a", "b", "c", "d"])
        given = pa.array(VALUES[type], type)
        table.write(keys.take([0, 1, 2]).identities, (given,))
        handles = checkpoints.take(tables)
        for each in (table, self.tables_of(ALL, handles).table(spec)):
            present, (column,) = each.get(keys.identities)
            assert present.tolist() == [True, True, True, False]
            assert column.type == type
            assert column.slice(0, 3).to_pylist() == given.to_pylist()
            assert column.null_count == given.null_count + 1 or type == pa.null()

    def test_table_requested_twice_is_the_same_object(self, tables: StateTables) -> None:
        table = tables.table(NUMBER)
        put(table, {"a": 1})
        put(tables.table(NUMBER), {"b": 2})
        assert values_of(table, keys_of(["a", "b"])) == {"a": 1, "b": 2}
        with pytest.raises(InvalidRequestError, match="'n'"):
            tables.table(replace(NUMBER, ttl_ms=5))

    def test_a_row_has_as_many_values_as_the_table(self, tables: StateTables) -> None:
        fields = pa.schema([("x", pa.int64()), ("y", pa.string())])
        table = tables.table(replace(NUMBER, values=fields, is_struct=True))
        none = tables.table(replace(NUMBER, name="none", values=pa.schema([])))
        keys = keys_of(["a"])
        table.write(keys.identities, (pa.array([1]), pa.array(["one"])))
        none.write(keys.identities, ())
        present, (x, y) = table.get(keys.identities)
        assert (present.tolist(), x.to_pylist(), y.to_pylist()) == ([True], [1], ["one"])
        present, columns = none.get(keys_of(["a", "b"]).identities)
        assert sorted(present.tolist()) == [False, True]
        assert columns == ()

    @pytest.mark.parametrize("folding", FOLDS, ids=lambda folding: f"{folding[0]} {folding[1]}")
    def test_operands_are_folded_in_their_order(
        self,
        tables: StateTables,
        checkpoints: KeyedCheckpoints,
        folding: tuple[Any, pa.DataType, list[Any], Any],
    ) -> None:
        fold, type, operands, result = folding
        spec = replace(NUMBER, kind="reducing", folds=(fold,), values=pa.schema([("value", type)]))
        table = tables.table(spec)
        keys = keys_of(["a"])
        for number, operand in enumerate(operands):
            write(table, keys, [operand], APPEND)
            if number == 1:
                checkpoints.take(tables)
        assert values_of(table, keys) == {"a": result}
        handles = checkpoints.take(tables, 2)
        restored = self.tables_of(ALL, handles).table(spec)
        assert values_of(restored, keys) == {"a": result}
        write(table, keys, [operands[0]], DELETE)
        assert values_of(table, keys) == {}
        write(table, keys, [operands[0]], APPEND)
        assert repr(values_of(table, keys)) == repr({"a": operands[0]})  # NaN, too

    @pytest.mark.parametrize("times", [2, 4])
    @pytest.mark.parametrize(
        ("type_", "number"),
        [
            (pa.int64(), (1 << 63) - 1),
            (pa.decimal128(4, 2), Decimal("50.00")),
            (pa.decimal128(38, 18), Decimal(9 * 10**19)),  # four of them wrap around 128 bits
            (pa.decimal128(38, 0), -(10**38) + 1),
        ],
    )
    def test_overflowing_sum_is_refused(
        self, tables: StateTables, *, type_: pa.DataType, number: Any, times: int
    ) -> None:
        spec = replace(
            NUMBER, kind="reducing", values=pa.schema([("number", type_)]), folds=("sum",)
        )
        table = tables.table(spec)
        keys = keys_of(["a"])

        def add() -> None:
            for _ in range(times):
                write(table, keys, [number], APPEND)
            table.get(keys.identities)

        with pytest.raises(InvalidRequestError, match=r"state 'n'.*wider type"):
            add()

    @pytest.mark.parametrize("step_rows", [1, 7, 1 << 20])
    @pytest.mark.parametrize("collide", [False, True])
    def test_a_scan_gives_every_row_once_by_sort_key(
        self, tables: StateTables, *, step_rows: int, collide: bool
    ) -> None:
        table = tables.table(NUMBER)
        assert list(table.scan()) == []
        expected: dict[str | None, Any] = {f"key {n}": n for n in range(50)}
        put(table, expected, collide=collide)
        chunks = list(table.scan(step_rows))
        assert rows_of(chunks) == expected
        keys = np.concatenate([rows.identities.sort_keys for rows in chunks])
        assert (keys[1:] >= keys[:-1]).all()
        assert all(rows.times_ms is None for rows in chunks)

    def test_rows_between_are_those_of_the_ranges(self, tables: StateTables) -> None:
        table = tables.table(NUMBER)
        expected: dict[str | None, Any] = {f"key {n}": n for n in range(50)}
        put(table, expected)
        keys = keys_of(list(expected))
        chosen = keys.sort_keys[[3, 20, 21, 49]]
        rows = table.rows_between(chosen, chosen + np.uint64(1))
        assert rows_of([rows]) == {
            keys.columns[0][index].as_py(): expected[keys.columns[0][index].as_py()]
            for index in (3, 20, 21, 49)
        }
        ends = np.array([0, GROUPS << 47], np.uint64), np.array([1 << 48, GROUPS << 48], np.uint64)
        groups = keys.sort_keys >> np.uint64(48)
        inside = (groups < 1) | (groups >= GROUPS // 2)
        assert set(rows_of([table.rows_between(*ends)])) == set(
            keys.columns[0].filter(pa.array(inside)).to_pylist()
        )
        no_keys = np.empty(0, np.uint64)
        assert len(table.rows_between(no_keys, no_keys)) == 0

    def test_rows_are_selected_by_end_of_sort_key(self, tables: StateTables) -> None:
        table = tables.table(NUMBER)
        expected: dict[str | None, Any] = {f"key {n}": n for n in range(50)}
        put(table, expected)
        keys = keys_of(list(expected))
        chosen = [3, 20, 49]
        endings = np.zeros(1 << 16, bool)
        endings[keys.sort_keys[chosen].astype(np.uint16)] = True
        whole = np.array([0], np.uint64), np.array([GROUPS << 48], np.uint64)
        texts = keys.columns[0].to_pylist()
        assert rows_of([table.rows_between(*whole, endings=endings)]) == {
            texts[index]: expected[texts[index]] for index in chosen
        }
        part = keys.sort_keys[:10], keys.sort_keys[:10] + np.uint64(1)
        assert set(rows_of([table.rows_between(*part, endings=endings)])) == {texts[3]}

    def test_row_expires_after_its_time_to_live(
        self, tables: StateTables, checkpoints: KeyedCheckpoints
    ) -> None:
        spec = replace(NUMBER, ttl_ms=100)
        table = tables.table(spec)
        put(table, {"a": 1, "b": 2})
        tables.advance_time(1050)
        put(table, {"b": 3})
        keys = keys_of(["a", "b"])
        handles = checkpoints.take(tables)
        other = self.tables_of(ALL, handles)
        other.advance_time(1050)
        for each in (tables, other):
            held = each.table(spec) if each is other else table
            times: dict[str, int] = {}
            for rows in held.scan():
                assert rows.times_ms is not None
                names = rows.identities.columns[0].to_pylist()
                times |= zip(names, rows.times_ms.tolist(), strict=True)
            assert times == {"a": 1000, "b": 1050}
            each.advance_time(1099)
            assert values_of(held, keys) == {"a": 1, "b": 3}
            each.advance_time(1100)
            assert values_of(held, keys) == {"b": 3}
            assert rows_of(list(held.scan())) == {"b": 3}
            whole = np.array([0], np.uint64), np.array([GROUPS << 48], np.uint64)
            assert rows_of([held.rows_between(*whole)]) == {"b": 3}
            shown = values_of(held, keys, include_expired=True)
            assert shown.items() <= {"a": 1, "b": 3}.items()
            assert rows_of([held.rows_between(*whole, include_expired=True)]) == shown
            each.advance_time(1150)
            assert values_of(held, keys) == {}

    def test_time_does_not_overflow(self, tables: StateTables) -> None:
        table = tables.table(replace(NUMBER, ttl_ms=(1 << 63) - 1))
        put(table, {"a": 1})
        tables.advance_time((1 << 62) - 1)
        assert values_of(table, keys_of(["a"])) == {"a": 1}

    def test_timers_expire_up_to_a_time_and_later_ones_stay(
        self, tables: StateTables, checkpoints: KeyedCheckpoints
    ) -> None:
        spec = TableSpec(
            "t", "timers", KEY, pa.schema([]), sub_key=pa.schema([("time", pa.int64())])
        )
        table = tables.table(spec)
        times = np.array([5, 1000, 1001, 90_000])
        key = keys_of(["a"])

        def register(wanted: np.ndarray[Any, np.dtype[np.int64]]) -> None:
            sort_keys = (key.sort_keys >> np.uint64(48) << np.uint64(48)) | time_part(wanted)
            texts = pa.array(["a"] * len(wanted))
            table.write(Identities(sort_keys, (texts, pa.array(wanted))), ())

        register(times)
        assert table.earliest_time() == 5
        table.delete_up_to(1000)
        assert table.earliest_time() == 1001
        assert set(rows_of(list(table.scan()))) == {1001, 90_000}
        register(times[:1])
        assert table.earliest_time() == 5
        assert set(rows_of(list(table.scan()))) == {5, 1001, 90_000}
        checkpoints.take(tables)
        table.delete_up_to(5)
        assert table.earliest_time() == 1001
        handles = checkpoints.take(tables, 2)
        register(times[:1])
        assert set(rows_of(list(table.scan()))) == {5, 1001, 90_000}
        restored = self.tables_of(ALL, handles).table(spec)
        assert set(rows_of(list(restored.scan()))) == {1001, 90_000}
        assert restored.earliest_time() == 1001
