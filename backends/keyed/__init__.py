"""Managed keyed state: value, list, map, reducing and aggregating states and timers, by key.

    backend           the states of a subtask, by name
    keys              the distinct keys of a batch, sorted once; lookups of a single key
    states            the states that users call, by batch or by key; each is stored as rows of a table
    table             the interface between states and backends: tables of rows with an identity
    segments          sorted segments in Arrow, memory-mapped: the columnar backend, which is the default
    heap              dictionaries: simple, and the oracle of the other backends in tests
    rocksdb_tables    RocksDB: for large values, and states larger than memory; imported on demand
    rocksdb_settings  its settings
    opening           tables of a backend by its name; conversion of handles to segments

States don't depend on how rows are stored, and tables don't depend on the meaning of rows. Start with `table`.
"""

from holdfast.backends.keyed.backend import KeyedStateBackend
from holdfast.backends.keyed.columns import combine_chunks, positions_between
from holdfast.backends.keyed.heap import HeapStateTables
from holdfast.backends.keyed.keys import Keys, rows_of_keys
from holdfast.backends.keyed.opening import (
    BACKEND_NAMES,
    BackendName,
    open_tables,
    readable_handles,
    write_canonical,
)
from holdfast.backends.keyed.rocksdb_settings import (
    MAX_MEMORY_BYTES,
    MIN_MEMORY_BYTES,
    BlockCompression,
    RocksDBSettings,
)
from holdfast.backends.keyed.row_comparison import row_changes
from holdfast.backends.keyed.segments import (
    BlockCache,
    ColumnarStateTables,
    Completion,
    MissingCopy,
    RestoredTable,
    TableManifest,
    Workspace,
    encode_manifest,
    open_table,
    read_manifest,
    read_tables,
    sort_key_range,
    write_tables,
)
from holdfast.backends.keyed.states import (
    AggregatingState,
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
    time_part,
)

__all__ = [
    "BACKEND_NAMES",
    "MAX_MEMORY_BYTES",
    "MIN_MEMORY_BYTES",
    "AggregatingState",
    "BackendName",
    "BlockCache",
    "BlockCompression",
    "ColumnarStateTables",
    "Completion",
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
    "MissingCopy",
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
    "open_table",
    "open_tables",
    "read_manifest",
    "read_tables",
    "readable_handles",
    "row_changes",
    "rows_of_keys",
    "sort_key_range",
    "time_part",
    "write_canonical",
    "write_tables",
]
