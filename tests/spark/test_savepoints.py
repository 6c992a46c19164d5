"""Savepoints of queries that run on a real Spark; integration_tests has all formats of state."""

import json
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
from jobs.sums import (
    FORMATS,
    NumberedSums,
    Sums,
    expected_numbers,
    expected_sums,
    feed,
    join_earlier,
    roll_back_elsewhere,
)
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from holdfast import restore_savepoint, roll_back, stop_with_savepoint, take_savepoint
from holdfast.errors import InvalidRequestError
from holdfast.spark.savepoints import Copier
from holdfast.spark.savepoints.change_notes import Change


@pytest.mark.exhaustive
@pytest.mark.parametrize("state_format", ["in files of HDFS", "in RocksDB"])
def test_fork_resumes_from_the_savepoint_and_can_be_rolled_back(
    spark: SparkSession, tmp_path: Path, state_format: str
) -> None:
    source = tmp_path / "source"
    feed(source, range(2))
    original = Sums(spark, source, f"file://{tmp_path}/original", FORMATS[state_format])
    original.run()
    pointer = take_savepoint(original.checkpoint, f"file://{tmp_path}/savepoints")
    # Neither the original nor the first directory of the savepoint is needed.
    shutil.move(tmp_path / "savepoints", tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "original")
    moved = f"file://{tmp_path}/elsewhere/{pointer.rpartition('/')[2]}"
    restored = restore_savepoint(moved, f"file://{tmp_path}/fork")
    feed(source, range(2, 4))
    fork = Sums(spark, source, restored.checkpoint_location, restored.settings)
    fork.run()
    assert fork.batches == expected_sums(range(2, 4))

    with pytest.raises(InvalidRequestError, match="End the application"):
        roll_back(restored.checkpoint_location, batch_id=2)
    assert roll_back_elsewhere(spark, restored.checkpoint_location, batch_id=2) == 2
    fork.batches.clear()
    fork.run()
    assert fork.batches == expected_sums(range(3, 4))


