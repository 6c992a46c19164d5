"""Requirements of every backend of keyed tables."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from contracts.keyed.checkpoints import (
    ALL,
    GROUPS,
    KeyedCheckpoints,
    parts_of,
)
from contracts.keyed.table_rows import (
    DELETE,
    KEY,
    NUMBER,
    PUT,
    VALUES,
    TableRowsSuite,
    can_be_key,
    keys_of,
    put,
    rows_of,
    values_of,
    write,
)

from holdfast.backends.keyed import (
    Keys,
    StateTables,
    TableSpec,
)
from holdfast.backends.keys import KeyGroupRange
from holdfast.errors import StateMigrationError
from holdfast.locations.handles import SegmentsStateHandle


class StateTablesContract(TableRowsSuite):
    """Requirements of every `StateTables`.

    Subclass it in a test file, under a name that pytest collects, and provide `tables_of`.
    """

    def test_snapshot_excludes_later_changes(
        self, tables: StateTables, checkpoints: KeyedCheckpoints
    ) -> None:
        table = tables.table(NUMBER)
        put(table, {"a": 1, "b": 2, "c": 3})
        first = tables.snapshot(1, checkpoints.location(1))
        put(table, {"a": 10, "d": 4})
        write(table, keys_of(["b"]), [0], DELETE)
        second = tables.snapshot(2, checkpoints.location(2))
        put(table, {"c": 30})
        results = {}

        def run() -> None:
            results[2] = checkpoints.run(second)

        thread = threading.Thread(target=run)
        thread.start()
        put(table, {"c": 31})
        thread.join()
        results[1] = checkpoints.run(first)
        keys = keys_of(["a", "b", "c", "d"])
        for number, expected in {
            1: {"a": 1, "b": 2, "c": 3},
            2: {"a": 10, "c": 3, "d": 4},
        }.items():
            restored = self.tables_of(ALL, results[number]).table(NUMBER)
            assert values_of(restored, keys) == expected
        assert values_of(table, keys) == {"a": 10, "c": 31, "d": 4}

    def test_a_cancelled_snapshot_leaves_nothing_and_loses_nothing(
        self, tables: StateTables, checkpoints: KeyedCheckpoints
    ) -> None:
        table = tables.table(NUMBER)
        put(table, {"a": 1})
        tables.snapshot(1, checkpoints.location(1)).cancel()
        tables.notify_checkpoint_aborted(1)
        assert checkpoints.files() == set()
        put(table, {"b": 2})
        written = tables.snapshot(2, checkpoints.location(2)).run().state
        tables.notify_checkpoint_aborted(2)
        checkpoints.discard_new(written)
        assert checkpoints.files() == set()
        handles = checkpoints.take(tables, 3)
        restored = self.tables_of(ALL, handles).table(NUMBER)
        assert values_of(restored, keys_of(["a", "b"])) == {"a": 1, "b": 2}

    def test_null_and_a_struct_of_nulls_are_two_keys_with_one_hash(
        self, tables: StateTables, checkpoints: KeyedCheckpoints
    ) -> None:
        type = pa.struct([("x", pa.int32()), ("y", pa.struct([("z", pa.string())]))])
        spec = replace(NUMBER, key=pa.schema([("k", type)]))
        structs = [None, {"x": None, "y": None}, {"x": None, "y": {"z": None}}]
        keys = Keys.of([pa.array(structs, type)], GROUPS)
        assert len(set(keys.sort_keys.tolist())) == 1
        table = tables.table(spec)
        write(table, keys, [1, 2, 3])
        checkpoints.take(tables)
        write(table, keys, [4, 5, 6], np.array([DELETE, PUT, DELETE], np.uint8))
        handles = checkpoints.take(tables, 2)
        for each in (table, self.tables_of(ALL, handles).table(spec)):
            present, (values,) = each.get(keys.identities)
            assert present.tolist() == [False, True, False]
            assert values[1].as_py() == 5
            assert sum(map(len, each.scan())) == 1

    @pytest.mark.parametrize("type", [*filter(can_be_key, VALUES)], ids=str)
    def test_key_is_found_with_any_other_keys_in_its_batch(
        self, tables: StateTables, checkpoints: KeyedCheckpoints, type: pa.DataType
    ) -> None:
        spec = replace(NUMBER, key=pa.schema([("k", type)]))
        keys = Keys.of([pa.array(VALUES[type], type)], GROUPS)
        write(tables.table(spec), keys, [*range(len(keys))])
        handles = checkpoints.take(tables)
        for each in (tables.table(spec), self.tables_of(ALL, handles).table(spec)):
            for number, value in enumerate(keys.columns[0].to_pylist()):
                present, (values,) = each.get(Keys.of([pa.array([value], type)], GROUPS).identities)
                assert present.all()
                assert values.to_pylist() == [number]

    def test_checkpoint_builds_on_last_confirmed_one(
        self, tables: StateTables, checkpoints: KeyedCheckpoints
    ) -> None:
        table = tables.table(NUMBER)
        expected: dict[str | None, Any] = {}
        for number in range(1, 12):
            expected |= {f"key {n}": n * number for n in range(0, 40, number)}
            put(table, expected)
            handles = checkpoints.take(tables, number)
            if number % 3:
                tables.notify_checkpoint_complete(number)
        tables.notify_checkpoint_complete(4)
        restored = self.tables_of(ALL, handles).table(NUMBER)
        assert values_of(restored, keys_of(list(expected))) == expected

    def test_unrequested_tables_are_carried_over(
        self, tables: StateTables, checkpoints: KeyedCheckpoints
    ) -> None:
        assert tables.specs() == {}
        assert checkpoints.take(tables) == ()
        put(tables.table(NUMBER), {"a": 1})
        tables.table(replace(NUMBER, name="empty"))
        handles = checkpoints.take(tables, 2)
        for number in (3, 4):
            restored = self.tables_of(ALL, handles)
            assert restored.specs().keys() == {"n", "empty"}
            assert restored.specs()["n"] == NUMBER
            handles = checkpoints.take(restored, number)
        assert values_of(self.tables_of(ALL, handles).table(NUMBER), keys_of(["a"])) == {"a": 1}

    def test_dropped_table_is_not_in_later_snapshots(
        self, tables: StateTables, checkpoints: KeyedCheckpoints
    ) -> None:
        put(tables.table(NUMBER), {"a": 1})
        put(tables.table(replace(NUMBER, name="other")), {"a": 2})
        before = tables.snapshot(1, checkpoints.location(1))
        tables.drop("n")
        tables.drop("unknown")
        assert tables.specs().keys() == {"other"}
        handles = checkpoints.run(before)
        tables.notify_checkpoint_complete(1)
        texts = replace(NUMBER, kind="list", values=pa.schema([("value", pa.string())]))
        keys = keys_of(["a"])
        assert values_of(tables.table(texts), keys) == {}
        after = checkpoints.take(tables, 2)
        tables.notify_checkpoint_complete(2)
        assert values_of(self.tables_of(ALL, handles).table(NUMBER), keys) == {"a": 1}
        restored = self.tables_of(ALL, after)
        assert values_of(restored.table(texts), keys) == {}
        restored = self.tables_of(ALL, handles)  # the table is not requested
        restored.drop("n")
        assert restored.specs().keys() == {"other"}
        assert values_of(restored.table(NUMBER), keys) == {}

    @pytest.mark.parametrize("counts", [(1, 3, 16, 2), (5, 2, 1), (2, 7, 3)])
    def test_each_subtask_has_the_rows_of_its_key_groups_at_any_parallelism(
        self, checkpoints: KeyedCheckpoints, counts: tuple[int, ...]
    ) -> None:
        expected: dict[str | None, Any] = {f"key {n}": n for n in range(100)}
        handles: tuple[SegmentsStateHandle, ...] = ()
        for step, count in enumerate(counts):
            given, handles = handles, ()
            seen: dict[Any, Any] = {}
            for subtask in range(count):
                groups = KeyGroupRange(
                    subtask * GROUPS // count, (subtask + 1) * GROUPS // count - 1
                )
                tables = self.tables_of(groups, parts_of(given, groups))
                table = tables.table(NUMBER)
                keys = keys_of(list(expected))
                inside = np.array([int(key) >> 48 in groups for key in keys.sort_keys])
                mine = keys.take(np.flatnonzero(inside))
                if not step:
                    write(table, mine, [expected[text] for text in mine.columns[0].to_pylist()])
                values = values_of(table, keys)
                assert values == rows_of(list(table.scan()))
                assert not values.keys() & seen.keys()
                seen |= values
                location = checkpoints.location(step * 100 + subtask + 1)
                handles += checkpoints.run(tables.snapshot(step * 100 + subtask + 1, location))
            assert seen == expected

    def test_values_are_migrated_when_the_table_is_asked_for(
        self, tables: StateTables, checkpoints: KeyedCheckpoints
    ) -> None:
        put(tables.table(NUMBER), {"a": 1, "b": None})
        handles = checkpoints.take(tables)
        texts = replace(NUMBER, values=pa.schema([("value", pa.string())]))

        def migration(_stored: TableSpec, values: Sequence[pa.Array]) -> tuple[pa.Array, ...]:
            return (values[0].cast(texts.values.field(0).type),)

        with pytest.raises(StateMigrationError, match="'n'"):
            self.tables_of(ALL, handles).table(texts)
        restored = self.tables_of(ALL, handles)
        table = restored.table(texts, migration)
        keys = keys_of(["a", "b", "c"])
        assert values_of(table, keys) == {"a": "1", "b": None}
        put(table, {"c": "x"})
        assert values_of(table, keys) == {"a": "1", "b": None, "c": "x"}
        handles = checkpoints.take(restored, 2)
        again = self.tables_of(ALL, handles).table(texts, migration)
        assert values_of(again, keys) == {"a": "1", "b": None, "c": "x"}

    @pytest.mark.parametrize(
        "change",
        [
            {"kind": "list"},
            {"key": pa.schema([("k", pa.large_string())])},
            {"sub_key": pa.schema([("s", pa.int64())])},
            {"namespace": pa.schema([("w", pa.int64())])},
            {"folds": ("sum",)},
        ],
        ids=lambda change: next(iter(change)),
    )
    def test_key_columns_can_not_be_migrated(
        self, tables: StateTables, checkpoints: KeyedCheckpoints, change: dict[str, Any]
    ) -> None:
        put(tables.table(NUMBER), {"a": 1})
        handles = checkpoints.take(tables)
        restored = self.tables_of(ALL, handles)
        with pytest.raises(StateMigrationError, match="'n'"):
            restored.table(replace(NUMBER, **change), lambda _, values: tuple(values))

    def test_key_stored_as_not_nullable_is_the_same_key(
        self, tables: StateTables, checkpoints: KeyedCheckpoints
    ) -> None:
        key = pa.schema([KEY.field(0).with_nullable(False).with_metadata({"file": "other"})])
        put(tables.table(replace(NUMBER, key=key)), {"a": 1})
        handles = checkpoints.take(tables)
        restored = self.tables_of(ALL, handles)
        table = restored.table(NUMBER)
        put(table, {None: 2})
        handles = checkpoints.take(restored, 2)
        for each in (table, self.tables_of(ALL, handles).table(NUMBER)):
            assert values_of(each, keys_of(["a", None])) == {"a": 1, None: 2}

    def test_time_to_live_may_become_another_one(
        self, tables: StateTables, checkpoints: KeyedCheckpoints
    ) -> None:
        put(tables.table(replace(NUMBER, ttl_ms=100)), {"a": 1})
        handles = checkpoints.take(tables)
        longer = self.tables_of(ALL, handles)
        longer.advance_time(1150)
        table = longer.table(replace(NUMBER, ttl_ms=200))
        assert values_of(table, keys_of(["a"])) == {"a": 1}
        longer.advance_time(1200)
        assert values_of(table, keys_of(["a"])) == {}
