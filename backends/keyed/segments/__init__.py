"""Segments: files of sorted rows that several checkpoints share; and tables of such rows, the columnar backend.

    table      ┌ recent writes ┐          in memory, newest first
               ├ run           ┤          slices that don't overlap; newer runs hide older ones
               └ run (bottom)  ┘          no older rows exist
    run        [slice)[slice)[slice)      each of a range of sort keys
    slice      the rows of a section in that range
    segment    header · sections · directories · samples · filters · trailer
    section    rows of one table, ascending by sort key: an Arrow IPC file of one record batch
    block      64 KiB of a segment, or 16 KiB if its rows are large, which have one checksum in the trailer
    tail       the end of a segment with its side tables and trailer; a slice has its length

A handle has the segments and a manifest, which names the runs and slices of each table. Modules, from there down to
the bytes; each calls those below it:

    columnar_tables   all tables of a subtask: restore, snapshot, confirmed checkpoints
    compaction        the runs that a snapshot writes and merges, by a policy
    columnar_table    one table: recent writes over runs, each slice an `OpenSlice` over `SectionRows` of a `Segment`
    lookup            the rows of many identities, found in one pass over the runs
    cold_reads        the blocks that a batch needs of slices that are only partly on this host
    segment_store     open segments: mapped files, fetched on demand; the workspace that a worker keeps
    table_writer      writes tables whole: heap snapshots, canonical savepoints
    table_reader      reads manifests, and tables without keeping segments
    checkpoint_files  streams and handles of a snapshot, and files that later ones refer to
    merging           rows of several slices as one per identity, many rows in reused memory
    rows              rows in memory or of a section, and the ranges of them that are merged
    manifest          tables, runs, slices and stored specifications
    block_cache       verified blocks of stored segments, for several reads
    completion        completes local copies between batches
    partial_segment   a segment in storage, and the blocks of it that the host has
    sparse_bytes      bytes that arrive out of order, in a sparse file or in memory
    segment           a segment in memory, in a mapped file, or in storage
    segment_writer    writes a segment
    section           columns of a section, whole or in part
    side_tables       directories, samples and filters: indexes of a section
    trailer           the bytes around sections, and the checksums of blocks

Heap and RocksDB backends use only `table_reader`, `table_writer` and `checkpoint_files`. Start with `manifest`.
"""

from holdfast.backends.keyed.segments.block_cache import BlockCache
from holdfast.backends.keyed.segments.checkpoint_files import (
    ConfirmedFiles,
    finish_stream,
    handle_of_files,
    new_segment_name,
    write_manifest,
)
from holdfast.backends.keyed.segments.columnar_tables import ColumnarStateTables
from holdfast.backends.keyed.segments.compaction import MergePolicy
from holdfast.backends.keyed.segments.completion import Completion, MissingCopy
from holdfast.backends.keyed.segments.manifest import (
    ROCKSDB_MAGIC,
    RocksDBManifestError,
    StoredSpec,
    TableManifest,
    encode_manifest,
    resolve_migration,
)
from holdfast.backends.keyed.segments.merging import sort_key_range
from holdfast.backends.keyed.segments.partial_segment import FetchPolicy
from holdfast.backends.keyed.segments.rows import SortedRows, take_rows
from holdfast.backends.keyed.segments.segment_store import Workspace
from holdfast.backends.keyed.segments.table_reader import (
    RestoredTable,
    check_disjoint,
    open_table,
    read_manifest,
    read_manifest_bytes,
    read_tables,
)
from holdfast.backends.keyed.segments.table_writer import write_canonical_tables, write_tables

__all__ = [
    "ROCKSDB_MAGIC",
    "BlockCache",
    "ColumnarStateTables",
    "Completion",
    "ConfirmedFiles",
    "FetchPolicy",
    "MergePolicy",
    "MissingCopy",
    "RestoredTable",
    "RocksDBManifestError",
    "SortedRows",
    "StoredSpec",
    "TableManifest",
    "Workspace",
    "check_disjoint",
    "encode_manifest",
    "finish_stream",
    "handle_of_files",
    "new_segment_name",
    "open_table",
    "read_manifest",
    "read_manifest_bytes",
    "read_tables",
    "resolve_migration",
    "sort_key_range",
    "take_rows",
    "write_canonical_tables",
    "write_manifest",
    "write_tables",
]
