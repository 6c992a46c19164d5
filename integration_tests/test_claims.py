"""Jobs that claim the checkpoints of others, on a local disk, on MinIO and on HDFS."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from contracts.files import files_below
from jobs.coordinator import begin_checkpoint, coordinator, progress
from jobs.segments import (
    UID,
    add_segment,
    change_nothing,
    contents,
    latest_checkpoint,
    merge_segments,
    run_batch,
    run_subtasks,
    shared_in,
)
from servers.hdfs import HdfsDirectory
from servers.s3 import S3Bucket, settings_of

from holdfast.errors import CheckpointConflictError
from holdfast.locations import sweep, use_s3
from holdfast.locations.adapters import unregister_file_system
from holdfast.locations.coordination import read_claim
from holdfast.spark.query import CLEANER, CheckpointCoordinator

STORES = ["local", "minio", "hdfs"]


@pytest.fixture(params=STORES)
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URI of the directory of all jobs."""
    if request.param == "local":
        yield f"file://{tmp_path}"
        return
    if request.param == "hdfs":
        on_hdfs: HdfsDirectory = request.getfixturevalue("hdfs_directory")
        yield on_hdfs.uri
        return
    bucket: S3Bucket = request.getfixturevalue("minio_bucket")
    use_s3(settings_of(bucket.server))
    yield f"s3://{bucket.name}/checkpoints"
    for scheme in ("s3", "s3a"):
        unregister_file_system(scheme)


@pytest.fixture
def former(directory: str) -> CheckpointCoordinator:
    """The job `other`, which has run two batches and keeps both checkpoints."""
    driver = coordinator(directory, job_id="other")
    run_batch(driver, 0, add_segment(b"old"))
    run_batch(driver, 1, add_segment(b"newer"))
    return driver


def claiming(directory: str, start: str, job_id: str = "job") -> CheckpointCoordinator:
    return coordinator(directory, job_id=job_id, start=start, claims_start=True, num_retained=1)


def test_claimed_file_is_deleted_after_its_last_use_by_its_new_owner(
    directory: str, former: CheckpointCoordinator
) -> None:
    pointer = latest_checkpoint(former).location.external_pointer
    pending = begin_checkpoint(former, 2)
    late = run_subtasks(pending, merge_segments)
    driver = claiming(directory, pointer)
    run_batch(driver, 0, add_segment(b"new"))
    with pytest.raises(CheckpointConflictError, match="taken over"):
        former.complete(pending, late, progress(2))
    former.abort(pending)
    claimed = shared_in(latest_checkpoint(driver).metadata)
    assert len(files_below(f"{directory}/job/shared")) == 2 < len(claimed)
    swept = {file.uri for file in sweep(directory, "other", grace_s=0).files}
    assert not swept & claimed
    subtasks = latest_checkpoint(driver).metadata.operators[UID].subtasks
    for index, segments in enumerate(contents([subtasks[0], subtasks[1]])):
        assert sorted(segments.values()) == [
            b"%s of %d" % (name, index) for name in (b"new", b"newer", b"old")
        ]
    with pytest.raises(CheckpointConflictError, match=r"job 'job' in .* has claimed"):
        begin_checkpoint(coordinator(directory, job_id="other"), 2)
    run_batch(driver, 1, merge_segments)
    CLEANER.wait()
    assert not files_below(pointer)
    run_batch(driver, 2, change_nothing)
    assert shared_in(latest_checkpoint(driver).metadata) == files_below(f"{directory}/job/shared")


def test_one_of_four_concurrent_claims_of_a_checkpoint_succeeds(
    directory: str, former: CheckpointCoordinator
) -> None:
    pointer = latest_checkpoint(former).location.external_pointer
    drivers = [claiming(directory, pointer, f"job-{number}") for number in range(4)]

    def has_it(driver: CheckpointCoordinator) -> bool:
        try:
            run_batch(driver, 0, add_segment(b"new"))
        except CheckpointConflictError:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        won = list(pool.map(has_it, drivers))
    assert won.count(True) == 1
    winner = drivers[won.index(True)]
    claimant = read_claim(pointer)
    assert claimant is not None
    assert claimant.job_id == latest_checkpoint(winner).metadata.job_id
    subtasks = latest_checkpoint(winner).metadata.operators[UID].subtasks
    assert all(len(segments) == 3 for segments in contents([subtasks[0], subtasks[1]]))
