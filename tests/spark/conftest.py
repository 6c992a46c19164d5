"""The session and the jobs of the tests on Spark, stopped queries, S3 servers, and the clock of `memory://`."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from jobs.fixtures import job, spark, state_backend
from jobs.stopped_query import as_without_spark, directory, plain_query, stopped_query
from servers.s3 import ministack, ministack_bucket, moto, moto_bucket

from holdfast import restore_savepoint, take_savepoint
from holdfast.locations.adapters import (
    MemoryFileSystem,
    register_file_system,
    unregister_file_system,
)
from holdfast.spark.savepoints import RestoredQuery
from holdfast.testing import ManualClock

__all__ = [
    "as_without_spark",
    "directory",
    "job",
    "ministack",
    "ministack_bucket",
    "moto",
    "moto_bucket",
    "plain_query",
    "spark",
    "state_backend",
    "stopped_query",
]


@pytest.fixture
def savepoint(stopped_query: str, directory: str) -> str:
    """Return a savepoint of a stopped query with an operator."""
    return take_savepoint(stopped_query, f"{directory}/savepoints")


@pytest.fixture
def fork(directory: str) -> str:
    """Return the checkpointLocation of a query that is restored from a savepoint."""
    return f"{directory}/fork"


@pytest.fixture
def restore(savepoint: str, fork: str, directory: str) -> "partial[RestoredQuery]":
    """Return a function that restores the savepoint as the fork."""
    return partial(restore_savepoint, savepoint, fork, checkpoint_dir=f"{directory}/forked")


@pytest.fixture
def _unregister_s3() -> Iterator[None]:
    """Unregister the file systems of S3 after the test."""
    yield
    for scheme in ("s3", "s3a"):
        unregister_file_system(scheme)


@pytest.fixture
def task_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a local directory that tasks get as from Spark."""
    directory = tmp_path / "blockmgr-1"
    directory.mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(directory))
    return directory


@pytest.fixture
def memory_clock() -> Iterator[ManualClock]:
    """Give `memory://` a clock that advances at each look, so that no two files have the same time."""
    clock = ManualClock(tick_ms=1)
    register_file_system("memory", lambda: MemoryFileSystem(clock))
    yield clock
    unregister_file_system("memory")
