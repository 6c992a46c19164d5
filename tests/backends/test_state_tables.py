"""The suite of keyed tables, on each backend."""

from collections.abc import Sequence

from contracts.keyed.state_tables import StateTablesContract
from jobs.quick_disk import QUICK_DISK

from holdfast.backends.keyed import ColumnarStateTables, HeapStateTables, StateTables
from holdfast.backends.keyed.rocksdb_tables import RocksDBStateTables
from holdfast.backends.keys import KeyGroupRange
from holdfast.locations.handles import SegmentsStateHandle


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


class TestRocksDBTables(StateTablesContract):
    def tables_of(
        self, key_groups: KeyGroupRange, handles: Sequence[SegmentsStateHandle] = ()
    ) -> StateTables:
        return RocksDBStateTables(key_groups, handles, directory=QUICK_DISK)
