"""State files with random characters in their paths: their deletion, and its cost."""

from collections.abc import Iterator

import pytest
from contracts.checkpointed_jobs import assert_complete, job_in, write_state
from contracts.entropy import (
    GRACE,
    RANDOM,
    ObjectStore,
    access,
    bucket,
    clock,
    directory,
    files_in,
    write_checkpoint,
)
from contracts.values import SHARED, read

from holdfast.common import uripath
from holdfast.locations import complete_checkpoint, load_checkpoint, sweep
from holdfast.locations.adapters import METADATA_FILE, CheckpointStorageAccess, PendingUpload
from holdfast.locations.coordination import CheckpointsCleaner, CompletedCheckpointStore
from holdfast.locations.file_systems import publish
from holdfast.locations.storages import resolve_pointer
from holdfast.testing import Counts, counting_file_system, metadata_of

__all__ = ["access", "bucket", "clock", "directory"]


class TestLeftovers:
    def test_discarded_checkpoint_leaves_nothing(
        self, bucket: str, access: CheckpointStorageAccess
    ) -> None:
        kept = write_checkpoint(access, 2)
        before = files_in(bucket)
        old = write_checkpoint(access, 1)
        for _ in range(2):
            old.discard()
        assert files_in(bucket) == before
        assert_complete(kept)

    def test_of_a_copy_of_the_metadata_but_the_files_of_the_original(
        self, bucket: str, access: CheckpointStorageAccess
    ) -> None:
        done = write_checkpoint(access, 1)
        before = files_in(bucket)
        copy = f"{bucket}/copies/job/chk-1"
        content = read(done.location.metadata_handle)
        publish(f"{copy}/{METADATA_FILE}", content, single_writer=False)
        loaded = load_checkpoint(resolve_pointer(copy))
        assert_complete(loaded)
        loaded.discard()
        assert files_in(bucket) == before
        assert_complete(done)

    def test_failed_attempt_leaves_nothing(
        self, bucket: str, directory: str, access: CheckpointStorageAccess
    ) -> None:
        failed, other = (access.initialize_location_for_checkpoint(1) for _ in range(2))
        streams = [write_state(other) for _ in range(20)]
        done = complete_checkpoint(other, metadata_of(*streams))
        before = files_in(bucket)
        attempt = ""
        for _ in range(20):
            attempt = uripath.name(write_state(failed).uri)[:9]
        ours = [f"{bucket}/holdfast/.a3/job/chk-1/{attempt}{RANDOM}"]
        theirs = [
            f"{bucket}/holdfast/.a3/job/chk-1/01234567-{RANDOM}",
            f"{bucket}/holdfast/.a3/other/chk-1/{attempt}{RANDOM}",
            f"{bucket}/elsewhere/chk-1/{attempt}{RANDOM}",
        ]
        ObjectStore.uploads += [PendingUpload(uri, "1", 0) for uri in ours + theirs]
        for _ in range(2):
            failed.dispose_on_failure()
        assert files_in(bucket) == before
        assert [upload.uri for upload in ObjectStore.uploads] == theirs
        assert_complete(done)

    def test_failed_attempt_leaves_only_its_completed_files(
        self, bucket: str, access: CheckpointStorageAccess
    ) -> None:
        location = access.initialize_location_for_checkpoint(1)
        done = complete_checkpoint(
            location, metadata_of(write_state(location), write_state(location))
        )
        location.dispose_on_failure()
        assert_complete(done)

    def test_subsumed_checkpoints_and_their_shared_files_leave_nothing(
        self, bucket: str, access: CheckpointStorageAccess
    ) -> None:
        cleaner = CheckpointsCleaner()
        kept = CompletedCheckpointStore(1, cleaner)
        shared = write_state(access.initialize_location_for_checkpoint(1), SHARED)
        kept.add(write_checkpoint(access, 1, shared))
        kept.add(write_checkpoint(access, 2, shared))
        cleaner.wait()
        assert len(files_in(bucket)) == 5
        assert read(shared) == b"state"
        newest = write_checkpoint(access, 3)
        kept.add(newest)
        cleaner.close()
        assert len(files_in(bucket)) == 4
        assert_complete(newest)


class TestRequests:
    """Calls of the store: each is a request there, or one for each 1,000 files."""

    @pytest.fixture(params=["holdfast", "holdfast/_entropy_"], ids=["plain", "spread"])
    def counts(self, bucket: str, request: pytest.FixtureRequest) -> Iterator[Counts]:
        with counting_file_system(f"{bucket}/{request.param}") as counts:
            yield counts

    @pytest.fixture
    def more(self, counts: Counts) -> int:
        """Additional listings because of the marker."""
        return 256 if "_entropy_" in counts.directory else 0

    def test_completed_checkpoint_costs_no_more_than_without_entropy(self, counts: Counts) -> None:
        access = job_in(counts.directory)
        location = access.initialize_location_for_checkpoint(1)
        handles = [write_state(location) for _ in range(3)]
        counts.clear()
        complete_checkpoint(location, metadata_of(*handles, checkpoint_id=1))
        assert counts.calls == {"publish": 1}

    def test_deleted_checkpoint_costs_no_more_than_without_entropy(
        self, counts: Counts, more: int
    ) -> None:
        done = write_checkpoint(job_in(counts.directory), 1)
        counts.clear()
        done.discard()
        # Files with entropy take one more call; then nothing is left for the second to delete.
        assert counts.calls == {"delete": 1 + bool(more), "delete_tree": 1}

    @pytest.mark.parametrize("subsumed", [1, 5])
    @pytest.mark.parametrize("has_readers", [False, True])
    def test_subsumed_checkpoints_cost_two_deletions_and_a_look_for_leases(
        self, counts: Counts, subsumed: int, *, has_readers: bool
    ) -> None:
        access = job_in(counts.directory)
        cleaner = CheckpointsCleaner()
        kept = CompletedCheckpointStore(1, cleaner)
        checkpoints = [write_checkpoint(access, number) for number in range(subsumed + 1)]
        for checkpoint in checkpoints[:-1]:
            kept.add(checkpoint, subsume=False)
        counts.clear()
        kept.add(checkpoints[-1], has_readers=has_readers)
        cleaner.close()
        directories = {"delete_empty_directory": subsumed}  # free on S3
        looks = {"list": 1} if has_readers else {}
        assert counts.calls == {"delete": 2} | looks | directories
        assert_complete(checkpoints[-1])

    def test_failed_checkpoint_costs_511_listings_more(self, counts: Counts, more: int) -> None:
        location = job_in(counts.directory).initialize_location_for_checkpoint(1)
        write_state(location)
        counts.clear()
        location.dispose_on_failure()
        assert counts.calls == {"list": 1 + 2 * more if more else 2, "delete": 1}

    def test_sweep_costs_256_listings_more_and_one_for_each_directory(
        self, counts: Counts, more: int
    ) -> None:
        access = job_in(counts.directory)
        write_checkpoint(access, 1, files=1)
        counts.clear()
        sweep(counts.directory, "job", grace_s=GRACE)
        assert counts.calls["list"] == 10 + (more + 1 if more else 0)
        del counts.calls["list"]
        one_metadata = {"open": 1, "read": 2}
        the_probe = {"create": 1, "commit": 1, "abort": 1, "delete": 1}
        assert counts.calls == one_metadata | the_probe
