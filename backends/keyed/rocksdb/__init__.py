"""Tables in RocksDB, through rocksdict: for large values with partial updates, and for states larger than memory.

    rocksdb_tables    all tables of a subtask: restored, written to, and captured
    rocksdb_table     the rows of a state, in their own column family
    row_bytes         rows in RocksDB's form: a key and a value in bytes
    rocksdb_snapshot  the upload of a database to a checkpoint
    native_manifest   the files of a stored database
    stored_database   the download of a stored database to this host
    canonical_form    conversion of a stored database to segments, which any backend reads
    database          an open database, its writes and metrics
    locked_directory  the working directory of a process
    rocksdb_errors    mapping of errors of RocksDB and the disk
    budget            the memory that all databases of a process share, and their options

Needs `holdfast[rocksdb]`. Start with `rocksdb_tables`.
"""

from holdfast.backends.keyed.rocksdb.canonical_form import (
    canonical_handles,
    write_canonical_rows,
)
from holdfast.backends.keyed.rocksdb.rocksdb_tables import RocksDBStateTables

__all__ = ["RocksDBStateTables", "canonical_handles", "write_canonical_rows"]
