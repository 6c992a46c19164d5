"""State files with random characters in their paths: where they go, and that all of them go again."""

import re
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import pytest
from contracts.processes import python
from contracts.values import EXCLUSIVE, read
from servers.s3 import S3Bucket

from holdfast.common import uripath
from holdfast.errors import CheckpointNotFoundError, InvalidRequestError, StorageUnavailableError
from holdfast.locations import (
    CheckpointStorage,
    CheckpointStorageAccess,
    CheckpointStorageLocation,
    CompletedCheckpoint,
    FileSystemCheckpointStorage,
    MemoryCheckpointStorage,
    S3Settings,
    checkpoint_storage,
    complete_checkpoint,
    latest_checkpoint,
    load_checkpoint,
    sweep,
    use_s3,
)
from holdfast.locations.adapters import (
    METADATA_FILE,
    CheckpointedStateScope,
    FileOutputStream,
    FileStateHandle,
    FileStatus,
    MemoryFileSystem,
    PendingUpload,
    file_system_for,
    register_file_system,
    unregister_file_system,
)
from holdfast.locations.coordination import (
    CheckpointsCleaner,
    CompletedCheckpointStore,
    sweeping,
)
from holdfast.locations.file_systems import memory as store
from holdfast.locations.file_systems import publish, retry_deadline
from holdfast.locations.storages import check_job_id, entropy
from holdfast.testing import (
    CheckpointStorageContract,
    Counts,
    ManualClock,
    counting_file_system,
    metadata_of,
)

SHARED = CheckpointedStateScope.SHARED
GRACE = 3600.0
RANDOM = "0123456789abcdef" * 2


class ObjectStore(MemoryFileSystem):
    """Files in memory without directories to prepare, and uploads that may never be finished."""

    uploads: ClassVar[list[PendingUpload]] = []
    listed: ClassVar[list[str]] = []

    def create(self, uri: str, /) -> FileOutputStream:
        self.prepare_directory(uripath.parent(uri))
        return super().create(uri)

    def publish(self, uri: str, data: bytes, /) -> None:
        self.prepare_directory(uripath.parent(uri))
        super().publish(uri, data)

    def list(self, uri: str, /) -> Iterable[FileStatus]:
        self.listed.append(uri)
        return super().list(uri)

    def list_uploads(self, uri: str, /) -> Iterable[PendingUpload]:
        return [one for one in self.uploads if one.uri.startswith(f"{uri.rstrip('/')}/")]

    def abort_uploads(self, uploads: Iterable[PendingUpload], /) -> None:
        for one in uploads:
            self.uploads.remove(one)


@pytest.fixture
def clock() -> ManualClock:
    """The store's clock."""
    return ManualClock()


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, clock: ManualClock) -> Iterator[str]:
    """URI of an empty bucket."""
    monkeypatch.setattr(ObjectStore, "uploads", [])
    monkeypatch.setattr(ObjectStore, "listed", [])
    register_file_system("objects", lambda: ObjectStore(clock))
    bucket = f"objects://{uuid.uuid4().hex}"
    yield bucket
    MemoryFileSystem().delete_tree(bucket)
    unregister_file_system("objects")


def files_in(bucket: str) -> set[str]:
    """Paths of all files in a bucket."""
    return {uri.removeprefix(f"{bucket}/") for uri in store._FILES if uri.startswith(f"{bucket}/")}


class TestOnAnObjectStore(CheckpointStorageContract):
    @pytest.fixture
    def storage(self, bucket: str) -> CheckpointStorage:
        return checkpoint_storage(f"{bucket}/holdfast/_entropy_")

    def files(self, storage: CheckpointStorage) -> set[str]:
        assert isinstance(storage, FileSystemCheckpointStorage)
        bucket = storage.directory.partition("/holdfast")[0]
        return {f"{bucket}/{path}" for path in files_in(bucket)}


def job_in(directory: str, job_id: str = "job") -> CheckpointStorageAccess:
    storage = FileSystemCheckpointStorage(
        directory,
        inline_threshold=0,
        savepoint_directory=f"{entropy.without_marker(directory)}/savepoints",
    )
    access = storage.create_checkpoint_storage(job_id)
    access.initialize_base_locations_for_checkpoint()
    return access