@pytest.mark.exhaustive
def test_state_in_format_2_is_rolled_back_under_spark(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "source"
    feed(source, range(4))
    directory = tmp_path / "50% of it"
    query = Sums(spark, source, f"file://{directory}/original", FORMATS["in format 2"])
    query.run()
    assert roll_back(query.checkpoint, batch_id=1) == 1
    query.batches.clear()
    query.run()
    assert query.batches == expected_sums(range(2, 4))


@pytest.mark.exhaustive
def test_rollback_of_changelogs_deletes_later_snapshots(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    feed(source, range(7))
    settings = FORMATS["in RocksDB with changelogs"] | {
        "spark.sql.streaming.stateStore.minDeltasForSnapshot": "3"
    }
    query = Sums(spark, source, f"file://{tmp_path}/original", settings)
    query.run()
    assert roll_back_elsewhere(spark, query.checkpoint, batch_id=2) == 2
    files = (tmp_path / "original").glob("state/0/*/[0-9]*.*")
    left = {path.name.removesuffix(".crc") for path in files}  # checksums, from PySpark 4.1 on
    assert (
        {"1.changelog", "2.changelog", "3.changelog"}
        <= left
        <= {*(f"{version}.{kind}" for version in (1, 2, 3) for kind in ("changelog", "zip"))}
    )
    query.batches.clear()
    query.run()
    assert query.batches == expected_sums(range(3, 7))


@pytest.mark.exhaustive
def test_join_in_a_directory_with_odd_characters_is_forked(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, directory = tmp_path / "the source", tmp_path / "100 % ü"
    feed(source, range(2))
    original = Sums(spark, source, f"file://{directory}/original", {}, plan=join_earlier)
    original.run()
    pointer = take_savepoint(original.checkpoint, f"file://{directory}/savepoints")
    feed(source, range(2, 4))
    original.batches.clear()
    original.run()
    shutil.move(source, directory / "moved source")
    restored = restore_savepoint(
        pointer,
        f"file://{directory}/fork",
        paths={f"file://{source}": f"file://{directory}/moved source"},
    )
    fork = Sums(
        spark, directory / "moved source", restored.checkpoint_location, {}, plan=join_earlier
    )
    fork.run()
    assert fork.batches == original.batches
    assert len(fork.batches[3]) == 30


@pytest.fixture
def running(spark: SparkSession, tmp_path: Path) -> Iterator[tuple[NumberedSums, StreamingQuery]]:
    """Run a query with state of Spark and of an operator, and finish two batches."""
    feed(tmp_path / "source", range(2))
    settings = {"spark.holdfast.checkpoint.dir": f"file://{tmp_path}/checkpoints"}
    original = NumberedSums(spark, tmp_path / "source", f"file://{tmp_path}/original", settings)
    query = original.start()
    query.processAllAvailable()
    yield original, query
    query.stop()


@pytest.mark.exhaustive
def test_fork_and_running_original_both_continue(
    spark: SparkSession, tmp_path: Path, running: tuple[NumberedSums, StreamingQuery]
) -> None:
    original, query = running
    source = tmp_path / "source"
    copy_state = Copier.copy_state

    def run_and_copy(copier: Copier, metadata: object) -> object:
        # The query keeps a single checkpoint, which is superseded twice before it is copied.
        feed(source, range(2, 4))
        query.processAllAvailable()
        return copy_state(copier, metadata)  # type: ignore[arg-type]

    with mock.patch.object(Copier, "copy_state", run_and_copy):
        pointer = take_savepoint(query, f"file://{tmp_path}/savepoints")
    restored = restore_savepoint(
        pointer, f"file://{tmp_path}/fork", checkpoint_dir=f"file://{tmp_path}/checkpoints"
    )
    assert restored.batch_id == 1
    fork = NumberedSums(spark, source, restored.checkpoint_location, restored.settings)
    fork.run()
    assert fork.totals_and_numbers() == expected_numbers(range(2, 4))
    feed(source, range(4, 5))
    query.processAllAvailable()
    assert query.isActive
    assert original.totals_and_numbers() == expected_numbers(range(5))


def test_query_stopped_with_a_savepoint_moves_with_its_id(
    spark: SparkSession, tmp_path: Path, running: tuple[NumberedSums, StreamingQuery]
) -> None:
    original, query = running
    with pytest.raises(InvalidRequestError, match="no savepoint directory"):
        stop_with_savepoint(query)
    assert query.isActive
    pointer = stop_with_savepoint(query, f"file://{tmp_path}/savepoints")
    assert not query.isActive
    restored = restore_savepoint(
        pointer,
        f"file://{tmp_path}/moved",
        checkpoint_dir=f"file://{tmp_path}/moved-checkpoints",
        keep_query_id=True,
    )
    assert restored.query_id == query.id == restored.job_id
    settings = dict(restored.settings)
    # Spark 4.3 and later set it.
    assert settings.pop("spark.sql.streaming.stateStore.checkpointFormatVersion", "1") == "1"
    assert settings == {
        "spark.holdfast.checkpoint.dir": f"file://{tmp_path}/moved-checkpoints",
        "spark.holdfast.job.id": query.id,
    }
    feed(tmp_path / "source", range(2, 3))
    moved = NumberedSums(spark, original.source, restored.checkpoint_location, restored.settings)
    moved.run()
    assert moved.totals_and_numbers() == expected_numbers(range(2, 3))


@pytest.mark.exhaustive
def test_query_with_operators_is_rolled_back_with_all_state(
    spark: SparkSession, tmp_path: Path, running: tuple[NumberedSums, StreamingQuery]
) -> None:
    original, query = running
    with pytest.raises(InvalidRequestError, match="stop it first"):
        roll_back(original.checkpoint, checkpoint=1)
    query.stop()
    original.settings = {**original.settings, "spark.holdfast.checkpoint.num-retained": "3"}
    feed(tmp_path / "source", range(2, 4))
    original.run()
    assert roll_back_elsewhere(spark, original.checkpoint, checkpoint=3) == 2
    original.batches.clear()
    original.run()
    assert original.totals_and_numbers() == expected_numbers(range(3, 4))


@pytest.mark.exhaustive
def test_spark_refuses_to_start_an_unfinished_restore(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "source"
    feed(source, range(1))
    original = Sums(spark, source, f"file://{tmp_path}/original", {})
    original.run()
    pointer = take_savepoint(original.checkpoint, f"file://{tmp_path}/savepoints")
    location = f"file://{tmp_path}/fork"

    restore = partial(restore_savepoint, pointer, location)
    with mock.patch.object(Change, "finish", side_effect=KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            restore()
    fork = Sums(spark, source, location, {})
    with pytest.raises(Exception, match="id"):
        fork.run()
    restored = restore()
    assert json.loads((tmp_path / "fork" / "metadata").read_text())["id"] == restored.query_id
    feed(source, range(1, 2))
    fork.run()
    assert fork.batches == expected_sums(range(1, 2))


@pytest.mark.exhaustive
def test_savepoint_between_both_commits_skips_the_repeated_batch(
    spark: SparkSession, tmp_path: Path, running: tuple[NumberedSums, StreamingQuery]
) -> None:
    original, query = running
    query.stop()
    for name in ("1", ".1.crc"):
        (tmp_path / "original" / "commits" / name).unlink()
    pointer = take_savepoint(original.checkpoint, f"file://{tmp_path}/savepoints")
    restored = restore_savepoint(
        pointer, f"file://{tmp_path}/fork", checkpoint_dir=f"file://{tmp_path}/checkpoints"
    )
    feed(tmp_path / "source", range(2, 3))
    fork = NumberedSums(spark, original.source, restored.checkpoint_location, restored.settings)
    fork.run()
    assert fork.totals_and_numbers() == expected_numbers(range(2, 3))


@pytest.mark.exhaustive
def test_source_used_twice_is_forked(spark: SparkSession, tmp_path: Path) -> None:
    def rows_read(location: str) -> set[str]:
        twice, other = (
            spark.readStream.format("text")
            .option("maxFilesPerTrigger", 1)
            .load(f"{tmp_path}/{name}")
            for name in ("twice", "other")
        )
        read_rows: set[str] = set()

        def sink(rows: DataFrame, _: int) -> None:
            read_rows.update(row.value for row in rows.collect())

        rows = twice.union(twice).union(other).writeStream.foreachBatch(sink)
        query = rows.option("checkpointLocation", location).trigger(availableNow=True).start()
        query.awaitTermination()
        return read_rows

    def feed_text(folder: str, number: int) -> None:
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / f"{number}.txt").write_text(f"{folder} {number}")

    feed_text("twice", 0)
    for number in range(3):
        feed_text("other", number)
    assert len(rows_read(f"file://{tmp_path}/original")) == 4
    pointer = take_savepoint(f"file://{tmp_path}/original", f"file://{tmp_path}/savepoints")
    restored = restore_savepoint(pointer, f"file://{tmp_path}/fork")
    feed_text("other", 3)
    assert rows_read(restored.checkpoint_location) == {"other 3"}
