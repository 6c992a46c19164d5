"""What descriptors of keyed state refuse."""

import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from holdfast.backends import OperatorStateBackend
from holdfast.backends.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    UpdateType,
    ValueStateDescriptor,
)
from holdfast.errors import InvalidRequestError

ROW = pa.schema([("n", pa.int64()), ("text", pa.string())])


@pytest.mark.parametrize(
    ("function", "type"),
    [
        ("sum", str),
        ("sum", pa.date32()),
        ("sum", ROW),
        ("count", float),
        ("min", pa.list_(pa.int64())),
        ("any", int),
        ("concatenate", str),
        ("hll_union", str),
        ("mean", int),
        (None, int),
        ({"n": "sum"}, ROW),
        ({"n": "sum", "text": "sum"}, ROW),
        ({"n": "sum", "text": "max", "more": "max"}, ROW),
        ({"n": "sum"}, int),
        ("max", ROW),
        ({"pair": "max"}, pa.schema([("pair", pa.struct([("x", pa.list_(pa.int64()))]))])),
        ({"pair": "sum"}, pa.schema([("pair", pa.struct([("x", pa.int64())]))])),
    ],
)
def test_functions_are_known_and_of_types_that_they_take(function: Any, type: Any) -> None:
    with pytest.raises(InvalidRequestError, match="state 'r'"):
        ReducingStateDescriptor("r", function, type)


def test_sketches_without_their_package_are_refused_with_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "datasketches", None)
    with pytest.raises(InvalidRequestError, match=r"pip install 'holdfast\[sketches\]'"):
        ReducingStateDescriptor("r", "hll_union", pa.binary())


def test_functions_of_each_field_are_taken() -> None:
    assert ReducingStateDescriptor("r", {"n": "count", "text": "max"}, ROW).name == "r"
    pair = pa.schema([("pair", pa.struct([("x", pa.int64()), ("y", pa.string())]))])
    assert ReducingStateDescriptor("r", {"pair": "max"}, pair).name == "r"


def test_what_aggregates_is_a_function() -> None:
    with pytest.raises(InvalidRequestError, match="'median' is neither 'avg' nor"):
        AggregatingStateDescriptor("a", "median")  # type: ignore[arg-type]


def test_a_default_is_a_value_of_the_type() -> None:
    with pytest.raises(InvalidRequestError, match="'v': the default is no int64"):
        ValueStateDescriptor("v", int, default="x")


def test_nothing_lives_for_less_than_a_millisecond() -> None:
    with pytest.raises(InvalidRequestError, match="at least a millisecond"):
        StateTtlConfig(timedelta(0))
    assert StateTtlConfig(timedelta(days=1)).ttl_ms == 86_400_000
    assert StateTtlConfig(timedelta(days=1), UpdateType.DISABLED).ttl_ms is None


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((1000,), "ttl"),
        ((timedelta(1), "disabled"), "update_type"),
        ((timedelta(1), UpdateType.DISABLED, None), "visibility"),
    ],
)
def test_a_time_to_live_of_other_types_is_refused(arguments: Any, name: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"{name} of a time to live is a .*, and not"):
        StateTtlConfig(*arguments)


def test_operator_state_has_no_time_to_live() -> None:
    ttl, backend = StateTtlConfig(timedelta(days=1)), OperatorStateBackend()
    calls: list[Callable[[], object]] = [
        lambda: backend.get_list_state(ListStateDescriptor("s", int, ttl=ttl)),
        lambda: backend.get_union_list_state(ListStateDescriptor("s", int, ttl=ttl)),
        lambda: backend.get_broadcast_state(MapStateDescriptor("s", int, int, ttl=ttl)),
    ]
    for call in calls:
        with pytest.raises(InvalidRequestError, match="'s' has a time to live"):
            call()