@pytest.fixture
def directory(bucket: str) -> str:
    return f"{bucket}/holdfast/_entropy_"


@pytest.fixture
def access(directory: str) -> CheckpointStorageAccess:
    return job_in(directory)


def write(
    location: CheckpointStorageLocation, scope: CheckpointedStateScope = EXCLUSIVE
) -> FileStateHandle:
    with location.create_checkpoint_state_output_stream(scope) as stream:
        stream.write(b"state")
        handle = stream.close_and_get_handle()
    assert isinstance(handle, FileStateHandle)
    return handle


def completed(
    access: CheckpointStorageAccess, checkpoint_id: int, *reused: FileStateHandle, files: int = 3
) -> CompletedCheckpoint:
    """A checkpoint with exclusive files, and those of others."""
    location = access.initialize_location_for_checkpoint(checkpoint_id)
    streams = (*(write(location) for _ in range(files)), *reused)
    metadata = metadata_of(*streams, checkpoint_id=checkpoint_id)
    return complete_checkpoint(location, metadata)


def files_of(checkpoint: CompletedCheckpoint) -> list[FileStateHandle]:
    return [one for one in checkpoint.metadata.streams() if isinstance(one, FileStateHandle)]


def assert_complete(checkpoint: CompletedCheckpoint) -> None:
    found = load_checkpoint(checkpoint.location)
    assert found.metadata == checkpoint.metadata
    for stream in found.metadata.streams():
        assert read(stream) == b"state"


class TestPaths:
    @pytest.mark.parametrize(
        ("marked", "plain", "spread"),
        [
            ("s3://b/c/_entropy_/job", "s3://b/c/job", "s3://b/c/.a3/job"),
            (
                "s3://b/c/_entropy_/job/chk-7/a-",
                "s3://b/c/job/chk-7/a-",
                "s3://b/c/.a3/job/chk-7/a-",
            ),
            ("s3://b/c/job", "s3://b/c/job", "s3://b/c/job"),
            ("s3://b/my_entropy_loss/j", "s3://b/my_entropy_loss/j", "s3://b/my_entropy_loss/j"),
            ("s3://b/", "s3://b/", "s3://b/"),
        ],
    )
    def test_the_marker_is_left_out_or_replaced(self, marked: str, plain: str, spread: str) -> None:
        assert entropy.without_marker(marked) == plain
        assert entropy.spread(marked, "a3456789") == spread
        assert entropy.has_marker(marked) == (marked != spread)

    def test_there_are_256_directories_which_have_one_above_them(self) -> None:
        found = entropy.spread_everywhere("s3://b/c/_entropy_/d")
        assert len(set(found)) == 256
        assert all(re.fullmatch(r"s3://b/c/\.[0-9a-f]{2}/d", one) for one in found)
        assert entropy.common_directory("s3://b/c/_entropy_/d") == "s3://b/c"

    def test_without_a_marker_there_is_one_directory(self) -> None:
        assert entropy.spread_everywhere("s3://b/c") == ["s3://b/c"]
        assert entropy.common_directory("s3://b/c") == "s3://b/c"

    @pytest.mark.parametrize(
        ("uri", "lies_in", "is_below"),
        [
            ("s3://b/c/job/chk-7/x", True, True),
            ("s3://b/.a3/c/job/chk-7/x", False, False),
            ("s3://b/c/.a3/job/chk-7/x", True, True),
            ("s3://b/c/.a3/job/shared/x", False, False),
            ("s3://b/c/.a3/job/chk-7/below/x", False, False),
            ("s3://b/c/job/chk-7/below/x", False, True),
            ("s3://b/c/.a3/job/chk-77/x", False, False),
            ("s3://b/c/.a3/.a3/job/chk-7/x", False, False),
            ("s3://b/c/.A3/job/chk-7/x", False, False),
            ("s3://b/c/.a3f/job/chk-7/x", False, False),
            ("s3://b/c/a3/job/chk-7/x", False, False),
            ("s3://b/c/.zz/job/chk-7/x", False, False),
            ("s3://.a3/c/job/chk-7/x", False, False),
            ("s3://b/c/.a3/other/chk-7/x", False, False),
        ],
    )
    def test_a_file_is_known_to_be_of_a_directory_that_was_spread(
        self,
        uri: str,
        lies_in: bool,  # noqa: FBT001
        is_below: bool,  # noqa: FBT001
    ) -> None:
        assert entropy.lies_in(uri, "s3://b/c/job/chk-7") == lies_in
        assert entropy.is_below(uri, "s3://b/c/job/chk-7") == is_below


