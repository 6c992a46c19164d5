"""A `_metadata` in the place of another checkpoint, as after a backup was restored to the wrong directory."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from contracts.checkpointed_jobs import job_in, write_checkpoint

from holdfast.errors import CheckpointCorruptedError, InvalidRequestError
from holdfast.locations import (
    complete_checkpoint,
    copy_checkpoint,
    find_checkpoint,
    find_checkpoints,
    job_histories,
    load_checkpoint,
    sweep,
)
from holdfast.locations.coordination import load_checkpoints, load_latest_checkpoint
from holdfast.locations.storages import resolve_pointer
from holdfast.testing import metadata_of


def write_old_checkpoint(directory: Path, checkpoint_id: int, job_id: str = "job") -> Path:
    """Complete a checkpoint whose files are older than any grace period."""
    write_checkpoint(job_in(f"file://{directory}", job_id), checkpoint_id, job_id=job_id)
    written = directory / job_id / f"chk-{checkpoint_id}"
    for path in written.iterdir():
        os.utime(path, (0, 0))
    return written


def with_metadata_of_another_checkpoint(directory: Path) -> None:
    shutil.copy(directory / "job" / "chk-2" / "_metadata", directory / "job" / "chk-3")


def with_metadata_of_another_job(directory: Path) -> None:
    theirs = write_old_checkpoint(directory, 3, "other")
    shutil.copy(theirs / "_metadata", directory / "job" / "chk-3")


def add_copy_with_a_higher_number(directory: Path) -> None:
    shutil.copytree(directory / "job" / "chk-2", directory / "job" / "chk-9")


@pytest.fixture(
    params=[
        with_metadata_of_another_checkpoint,
        with_metadata_of_another_job,
        add_copy_with_a_higher_number,
    ]
)
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A job whose newest checkpoint is not the one that its directory is named after."""
    for checkpoint_id in (2, 3):
        write_old_checkpoint(tmp_path, checkpoint_id)
    misplace: Callable[[Path], None] = request.param
    misplace(tmp_path)
    return tmp_path


def newest(directory: Path) -> str:
    (*_, last) = sorted(path.name for path in (directory / "job").glob("chk-*"))
    return f"file://{directory}/job/{last}"


@pytest.mark.parametrize(
    "read",
    [
        lambda directory: load_latest_checkpoint(job_in(f"file://{directory}")),
        lambda directory: load_checkpoints(job_in(f"file://{directory}")),
        lambda directory: job_in(f"file://{directory}").claim_job(),
        lambda directory: find_checkpoint(f"file://{directory}/job"),
        lambda directory: load_checkpoint(resolve_pointer(newest(directory))),
    ],
    ids=["latest", "all", "claim", "newest below", "pointer"],
)
def test_misplaced_checkpoint_is_not_resumed_from(
    directory: Path, read: Callable[[Path], object]
) -> None:
    with pytest.raises(CheckpointCorruptedError, match="metadata is of checkpoint") as caught:
        read(directory)
    assert caught.value.location == f"{newest(directory)}/_metadata"


def test_misplaced_checkpoint_stops_the_sweep(directory: Path) -> None:
    before = sorted(directory.rglob("*"))
    with pytest.raises(CheckpointCorruptedError, match="metadata is of checkpoint"):
        sweep(directory, "job", grace_s=3600)
    assert sorted(directory.rglob("*")) == before


def test_misplaced_checkpoint_is_listed_with_the_others(directory: Path) -> None:
    failed = {
        checkpoint.pointer
        for checkpoint in find_checkpoints(directory)
        if checkpoint.failure is not None
    }
    assert failed == {newest(directory)}
    history = next(job for job in job_histories(directory) if job.job_id == "job")
    assert [checkpoint.uri for checkpoint in history.unreadable] == [newest(directory)]
    assert 2 in [checkpoint.checkpoint_id for checkpoint in history.checkpoints]
    assert isinstance(history.leftovers, CheckpointCorruptedError)


