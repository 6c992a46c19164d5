"""Reducing and aggregating states."""

from collections import Counter
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from contracts.keyed.checkpoints import (
    ROW,
    TTL,
    Place,
    StateSuite,
    UserStates,
    values_by_user,
)
from contracts.sketches import estimate_of, sketch_of

from holdfast.backends.descriptors import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ReducingStateDescriptor,
)
from holdfast.errors import InvalidRequestError


class WordCount(AggregateFunction):
    """Counts the words of strings; the accumulator is changed in place."""

    @property
    def accumulator_type(self) -> Any:
        return pa.map_(pa.string(), pa.int64())

    def create_accumulator(self) -> Any:
        return []

    def add(self, value: Any, accumulator: Any) -> Any:
        accumulator[:] = (Counter(dict(accumulator)) + Counter(value.split())).items()
        return accumulator

    def get_result(self, accumulator: Any) -> Any:
        return dict(accumulator)

    def merge(self, accumulator: Any, other: Any) -> Any:
        return list((Counter(dict(accumulator)) + Counter(dict(other))).items())


class FoldingSuite(StateSuite):
    """Requirements of reducing and aggregating states."""

    def test_columns_are_folded_by_known_functions(self, backend: UserStates) -> None:
        keys = backend.users("a", "b", "a", "a")
        functions: dict[Any, tuple[Any, Any, Any]] = {
            "sum": (int, [1, 2, 3, 4], {"a": 16, "b": 4}),
            "count": (int, [9, 9, 9, 9], {"a": 6, "b": 2}),
            "min": (float, [3.0, 2.0, 1.0, 5.0], {"a": 1.0, "b": 2.0}),
            "max": (str, ["x", "y", "z", ""], {"a": "z", "b": "y"}),
            "any": (bool, [False, False, True, False], {"a": True, "b": False}),
            "all": (bool, [True, True, False, True], {"a": False, "b": True}),
            "concatenate": (
                pa.list_(pa.int64()),
                [[1], [2], [], [3, 4]],
                {"a": [1, 3, 4, 1, 3, 4], "b": [2, 2]},
            ),
        }
        for function, (type, values, expected) in functions.items():
            for ttl in (None, TTL):
                name = f"{function} {ttl}"
                state = backend.get_reducing_state(
                    ReducingStateDescriptor(name, function, type, ttl=ttl)
                )
                assert values_by_user(keys, state.columns.get(keys)) == {"a": None, "b": None}
                for _ in range(2):
                    state.columns.add(keys, values)
                assert values_by_user(keys, state.columns.get(keys)) == expected, name
                one_by_one = backend.get_reducing_state(
                    ReducingStateDescriptor(f"{name} by key", function, type, ttl=ttl)
                )
                for reads in (False, True):
                    backend.begin_batch(keys)
                    for code, value in zip(keys.codes.tolist(), values, strict=True):
                        backend.set_current_key(code)
                        one_by_one.add(value)
                        assert not reads or one_by_one.get() is not None
                assert values_by_user(keys, one_by_one.columns.get(keys)) == expected, name
                state.columns.clear(keys)
                assert state.columns.get(keys).null_count == 2

    def test_sketches_of_distinct_values_become_one(self, backend: UserStates) -> None:
        keys = backend.users("a", "b", "a", "a")
        values = [sketch_of(range(2000)), sketch_of([1]), sketch_of([5]), sketch_of(range(9000))]
        for ttl in (None, TTL):
            descriptor = ReducingStateDescriptor(f"{ttl}", "hll_union", pa.binary(), ttl=ttl)
            state = backend.get_reducing_state(descriptor)
            state.columns.add(keys, values)
            state.columns.add(keys, values)
            backend.select()
            state.add(sketch_of(range(9000, 12_000)))
            backend.end_batch()
            estimates = {
                user: estimate_of(data)
                for user, data in values_by_user(keys, state.columns.get(keys)).items()
            }
            assert estimates == {
                "a": pytest.approx(12_000, rel=0.06),
                "b": pytest.approx(1, rel=0.01),
            }

    def test_bytes_of_invalid_sketch_are_refused(self, backend: UserStates) -> None:
        descriptor = ReducingStateDescriptor("s", "hll_union", pa.binary())
        state = backend.get_reducing_state(descriptor)
        with pytest.raises(InvalidRequestError, match=r"'s'.*not an HLL sketch"):
            state.columns.add(backend.users("a", "a"), [b"x", sketch_of([1])])

    def test_fields_of_a_struct_are_folded_each_by_its_function(self, backend: UserStates) -> None:
        descriptor = ReducingStateDescriptor("r", {"n": "count", "total": "sum"}, ROW)
        state = backend.get_reducing_state(descriptor)
        keys = backend.users("a", "b", "a")
        state.columns.add(keys, {"total": pa.array([1.0, 2.0, 3.0])})
        batch = pa.record_batch({"n": [7, 7, 7], "total": [1.0, 2.0, 3.0]}, ROW)
        state.columns.add(keys, batch)
        backend.select()
        state.add({"n": 0, "total": 0.5})
        assert state.get() == {"n": 5, "total": 8.5}
        assert values_by_user(keys, state.columns.get(keys)) == {
            "a": {"n": 5, "total": 8.5},
            "b": {"n": 2, "total": 4.0},
        }
        for wrong in ({"n": [1, 2, 3]}, {"total": [1.0, 2.0, 3.0], "more": [1, 2, 3]}):
            with pytest.raises(InvalidRequestError, match="state 'r' adds columns"):
                state.columns.add(keys, wrong)

    @pytest.mark.parametrize("known", ["count", "sum"])
    @pytest.mark.parametrize("wrong", [5, {"n": 1, "other": 2}, Place("x", 1)], ids=repr)
    def test_added_value_without_struct_fields_is_refused(
        self, backend: UserStates, known: Any, wrong: Any
    ) -> None:
        type = pa.schema([("n", pa.int64()), ("m", pa.int64())])
        descriptor = ReducingStateDescriptor("r", {"n": "max", "m": known}, type)
        state = backend.get_reducing_state(descriptor)
        backend.select()
        for _ in range(2):
            with pytest.raises(InvalidRequestError, match=r"'r' adds fields \['n', 'm'\]"):
                state.add(wrong)
            state.add({"n": 7, "m": 1})
        assert state.get() == {"n": 7, "m": 2}

    def test_structs_in_a_struct_are_compared_field_by_field(self, backend: UserStates) -> None:
        pair = pa.struct([("by", pa.float64()), ("value", pa.string())])
        row = pa.schema([("first", pair), ("last", pair)])
        functions: dict[str, Any] = {"first": "min", "last": "max"}
        ascending = [
            None,  # no operand at all
            {"by": None, "value": "z"},
            {"by": -1.0, "value": None},
            {"by": -1.0, "value": "a"},
            {"by": 2.0, "value": "b"},
            {"by": float("nan"), "value": "a"},
            {"by": float("nan"), "value": "c"},
        ]
        keys = backend.users(*"abababa")
        expected = [
            ("a", {"first": ascending[2], "last": ascending[6]}),
            ("b", {"first": ascending[1], "last": ascending[5]}),
        ]
        by_array = backend.get_reducing_state(ReducingStateDescriptor("r", functions, row)).columns
        for values in (ascending, ascending[::-1]):
            pairs = pa.array(values, pair)
            by_array.add(keys, pa.StructArray.from_arrays([pairs, pairs], fields=list(row)))
            # NaN equals itself only as text.
            assert repr(sorted(values_by_user(keys, by_array.get(keys)).items())) == repr(expected)
        by_key = backend.get_reducing_state(ReducingStateDescriptor("k", functions, row))
        for values in (ascending, ascending[::-1]):
            backend.begin_batch(keys)
            for code, value in zip(keys.codes.tolist(), values, strict=True):
                backend.set_current_key(code)
                by_key.add({"first": value, "last": value})
            backend.end_batch()
            assert repr(sorted(values_by_user(keys, by_key.columns.get(keys)).items())) == repr(
                expected
            )

    @pytest.mark.parametrize("function", ["sum", lambda a, b: a + b], ids=["known", "python"])
    def test_reducing_state_starts_over_after_clear(
        self, backend: UserStates, function: Any
    ) -> None:
        state = backend.get_reducing_state(ReducingStateDescriptor("r", function, int))
        backend.select()
        assert state.get() is None
        state.add(1)
        state.add(2)
        backend.select()
        state.add(3)
        assert state.get() == 6
        state.add(None)
        assert state.get() is None
        state.add(4)
        backend.select()
        assert state.get() == 4
        state.clear()
        backend.select()
        assert state.get() is None
        keys = backend.users("a", "b", "a")
        state.columns.add(keys, [1, 2, 3])
        assert values_by_user(keys, state.columns.get(keys)) == {"a": 4, "b": 2}
        with pytest.raises(InvalidRequestError, match=r"'r'.*None"):
            state.columns.add(keys, [1, None, 3])

    def test_means_and_functions_of_users_aggregate(self, backend: UserStates) -> None:
        mean = backend.get_aggregating_state(AggregatingStateDescriptor("mean", "avg"))
        words = backend.get_aggregating_state(AggregatingStateDescriptor("words", WordCount()))
        keys = backend.users("a", "b", "a")
        assert values_by_user(keys, mean.columns.get(keys)) == {"a": None, "b": None}
        assert words.columns.get(keys) == [None, None]
        mean.columns.add(keys, [1, 2, 3])
        words.columns.add(keys, pa.array(["x y", "z", "x"]))
        backend.select()
        mean.add(8)
        words.add("x w")
        assert mean.get() == 4.0
        assert words.get() == {"x": 3, "y": 1, "w": 1}
        assert values_by_user(keys, mean.columns.get(keys)) == {"a": 4.0, "b": 2.0}
        assert values_by_user(keys, words.columns.get(keys))["b"] == {"z": 1}
        backend.select()
        mean.add(None)
        words.clear()
        assert mean.get() is words.get() is None
        backend.select()
        assert mean.get() is words.get() is None

    def test_sums_of_the_current_key_have_the_digits_of_the_type(self, backend: UserStates) -> None:
        kind = pa.decimal128(38, 18)
        state = backend.get_reducing_state(ReducingStateDescriptor("s", "sum", kind))
        floats = backend.get_reducing_state(ReducingStateDescriptor("f", "sum", pa.float32()))
        backend.select()
        for text in ("12345678901.123456789012345678", *["0.000000000000000001"] * 3):
            state.add(Decimal(text))
        assert state.get() == Decimal("12345678901.123456789012345681")
        for number in (0.1, 0.2, 16777216.0, 1.0):
            floats.add(number)
        assert floats.get() == 16777216.0
        for _ in range(4):
            state.add(Decimal("9e19"))
        with pytest.raises(InvalidRequestError, match="'s': a sum is too large for type decimal"):
            backend.end_batch()