class TestWhereTheMarkerMayStand:
    @pytest.mark.parametrize(
        ("path", "reason"),
        [
            ("/_entropy_/c", "last part"),
            ("/c/_entropy_/d", "last part"),
            ("/_entropy_x/c", "last part"),
            ("/c/x_entropy_", "last part"),
            ("/c/x_entropy_/_entropy_", "last part"),
            ("/c/_entropy_/_entropy_", "last part"),
            ("/_entropy_", "root directory"),
            ("/./_entropy_/", "root directory"),
        ],
    )
    def test_where_it_means_nothing_it_is_refused(
        self, bucket: str, path: str, reason: str
    ) -> None:
        for use in (
            FileSystemCheckpointStorage,
            checkpoint_storage,
            latest_checkpoint,
            lambda uri: sweep(uri, "job"),
        ):
            with pytest.raises(InvalidRequestError, match=reason):
                use(f"{bucket}{path}")

    @pytest.mark.parametrize("path", ["/.a3", "/.a3/c", "/c/.00/d", "/c/.ff", "/.a3/_entropy_"])
    def test_a_directory_that_looks_like_what_replaces_it_is_refused(
        self, bucket: str, local_directory: str, path: str
    ) -> None:
        for use in (
            FileSystemCheckpointStorage,
            checkpoint_storage,
            latest_checkpoint,
            lambda uri: MemoryCheckpointStorage(directory=uri.replace("/_entropy_", "")),
            lambda uri: sweep(uri, "job"),
        ):
            with pytest.raises(InvalidRequestError, match=r"'\.\w\w' in the path .*another name"):
                use(f"{bucket}{path}")
        with pytest.raises(InvalidRequestError, match="another name"):
            checkpoint_storage(f"{local_directory}{path.replace('/_entropy_', '')}")

    @pytest.mark.parametrize("path", ["/.zz", "/.a3f", "/.A3", "/a3", "/.a", "/x.a3"])
    def test_a_directory_that_does_not_look_like_that_is_taken(
        self, bucket: str, path: str
    ) -> None:
        done = completed(job_in(f"{bucket}{path}/_entropy_"), 1)
        assert_complete(done)
        done.discard()
        assert files_in(bucket) == set()

    def test_local_disks_have_no_use_for_it(self, local_directory: str) -> None:
        with pytest.raises(InvalidRequestError, match="leave _entropy_ out"):
            checkpoint_storage(f"{local_directory}/c/_entropy_")

    @pytest.mark.parametrize("kind", ["memory", "fsspec+file"])
    def test_a_store_with_directories_is_found_out_before_anything_is_made(
        self, memory_directory: str, local_directory: str, kind: str
    ) -> None:
        directory = memory_directory if kind == "memory" else f"fsspec+{local_directory}"
        storage = checkpoint_storage(f"{directory}/_entropy_", single_writer=True)
        with pytest.raises(InvalidRequestError, match="leave _entropy_ out"):
            storage.create_checkpoint_storage("job").initialize_base_locations_for_checkpoint()
        assert list(file_system_for(directory).list(directory)) == []

    @pytest.mark.usefixtures("access")
    def test_finding_that_out_leaves_nothing(self, bucket: str) -> None:
        assert files_in(bucket) == set()

    def test_savepoints_stay_in_one_directory(
        self, bucket: str, access: CheckpointStorageAccess
    ) -> None:
        with pytest.raises(InvalidRequestError, match="savepoint"):
            FileSystemCheckpointStorage(f"{bucket}/c", savepoint_directory=f"{bucket}/_entropy_/s")
        with pytest.raises(InvalidRequestError, match="savepoint"):
            access.initialize_location_for_savepoint(1, f"{bucket}/_entropy_/s")
        with pytest.raises(InvalidRequestError, match="savepoint"):
            MemoryCheckpointStorage(savepoint_directory=f"{bucket}/_entropy_/s")

    def test_storage_without_state_files_has_no_use_for_it(self, directory: str) -> None:
        with pytest.raises(InvalidRequestError, match="no state files"):
            MemoryCheckpointStorage(directory=directory)

    def test_a_job_can_not_be_called_that(self, bucket: str) -> None:
        with pytest.raises(InvalidRequestError, match="_entropy_"):
            check_job_id("_entropy_")
        assert check_job_id("cross_entropy_loss") == "cross_entropy_loss"

    def test_in_the_middle_of_a_name_it_is_a_name(self, bucket: str) -> None:
        done = completed(job_in(f"{bucket}/cross_entropy_loss"), 1)
        assert {uripath.parent(one.uri) for one in files_of(done)} == {
            done.location.external_pointer
        }


