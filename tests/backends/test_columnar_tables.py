"""Columnar tables: what a checkpoint writes and refers to, folds, migrations, and what is refused."""

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
    job,
    put,
    sum_spec,
    uris,
    value_spec,
    values,
)

from holdfast.backends.keyed.columnar import (
    MergePolicy,
)
from holdfast.backends.keyed.segments import read_manifest
from holdfast.backends.keyed.table import Identities, Operation, TableSpec
from holdfast.backends.keyed.times import time_part
from holdfast.errors import (
    CheckpointCorruptedError,
    InvalidRequestError,
    StateMigrationError,
)
from holdfast.locations.handles import SegmentsStateHandle

__all__ = ["job"]


def test_a_checkpoint_writes_what_changed_since_the_last_confirmed_and_refers_to_the_rest(
    job: TablesJob,
) -> None:
    tables = job.restored()
    table = tables.table(value_spec())
    put(table, range(ROWS), 1)
    first = uris(job.completed(tables))
    put(table, range(0, ROWS, 100), 2)
    second = uris(job.completed(tables))
    assert first.items() < second.items()
    assert len(second) == 2


def test_a_checkpoint_without_changes_writes_no_segment(job: TablesJob) -> None:
    tables = job.restored()
    put(tables.table(value_spec()), range(ROWS))
    assert uris(job.completed(tables)) == uris(job.completed(tables))


def test_what_an_aborted_checkpoint_wrote_is_written_again_and_no_row_is_lost(
    job: TablesJob,
) -> None:
    tables = job.restored()
    table = tables.table(value_spec())
    put(table, range(ROWS), 1)
    aborted = job.snapshot(tables)
    aborted.discard_state()
    tables.notify_checkpoint_aborted(job.checkpoint)
    assert set(values(table, range(ROWS))) == {1}
    completed = job.completed(tables)
    assert not set(uris(aborted).values()) & set(uris(completed).values())
    assert set(values(job.restored(completed).table(value_spec()), range(ROWS))) == {1}


def test_what_no_checkpoint_has_confirmed_is_written_by_each(job: TablesJob) -> None:
    tables = job.restored()
    put(tables.table(value_spec()), range(ROWS))
    first, second = uris(job.snapshot(tables)), uris(job.snapshot(tables))
    assert first.keys() == second.keys()
    assert not set(first.values()) & set(second.values())
    job.confirm(tables, 1)
    assert uris(job.snapshot(tables)) == first


def test_a_late_word_of_an_older_checkpoint_changes_nothing(job: TablesJob) -> None:
    tables = job.restored()
    put(tables.table(value_spec()), range(ROWS))
    job.snapshot(tables)
    second = uris(job.snapshot(tables))
    job.confirm(tables, 2)
    tables.notify_checkpoint_complete(1)
    assert uris(job.snapshot(tables)) == second


def test_a_cancelled_checkpoint_leaves_no_file_and_all_rows(job: TablesJob) -> None:
    tables = job.restored()
    table = tables.table(value_spec())
    put(table, range(ROWS), 3)
    tables.snapshot(7, job.access.initialize_location_for_checkpoint(7)).cancel()
    assert set(values(table, range(ROWS))) == {3}


def test_a_checkpoint_refers_to_what_was_restored_unless_that_belongs_to_others(
    job: TablesJob,
) -> None:
    tables = job.restored()
    put(tables.table(value_spec()), range(ROWS), 1)
    handle = job.completed(tables)
    assert uris(job.snapshot(job.restored(handle))) == uris(handle)
    own = uris(job.snapshot(job.restored(handle, may_refer=False)))
    assert own.keys() == uris(handle).keys()
    assert not set(own.values()) & set(uris(handle).values())


def test_a_state_that_nobody_asked_for_is_in_the_next_checkpoint(job: TablesJob) -> None:
    tables = job.restored()
    put(tables.table(value_spec(name="a")), range(10), 1)
    put(tables.table(value_spec(name="b")), range(10), 2)
    restored = job.restored(job.completed(tables))
    assert restored.specs().keys() == {"a", "b"}
    put(restored.table(value_spec(name="a")), range(5), 3)
    again = job.restored(job.completed(restored))
    assert values(again.table(value_spec(name="b")), range(10)) == [2] * 10
    assert values(again.table(value_spec(name="a")), range(10)) == [3] * 5 + [1] * 5


def test_tables_without_a_state_make_no_handle(job: TablesJob) -> None:
    part = job.restored().snapshot(1, job.access.initialize_location_for_checkpoint(1))
    assert not part.run().state.managed_keyed


@pytest.mark.parametrize("is_merged", [True, False])
def test_a_sum_too_large_for_its_type_is_an_error_that_names_the_state(
    job: TablesJob, *, is_merged: bool
) -> None:
    tables = job.restored(policy=MergePolicy(rewrite_factor=1e9) if is_merged else NO_MERGES)
    table = tables.table(sum_spec())
    for _ in range(2):
        table.write(identities(range(2)), [pa.array([2**62, 1])], Operation.APPEND)
        if not is_merged:
            job.completed(tables)
    with pytest.raises(InvalidRequestError, match="state 's': a sum is"):
        if is_merged:
            job.completed(tables)
        else:
            values(table, range(2))


