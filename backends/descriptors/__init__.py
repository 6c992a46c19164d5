"""Descriptors: how a function names a state and says of which type it is, and how long it lives."""

from holdfast.backends.descriptors.descriptors import ListStateDescriptor, MapStateDescriptor
from holdfast.backends.descriptors.folding_descriptors import (
    AggregateFunction,
    AggregatingStateDescriptor,
    KnownFunction,
    ReduceFunction,
    ReducingStateDescriptor,
)
from holdfast.backends.descriptors.ttl import StateTtlConfig, StateVisibility, UpdateType
from holdfast.backends.descriptors.value_descriptor import ValueStateDescriptor

__all__ = [
    "AggregateFunction",
    "AggregatingStateDescriptor",
    "KnownFunction",
    "ListStateDescriptor",
    "MapStateDescriptor",
    "ReduceFunction",
    "ReducingStateDescriptor",
    "StateTtlConfig",
    "StateVisibility",
    "UpdateType",
    "ValueStateDescriptor",
]