class TestLayout:
    def test_state_has_random_characters_in_its_path_and_metadata_has_not(
        self, bucket: str
    ) -> None:
        access = job_in(f"{bucket}/c//d/_entropy_/")
        access.claim_job()
        location = access.initialize_location_for_checkpoint(7)
        handles = [write(location), write(location, SHARED)]
        done = complete_checkpoint(location, metadata_of(*handles, checkpoint_id=7))
        assert done.location.external_pointer == f"{bucket}/c/d/job/chk-7"
        by_name = {f"c/d/job/chk-7/{METADATA_FILE}", "c/d/job/_epoch/1"}
        expected = set(by_name)
        for handle, place in zip(handles, ("chk-7", "shared"), strict=True):
            name = uripath.name(handle.uri)
            random = name.rpartition("-")[2][:2]
            expected.add(f"c/d/.{random}/job/{place}/{name}")
        assert files_in(bucket) == expected
        assert {uripath.local_path(one.uri).lstrip("/") for one in handles} == expected - by_name

    def test_every_file_draws_its_own(self, access: CheckpointStorageAccess) -> None:
        found = {uripath.parent(one.uri) for one in files_of(completed(access, 1, files=200))}
        assert len(found) > 100

    def test_entropy_makes_the_paths_of_exclusive_state_absolute(
        self, access: CheckpointStorageAccess
    ) -> None:
        done = completed(access, 1)
        content = read(done.location.metadata_handle)
        assert all(one.uri.encode() in content for one in files_of(done))

    def test_without_it_they_are_relative(self, bucket: str) -> None:
        done = completed(job_in(f"{bucket}/holdfast"), 1)
        content = read(done.location.metadata_handle)
        for one in files_of(done):
            assert one.uri.encode() not in content
            assert uripath.name(one.uri).encode() in content

    def test_tasks_spread_what_they_write_at_the_default_location(
        self, bucket: str, access: CheckpointStorageAccess
    ) -> None:
        reference = access.initialize_location_for_checkpoint(1).location_reference
        for one in (reference, type(reference)()):
            factory = access.resolve_checkpoint_storage_location(1, one)
            for scope in CheckpointedStateScope:
                with factory.create_checkpoint_state_output_stream(scope) as stream:
                    stream.write(b"1")
                    stream.close_and_get_handle()
        places = {re.sub(r"\.[0-9a-f]{2}(.*)/.*", r"_\1", one) for one in files_in(bucket)}
        assert places == {"holdfast/_/job/chk-1", "holdfast/_/job/shared"}

    def test_savepoints_are_not_spread(self, bucket: str, access: CheckpointStorageAccess) -> None:
        location = access.initialize_location_for_savepoint(1)
        handles = [write(location, scope) for scope in CheckpointedStateScope]
        done = complete_checkpoint(location, metadata_of(*handles))
        pointer = done.location.external_pointer
        assert pointer.startswith(f"{bucket}/holdfast/savepoints/savepoint-job-")
        assert {uripath.parent(one.uri) for one in handles} == {pointer}

    def test_jobs_and_their_latest_checkpoint_are_found_with_the_marker_and_without(
        self, bucket: str, access: CheckpointStorageAccess
    ) -> None:
        done = [completed(access, one) for one in (1, 2)][1]
        for directory in (f"{bucket}/holdfast/_entropy_", f"{bucket}/holdfast"):
            assert checkpoint_storage(directory).jobs() == ["job"]
            found = latest_checkpoint(directory)
            assert found is not None
            assert found.metadata == done.metadata
            assert_complete(found)

    def test_a_pointer_may_hold_the_marker(
        self, bucket: str, directory: str, access: CheckpointStorageAccess
    ) -> None:
        done = completed(access, 1)
        for pointer in (f"{directory}/job/chk-1", f"{directory}/job/chk-1/_metadata"):
            found = checkpoint_storage(f"{bucket}/another").resolve_checkpoint(pointer)
            assert found.external_pointer == done.location.external_pointer
            assert load_checkpoint(found).metadata == done.metadata

    def test_a_pointer_never_reaches_the_root_of_a_bucket(
        self, bucket: str, access: CheckpointStorageAccess
    ) -> None:
        content = read(completed(access, 1).location.metadata_handle)
        publish(f"{bucket}/{METADATA_FILE}", content, single_writer=False)
        before = files_in(bucket)
        storage = checkpoint_storage(f"{bucket}/another")
        for pointer in (bucket, f"{bucket}/", f"{bucket}/_entropy_", f"{bucket}/_entropy_/"):
            with pytest.raises(InvalidRequestError, match="root directory"):
                storage.resolve_checkpoint(pointer)
        for pointer in (f"{bucket}/{METADATA_FILE}", f"{bucket}/_entropy_/{METADATA_FILE}"):
            found = storage.resolve_checkpoint(pointer)
            with pytest.raises(InvalidRequestError, match="root directory"):
                found.dispose_storage_location()
            with pytest.raises(InvalidRequestError, match="root directory"):
                load_checkpoint(found).discard()
        assert files_in(bucket) == before

    def test_a_local_pointer_is_taken_literally(self, local_directory: str) -> None:
        completed(job_in(f"{local_directory}/x"), 1)
        with pytest.raises(CheckpointNotFoundError):
            checkpoint_storage(local_directory).resolve_checkpoint(
                f"{local_directory}/_entropy_/x/job/chk-1"
            )

    @pytest.mark.parametrize("marked_first", [True, False])
    def test_a_job_goes_on_when_the_marker_is_added_or_taken_away(
        self,
        bucket: str,
        marked_first: bool,  # noqa: FBT001
    ) -> None:
        directories = [f"{bucket}/holdfast/_entropy_", f"{bucket}/holdfast"]
        before, after = (job_in(one) for one in sorted(directories, reverse=not marked_first))
        first = completed(before, 1)
        second = completed(after, 2)
        claimed = after.claim_job().completed
        assert list(claimed) == [1, 2]
        assert_complete(first)
        claimed[1].discard()
        assert files_in(bucket) == {
            "holdfast/job/_epoch/1",
            f"holdfast/job/chk-2/{METADATA_FILE}",
            *(one.uri.removeprefix(f"{bucket}/") for one in files_of(second)),
        }


