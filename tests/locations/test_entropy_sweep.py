"""Sweeps of jobs whose state files have random characters in their paths."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

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
from contracts.values import SHARED

from holdfast.errors import InvalidRequestError, StorageUnavailableError
from holdfast.locations import sweep
from holdfast.locations.adapters import (
    CheckpointedStateScope,
    CheckpointStorageAccess,
    FileStatus,
    PendingUpload,
    file_system_for,
)
from holdfast.locations.file_systems import retry_deadline
from holdfast.testing import ManualClock

__all__ = ["access", "bucket", "clock", "directory"]


class TestSweep:
    def test_files_of_killed_tasks_are_found_everywhere(
        self, bucket: str, directory: str, access: CheckpointStorageAccess, clock: ManualClock
    ) -> None:
        shared = write_state(access.initialize_location_for_checkpoint(1), SHARED)
        kept = write_checkpoint(access, 1, shared, files=20)
        before = files_in(bucket)
        # By both scopes, and into the directory of the completed checkpoint, too.
        orphans = {
            write_state(access.initialize_location_for_checkpoint(number), scope).uri
            for number in (1, 2, 2, 3)
            for scope in CheckpointedStateScope
        }
        upload = PendingUpload(f"{bucket}/holdfast/.a3/job/shared/{RANDOM}", "1", clock.now_ms())
        ObjectStore.uploads.append(upload)
        young = sweep(directory, "job", grace_s=GRACE)
        assert (young.files, young.uploads, young.within_grace) == ((), (), len(orphans) + 1)
        clock.advance(GRACE + 1)
        dry = sweep(directory, "job", grace_s=GRACE, dry_run=True)
        assert files_in(bucket) == before | {
            orphan.removeprefix(f"{bucket}/") for orphan in orphans
        }
        report = sweep(directory, "job", grace_s=GRACE)
        assert {file.uri for file in report.files} == {file.uri for file in dry.files} == orphans
        assert report.uploads == dry.uploads == (upload,)
        assert files_in(bucket) == before
        assert ObjectStore.uploads == []
        assert sweep(directory, "job", grace_s=0).files == ()
        assert_complete(kept)

    def test_rest_of_a_half_deleted_checkpoint_is_deleted(
        self, bucket: str, directory: str, access: CheckpointStorageAccess, clock: ManualClock
    ) -> None:
        done = write_checkpoint(access, 1)
        done.location.dispose_storage_location()
        assert len(files_in(bucket)) == 3
        clock.advance(GRACE + 1)
        sweep(directory, "job", grace_s=GRACE)
        assert files_in(bucket) == set()

    def test_files_from_before_the_marker_was_removed_are_found(
        self, bucket: str, directory: str, access: CheckpointStorageAccess, clock: ManualClock
    ) -> None:
        shared = write_state(access.initialize_location_for_checkpoint(1), SHARED)
        write_checkpoint(access, 1, shared)
        orphan = write_state(access.initialize_location_for_checkpoint(2))
        plain = f"{bucket}/holdfast"
        kept = write_checkpoint(job_in(plain), 2, shared)
        clock.advance(GRACE + 1)
        assert sweep(plain, "job", grace_s=GRACE).files == ()
        assert [file.uri for file in sweep(directory, "job", grace_s=GRACE).files] == [orphan.uri]
        assert_complete(kept)

    @pytest.mark.parametrize(
        "path",
        [
            f"holdfast/.a3/job-2/chk-1/01234567-{RANDOM}",
            f"holdfast/.a3/other/chk-1/01234567-{RANDOM}",
            f"holdfast/.a3/job/elsewhere/{RANDOM}",
            f"holdfast/.a3/job/{RANDOM}",
            "holdfast/.a3/job/chk-1/notes.txt",
            f"holdfast/.a3/job/chk-1/below/{RANDOM}",
            f"holdfast/.a3f/job/chk-1/01234567-{RANDOM}",
            f"holdfast/.A3/job/chk-1/01234567-{RANDOM}",
            f"holdfast/a3/job/chk-1/01234567-{RANDOM}",
            f".a3/holdfast/job/chk-1/01234567-{RANDOM}",
        ],
    )
    def test_files_with_foreign_names_or_places_stay(
        self,
        bucket: str,
        directory: str,
        access: CheckpointStorageAccess,
        clock: ManualClock,
        path: str,
    ) -> None:
        kept = write_checkpoint(access, 1)
        stream = file_system_for(bucket).create(f"{bucket}/{path}")
        stream.write(b"theirs")
        stream.commit()
        is_of_another_job = "/.a3/job/" not in path
        if is_of_another_job:
            ObjectStore.uploads.append(PendingUpload(f"{bucket}/{path}", "1", 0))
        clock.advance(2 * GRACE)
        sweep(directory, "job", grace_s=GRACE)
        assert path in files_in(bucket)
        assert len(ObjectStore.uploads) == is_of_another_job
        assert_complete(kept)

    def test_each_of_256_directories_is_listed_once(
        self, directory: str, access: CheckpointStorageAccess, clock: ManualClock
    ) -> None:
        write_checkpoint(access, 1, files=2)
        ObjectStore.listed.clear()
        sweep(directory, "job", grace_s=GRACE)
        spread = [uri for uri in ObjectStore.listed if "/." in uri]
        assert len(spread) == len(set(spread)) == 258

    def test_deletes_nothing_when_a_listing_fails(
        self,
        bucket: str,
        directory: str,
        access: CheckpointStorageAccess,
        clock: ManualClock,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        write_checkpoint(access, 1)
        write_state(access.initialize_location_for_checkpoint(2))
        clock.advance(GRACE + 1)
        before = files_in(bucket)
        plain, failing, failures = ObjectStore.list, f"{bucket}/holdfast/.7f/job", 0

        def fail(self: ObjectStore, uri: str) -> Iterable[FileStatus]:
            nonlocal failures
            if uri == failing:
                failures += 1
                raise StorageUnavailableError("out of reach", uri)
            return plain(self, uri)

        monkeypatch.setattr(ObjectStore, "list", fail)
        with retry_deadline(0), pytest.raises(StorageUnavailableError):
            sweep(directory, "job", grace_s=GRACE)
        assert files_in(bucket) == before
        assert failures == 1, "the deadline of this thread does not hold in those that list"

    def test_bug_of_an_adapter_is_raised_and_nothing_is_listed_twice(
        self, directory: str, access: CheckpointStorageAccess, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plain, listed = ObjectStore.list, []

        def fail(self: ObjectStore, uri: str) -> Iterable[FileStatus]:
            listed.append(uri)
            if "/.7f/" in uri:
                raise NotImplementedError("a RuntimeError to Python")
            return plain(self, uri)

        monkeypatch.setattr(ObjectStore, "list", fail)
        with pytest.raises(NotImplementedError):
            sweep(directory, "job", grace_s=GRACE)
        spread = [uri for uri in listed if "/." in uri]
        assert len(spread) == len(set(spread))

    def test_savepoint_directory_with_the_marker_is_refused(
        self, bucket: str, directory: str, access: CheckpointStorageAccess, clock: ManualClock
    ) -> None:
        write_state(access.initialize_location_for_checkpoint(2))
        clock.advance(GRACE + 1)
        before = files_in(bucket)
        for savepoints, reason in (
            (f"{bucket}/_entropy_/sp", "savepoint"),
            (bucket, "root directory"),
        ):
            with pytest.raises(InvalidRequestError, match=reason):
                sweep(directory, "job", savepoint_directory=savepoints, grace_s=GRACE)
        assert files_in(bucket) == before

    def test_sweep_without_new_threads_ends_and_the_next_one_finds_all(
        self,
        bucket: str,
        directory: str,
        access: CheckpointStorageAccess,
        clock: ManualClock,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        failed = access.initialize_location_for_checkpoint(2)
        write_state(failed)
        clock.advance(GRACE + 1)
        before = files_in(bucket)

        def refuse(*_: object, **__: object) -> None:
            raise RuntimeError("cannot schedule new futures after interpreter shutdown")

        with monkeypatch.context() as ending:
            ending.setattr(ThreadPoolExecutor, "submit", refuse)
            ObjectStore.listed.clear()
            with pytest.raises(StorageUnavailableError, match="threads"):
                sweep(directory, "job", grace_s=GRACE)
            with pytest.raises(StorageUnavailableError, match="threads"):
                failed.dispose_on_failure()
            assert not [uri for uri in ObjectStore.listed if "/." in uri]
        assert files_in(bucket) == before
        sweep(directory, "job", grace_s=GRACE)
        assert files_in(bucket) == set()
