"""Fixtures of several tests of backends."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from contracts.columnar_tables import TablesJob
from contracts.keyed.checkpoints import KeyedCheckpoints
from contracts.raw_state import Make, file_stream, memory_stream


@pytest.fixture
def checkpoints() -> Iterator[KeyedCheckpoints]:
    checkpoints = KeyedCheckpoints()
    yield checkpoints
    checkpoints.delete()


@pytest.fixture
def job(memory_directory: str, tmp_path: Path) -> TablesJob:
    return TablesJob(memory_directory, tmp_path)


@pytest.fixture(params=["memory", "file"])
def make(request: pytest.FixtureRequest, local_directory: str) -> Make:
    """A function that creates state streams, in memory or in files."""
    if request.param == "memory":
        return memory_stream
    return lambda: file_stream(local_directory)