def test_renamed_job_directory_is_reported_with_the_way_out(tmp_path: Path) -> None:
    write_old_checkpoint(tmp_path, 2)
    (tmp_path / "job").rename(tmp_path / "renamed")
    with pytest.raises(CheckpointCorruptedError, match="move its directory back to job/chk-2"):
        load_latest_checkpoint(job_in(f"file://{tmp_path}", "renamed"))
    (tmp_path / "renamed").rename(tmp_path / "job")
    assert load_latest_checkpoint(job_in(f"file://{tmp_path}")) is not None


def test_checkpoint_directory_may_be_moved_as_a_whole(tmp_path: Path) -> None:
    write_old_checkpoint(tmp_path / "here", 2)
    (tmp_path / "here").rename(tmp_path / "there")
    latest = load_latest_checkpoint(job_in(f"file://{tmp_path}/there"))
    assert latest is not None
    assert latest.checkpoint_id == 2


def test_copy_under_another_name_can_be_used(tmp_path: Path) -> None:
    write_old_checkpoint(tmp_path, 2)
    shutil.copytree(tmp_path / "job" / "chk-2", tmp_path / "kept" / "before the upgrade")
    checkpoint = find_checkpoint(tmp_path / "kept" / "before the upgrade")
    assert checkpoint.checkpoint_id == 2
    assert copy_checkpoint(checkpoint, tmp_path / "copies").metadata.job_id == "job"


def test_savepoint_may_have_any_name(tmp_path: Path) -> None:
    write_old_checkpoint(tmp_path, 2)
    original = find_checkpoint(tmp_path / "job")
    savepoint = copy_checkpoint(original, tmp_path).location.external_pointer
    shutil.move(savepoint.removeprefix("file://"), tmp_path / "savepoint-other-0123456789ab")
    checkpoint = find_checkpoint(tmp_path / "savepoint-other-0123456789ab")
    assert checkpoint.metadata.job_id == "job"


def test_nothing_is_completed_in_the_place_of_another_checkpoint(tmp_path: Path) -> None:
    location = job_in(f"file://{tmp_path}").initialize_location_for_checkpoint(1)
    for wrong in (metadata_of(checkpoint_id=2), metadata_of(job_id="other")):
        with pytest.raises(InvalidRequestError, match="metadata is of checkpoint"):
            complete_checkpoint(location, wrong)
    assert job_in(f"file://{tmp_path}").completed_checkpoints() == {}


class TestDanglingLinks:
    @pytest.fixture(params=["missing", "itself", "below a file"])
    def directory(self, request: pytest.FixtureRequest, tmp_path: Path) -> Path:
        """A job whose newest `_metadata` is a dangling link."""
        for checkpoint_id in (2, 3):
            write_old_checkpoint(tmp_path, checkpoint_id)
        link = tmp_path / "job" / "chk-3" / "_metadata"
        link.unlink()
        (tmp_path / "file").touch()
        targets = {"missing": tmp_path / "x", "itself": link, "below a file": tmp_path / "file/x"}
        link.symlink_to(targets[request.param])
        return tmp_path

    def test_older_checkpoint_is_not_used(self, directory: Path) -> None:
        for read in (load_latest_checkpoint, load_checkpoints):
            with pytest.raises(CheckpointCorruptedError, match="link without a target"):
                read(job_in(f"file://{directory}"))
        with pytest.raises(CheckpointCorruptedError, match="link without a target"):
            find_checkpoint(directory)

    def test_nothing_is_swept(self, directory: Path) -> None:
        before = sorted(directory.rglob("*"))
        with pytest.raises(CheckpointCorruptedError, match="link without a target"):
            sweep(directory, "job", grace_s=3600)
        assert sorted(directory.rglob("*")) == before

    def test_neighbours_of_the_link_are_listed(self, directory: Path) -> None:
        (history,) = job_histories(directory)
        assert [checkpoint.checkpoint_id for checkpoint in history.unreadable] == [3]
        assert [checkpoint.checkpoint_id for checkpoint in history.checkpoints] == [2]
        assert history.incomplete == ()
