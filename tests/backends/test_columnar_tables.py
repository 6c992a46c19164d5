"""Columnar tables: segments of a checkpoint, folds, migrations, and rejected requests."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from contracts.columnar_tables import (
    GROUPS,
    KEY,
    NO_MERGES,
    ROWS,
    TablesJob,
    identities,
    put,
    sum_spec,
    uris,
    value_spec,
    values,
)

from holdfast.backends.keyed.segments import MergePolicy, read_manifest
from holdfast.backends.keyed.table import Identities, Operation, TableSpec, time_part
from holdfast.errors import (
    CheckpointCorruptedError,
    InvalidRequestError,
    StateMigrationError,
)
from holdfast.locations.handles import SegmentsStateHandle


def test_checkpoint_writes_only_changes_since_the_last_confirmed_one(
    job: TablesJob,
) -> None:
    tables = job.restore()
    table = tables.table(value_spec())
    put(table, range(ROWS), 1)
    first = uris(job.complete(tables))
    put(table, range(0, ROWS, 100), 2)
    second = uris(job.complete(tables))
    assert first.items() < second.items()
    assert len(second) == 2


def test_checkpoint_without_changes_writes_no_segment(job: TablesJob) -> None:
    tables = job.restore()
    put(tables.table(value_spec()), range(ROWS))
    assert uris(job.complete(tables)) == uris(job.complete(tables))


def test_rows_of_an_aborted_checkpoint_are_written_again(
    job: TablesJob,
) -> None:
    tables = job.restore()
    table = tables.table(value_spec())
    put(table, range(ROWS), 1)
    aborted = job.snapshot(tables)
    aborted.discard_state()
    tables.notify_checkpoint_aborted(job.checkpoint)
    assert set(values(table, range(ROWS))) == {1}
    completed = job.complete(tables)
    assert not set(uris(aborted).values()) & set(uris(completed).values())
    assert set(values(job.restore(completed).table(value_spec()), range(ROWS))) == {1}


def test_unconfirmed_rows_are_written_by_every_checkpoint(job: TablesJob) -> None:
    tables = job.restore()
    put(tables.table(value_spec()), range(ROWS))
    first, second = uris(job.snapshot(tables)), uris(job.snapshot(tables))
    assert first.keys() == second.keys()
    assert not set(first.values()) & set(second.values())
    job.confirm(tables, 1)
    assert uris(job.snapshot(tables)) == first


def test_late_notification_of_an_older_checkpoint_is_ignored(job: TablesJob) -> None:
    tables = job.restore()
    put(tables.table(value_spec()), range(ROWS))
    job.snapshot(tables)
    second = uris(job.snapshot(tables))
    job.confirm(tables, 2)
    tables.notify_checkpoint_complete(1)
    assert uris(job.snapshot(tables)) == second


def test_cancelled_checkpoint_leaves_no_file_and_keeps_all_rows(job: TablesJob) -> None:
    tables = job.restore()
    table = tables.table(value_spec())
    put(table, range(ROWS), 3)
    tables.snapshot(7, job.access.initialize_location_for_checkpoint(7)).cancel()
    assert set(values(table, range(ROWS))) == {3}


def test_checkpoint_refers_to_segments_restored_from_its_job(
    job: TablesJob,
) -> None:
    tables = job.restore()
    put(tables.table(value_spec()), range(ROWS), 1)
    handle = job.complete(tables)
    assert uris(job.snapshot(job.restore(handle))) == uris(handle)
    own = uris(job.snapshot(job.restore(handle, may_refer=False)))
    assert own.keys() == uris(handle).keys()
    assert not set(own.values()) & set(uris(handle).values())


def test_unused_state_is_in_the_next_checkpoint(job: TablesJob) -> None:
    tables = job.restore()
    put(tables.table(value_spec(name="a")), range(10), 1)
    put(tables.table(value_spec(name="b")), range(10), 2)
    restored = job.restore(job.complete(tables))
    assert restored.specs().keys() == {"a", "b"}
    put(restored.table(value_spec(name="a")), range(5), 3)
    again = job.restore(job.complete(restored))
    assert values(again.table(value_spec(name="b")), range(10)) == [2] * 10
    assert values(again.table(value_spec(name="a")), range(10)) == [3] * 5 + [1] * 5


def test_tables_without_a_state_make_no_handle(job: TablesJob) -> None:
    part = job.restore().snapshot(1, job.access.initialize_location_for_checkpoint(1))
    assert not part.run().state.managed_keyed


@pytest.mark.parametrize("is_merged", [True, False])
def test_sum_overflow_raises_an_error_with_the_state(job: TablesJob, *, is_merged: bool) -> None:
    tables = job.restore(policy=MergePolicy(rewrite_factor=1e9) if is_merged else NO_MERGES)
    table = tables.table(sum_spec())
    for _ in range(2):
        table.write(identities(range(2)), [pa.array([2**62, 1])], Operation.APPEND)
        if not is_merged:
            job.complete(tables)
    with pytest.raises(InvalidRequestError, match="state 's': a sum is"):
        if is_merged:
            job.complete(tables)
        else:
            values(table, range(2))


def widen(stored: TableSpec, columns: Sequence[pa.Array]) -> tuple[pa.Array, ...]:
    assert stored.values.types == [pa.int32()]
    return tuple(column.cast(pa.int64()) for column in columns)


def test_values_are_migrated_by_reads_and_permanently_by_merges(
    job: TablesJob,
) -> None:
    tables = job.restore()
    old = tables.table(sum_spec(pa.int32()))
    put(old, range(ROWS), 3)
    handle = job.complete(tables)
    restored = job.restore(handle)
    table = restored.table(sum_spec(), widen)
    big = pa.array([2**40] * 5)
    table.write(identities(range(5)), [big], Operation.APPEND)
    assert values(table, range(6)) == [2**40 + 3] * 5 + [3]
    both = job.complete(restored)
    assert len(read_manifest([both], GROUPS).tables["s"].specs) == 2
    with pytest.raises(StateMigrationError):
        job.restore(both).table(sum_spec())
    merging = job.restore(both, policy=MergePolicy(rewrite_factor=1e9))
    table = merging.table(sum_spec(), widen)
    table.write(identities(range(1)), [big[:1]], Operation.APPEND)
    merged = job.complete(merging)
    assert len(read_manifest([merged], GROUPS).tables["s"].specs) == 1
    assert values(table, range(6)) == [2**41 + 3] + [2**40 + 3] * 4 + [3]
    table = job.restore(merged).table(sum_spec())
    assert values(table, range(6)) == [2**41 + 3] + [2**40 + 3] * 4 + [3]


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (TableSpec("s", "map", KEY, pa.schema([("value", pa.int64())])), "kind"),
        (TableSpec("s", "value", pa.schema([("k", pa.int32())]), KEY), "keys"),
        (value_spec(pa.string()), "values"),
        (
            TableSpec("s", "value", KEY, pa.schema([("value", pa.int64())]), ttl_ms=1),
            "time to live",
        ),
    ],
)
def test_incompatible_restored_table_is_rejected(
    job: TablesJob, spec: TableSpec, reason: str
) -> None:
    tables = job.restore()
    put(tables.table(value_spec()), range(10))
    with pytest.raises(StateMigrationError, match=reason):
        job.restore(job.complete(tables)).table(spec)


@pytest.mark.parametrize(
    ("type", "value"),
    [
        (pa.string_view(), "view"),
        (pa.run_end_encoded(pa.int32(), pa.int64()), 7),
        (pa.dictionary(pa.int32(), pa.string()), "entry"),
        (pa.uuid(), bytes(16)),
    ],
    ids=str,
)
def test_values_without_arrow_take_are_looked_up_and_merged(
    job: TablesJob, type: pa.DataType, value: object
) -> None:
    tables = job.restore(policy=MergePolicy(rewrite_factor=1e9))
    table = tables.table(value_spec(type))
    for keys in (range(4), range(2)):
        put(table, keys, value)
        job.complete(tables)
    present, (column,) = table.get(identities(range(6)))
    assert present.tolist() == [True] * 4 + [False] * 2
    assert column.type == type
    assert column.slice(0, 4).equals(pa.array([value] * 4, type))
    assert [row is None for row in column.to_pylist()] == [False] * 4 + [True] * 2
    _, (absent,) = table.get(identities(range(7, 9)))
    assert absent.type == type


def test_table_requested_again_with_another_spec_is_rejected(job: TablesJob) -> None:
    tables = job.restore()
    table = tables.table(value_spec())
    assert tables.table(value_spec()) is table
    with pytest.raises(InvalidRequestError, match="state 's'"):
        tables.table(value_spec(pa.string()))


def test_columns_of_other_types_or_lengths_are_rejected(job: TablesJob) -> None:
    table = job.restore().table(value_spec())
    with pytest.raises(InvalidRequestError, match="state 's'"):
        table.write(identities(range(2)), [pa.array(["a", "b"])])
    with pytest.raises(InvalidRequestError, match="state 's'"):
        table.write(identities(range(2)), [pa.array([1])])


def test_manifest_with_a_segment_missing_in_its_handle_is_corrupt(job: TablesJob) -> None:
    tables = job.restore()
    put(tables.table(value_spec()), range(10))
    handle = job.complete(tables)
    with pytest.raises(CheckpointCorruptedError, match="doesn't have"):
        job.restore(SegmentsStateHandle(handle.key_groups, {}, handle.manifest))


def test_deleted_timers_are_dropped_without_a_write(job: TablesJob) -> None:
    spec = TableSpec("t", "timers", KEY, pa.schema([]), sub_key=pa.schema([("time", pa.int64())]))
    tables = job.restore()
    table = tables.table(spec)
    times = np.arange(ROWS)
    ids = Identities(time_part(times), (pa.array(times), pa.array(times)))
    table.write(ids, [])
    first = job.complete(tables)
    table.delete_up_to(ROWS // 2)
    second = job.complete(tables)
    assert uris(first) == uris(second)
    for timers in (table, job.restore(second).table(spec)):
        rows = timers.rows_between(np.array([0], np.uint64), np.array([8 << 48], np.uint64))
        left = rows.identities.columns[1].to_pylist()
        assert sorted(left) == list(range(ROWS // 2 + 1, ROWS))
        present, _ = timers.get(ids)
        assert present.tolist() == [time > ROWS // 2 for time in range(ROWS)]
