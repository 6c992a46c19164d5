"""Arrow types that change between two runs of a job: what is kept and what is refused."""

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from contracts.elements import (
    list_state,
    restore_from,
)
from contracts.migrations import CATEGORY, INTS, migrate, refusal_of, required_field, struct

from holdfast.backends import ListStateDescriptor, OperatorStateBackend
from holdfast.backends.serializers import IncompatibleTypeError, change_of
from holdfast.errors import InvalidRequestError, StateMigrationError


class TestArrowStructs:
    STORED = struct(a=pa.int64(), b=pa.string())
    ROWS: list[Any] = [{"a": 1, "b": "x"}, {"a": None, "b": None}]  # noqa: RUF012  # not changed

    def test_nullable_field_may_be_added(self) -> None:
        wanted = struct(a=pa.int64(), b=pa.string(), c=pa.list_(pa.int8()))
        assert migrate(self.STORED, wanted, self.ROWS) == [{**row, "c": None} for row in self.ROWS]

    @pytest.mark.parametrize(
        ("type", "default"),
        [
            (pa.int64(), 7),
            (pa.string(), ""),
            (pa.list_(pa.int8()), [1]),
            (struct(x=pa.int8()), {"x": 1}),
            (pa.map_(pa.string(), pa.int8()), [("a", 1)]),
            (pa.decimal128(5, 2), Decimal("1.50")),
            (pa.dictionary(pa.int32(), pa.string()), "a"),
        ],
        ids=str,
    )
    @pytest.mark.parametrize("nullable", [True, False])
    def test_field_with_a_default_may_be_added(
        self,
        type: Any,
        default: Any,
        nullable: bool,  # noqa: FBT001
    ) -> None:
        wanted = pa.struct([*self.STORED, pa.field("c", type, nullable=nullable)])
        rows = migrate(self.STORED, wanted, self.ROWS, {"c": default})
        assert rows == [{**row, "c": default} for row in self.ROWS]

    def test_required_field_needs_a_default(self) -> None:
        wanted = pa.struct([*self.STORED, required_field("c", pa.int64())])
        assert "c is new" in refusal_of(self.STORED, wanted, self.ROWS)

    def test_default_is_not_for_a_field_further_down(self) -> None:
        stored = struct(c=pa.int64(), d=struct(x=pa.int64()))
        wanted = struct(
            c=pa.int64(), d=pa.struct([("x", pa.int64()), required_field("c", pa.int64())])
        )
        backend = OperatorStateBackend()
        list_state(backend, "s", stored)
        with pytest.raises(StateMigrationError, match=r"d\.c is new"):
            restore_from(backend).get_list_state(
                ListStateDescriptor("s", wanted, defaults={"c": 1})
            )

    def test_fields_may_be_removed(self) -> None:
        rows = migrate(self.STORED, struct(b=pa.string()), self.ROWS, dropped=["a"])
        assert rows == [{"b": "x"}, {"b": None}]
        dropped = ["a", "b"]
        assert migrate(self.STORED, pa.struct([]), self.ROWS, dropped=dropped) == [{}, {}]

    def test_all_fields_may_be_others(self) -> None:
        rows = migrate(self.STORED, struct(c=pa.int8()), self.ROWS, dropped=["a", "b"])
        assert rows == [{"c": None}, {"c": None}]
        assert migrate(pa.struct([]), struct(c=pa.int8()), [{}, {}]) == rows

    def test_removed_fields_are_refused_unless_dropped(self) -> None:
        nested = struct(l=pa.list_(struct(p=pa.int64(), q=pa.int64())))
        wanted = struct(l=pa.list_(struct(p=pa.int64(), r=pa.int64())))
        rows = [{"l": [{"p": 1, "q": 2}]}, {"l": None}]
        message = refusal_of(nested, wanted, rows)
        assert "fields ['l[].q'] are gone and ['l[].r'] are new" in message
        assert "renamed={'l[].r': 'q'}" in message
        assert "dropped=['l[].q']" in message
        (first, _) = migrate(nested, wanted, rows, renamed={"l[].r": "q"})
        assert first == {"l": [{"p": 1, "r": 2}]}
        (first, _) = migrate(nested, wanted, rows, dropped=["l[].q"])
        assert first == {"l": [{"p": 1, "r": None}]}

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"renamed": {"x": "b"}}, "'x', which is not a field"),
            ({"renamed": {"a": "b"}}, "'b' as the old name of 'a', but 'b' is a field"),
            ({"renamed": {"a": "c", "b": "c"}}, "two fields can't have had the same name"),
            ({"dropped": ["a"]}, r"\['a'\], which are fields"),
            ({"dropped": "old"}, "must be a list of names"),
        ],
    )
    def test_contradictory_changes_are_refused(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(InvalidRequestError, match=f"'s'.*{message}"):
            ListStateDescriptor("s", self.STORED, **options)

    def test_field_stored_under_both_names_is_refused(self) -> None:
        backend = OperatorStateBackend()
        list_state(backend, "s", struct(a=pa.int64(), c=pa.int64()))
        wanted = ListStateDescriptor("s", struct(a=pa.int64()), renamed={"a": "c"})
        with pytest.raises(StateMigrationError, match="both are stored"):
            restore_from(backend).get_list_state(wanted)

    def test_fields_may_come_in_another_order(self) -> None:
        wanted = pa.struct(list(self.STORED)[::-1])
        backend = OperatorStateBackend()
        list_state(backend, "s", self.STORED).add_all(self.ROWS)
        state = list_state(restore_from(backend), "s", wanted)
        assert state.get() == self.ROWS
        assert [list(row) for row in state.get()] == [["b", "a"]] * 2

    def test_nullable_field_must_not_become_required(self) -> None:
        wanted = pa.struct([required_field("a", pa.int64()), ("b", pa.string())])
        assert "a was nullable" in refusal_of(self.STORED, wanted, self.ROWS)
        assert migrate(wanted, self.STORED, self.ROWS[:1]) == self.ROWS[:1]

    def test_two_fields_of_one_name_are_refused(self) -> None:
        twice = pa.struct([("a", pa.int64()), ("a", pa.int64())])
        with pytest.raises(IncompatibleTypeError, match="two fields"):
            change_of(twice, self.STORED)
        with pytest.raises(IncompatibleTypeError, match="two fields"):
            change_of(self.STORED, twice)

    def test_slices_with_nulls_inside_of_everything(self) -> None:
        inner = struct(x=pa.int8(), y=pa.string())
        stored = struct(
            l=pa.list_(inner), m=pa.map_(pa.string(), inner), s=inner, f=pa.list_(pa.int8(), 2)
        )
        wide = struct(y=pa.large_string(), z=pa.bool_(), x=pa.float64())
        wanted = struct(
            s=wide,
            m=pa.map_(pa.large_string(), wide),
            l=pa.large_list(wide),
            f=pa.list_(pa.int64()),
        )
        inner_row = {"x": 1, "y": "a"}
        rows: list[Any] = [
            {"l": [inner_row], "m": [("dropped", inner_row)], "s": inner_row, "f": [9, 9]},
            {
                "l": [inner_row, None, {"x": None, "y": None}],
                "m": [("k", inner_row), ("", None)],
                "s": None,
            }
            | {"f": [1, None]},
            {"l": None, "m": None, "s": {"x": -128, "y": ""}, "f": None},
            {"l": [], "m": [], "s": inner_row, "f": [3, 4]},
            {"l": [inner_row], "m": [("dropped", inner_row)], "s": inner_row, "f": [9, 9]},
        ]
        array = pa.array(rows, stored)
        for start in range(5):
            for length in range(6 - start):
                part = array[start : start + length]
                expected = [_wider(row) for row in rows[start : start + length]]
                assert migrate(stored, wanted, part) == expected
                change = change_of(stored, wanted)  # the offsets of a slice, not of a file
                result = change(part)
                result.validate(full=True)
                assert result.to_pylist() == expected


def _wider(row: dict[str, Any]) -> dict[str, Any]:
    def inner(value: Any) -> Any:
        return value and {"y": value["y"], "z": None, "x": value["x"]}

    return {
        "s": inner(row["s"]),
        "m": row["m"] and [(key, inner(value)) for key, value in row["m"]],
        "l": row["l"] and [inner(element) for element in row["l"]],
        "f": row["f"],
    }


FLOATS = {
    "halffloat": (pa.float16(), 11),
    "float": (pa.float32(), 24),
    "double": (pa.float64(), 53),
}


class TestArrowNumbers:
    @pytest.mark.parametrize("stored", INTS)
    @pytest.mark.parametrize("wanted", INTS)
    def test_integers_migrate_to_wider_integers(self, stored: str, wanted: str) -> None:
        int_type, low, high = INTS[stored]
        other, min_value, max_value = INTS[wanted]
        if min_value <= low and high <= max_value:
            assert migrate(int_type, other, [low, 0, high]) == [low, 0, high]
        else:
            assert "can't hold every" in refusal_of(int_type, other, [1])

    @pytest.mark.parametrize("stored", INTS)
    @pytest.mark.parametrize("wanted", FLOATS)
    def test_integers_migrate_to_exact_floats(self, stored: str, wanted: str) -> None:
        int_type, low, high = INTS[stored]
        other, bits = FLOATS[wanted]
        if max(-low, high + 1) <= 2**bits:
            values = [low, 0, high, high - 1]
            assert migrate(int_type, other, values) == values
        else:
            refusal_of(int_type, other, [1])

    @pytest.mark.parametrize("stored", FLOATS)
    @pytest.mark.parametrize("wanted", [*FLOATS, "int64"])
    def test_floats_become_wider_ones_only(self, stored: str, wanted: str) -> None:
        float_type, bits = FLOATS[stored]
        other, more = FLOATS.get(wanted, (pa.int64(), 0))
        if bits <= more:
            assert migrate(float_type, other, [1.5, -0.25]) == [1.5, -0.25]
        else:
            refusal_of(float_type, other, [1.5])

    @pytest.mark.parametrize(
        ("wanted", "fits"),
        [
            (pa.decimal128(5, 2), True),
            (pa.decimal128(6, 2), True),
            (pa.decimal128(6, 3), True),
            (pa.decimal256(76, 2), True),
            (pa.decimal128(5, 3), False),
            (pa.decimal128(4, 2), False),
            (pa.decimal128(9, 1), False),
            (pa.float64(), False),
            (pa.int64(), False),
            (pa.string(), False),
        ],
        ids=str,
    )
    def test_decimals_keep_their_digits(
        self,
        wanted: Any,
        fits: bool,  # noqa: FBT001
    ) -> None:
        values = [Decimal("-999.99"), Decimal("0.01")]
        if fits:
            assert migrate(pa.decimal128(5, 2), wanted, values) == values
        else:
            refusal_of(pa.decimal128(5, 2), wanted, values)


class TestOtherArrowTypes:
    @pytest.mark.parametrize(
        ("stored", "wanted", "values"),
        [
            (pa.string(), pa.large_string(), ["", "größe"]),
            (pa.string_view(), pa.string(), ["", "a" * 20]),
            (pa.string(), pa.string_view(), ["", "a" * 20]),
            (pa.binary(), pa.large_binary(), [b"", b"\xff"]),
            (CATEGORY, pa.string(), ["a", "b", "a"]),
            (CATEGORY, pa.large_string(), ["a", "b", "a"]),
            (CATEGORY, pa.string_view(), ["a", "b", "a"]),
            (pa.dictionary(pa.int32(), pa.int32()), pa.float64(), [1, 2, 1]),
            (pa.list_(pa.int8()), pa.list_(pa.int64()), [[1, None], []]),
            (pa.list_(pa.int8()), pa.large_list(pa.int8()), [[1, None], []]),
            (pa.list_(pa.int8(), 2), pa.list_(pa.int8()), [[1, None], [2, 3]]),
            (pa.list_(pa.list_(pa.int8())), pa.list_(pa.list_(pa.int16())), [[[1], None], []]),
            (
                pa.map_(pa.int8(), pa.string()),
                pa.map_(pa.int16(), pa.large_string()),
                [[(1, "a"), (2, None)], []],
            ),
        ],
        ids=str,
    )
    def test_wider_type_is_accepted(self, stored: Any, wanted: Any, values: list[Any]) -> None:
        assert migrate(stored, wanted, values) == values

    @pytest.mark.parametrize(
        ("stored", "wanted"),
        [
            (pa.large_string(), pa.string()),
            (pa.large_list(pa.int8()), pa.list_(pa.int8())),
            (pa.list_(pa.int8()), pa.list_(pa.int8(), 2)),
            (pa.list_(pa.int64()), pa.list_(pa.int8())),
            (pa.list_(pa.int64()), pa.int64()),
            (pa.int64(), pa.list_(pa.int64())),
            (pa.list_(pa.int8()), pa.list_(pa.field("item", pa.int8(), nullable=False))),
            (
                pa.map_(pa.string(), pa.int8()),
                pa.map_(pa.string(), pa.field("value", pa.int8(), nullable=False)),
            ),
            (pa.map_(pa.string(), pa.int8()), struct(a=pa.int8())),
            (pa.string(), pa.binary()),
            (pa.binary(), pa.string()),
            (pa.string(), pa.int64()),
            (pa.int64(), pa.string()),
            (pa.int64(), pa.bool_()),
            (pa.bool_(), pa.int64()),
            (pa.int64(), pa.timestamp("us")),
            (pa.timestamp("us"), pa.int64()),
            (pa.timestamp("us"), pa.timestamp("ms")),
            (pa.timestamp("us"), pa.timestamp("us", "UTC")),
            (pa.timestamp("us", "UTC"), pa.timestamp("us", "Europe/Berlin")),
            (pa.date32(), pa.timestamp("us")),
            (struct(a=pa.int64()), pa.int64()),
            (pa.string(), CATEGORY),
        ],
        ids=str,
    )
    def test_narrower_type_is_refused(self, stored: Any, wanted: Any) -> None:
        refusal_of(stored, wanted)

    @pytest.mark.parametrize(
        ("stored", "wanted", "at"),
        [
            (struct(a=struct(b=pa.string())), struct(a=struct(b=pa.int8())), "a.b "),
            (pa.list_(pa.string()), pa.list_(pa.int8()), "[] "),
            (struct(a=pa.list_(pa.string())), struct(a=pa.list_(pa.int8())), "a[] "),
            (pa.map_(pa.string(), pa.int8()), pa.map_(pa.int8(), pa.int8()), "[key] "),
            (pa.map_(pa.string(), pa.int8()), pa.map_(pa.string(), pa.bool_()), "[item] "),
        ],
        ids=str,
    )
    def test_migration_error_has_the_path(self, stored: Any, wanted: Any, at: str) -> None:
        assert at in refusal_of(stored, wanted)


def test_empty_dictionary_in_a_missing_struct_becomes_texts() -> None:
    kinds = pa.dictionary(pa.int32(), pa.string())
    stored, wanted = struct(s=struct(d=kinds)), struct(s=struct(d=pa.string()))
    assert migrate(stored, wanted, [{"s": None}]) == [{"s": None}]
    assert migrate(stored, wanted, [{"s": None}, {"s": {"d": "a"}}]) == [
        {"s": None},
        {"s": {"d": "a"}},
    ]