class TestNothingIsLeft:
    def test_of_a_checkpoint_that_is_discarded(
        self, bucket: str, access: CheckpointStorageAccess
    ) -> None:
        kept = completed(access, 2)
        before = files_in(bucket)
        old = completed(access, 1)
        for _ in range(2):
            old.discard()
        assert files_in(bucket) == before
        assert_complete(kept)

    def test_of_a_copy_of_the_metadata_but_the_files_of_the_original(
        self, bucket: str, access: CheckpointStorageAccess
    ) -> None:
        done = completed(access, 1)
        before = files_in(bucket)
        copy = f"{bucket}/copies/job/chk-1"
        content = read(done.location.metadata_handle)
        publish(f"{copy}/{METADATA_FILE}", content, single_writer=False)
        found = load_checkpoint(checkpoint_storage(bucket + "/c").resolve_checkpoint(copy))
        assert_complete(found)
        found.discard()
        assert files_in(bucket) == before
        assert_complete(done)

    def test_of_an_attempt_that_failed(
        self, bucket: str, directory: str, access: CheckpointStorageAccess
    ) -> None:
        failed, other = (access.initialize_location_for_checkpoint(1) for _ in range(2))
        streams = [write(other) for _ in range(20)]
        done = complete_checkpoint(other, metadata_of(*streams))
        before = files_in(bucket)
        attempt = ""
        for _ in range(20):
            attempt = uripath.name(write(failed).uri)[:9]
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
        assert [one.uri for one in ObjectStore.uploads] == theirs
        assert_complete(done)

    def test_of_an_attempt_but_what_it_has_completed(
        self, bucket: str, access: CheckpointStorageAccess
    ) -> None:
        location = access.initialize_location_for_checkpoint(1)
        done = complete_checkpoint(location, metadata_of(write(location), write(location)))
        location.dispose_on_failure()
        assert_complete(done)

    def test_of_checkpoints_that_are_not_retained_and_files_that_they_shared(
        self, bucket: str, access: CheckpointStorageAccess
    ) -> None:
        cleaner = CheckpointsCleaner()
        kept = CompletedCheckpointStore(1, cleaner)
        shared = write(access.initialize_location_for_checkpoint(1), SHARED)
        kept.add(completed(access, 1, shared))
        kept.add(completed(access, 2, shared))
        cleaner.wait()
        assert len(files_in(bucket)) == 5
        assert read(shared) == b"state"
        newest = completed(access, 3)
        kept.add(newest)
        cleaner.close()
        assert len(files_in(bucket)) == 4
        assert_complete(newest)