def widened(stored: TableSpec, columns: Sequence[pa.Array]) -> tuple[pa.Array, ...]:
    assert stored.values.types == [pa.int32()]
    return tuple(column.cast(pa.int64()) for column in columns)


def test_values_are_migrated_when_they_are_read_and_for_good_when_they_are_merged(
    job: TablesJob,
) -> None:
    tables = job.restored()
    old = tables.table(sum_spec(pa.int32()))
    put(old, range(ROWS), 3)
    handle = job.completed(tables)
    restored = job.restored(handle)
    table = restored.table(sum_spec(), widened)
    big = pa.array([2**40] * 5)
    table.write(identities(range(5)), [big], Operation.APPEND)
    assert values(table, range(6)) == [2**40 + 3] * 5 + [3]
    both = job.completed(restored)
    assert len(read_manifest([both], GROUPS).tables["s"].specs) == 2
    with pytest.raises(StateMigrationError):
        job.restored(both).table(sum_spec())
    merging = job.restored(both, policy=MergePolicy(rewrite_factor=1e9))
    table = merging.table(sum_spec(), widened)
    table.write(identities(range(1)), [big[:1]], Operation.APPEND)
    merged = job.completed(merging)
    assert len(read_manifest([merged], GROUPS).tables["s"].specs) == 1
    assert values(table, range(6)) == [2**41 + 3] + [2**40 + 3] * 4 + [3]
    table = job.restored(merged).table(sum_spec())
    assert values(table, range(6)) == [2**41 + 3] + [2**40 + 3] * 4 + [3]


@pytest.mark.parametrize(
    ("spec", "what"),
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
def test_a_restored_table_that_does_not_fit_is_refused(
    job: TablesJob, spec: TableSpec, what: str
) -> None:
    tables = job.restored()
    put(tables.table(value_spec()), range(10))
    with pytest.raises(StateMigrationError, match=what):
        job.restored(job.completed(tables)).table(spec)


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
def test_values_that_arrow_takes_no_rows_of_are_looked_up_and_merged_too(
    job: TablesJob, type: pa.DataType, value: object
) -> None:
    tables = job.restored(policy=MergePolicy(rewrite_factor=1e9))
    table = tables.table(value_spec(type))
    for keys in (range(4), range(2)):
        put(table, keys, value)
        job.completed(tables)
    present, (column,) = table.get(identities(range(6)))
    assert present.tolist() == [True] * 4 + [False] * 2
    assert column.type == type
    assert column.slice(0, 4).equals(pa.array([value] * 4, type))
    assert [row is None for row in column.to_pylist()] == [False] * 4 + [True] * 2
    _, (absent,) = table.get(identities(range(7, 9)))
    assert absent.type == type


def test_a_table_is_asked_for_again_with_the_same_spec_only(job: TablesJob) -> None:
    tables = job.restored()
    table = tables.table(value_spec())
    assert tables.table(value_spec()) is table
    with pytest.raises(InvalidRequestError, match="state 's'"):
        tables.table(value_spec(pa.string()))


def test_columns_of_other_types_or_lengths_are_refused(job: TablesJob) -> None:
    table = job.restored().table(value_spec())
    with pytest.raises(InvalidRequestError, match="state 's'"):
        table.write(identities(range(2)), [pa.array(["a", "b"])])
    with pytest.raises(InvalidRequestError, match="state 's'"):
        table.write(identities(range(2)), [pa.array([1])])


def test_a_manifest_that_names_a_segment_that_the_handle_lacks_is_damaged(job: TablesJob) -> None:
    tables = job.restored()
    put(tables.table(value_spec()), range(10))
    handle = job.completed(tables)
    with pytest.raises(CheckpointCorruptedError, match="doesn't have"):
        job.restored(SegmentsStateHandle(handle.key_groups, {}, handle.manifest))


def test_dead_timers_are_dropped_without_being_written(job: TablesJob) -> None:
    spec = TableSpec("t", "timers", KEY, pa.schema([]), sub_key=pa.schema([("time", pa.int64())]))
    tables = job.restored()
    table = tables.table(spec)
    times = np.arange(ROWS)
    ids = Identities(time_part(times), (pa.array(times), pa.array(times)))
    table.write(ids, [])
    first = job.completed(tables)
    table.delete_up_to(ROWS // 2)
    second = job.completed(tables)
    assert uris(first) == uris(second)
    for timers in (table, job.restored(second).table(spec)):
        rows = timers.rows_between(np.array([0], np.uint64), np.array([8 << 48], np.uint64))
        left = rows.identities.columns[1].to_pylist()
        assert sorted(left) == list(range(ROWS // 2 + 1, ROWS))
        present, _ = timers.get(ids)
        assert present.tolist() == [time > ROWS // 2 for time in range(ROWS)]
