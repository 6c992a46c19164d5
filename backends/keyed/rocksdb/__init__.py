"""Tables in RocksDB, through rocksdict: for values that are large and changed in part, and for states larger than memory.

    rocksdb_tables   all tables of a subtask: restored, written to, and captured
    rocksdb_table    the rows of a state, in a column family of its own
    row_bytes        rows as RocksDB has them: a key and a value in bytes
    rocksdb_snapshot what of a database gets into a checkpoint
    native_manifest  which files a checkpoint's database is made of
    stored_database  such a database, brought to this host
    canonical_form   its rows in segments, which any backend reads
    database         an open database
    patient_writes   its writes, which wait for flushes and merges
    held_directory   the directory that it is in, which no other process uses
    rocksdb_errors   its errors and the disk's, made ours
    native_metrics   what RocksDB says of itself
    budget           the memory that all databases of a process share

Needs `holdfast[rocksdb]`. Start with `rocksdb_tables`.
"""

from holdfast.backends.keyed.rocksdb.canonical_form import (
    canonical_handles,
    write_canonical_rows,
)
from holdfast.backends.keyed.rocksdb.rocksdb_tables import RocksDBStateTables

__all__ = ["RocksDBStateTables", "canonical_handles", "write_canonical_rows"]
