"""Merging of columnar segments: bounds of reads, writes and memory."""

from collections.abc import Sequence

import numpy as np
import pytest
from contracts.columnar_tables import (
    GROUPS,
    ROWS,
    TablesJob,
    identities,
    put,
    value_spec,
    values,
)

from holdfast.backends.keyed.segments import (
    ColumnarStateTables,
    MergePolicy,
    Workspace,
    read_tables,
)
from holdfast.backends.keyed.segments.merging import merge_in_chunks
from holdfast.backends.keyed.segments.rows import RowRange, SortedRows
from holdfast.backends.keys import KeyGroupRange

SMALL_STEPS = MergePolicy(
    fan_in=4,
    level_bytes=2e3,
    tier_bytes=20e3,
    min_step_bytes=10e3,
    max_step_bytes=20e3,
    sweep_factor=4,
)


def test_snapshot_makes_two_segments_and_merges_a_bounded_part(
    job: TablesJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = job.restore(policy=SMALL_STEPS)
    table = tables.table(value_spec())
    put(table, range(ROWS))  # 240 kB
    job.complete(tables)
    known: set[str] = set()
    merged_rows = []

    def count_rows(ranges: Sequence[RowRange], *arguments: object, **named: object) -> SortedRows:
        merged_rows.append(sum(range_.rows for range_ in ranges))
        return merge_in_chunks(ranges, *arguments, **named)  # type: ignore[arg-type]

    compaction = "holdfast.backends.keyed.segments.compaction"
    monkeypatch.setattr(f"{compaction}.merge_in_chunks", count_rows)
    expected = [0] * ROWS
    for batch in range(150):
        changed = range(batch % 100, ROWS, 100)
        put(table, changed, batch)
        for key in changed:
            expected[key] = batch
        segments = job.complete(tables).segments.keys()
        assert len(segments - known) <= 2
        known |= segments
        if batch == 30:  # it has learned that batches change little of the first rows
            merged_rows.clear()
    assert values(table, range(ROWS)) == expected
    assert max(merged_rows) <= 2 * 20e3 / 24
    runs = table.manifest.runs
    assert len(runs) <= 13
    assert sum(run.rows for run in runs) < 1.6 * ROWS


def test_small_batches_after_a_bulk_load_merge_little(
    job: TablesJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = job.restore(policy=SMALL_STEPS)
    table = tables.table(value_spec())
    for first in range(0, ROWS, ROWS // 6):  # 40 kB each
        put(table, range(first, min(first + ROWS // 6, ROWS)), 1)
        job.complete(tables)
    merged_rows = []

    def count_rows(ranges: Sequence[RowRange], *arguments: object, **named: object) -> SortedRows:
        merged_rows.append(sum(range_.rows for range_ in ranges))
        return merge_in_chunks(ranges, *arguments, **named)  # type: ignore[arg-type]

    compaction = "holdfast.backends.keyed.segments.compaction"
    monkeypatch.setattr(f"{compaction}.merge_in_chunks", count_rows)
    for batch in range(60):
        put(table, range(batch, ROWS, 100), 2)
        job.complete(tables)
    assert merged_rows
    assert max(merged_rows) <= 2 * 20e3 / 24
    assert len(table.manifest.runs) <= 12
    assert values(table, range(ROWS)) == ([2] * 60 + [1] * 40) * (ROWS // 100)


def test_state_reopened_for_each_batch_is_swept_completely(job: TablesJob) -> None:
    tables = job.restore(policy=SMALL_STEPS)
    put(tables.table(value_spec()), range(ROWS), 1)  # 240 kB
    job.complete(tables)
    for batch in range(80):
        tables = job.restore(job.written[job.checkpoint], policy=SMALL_STEPS)
        put(tables.table(value_spec()), range(batch, ROWS, 100), 2)
        job.complete(tables)
    table = tables.table(value_spec())
    assert len(table.manifest.runs) <= 13
    assert sum(run.rows for run in table.manifest.runs) < 1.5 * ROWS
    assert values(table, range(ROWS)) == ([2] * 80 + [1] * 20) * (ROWS // 100)


def test_memory_of_a_single_large_merge_is_released() -> None:
    arena = Workspace().arena
    arena.array(30 << 20, np.uint8)
    assert arena.size > 30 << 20
    for _ in range(3):
        arena.reset()
        arena.array(8 << 20, np.uint8)
    assert arena.size > 30 << 20
    for _ in range(60):
        arena.reset()
        arena.array(1 << 20, np.uint8)
    assert arena.size <= 8 << 20


def test_merge_drops_rows_of_other_key_groups(job: TablesJob) -> None:
    tables = job.restore()
    put(tables.table(value_spec()), range(ROWS), 1)
    handle = job.complete(tables)
    half = ColumnarStateTables(
        KeyGroupRange(0, 3), [handle], policy=MergePolicy(rewrite_factor=1e9)
    )
    table = half.table(value_spec())
    put(table, range(1), 2)
    merged = job.snapshot(half)
    own = int((identities(range(ROWS)).sort_keys < 4 << 48).sum())
    assert table.manifest.runs[0].rows == own
    assert merged.key_groups == (0, 3)
    rows = [rows for table in read_tables([merged], GROUPS) for rows in table.rows()]
    assert sum(len(step) for step in rows) == own
