"""The heap backend: tables in dictionaries. Start with `heap_tables`."""

from holdfast.backends.keyed.heap.heap_tables import HeapStateTables

__all__ = ["HeapStateTables"]
