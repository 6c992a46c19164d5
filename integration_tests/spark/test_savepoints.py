"""Savepoints of every format that Spark keeps state in, and of a query that runs."""

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from jobs.pyspark_versions import requires_pyspark
from jobs.savepoint_crashes import check_restores, check_rollbacks, check_savepoints
from jobs.sums import FORMATS, Sums, distinct_sums, expected_sums, feed
from pyspark.sql import SparkSession

from holdfast import restore_savepoint, take_savepoint
from holdfast.testing import Faults, faulty_file_system

STRIDE = 5
"""Each of these calls to the store is a crash point; all calls would take minutes."""


@pytest.mark.parametrize("kept", FORMATS)
def test_fork_of_a_running_query_yields_the_same_results(
    spark: SparkSession, tmp_path: Path, kept: str
) -> None:
    source = tmp_path / "source"
    feed(source, range(2))
    original = Sums(spark, source, f"file://{tmp_path}/original", FORMATS[kept], plan=distinct_sums)
    query = original.start()
    try:
        query.processAllAvailable()
        first = take_savepoint(query, f"file://{tmp_path}/savepoints")
        feed(source, range(2, 8))
        # It is in the middle of its batches; the newest one is unknown.
        second = take_savepoint(query, f"file://{tmp_path}/savepoints")
        query.processAllAvailable()
        assert query.isActive
    finally:
        query.stop()
    assert original.batches == expected_sums(range(8))
    shutil.rmtree(tmp_path / "original")
    # The first was taken between batches, like that of a stopped query.
    pointers = {"first": first, "second": second} if kept == "in RocksDB" else {"second": second}
    for name, pointer in pointers.items():
        restored = restore_savepoint(pointer, f"file://{tmp_path}/{name}")
        fork = Sums(
            spark, source, restored.checkpoint_location, restored.settings, plan=distinct_sums
        )
        fork.run()
        assert fork.batches == expected_sums(range(restored.batch_id + 1, 8))
    assert min(fork.batches, default=8) >= 2


def test_a_fork_of_transform_with_state_needs_nothing_of_the_original(
    spark: SparkSession, tmp_path: Path
) -> None:
    pytest.importorskip("google.protobuf", reason="transformWithState in Python needs protobuf")
    from jobs.processors import transformed_sums

    source = tmp_path / "source"
    feed(source, range(2))
    settings = FORMATS["in RocksDB with changelogs"]
    original = Sums(spark, source, f"file://{tmp_path}/original", settings, plan=transformed_sums)
    original.run()
    pointer = take_savepoint(original.checkpoint, f"file://{tmp_path}/savepoints")
    shutil.rmtree(tmp_path / "original")
    restored = restore_savepoint(pointer, f"file://{tmp_path}/fork")
    feed(source, range(2, 4))
    fork = Sums(
        spark, source, restored.checkpoint_location, restored.settings, plan=transformed_sums
    )
    fork.run()
    assert fork.batches == expected_sums(range(2, 4))


@requires_pyspark("4.2", "repartitioning of Spark's state")
def test_state_in_rocksdb_is_spread_over_more_partitions(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    feed(source, range(2))
    original = Sums(spark, source, f"file://{tmp_path}/original", FORMATS["in RocksDB"])
    original.run()
    pointer = take_savepoint(original.checkpoint, f"file://{tmp_path}/savepoints")
    restored = restore_savepoint(pointer, f"file://{tmp_path}/fork", shuffle_partitions=3)
    assert restored.batch_id == 2
    feed(source, range(2, 3))
    fork = Sums(spark, source, restored.checkpoint_location, restored.settings)
    fork.run()
    assert fork.batches == {3: expected_sums(range(2, 3))[2]}
    partitions = {path.name for path in (tmp_path / "fork" / "state" / "0").glob("[0-9]*")}
    assert partitions == {"0", "1", "2"}


@pytest.fixture
def faults() -> Iterator[Faults]:
    """A directory in memory whose file system fails on demand."""
    with faulty_file_system(f"memory:///{uuid.uuid4().hex}") as faults:
        yield faults


def test_savepoint_interrupted_at_any_step_does_not_exist(faults: Faults) -> None:
    check_savepoints(faults, stride=STRIDE)


def test_restore_interrupted_at_any_step_cannot_be_started(faults: Faults) -> None:
    check_restores(faults, stride=STRIDE)


def test_rollback_interrupted_at_any_step_cannot_be_started(faults: Faults) -> None:
    check_rollbacks(faults, stride=STRIDE)
