"""The suite of keyed states, on each backend."""

from collections.abc import Sequence

from contracts.keyed.keyed_states import KeyedStatesContract
from jobs.quick_disk import QUICK_DISK

from holdfast.backends.keyed import ColumnarStateTables, HeapStateTables, StateTables
from holdfast.backends.keyed.rocksdb_tables import RocksDBStateTables
from holdfast.backends.keys import KeyGroupRange
from holdfast.locations.handles import SegmentsStateHandle


class TestStatesOnTheHeap(KeyedStatesContract):
    def tables_of(
        self, key_groups: KeyGroupRange, handles: Sequence[SegmentsStateHandle] = ()
    ) -> StateTables:
        return HeapStateTables(key_groups, handles)


class TestStatesInColumns(KeyedStatesContract):
    def tables_of(
        self, key_groups: KeyGroupRange, handles: Sequence[SegmentsStateHandle] = ()
    ) -> StateTables:
        return ColumnarStateTables(key_groups, handles)


class TestStatesInRocksDB(KeyedStatesContract):
    def tables_of(
        self, key_groups: KeyGroupRange, handles: Sequence[SegmentsStateHandle] = ()
    ) -> StateTables:
        return RocksDBStateTables(key_groups, handles, directory=QUICK_DISK)
