"""Rows in tables of Delta and Iceberg, exactly once: the driver is killed at every step, and queries are rolled back."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from jobs.job import Job
from jobs.processes import run_until_killed
from jobs.table_cases import (
    append_after_rollback,
    append_batches_repeatedly,
    merge_rows,
    new_table,
    write_by_two_drivers,
    write_twice_in_a_batch,
)
from jobs.table_kills import JOBS
from jobs.tables import DELETED, FILES, KEYS, KINDS, restart_jobs, roll_back_job, run_job
from pyiceberg.table import StaticTable
from servers.tables import TableSpark, table_spark

from holdfast.errors import InvalidRequestError

FORMATS = ("delta", "iceberg")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables")


@pytest.fixture(scope="module")
def tables(table_jars: Path, directory: Path) -> Iterator[TableSpark]:
    """The Spark of these tests."""
    with table_spark(table_jars, directory / "warehouse") as spark:
        yield spark


@pytest.fixture(scope="module")
def batches(table_jars: Path, directory: Path, tables: TableSpark) -> list[list[int]]:
    """Kill a driver with a job at each point, restart all jobs, and return the ids that an operator emits in each batch."""
    for name in JOBS:
        Job(None, directory / name).feed(FILES)  # type: ignore[arg-type]
    run_until_killed("-m", "jobs.table_kills", str(directory), str(table_jars))
    return tables.call(restart_jobs, directory, {name: kind for name, (kind, _) in JOBS.items()})


def rows_of(kind: str, directory: Path, name: str) -> list[dict[str, Any]]:
    """Return the rows of a table, read without Spark."""
    if kind.startswith("delta"):
        rows: list[dict[str, Any]] = (
            DeltaTable(directory / name / "table").to_pyarrow_table().to_pylist()
        )
        return rows
    metadata = directory / "warehouse" / "db" / name / "metadata"
    newest = (metadata / "version-hint.text").read_text()
    rows_of_iceberg: list[dict[str, Any]] = (
        StaticTable.from_metadata(str(metadata / f"v{newest}.metadata.json"))
        .scan()
        .to_arrow()
        .to_pylist()
    )
    return rows_of_iceberg


def merge_batches(batches: list[list[int]]) -> dict[int, int]:
    """Return the value of each key after these batches, as the sinks merge them."""
    assert DELETED == "value % 5 = 0"
    values: dict[int, int] = {}
    for emitted in batches:
        latest = {value % KEYS: value for value in sorted(emitted)}
        values |= latest
        values = {key: value for key, value in values.items() if value % 5}
    return values


@pytest.mark.parametrize("kind", FORMATS)
def test_repeated_batches_are_skipped(tables: TableSpark, tmp_path: Path, kind: str) -> None:
    table = new_table(kind, tmp_path)
    assert tables.call(append_batches_repeatedly, kind, table) == [(0,), (1,), (2,)]


def test_delta_table_of_the_catalog_is_created_once(tables: TableSpark) -> None:
    rows = tables.call(append_batches_repeatedly, "delta", "named")
    assert rows == [(0,), (1,), (2,)]


@pytest.mark.parametrize("kind", FORMATS)
def test_revoked_batches_are_replaced(tables: TableSpark, tmp_path: Path, kind: str) -> None:
    table = new_table(kind, tmp_path)
    rows = tables.call(append_after_rollback, kind, table, "")
    assert rows == [(0,), (10,), (11,)]


@pytest.mark.parametrize("kind", FORMATS)
def test_commit_of_others_since_revoked_batches_is_an_error(
    tables: TableSpark, tmp_path: Path, kind: str
) -> None:
    table = new_table(kind, tmp_path)
    reference = f"delta.`{table}`" if kind == "delta" else table
    insert = f"INSERT INTO {reference} VALUES (100)"
    with pytest.raises(InvalidRequestError, match="batches 1 to 2") as refused:
        tables.call(append_after_rollback, kind, table, insert)
    command = re.search("run `(.*?)`", str(refused.value))
    assert command is not None
    assert ("RESTORE TABLE" if kind == "delta" else "rollback_to_snapshot") in command[1]

    delete = f"DELETE FROM {reference} WHERE id IN (1, 2, 100)"
    rows = tables.call(append_after_rollback, kind, table, delete, "keep")
    assert rows == [(0,), (10,), (11,)]


@pytest.mark.parametrize("kind", FORMATS)
def test_batch_of_two_drivers_is_there_once(tables: TableSpark, tmp_path: Path, kind: str) -> None:
    rows, error = tables.call(write_by_two_drivers, kind, new_table(kind, tmp_path), tmp_path)
    assert rows == [(0,), (1,), (100,)]
    assert ("ConcurrentTransaction" in error or "DELTA_CONCURRENT" in error) == (kind == "delta")


@pytest.mark.parametrize("kind", FORMATS)
def test_two_sinks_of_a_table_need_their_own_names(
    tables: TableSpark, tmp_path: Path, kind: str
) -> None:
    table = new_table(kind, tmp_path)
    with pytest.raises(InvalidRequestError, match="written twice in one batch"):
        tables.call(write_twice_in_a_batch, kind, table, ("", ""))
    assert tables.call(write_twice_in_a_batch, kind, f"{table}_2", ("", "late")) == [(0,), (1,)]


@pytest.mark.parametrize("kind", FORMATS)
def test_merge_replaces_inserts_and_deletes(tables: TableSpark, tmp_path: Path, kind: str) -> None:
    rows = tables.call(
        merge_rows,
        kind,
        new_table(kind, tmp_path),
        "`a-key` long, total long, gone boolean",
        [
            [(1, 10, False), (2, 20, False), (4, 1, True)],
            [(1, 11, False), (2, 0, True), (3, 30, None)],
        ],
        on=["a-key"],
        deletes="gone",
    )
    assert rows == [(1, 11), (3, 30)]


# The rules are those of both formats.
@pytest.mark.parametrize(
    ("kind", "rows", "arguments", "message"),
    [
        ("delta", [(1, 1), (1, 2)], {}, "several rows of one key"),
        ("iceberg", [(1, 2), (1, 2)], {"latest": "value"}, "the same 'value'"),
        ("delta", [(None, 1)], {}, "null in its key"),
        ("iceberg", [(1, 1)], {"on": ["id"]}, "column 'id' is not in the rows"),
        ("delta", [(1, 1)], {"latest": "at"}, "column 'at' is not in the rows"),
    ],
)
def test_merge_of_ambiguous_rows_is_an_error(
    tables: TableSpark,
    tmp_path: Path,
    *,
    kind: str,
    rows: list[tuple[Any, ...]],
    arguments: dict[str, Any],
    message: str,
) -> None:
    arguments = {"on": ["key"]} | arguments
    table = new_table(kind, tmp_path)
    with pytest.raises(InvalidRequestError, match=message):
        tables.call(merge_rows, kind, table, "key long, value long", [rows], **arguments)


@pytest.mark.parametrize("kind", FORMATS)
def test_merge_of_unknown_columns_is_an_error(
    tables: TableSpark, tmp_path: Path, kind: str
) -> None:
    table = new_table(kind, tmp_path)
    tables.call(merge_rows, kind, table, "key long, value long", [[(1, 1)]], on=["key"])
    with pytest.raises(InvalidRequestError, match=r"columns \['other'\] are not in"):
        columns = "key long, value long, other long"
        tables.call(merge_rows, kind, table, columns, [[(1, 1, 1)]], on=["key"])


@pytest.mark.parametrize("kind", KINDS)
def test_rolled_back_query_has_each_row_once(
    tables: TableSpark, directory: Path, kind: str
) -> None:
    name = f"rolled_back_{kind}"
    tables.call(run_job, directory, name, kind, files=FILES)
    before = rows_of(kind, directory, name)
    roll_back_job(directory, name, checkpoint=2)
    tables.call(run_job, directory, name, kind)

    def values(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
        return sorted(tuple(row.values()) for row in rows)

    assert values(rows_of(kind, directory, name)) == values(before)
    if kind.startswith("delta"):
        history = DeltaTable(directory / name / "table").history()
        assert [commit["operation"] for commit in history].count("RESTORE") == 1


@pytest.mark.parametrize("name", JOBS)
def test_driver_killed_at_any_step_writes_each_row_once(
    directory: Path, batches: list[list[int]], name: str
) -> None:
    kind, _ = JOBS[name]
    rows = rows_of(kind, directory, name)
    job = Job(None, directory / name)  # type: ignore[arg-type]
    assert job.checkpoint_ids()[-1] == FILES
    if kind.endswith("append"):
        assert sorted([row["id"] for row in rows] + job.ids_held()) == job.ids_fed
    else:
        assert {row["key"]: row["value"] for row in rows} == merge_batches(batches)
        assert len(rows) == len(merge_batches(batches))
