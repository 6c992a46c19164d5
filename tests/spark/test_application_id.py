"""The id of a query for sinks: the same after a crash, new after each rollback, restore and fork."""

from functools import partial
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from jobs.job import Job
from jobs.operators import Groups
from jobs.stopped_query import QUERY, put
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from holdfast import application_id, preview_rollback, restore_savepoint, roll_back
from holdfast.errors import CheckpointCorruptedError, InvalidRequestError
from holdfast.spark.compat import read_arrow
from holdfast.spark.savepoints.change_notes import Change

without_spark = pytest.mark.usefixtures("as_without_spark")


class TransactionalTable:
    """A table that commits rows with an application id and a version, as a Delta table does.

    A write whose version is not above the last one of its application is skipped without an error: Delta's rule
    for `txnAppId` and `txnVersion`. Restoring older rows doesn't take the marks back, nor does Delta's RESTORE.
    """

    def __init__(self, directory: Path) -> None:
        self._rows, self._marks = directory / "rows", directory / "marks"
        for each in (self._rows, self._marks):
            each.mkdir(parents=True)

    def append(self, rows: pa.Table, application: str, version: int) -> None:
        mark = self._marks / application
        if mark.exists() and int(mark.read_text()) >= version:
            return
        pq.write_table(rows, self._rows / f"{version}-{application}.parquet")
        mark.write_text(str(version))

    def delete_after(self, version: int) -> None:
        """Restore the rows as they were after that version."""
        for file in self._rows.iterdir():
            if int(file.name.partition("-")[0]) > version:
                file.unlink()

    def ids(self) -> list[int]:
        files = self._rows.iterdir()
        return sorted(i for file in files for i in pq.read_table(file)["id"].to_pylist())


@without_spark
def test_id_is_the_query_id_until_a_rollback(stopped_query: str) -> None:
    assert application_id(stopped_query) == QUERY


@without_spark
def test_each_rollback_to_a_checkpoint_gives_a_new_id(stopped_query: str) -> None:
    ids = [application_id(stopped_query)]
    for _ in range(2):
        roll_back(stopped_query, checkpoint=2)
        ids.append(application_id(stopped_query))
    assert len(set(ids)) == 3
    assert all(each.startswith(QUERY) for each in ids)


@without_spark
@pytest.mark.parametrize("step", ["finish", "forget"])
def test_interrupted_rollback_keeps_its_new_id(stopped_query: str, step: str) -> None:
    dies = mock.patch.object(Change, step, side_effect=KeyboardInterrupt)
    with dies, pytest.raises(KeyboardInterrupt):
        roll_back(stopped_query, checkpoint=2)
    new_id = application_id(stopped_query)
    assert new_id != QUERY
    roll_back(stopped_query, checkpoint=2)
    # Once Spark could start the query, a repetition is another rollback.
    assert (application_id(stopped_query) == new_id) == (step == "finish")


@without_spark
@pytest.mark.parametrize("keep_query_id", [False, True], ids=["fork", "move"])
def test_each_restore_gives_a_new_id_and_a_repetition_keeps_it(
    savepoint: str, stopped_query: str, directory: str, *, keep_query_id: bool
) -> None:
    roll_back(stopped_query, checkpoint=2)
    original = application_id(stopped_query)
    ids = []
    for name in ("a", "a", "b"):
        restored = restore_savepoint(
            savepoint,
            f"{directory}/{name}",
            checkpoint_dir=f"{directory}/checkpoints-{name}",
            keep_query_id=keep_query_id,
        )
        ids.append(application_id(restored.checkpoint_location))
    assert ids[0] == ids[1] != ids[2]
    assert original not in ids
    assert application_id(stopped_query) == original


@without_spark
def test_damaged_id_is_an_error(stopped_query: str) -> None:
    put(f"{stopped_query}/holdfast-application.json", "{}")
    with pytest.raises(CheckpointCorruptedError, match="application id can't be read"):
        application_id(stopped_query)


def test_id_without_a_location_needs_a_batch() -> None:
    with pytest.raises(InvalidRequestError, match="outside of a micro-batch"):
        application_id()


@without_spark
def test_preview_has_the_batches_of_the_rollback(stopped_query: str) -> None:
    preview = preview_rollback(stopped_query, checkpoint=2)
    assert (preview.batch_id, preview.newest_batch_id) == (1, 3)


@pytest.mark.exhaustive
def test_rolled_back_query_loses_no_rows_in_a_table(job: Job, tmp_path: Path) -> None:
    job.settings["spark.holdfast.checkpoint.num-retained"] = "10"
    table, careless = TransactionalTable(tmp_path / "a"), TransactionalTable(tmp_path / "b")

    def sink(rows: DataFrame, batch_id: int, *, dies_in: int | None = None) -> None:
        output = read_arrow(rows)
        table.append(output, application_id(), batch_id)
        careless.append(output, "orders", batch_id)
        if batch_id == dies_in:
            raise OSError("as planned")

    job.feed(files=3)
    with pytest.raises(StreamingQueryException, match="as planned"):
        job.run(job.operator(Groups(1), sink=partial(sink, dies_in=2)))
    job.run(job.operator(Groups(1), sink=sink))  # the table has batch 2 and skips the repetition
    assert table.ids() == careless.ids() == job.ids_fed

    roll_back(f"file://{job.spark_checkpoint}", checkpoint=1)
    table.delete_after(0)
    careless.delete_after(0)
    job.feed(files=1)
    job.run(job.operator(Groups(1), sink=sink))
    assert table.ids() == job.ids_fed
    assert careless.ids() != job.ids_fed  # so that the model shows the fault