class TestSweep:
    def test_finds_what_killed_tasks_have_left_everywhere(
        self, bucket: str, directory: str, access: CheckpointStorageAccess, clock: ManualClock
    ) -> None:
        shared = write(access.initialize_location_for_checkpoint(1), SHARED)
        kept = completed(access, 1, shared, files=20)
        before = files_in(bucket)
        # By both scopes, and into the directory of the completed checkpoint, too.
        orphans = {
            write(access.initialize_location_for_checkpoint(number), scope).uri
            for number in (1, 2, 2, 3)
            for scope in CheckpointedStateScope
        }
        upload = PendingUpload(f"{bucket}/holdfast/.a3/job/shared/{RANDOM}", "1", clock.now_ms())
        ObjectStore.uploads.append(upload)
        young = sweep(directory, "job", grace_s=GRACE)
        assert (young.files, young.uploads, young.too_young) == ((), (), len(orphans) + 1)
        clock.advance(GRACE + 1)
        dry = sweep(directory, "job", grace_s=GRACE, dry_run=True)
        assert files_in(bucket) == before | {one.removeprefix(f"{bucket}/") for one in orphans}
        report = sweep(directory, "job", grace_s=GRACE)
        assert {one.uri for one in report.files} == {one.uri for one in dry.files} == orphans
        assert report.uploads == dry.uploads == (upload,)
        assert files_in(bucket) == before
        assert ObjectStore.uploads == []
        assert sweep(directory, "job", grace_s=0).files == ()
        assert_complete(kept)

    def test_takes_what_is_left_of_a_checkpoint_whose_deletion_was_cut_short(
        self, bucket: str, directory: str, access: CheckpointStorageAccess, clock: ManualClock
    ) -> None:
        done = completed(access, 1)
        done.location.dispose_storage_location()
        assert len(files_in(bucket)) == 3
        clock.advance(GRACE + 1)
        sweep(directory, "job", grace_s=GRACE)
        assert files_in(bucket) == set()

    def test_finds_what_was_left_before_the_marker_went(
        self, bucket: str, directory: str, access: CheckpointStorageAccess, clock: ManualClock
    ) -> None:
        shared = write(access.initialize_location_for_checkpoint(1), SHARED)
        completed(access, 1, shared)
        orphan = write(access.initialize_location_for_checkpoint(2))
        plain = f"{bucket}/holdfast"
        kept = completed(job_in(plain), 2, shared)
        clock.advance(GRACE + 1)
        assert sweep(plain, "job", grace_s=GRACE).files == ()
        assert [one.uri for one in sweep(directory, "job", grace_s=GRACE).files] == [orphan.uri]
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
    def test_leaves_what_has_no_name_of_ours_or_stands_elsewhere(
        self,
        bucket: str,
        directory: str,
        access: CheckpointStorageAccess,
        clock: ManualClock,
        path: str,
    ) -> None:
        kept = completed(access, 1)
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

    def test_lists_each_of_256_directories_once_and_those_in_it_that_are_there(
        self, directory: str, access: CheckpointStorageAccess, clock: ManualClock
    ) -> None:
        completed(access, 1, files=2)
        ObjectStore.listed.clear()
        sweep(directory, "job", grace_s=GRACE)
        spread = [one for one in ObjectStore.listed if "/." in one]
        assert len(spread) == len(set(spread)) == 258

    def test_deletes_nothing_when_a_listing_fails(
        self,
        bucket: str,
        directory: str,
        access: CheckpointStorageAccess,
        clock: ManualClock,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        completed(access, 1)
        write(access.initialize_location_for_checkpoint(2))
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

    def test_a_bug_of_an_adapter_comes_through_and_nothing_is_listed_twice(
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
        spread = [one for one in listed if "/." in one]
        assert len(spread) == len(set(spread))

    def test_refuses_savepoints_where_none_can_be(
        self, bucket: str, directory: str, access: CheckpointStorageAccess, clock: ManualClock
    ) -> None:
        write(access.initialize_location_for_checkpoint(2))
        clock.advance(GRACE + 1)
        before = files_in(bucket)
        for savepoints, reason in (
            (f"{bucket}/_entropy_/sp", "savepoint"),
            (bucket, "root directory"),
        ):
            with pytest.raises(InvalidRequestError, match=reason):
                sweep(directory, "job", savepoint_directory=savepoints, grace_s=GRACE)
        assert files_in(bucket) == before

    def test_ends_while_the_interpreter_starts_no_threads_any_more_and_the_next_one_finds_all(
        self,
        bucket: str,
        directory: str,
        access: CheckpointStorageAccess,
        clock: ManualClock,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        given_up = access.initialize_location_for_checkpoint(2)
        write(given_up)
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
                given_up.dispose_on_failure()
            assert not [one for one in ObjectStore.listed if "/." in one]
        assert files_in(bucket) == before
        sweep(directory, "job", grace_s=GRACE)
        assert files_in(bucket) == set()


class TestWhatItCosts:
    """In calls of the store, each of which is a request there, or one for each 1,000 files."""

    @pytest.fixture(params=["holdfast", "holdfast/_entropy_"], ids=["plain", "spread"])
    def counts(self, bucket: str, request: pytest.FixtureRequest) -> Iterator[Counts]:
        with counting_file_system(f"{bucket}/{request.param}") as counts:
            yield counts

    @pytest.fixture
    def more(self, counts: Counts) -> int:
        """Listings more of what is spread."""
        return 256 if "_entropy_" in counts.directory else 0

    def test_a_checkpoint_that_is_completed_costs_as_much_as_without(self, counts: Counts) -> None:
        access = job_in(counts.directory)
        location = access.initialize_location_for_checkpoint(1)
        handles = [write(location) for _ in range(3)]
        counts.clear()
        complete_checkpoint(location, metadata_of(*handles, checkpoint_id=1))
        assert counts.calls == {"publish": 1}

    def test_so_does_one_that_is_deleted(self, counts: Counts, more: int) -> None:
        done = completed(job_in(counts.directory), 1)
        counts.clear()
        done.discard()
        # Spread files go by one call more; then nothing is left that the second would delete.
        assert counts.calls == {"delete": 1 + bool(more), "delete_tree": 1}

    def test_so_does_one_that_is_not_retained_and_its_files_are_deleted_once(
        self, counts: Counts, more: int
    ) -> None:
        access = job_in(counts.directory)
        cleaner = CheckpointsCleaner()
        kept = CompletedCheckpointStore(1, cleaner)
        kept.add(completed(access, 1))
        newer = completed(access, 2)
        counts.clear()
        kept.add(newer)
        cleaner.close()
        assert counts.calls == {"delete": 1 + bool(more), "delete_tree": 1}

    def test_one_that_fails_costs_256_listings_more(self, counts: Counts, more: int) -> None:
        location = job_in(counts.directory).initialize_location_for_checkpoint(1)
        write(location)
        counts.clear()
        location.dispose_on_failure()
        assert counts.calls == {"list": 1 + more, "delete": 1}

    def test_a_sweep_costs_256_listings_more_and_one_for_each_directory_that_is_there(
        self, counts: Counts, more: int
    ) -> None:
        access = job_in(counts.directory)
        completed(access, 1, files=1)
        counts.clear()
        sweep(counts.directory, "job", grace_s=GRACE)
        assert counts.calls["list"] == 10 + (more + 1 if more else 0)
        del counts.calls["list"]
        one_metadata = {"open": 1, "read": 2}
        the_probe = {"create": 1, "commit": 1, "abort": 1, "delete": 1}
        assert counts.calls == one_metadata | the_probe


def settings_of(bucket: S3Bucket) -> S3Settings:
    server = bucket.server
    return S3Settings(
        endpoint_url=server.endpoint,
        region=server.region,
        path_style=True,
        access_key=server.access_key,
        secret_key=server.secret_key,
        part_bytes=5 << 20,
    )


@pytest.fixture
def s3_directory(memory_bucket: S3Bucket) -> Iterator[str]:
    use_s3(settings_of(memory_bucket))
    yield f"s3://{memory_bucket.name}/holdfast/_entropy_"
    unregister_file_system("s3")
    unregister_file_system("s3a")


def test_a_bucket_is_empty_after_its_checkpoints_were_given_up_and_deleted(
    memory_bucket: S3Bucket, s3_directory: str
) -> None:
    access = job_in(s3_directory)
    done = completed(access, 1)
    assert re.fullmatch(rf"s3://{memory_bucket.name}/holdfast/\.\w\w/job/.*", files_of(done)[0].uri)
    failed = access.initialize_location_for_checkpoint(2)
    attempt = uripath.name(write(failed).uri)[:9]
    key = f"holdfast/.a3/job/chk-2/{attempt}{RANDOM}"
    memory_bucket.client.create_multipart_upload(Bucket=memory_bucket.name, Key=key)
    failed.dispose_on_failure()
    assert_complete(done)
    assert memory_bucket.uploads() == []
    assert len(memory_bucket.keys()) == 4
    done.discard()
    assert memory_bucket.keys() == []


def test_what_a_killed_process_was_writing_into_a_bucket_is_swept(
    memory_bucket: S3Bucket, s3_directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = """
import sys
from holdfast.locations import *
from holdfast.locations.adapters import *
directory, endpoint, access_key, secret_key = sys.argv[1:]
use_s3(S3Settings(endpoint_url=endpoint, region="us-east-1", path_style=True,
    access_key=access_key, secret_key=secret_key, part_bytes=5 << 20))
access = checkpoint_storage(directory).create_checkpoint_storage("job")
location = access.initialize_location_for_checkpoint(2)
for scope in CheckpointedStateScope:
    with location.create_checkpoint_state_output_stream(scope) as stream:
        stream.write(bytes(100_000))
        stream.close_and_get_handle()
streams = [location.create_checkpoint_state_output_stream(one) for one in CheckpointedStateScope]
for stream in streams:
    stream.write(bytes(6 << 20))
    stream.sync()
print("ready", flush=True)
sys.stdin.readline()
"""
    kept = completed(job_in(s3_directory), 1)
    before = memory_bucket.keys()
    server = memory_bucket.server
    with python(
        source, s3_directory, server.endpoint, server.access_key, server.secret_key
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n", process.communicate()[1]
        process.kill()
        process.communicate()
    assert len(memory_bucket.keys()) == len(before) + 2
    assert len(memory_bucket.uploads()) == 2
    now_ms = sweeping._store_clock_ms
    monkeypatch.setattr(sweeping, "_store_clock_ms", lambda uri: now_ms(uri) + 7_200_000)
    report = sweep(s3_directory, "job", grace_s=GRACE)
    assert (len(report.files), len(report.uploads)) == (2, 2)
    assert memory_bucket.keys() == before
    assert memory_bucket.uploads() == []
    assert_complete(kept)
