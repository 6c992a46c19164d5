"""The data source that makes Spark run batches, polled without Spark."""

import tempfile
import uuid
from pathlib import Path

import pytest
from contracts.processes import python
from pyspark.sql.types import StructType

from holdfast.errors import StorageUnavailableError
from holdfast.spark.compat import IS_PYSPARK_4
from holdfast.spark.event_time import IdleTicks
from holdfast.testing import ManualClock
from pyspark_holdfast_ticks import (
    DIRECTORY,
    NAME,
    DefaultSource,
    TickReader,
    is_tick_offset,
)

pytestmark = pytest.mark.skipif(not IS_PYSPARK_4, reason="PySpark 3.5 has no sources in Python")

START = {"holdfast-ticks": 0}


@pytest.fixture(autouse=True)
def _temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def idle_ticks() -> IdleTicks:
    return IdleTicks(uuid.uuid4().hex)


@pytest.fixture
def reader(idle_ticks: IdleTicks, clock: ManualClock) -> TickReader:
    return TickReader(idle_ticks.name, now_ms=clock.now_ms)


def test_run_begins_with_a_batch_despite_earlier_requests(
    reader: TickReader, idle_ticks: IdleTicks, clock: ManualClock
) -> None:
    first = reader.latestOffset(START, None)
    assert first != START
    assert reader.latestOffset(first, None) == first
    again = TickReader(idle_ticks.name, now_ms=clock.now_ms)  # on a host without requests
    assert again.latestOffset(first, None) != first


def test_requested_batch_runs_once(reader: TickReader, idle_ticks: IdleTicks) -> None:
    first = reader.latestOffset(START, None)
    idle_ticks.ask(0)
    second = reader.latestOffset(first, None)
    assert second != first
    assert reader.latestOffset(second, None) == second
    idle_ticks.ask(0)
    assert reader.latestOffset(second, None) != second


def test_requested_batch_runs_when_it_is_due(
    reader: TickReader, idle_ticks: IdleTicks, clock: ManualClock
) -> None:
    first = reader.latestOffset(START, None)
    idle_ticks.ask(clock.now_ms() + 5_000)
    assert reader.latestOffset(first, None) == first
    clock.advance(4.999)
    assert reader.latestOffset(first, None) == first
    clock.advance(0.001)
    assert reader.latestOffset(first, None) != first


def test_only_the_last_request_counts(
    reader: TickReader, idle_ticks: IdleTicks, clock: ManualClock
) -> None:
    first = reader.latestOffset(START, None)
    idle_ticks.ask(0)
    idle_ticks.ask(clock.now_ms() + 5_000)
    assert reader.latestOffset(first, None) == first
    idle_ticks.ask(None)
    clock.advance(6)
    assert reader.latestOffset(first, None) == first


def test_batch_runs_after_the_clock_was_set_back(reader: TickReader, idle_ticks: IdleTicks) -> None:
    ahead = {"holdfast-ticks": 2**50}
    first = reader.latestOffset(ahead, None)
    assert first["holdfast-ticks"] > 2**50
    idle_ticks.ask(0)
    assert reader.latestOffset(first, None)["holdfast-ticks"] > first["holdfast-ticks"]


def test_offsets_are_the_same_without_arguments(reader: TickReader, idle_ticks: IdleTicks) -> None:
    first = reader.latestOffset()
    assert reader.latestOffset() == first
    idle_ticks.ask(0)
    assert reader.latestOffset() != first


def test_source_has_no_rows_and_leaves_no_files(
    reader: TickReader, idle_ticks: IdleTicks, tmp_path: Path
) -> None:
    assert reader.initialOffset() == START
    assert reader.partitions(START, {"holdfast-ticks": 5}) == []
    idle_ticks.ask(0)
    assert len(list(tmp_path.iterdir())) == 1
    reader.stop()
    reader.stop()
    assert list(tmp_path.iterdir()) == []


def test_source_polls_the_directory_of_its_options(
    idle_ticks: IdleTicks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {NAME: idle_ticks.name, DIRECTORY: str(tmp_path)}
    reader = DefaultSource(options).streamReader(StructType())
    first = reader.latestOffset()
    idle_ticks.ask(0)
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path / "other"))
        assert reader.latestOffset() != first
        reader.stop()
    assert list(tmp_path.iterdir()) == []


ASK = """
import os, signal, sys, tempfile
tempfile.tempdir = sys.argv[1]
from pyspark_holdfast_ticks import request_batch
for at_ms in (1, 2):
    request_batch(sys.argv[2], at_ms)
print("asked", flush=True)
sys.stdin.read()
"""


def test_request_is_deleted_only_if_its_driver_was_killed(tmp_path: Path) -> None:
    with (
        python(ASK, str(tmp_path), "killed") as killed,
        python(ASK, str(tmp_path), "alive") as alive,
    ):
        for driver in (killed, alive):
            assert driver.stdout is not None
            assert driver.stdout.readline() == "asked\n"
        killed.kill()
        killed.wait()
        assert {file.name for file in tmp_path.iterdir()} == {
            "holdfast-ticks-killed.json",
            "holdfast-ticks-alive.json",
        }
        own = IdleTicks("own")
        own.ask(0)
        own.ask(1)
        left = {file.name for file in tmp_path.iterdir()}
        alive.kill()
    assert left == {"holdfast-ticks-alive.json", "holdfast-ticks-own.json"}
    own.ask(None)
    assert {file.name for file in tmp_path.iterdir()} == {"holdfast-ticks-alive.json"}


def test_requests_reach_only_the_source_of_their_query(reader: TickReader) -> None:
    first = reader.latestOffset(START, None)
    IdleTicks().ask(0)
    assert reader.latestOffset(first, None) == first


def test_failed_write_of_a_request_is_an_error(
    idle_ticks: IdleTicks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(StorageUnavailableError, match="can't ask Spark for a batch"):
        idle_ticks.ask(0)


def test_offsets_of_the_source_are_recognised() -> None:
    assert is_tick_offset('{"holdfast-ticks": 5}')
    assert not is_tick_offset('{"logOffset":5}')
    assert DefaultSource.name() == "holdfast-ticks"
