"""Managed keyed state: value, list, map, reducing and aggregating states and timers, by key.

    backend    the states of a subtask, by name
    keys       the distinct keys of a batch, sorted once
    key_columns  what users give as a key's columns, and whole_ms: as times
    key_lookup the rows of a single key, read from outside
    states     what users call, by batch or by key; every kind of state is rows of a table
    table      the port: tables of rows, each known by its identity; a backend is an implementation
    columnar   sorted segments in Arrow, mapped: the default
    heap       dictionaries: simple, and the oracle of the others in tests
    rocksdb    RocksDB: for large values, and states larger than memory; loaded when it is needed
    rocksdb_settings  what a user chooses of it
    opening    tables of a backend by its name; handles of any backend in the form that all read

States know nothing of how rows are kept, and tables nothing of what rows mean. Start with `table`.
"""

from holdfast.backends.keyed.backend import KeyedStateBackend
from holdfast.backends.keyed.columnar import ColumnarStateTables, Workspace
from holdfast.backends.keyed.heap import HeapStateTables
from holdfast.backends.keyed.key_lookup import rows_of_key
from holdfast.backends.keyed.keys import Keys
from holdfast.backends.keyed.opening import (
    BACKEND_NAMES,
    BackendName,
    open_tables,
    readable_handles,
    write_canonical,
)
from holdfast.backends.keyed.rocksdb_settings import (
    LEAST_MEMORY_BYTES,
    MOST_MEMORY_BYTES,
    BlockCompression,
    CompactionStyle,
    RocksDBSettings,
)
from holdfast.backends.keyed.segments import (
    RestoredTable,
    TableManifest,
    encode_manifest,
    read_manifest,
    read_tables,
    write_tables,
)
from holdfast.backends.keyed.states import (
    AggregatingColumns,
    AggregatingState,
    AverageColumns,
    CombiningColumns,
    FiredTimers,
    FoldingColumns,
    KeyCursor,
    KeyedListState,
    ListColumns,
    MapColumns,
    MapEntries,
    MapState,
    ReducingState,
    Timers,
    TimerService,
    ValueColumns,
    ValueState,
)
from holdfast.backends.keyed.table import (
    Identities,
    Migration,
    Operation,
    StateTable,
    StateTables,
    TableRows,
    TableSpec,
)
from holdfast.backends.keyed.timer_order import time_part

__all__ = [
    "BACKEND_NAMES",
    "LEAST_MEMORY_BYTES",
    "MOST_MEMORY_BYTES",
    "AggregatingColumns",
    "AggregatingState",
    "AverageColumns",
    "BackendName",
    "BlockCompression",
    "ColumnarStateTables",
    "CombiningColumns",
    "CompactionStyle",
    "FiredTimers",
    "FoldingColumns",
    "HeapStateTables",
    "Identities",
    "KeyCursor",
    "KeyedListState",
    "KeyedStateBackend",
    "Keys",
    "ListColumns",
    "MapColumns",
    "MapEntries",
    "MapState",
    "Migration",
    "Operation",
    "ReducingState",
    "RestoredTable",
    "RocksDBSettings",
    "StateTable",
    "StateTables",
    "TableManifest",
    "TableRows",
    "TableSpec",
    "TimerService",
    "Timers",
    "ValueColumns",
    "ValueState",
    "Workspace",
    "encode_manifest",
    "open_tables",
    "read_manifest",
    "read_tables",
    "readable_handles",
    "rows_of_key",
    "time_part",
    "write_canonical",
    "write_tables",
]
