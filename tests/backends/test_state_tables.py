"""The suite of keyed tables, on each backend."""

from collections.abc import Sequence

from holdfast.backends.keyed import ColumnarStateTables, HeapStateTables, StateTables
from holdfast.backends.keys import KeyGroupRange
from holdfast.locations.handles import SegmentsStateHandle
from holdfast.testing import StateTablesContract


class TestHeapTables(StateTablesContract):
    def tables_of(
        self, key_groups: KeyGroupRange, handles: Sequence[SegmentsStateHandle] = ()
    ) -> StateTables:
        return HeapStateTables(key_groups, handles)


class TestColumnarTables(StateTablesContract):
    def tables_of(
        self, key_groups: KeyGroupRange, handles: Sequence[SegmentsStateHandle] = ()
    ) -> StateTables:
        return ColumnarStateTables(key_groups, handles)
