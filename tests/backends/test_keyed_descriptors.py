"""Arguments that descriptors of keyed state refuse."""

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
def test_reducing_function_of_another_type_is_refused(function: Any, type: Any) -> None:
    with pytest.raises(InvalidRequestError, match="state 'r'"):
        ReducingStateDescriptor("r", function, type)


def test_sketches_without_their_package_name_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "datasketches", None)
    with pytest.raises(InvalidRequestError, match=r"pip install 'holdfast\[sketches\]'"):
        ReducingStateDescriptor("r", "hll_union", pa.binary())


def test_reducing_functions_of_all_fields_are_accepted() -> None:
    assert ReducingStateDescriptor("r", {"n": "count", "text": "max"}, ROW).name == "r"
    pair = pa.schema([("pair", pa.struct([("x", pa.int64()), ("y", pa.string())]))])
    assert ReducingStateDescriptor("r", {"pair": "max"}, pair).name == "r"


def test_unknown_aggregate_function_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="'median' is neither 'avg' nor"):
        AggregatingStateDescriptor("a", "median")  # type: ignore[arg-type]


def test_default_of_another_type_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="'v': default is not a valid int64"):
        ValueStateDescriptor("v", int, default="x")


def test_ttl_below_one_millisecond_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="ttl must be >= 1 millisecond"):
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
def test_ttl_field_of_another_type_is_refused(arguments: Any, name: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"{name} of a StateTtlConfig must be a .*, got"):
        StateTtlConfig(*arguments)


def test_operator_state_with_a_ttl_is_refused() -> None:
    ttl, backend = StateTtlConfig(timedelta(days=1)), OperatorStateBackend()
    calls: list[Callable[[], object]] = [
        lambda: backend.get_list_state(ListStateDescriptor("s", int, ttl=ttl)),
        lambda: backend.get_union_list_state(ListStateDescriptor("s", int, ttl=ttl)),
        lambda: backend.get_broadcast_state(MapStateDescriptor("s", int, int, ttl=ttl)),
    ]
    for call in calls:
        with pytest.raises(InvalidRequestError, match="'s' has a time to live"):
            call()
