"""Segments: files of sorted rows that several checkpoints share, and rows merged from several segments.

    table      ┌ recent writes ┐          in memory, newest first: only in a columnar backend
               ├ run           ┤          slices that don't overlap; newer runs hide older ones
               └ run (bottom)  ┘          no older rows exist
    run        [slice)[slice)[slice)      each of a range of sort keys
    slice      the rows of a section in that range
    segment    header · section · directory · filter · section · … · trailer
    section    rows of one table, ascending by sort key: an Arrow IPC file of one record batch
    block      64 KiB of a segment, which have one checksum in the trailer

A handle has the segments and a manifest, which names the runs and slices of each table. Modules, from there down to
the bytes; each calls those below it:

    table_writer    writes tables whole into one segment: heap snapshots, canonical savepoints
    table_reader    reads manifests, and tables without keeping segments
    merging         rows of several slices as one per identity
    rows            rows in memory or of a section, and the ranges of them that are merged
    manifest        tables, runs and slices, with `stored_specs`
    segment         a segment in memory, in a mapped file, or in storage
    segment_writer  writes a segment
    section         columns of a section, with `partial_batch` for types that only Arrow can read
    side_tables     directories and filters: indexes of a section
    trailer         the bytes around sections, and the checksums of blocks

`columnar` opens a slice as an `OpenSlice` over the `SectionRows` of a `Segment`; heap and RocksDB backends use only
`table_reader` and `table_writer`. Start with `manifest`.
"""

from holdfast.backends.keyed.segments.manifest import (
    END,
    ROCKSDB,
    ROCKSDB_MAGIC,
    Manifest,
    Run,
    Slice,
    TableManifest,
    encode_manifest,
)
from holdfast.backends.keyed.segments.merging import (
    is_expired,
    merge,
    rows_between,
    scan,
    sort_key_range,
)
from holdfast.backends.keyed.segments.rows import (
    OpenSlice,
    RowRange,
    RowSource,
    SectionRows,
    SortedRows,
    take_rows,
)
from holdfast.backends.keyed.segments.section import Section
from holdfast.backends.keyed.segments.segment import Segment
from holdfast.backends.keyed.segments.segment_writer import SegmentWriter
from holdfast.backends.keyed.segments.side_tables import Directory, Filter
from holdfast.backends.keyed.segments.stored_specs import StoredSpec, resolve_migration
from holdfast.backends.keyed.segments.table_reader import (
    RestoredTable,
    check_disjoint,
    read_manifest,
    read_manifest_bytes,
    read_tables,
)
from holdfast.backends.keyed.segments.table_writer import (
    finish_stream,
    new_segment_name,
    write_canonical_tables,
    write_tables,
)

__all__ = [
    "END",
    "ROCKSDB",
    "ROCKSDB_MAGIC",
    "Directory",
    "Filter",
    "Manifest",
    "OpenSlice",
    "RestoredTable",
    "RowRange",
    "RowSource",
    "Run",
    "Section",
    "SectionRows",
    "Segment",
    "SegmentWriter",
    "Slice",
    "SortedRows",
    "StoredSpec",
    "TableManifest",
    "check_disjoint",
    "encode_manifest",
    "finish_stream",
    "is_expired",
    "merge",
    "new_segment_name",
    "read_manifest",
    "read_manifest_bytes",
    "read_tables",
    "resolve_migration",
    "rows_between",
    "scan",
    "sort_key_range",
    "take_rows",
    "write_canonical_tables",
    "write_tables",
]
