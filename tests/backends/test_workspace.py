"""Memory that a worker keeps for segments between tasks."""

import numpy as np
from contracts.columnar_tables import ROWS, TablesJob, put, value_spec, values

from holdfast.backends.keyed.segments import Workspace


def test_memory_of_small_segments_is_bounded(job: TablesJob) -> None:
    tables = job.restore()
    table = tables.table(value_spec())
    for value in range(5):
        put(table, range(10 * value, 10 * value + 10), value)
        handle = job.complete(tables)
    workspace = job.workspace
    assert workspace.memory_bytes > 0
    (largest,) = {len(handle.segments)}
    assert largest == 5
    half = workspace.memory_bytes // 2
    workspace.limit(half)
    assert 0 < workspace.memory_bytes <= half
    workspace.limit(0)
    assert workspace.memory_bytes == 0
    restored = job.restore(handle).table(value_spec())
    assert values(restored, range(50)) == [value for value in range(5) for _ in range(10)]


def test_memory_for_merges_above_the_bound_is_released() -> None:
    workspace = Workspace()
    workspace.arena.array(1 << 20, np.int64)
    assert workspace.memory_bytes >= 8 << 20
    workspace.limit(64 << 20)
    assert workspace.memory_bytes >= 8 << 20
    workspace.limit(1 << 20)
    assert workspace.memory_bytes == 0
    assert len(workspace.arena.array(16, np.int64)) == 16


def test_segments_in_files_do_not_count_as_memory(job: TablesJob) -> None:
    tables = job.restore()
    put(tables.table(value_spec()), range(ROWS), 5)
    handle = job.complete(tables)
    (name,) = handle.segments
    job.workspace.arena.release()
    assert job.workspace.memory_bytes == 0
    job.workspace.limit(0)
    assert job.workspace.segment(name) is not None
