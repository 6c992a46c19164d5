"""Segments: files of sorted rows that several checkpoints refer to; and rows of several segments as one.

    trailer, side_tables    the bytes of a segment around its sections, which are Arrow's
    segment_writer          makes a segment
    section                 the rows of a table in a segment
    partial_batch           some rows where Arrow alone knows their form, without the others
    segment, segment_bytes  where sections lie: mapped, or in memory
    stored_segment          or in storage, and read by ranges
    stored_specs, manifest  which rows of which segments a subtask's tables are
    rows, merging, ranges   rows of several sections as those of one
    table_writing           tables written whole, and
    whole_tables            read whole: all that a heap backend needs
    canonical_tables        tables of segments written anew, merged: canonical savepoints

Start with `manifest`.
"""

from holdfast.backends.keyed.segments.canonical_tables import write_canonical_tables
from holdfast.backends.keyed.segments.manifest import (
    END,
    NEVER,
    ROCKSDB,
    ROCKSDB_MAGIC,
    Manifest,
    Run,
    Slice,
    TableManifest,
    encode_manifest,
)
from holdfast.backends.keyed.segments.merging import (
    Part,
    empty_rows,
    is_expired,
    merged,
    whole,
)
from holdfast.backends.keyed.segments.ranges import (
    Layer,
    rows_between,
    scan,
    sort_key_range,
    table_rows,
)
from holdfast.backends.keyed.segments.rows import RowSource, SectionRows, SortedRows, rows_at
from holdfast.backends.keyed.segments.section import Section
from holdfast.backends.keyed.segments.segment import Segment
from holdfast.backends.keyed.segments.segment_writer import Needles, SegmentWriter
from holdfast.backends.keyed.segments.side_tables import Directory, Filter
from holdfast.backends.keyed.segments.stored_specs import StoredSpec, migration_of
from holdfast.backends.keyed.segments.table_writing import finish, new_segment_name, write_tables
from holdfast.backends.keyed.segments.whole_tables import (
    RestoredTable,
    check_apart,
    load_segment,
    manifest_bytes,
    read_manifest,
    read_tables,
)

__all__ = [
    "END",
    "NEVER",
    "ROCKSDB",
    "ROCKSDB_MAGIC",
    "Directory",
    "Filter",
    "Layer",
    "Manifest",
    "Needles",
    "Part",
    "RestoredTable",
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
    "check_apart",
    "empty_rows",
    "encode_manifest",
    "finish",
    "is_expired",
    "load_segment",
    "manifest_bytes",
    "merged",
    "migration_of",
    "new_segment_name",
    "read_manifest",
    "read_tables",
    "rows_at",
    "rows_between",
    "scan",
    "sort_key_range",
    "table_rows",
    "whole",
    "write_canonical_tables",
    "write_tables",
]
