"""`holdfast savepoint`, `restore` and `rollback` in separate processes while a query runs."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from jobs.sums import NumberedSums, expected_numbers, feed
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery


def holdfast(*words: str) -> str:
    """Run the command in another process; returns its output."""
    completed = subprocess.run(
        [sys.executable, "-m", "holdfast", *words],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return completed.stdout


@pytest.fixture
def running(spark: SparkSession, tmp_path: Path) -> Iterator[tuple[NumberedSums, StreamingQuery]]:
    """A running query with operator state and keyed state, after two batches."""
    feed(tmp_path / "source", range(2))
    settings = {
        "spark.holdfast.checkpoint.dir": f"file://{tmp_path}/checkpoints",
        "spark.holdfast.checkpoint.num-retained": "3",
    }
    original = NumberedSums(spark, tmp_path / "source", f"file://{tmp_path}/original", settings)
    query = original.start()
    query.processAllAvailable()
    yield original, query
    query.stop()


def test_commands_fork_a_running_query_and_both_continue(
    spark: SparkSession, tmp_path: Path, running: tuple[NumberedSums, StreamingQuery]
) -> None:
    original, query = running
    source = original.source
    pointer = holdfast("savepoint", original.checkpoint, f"file://{tmp_path}/savepoints").strip()
    feed(source, range(2, 3))
    query.processAllAvailable()
    forked = f"file://{tmp_path}/forked"
    printed = holdfast("restore", pointer, f"file://{tmp_path}/fork", "--checkpoint-dir", forked)
    settings = dict(line.split(" ", 1) for line in printed.splitlines())
    assert settings["spark.holdfast.checkpoint.dir"] == forked
    fork = NumberedSums(spark, source, f"file://{tmp_path}/fork", settings)
    fork.run()
    assert fork.totals_and_numbers() == expected_numbers(range(2, 3))
    feed(source, range(3, 4))
    query.processAllAvailable()
    assert query.isActive
    assert original.totals_and_numbers() == expected_numbers(range(4))


def test_query_rolled_back_while_running_no_longer_commits(
    running: tuple[NumberedSums, StreamingQuery],
) -> None:
    original, query = running
    holdfast("rollback", original.checkpoint, "--checkpoint", "1", "--yes")
    feed(original.source, range(2, 3))
    with pytest.raises(StreamingQueryException):
        query.processAllAvailable()
    assert not query.isActive
    commits = Path(original.checkpoint.removeprefix("file://")) / "commits"
    assert [path.name for path in commits.glob("[0-9]*")] == ["0"]
