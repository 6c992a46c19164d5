"""The history of jobs, as other programs see it."""

import os
from pathlib import Path

import pytest
from contracts.histories import checkpoint_metadata, write_checkpoints

from holdfast.errors import CheckpointCorruptedError
from holdfast.locations import FileSystemCheckpointStorage, complete_checkpoint, job_histories
from holdfast.locations.coordination import SweepReport


def add_savepoint(storage: FileSystemCheckpointStorage, job_id: str, directory: Path) -> Path:
    """Write a savepoint of a job; returns its directory."""
    access = storage.create_checkpoint_storage(job_id)
    location = access.initialize_location_for_savepoint(7, f"file://{directory}")
    metadata = checkpoint_metadata(
        7, job_id=job_id, uids=["operator"], parallelism=1, created_ms=1_700_000_000_000
    )
    complete_checkpoint(location, metadata)
    return Path(location.external_pointer.removeprefix("file://"))


def test_gaps_are_between_retained_checkpoints_readable_or_not(tmp_path: Path) -> None:
    write_checkpoints(tmp_path, [4, 5, 8, 11])
    (tmp_path / "job" / "chk-8" / "_metadata").write_bytes(b"no metadata")
    (tmp_path / "job" / "chk-2").mkdir()
    (tmp_path / "job" / "chk-30").mkdir()
    [history] = job_histories(f"file://{tmp_path}")
    assert history.retained_ids == [4, 5, 8, 11]
    assert history.gaps == [(6, 7), (9, 10)]
    assert [checkpoint.checkpoint_id for checkpoint in history.checkpoints] == [4, 5, 11]
    assert [checkpoint.checkpoint_id for checkpoint in history.unreadable] == [8]
    assert [checkpoint.checkpoint_id for checkpoint in history.incomplete] == [2, 30]


def test_unreadable_metadata_stops_the_sweep_and_nothing_else(tmp_path: Path) -> None:
    write_checkpoints(tmp_path, [1], job_id="damaged")
    (tmp_path / "damaged" / "chk-1" / "_metadata").write_bytes(b"no metadata")
    write_checkpoints(tmp_path, [1], job_id="whole")
    damaged, whole = job_histories(tmp_path)
    assert isinstance(damaged.leftovers, CheckpointCorruptedError)
    assert isinstance(whole.leftovers, SweepReport)
    assert len(whole.checkpoints) == 1


def test_leftovers_are_reported_and_stay(tmp_path: Path) -> None:
    write_checkpoints(tmp_path, [1, 2])
    orphan = tmp_path / "job" / "chk-1" / ("0" * 32)
    orphan.write_bytes(b"12345")
    os.utime(orphan, (1, 1))
    [history] = job_histories(tmp_path, grace_s=0)
    assert isinstance(history.leftovers, SweepReport)
    assert [file.uri for file in history.leftovers.files] == [f"file://{orphan}"]
    assert orphan.exists()


@pytest.mark.parametrize("is_next_to_jobs", [True, False])
def test_savepoints_are_found_with_their_jobs(tmp_path: Path, *, is_next_to_jobs: bool) -> None:
    checkpoints = tmp_path / "checkpoints"
    savepoints = checkpoints if is_next_to_jobs else tmp_path / "savepoints"
    savepoints.mkdir()
    storage = write_checkpoints(checkpoints, [1])
    add_savepoint(storage, "job", savepoints)
    add_savepoint(storage, "gone", savepoints)
    damaged = add_savepoint(storage, "gone", savepoints)
    (damaged / "_metadata").write_bytes(b"no metadata")
    (savepoints / f"savepoint-job-{'0' * 12}").mkdir()  # an unfinished one
    gone, job = job_histories(checkpoints, savepoint_directory=savepoints)
    assert (gone.job_id, job.job_id) == ("gone", "job")
    assert [len(entry.savepoints) for entry in (gone, job)] == [1, 1]
    assert [savepoint.uri for savepoint in gone.unreadable_savepoints] == [f"file://{damaged}"]
    assert gone.leftovers is None
    assert job.unreadable_savepoints == ()


def test_directory_of_no_job_is_skipped_and_kept(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    before = (tmp_path / "offsets").stat().st_mtime_ns
    assert job_histories(tmp_path) == []
    assert (tmp_path / "offsets").stat().st_mtime_ns == before
