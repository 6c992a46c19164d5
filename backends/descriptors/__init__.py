"""Descriptors: how a function names a state and says of which type it is."""

from holdfast.backends.descriptors.descriptors import ListStateDescriptor, MapStateDescriptor

__all__ = ["ListStateDescriptor", "MapStateDescriptor"]
