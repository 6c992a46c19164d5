"""State files with random characters in their paths."""

import re

import pytest
from contracts.checkpointed_jobs import assert_complete, files_of, job_in, write_state
from contracts.entropy import (
    access,
    bucket,
    clock,
    directory,
    files_in,
    write_checkpoint,
)
from contracts.values import SHARED, read

from holdfast.common import uripath
from holdfast.errors import CheckpointNotFoundError, InvalidRequestError
from holdfast.locations import (
    CheckpointStorage,
    FileSystemCheckpointStorage,
    MemoryCheckpointStorage,
    checkpoint_storage,
    complete_checkpoint,
    latest_checkpoint,
    load_checkpoint,
    sweep,
)
from holdfast.locations.adapters import (
    METADATA_FILE,
    CheckpointedStateScope,
    CheckpointStorageAccess,
    file_system_for,
)
from holdfast.locations.file_systems import publish
from holdfast.locations.storages import check_job_id, layout, resolve_pointer
from holdfast.testing import (
    CheckpointStorageContract,
    metadata_of,
)

__all__ = ["access", "bucket", "clock", "directory"]


class TestOnAnObjectStore(CheckpointStorageContract):
    @pytest.fixture
    def storage(self, bucket: str) -> CheckpointStorage:
        return checkpoint_storage(f"{bucket}/holdfast/_entropy_")

    def files(self, storage: CheckpointStorage) -> set[str]:
        assert isinstance(storage, FileSystemCheckpointStorage)
        bucket = storage.directory.partition("/holdfast")[0]
        return {f"{bucket}/{path}" for path in files_in(bucket)}


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
    def test_marker_is_left_out_or_replaced(self, marked: str, plain: str, spread: str) -> None:
        assert layout.without_marker(marked) == plain
        assert layout.inject_entropy(marked, "a3456789") == spread
        assert layout.has_marker(marked) == (marked != spread)

    def test_256_entropy_paths_share_one_root(self) -> None:
        directories = layout.entropy_paths("s3://b/c/_entropy_/d")
        assert len(set(directories)) == 256
        assert all(re.fullmatch(r"s3://b/c/\.[0-9a-f]{2}/d", uri) for uri in directories)
        assert layout.entropy_root("s3://b/c/_entropy_/d") == "s3://b/c"

    def test_without_a_marker_there_is_one_directory(self) -> None:
        assert layout.entropy_paths("s3://b/c") == ["s3://b/c"]
        assert layout.entropy_root("s3://b/c") == "s3://b/c"

    @pytest.mark.parametrize(
        ("uri", "is_file"),
        [
            ("s3://b/c/job/chk-7/x", True),
            ("s3://b/.a3/c/job/chk-7/x", False),
            ("s3://b/c/.a3/job/chk-7/x", True),
            ("s3://b/c/.a3/job/shared/x", False),
            ("s3://b/c/.a3/job/chk-7/below/x", False),
            ("s3://b/c/job/chk-7/below/x", False),
            ("s3://b/c/.a3/job/chk-77/x", False),
            ("s3://b/c/.a3/.a3/job/chk-7/x", False),
            ("s3://b/c/.A3/job/chk-7/x", False),
            ("s3://b/c/.a3f/job/chk-7/x", False),
            ("s3://b/c/a3/job/chk-7/x", False),
            ("s3://b/c/.zz/job/chk-7/x", False),
            ("s3://.a3/c/job/chk-7/x", False),
            ("s3://b/c/.a3/other/chk-7/x", False),
        ],
    )
    def test_file_with_entropy_belongs_to_its_directory(
        self,
        uri: str,
        is_file: bool,  # noqa: FBT001
    ) -> None:
        assert layout.is_file_of(uri, "s3://b/c/job/chk-7") == is_file


class TestMarkerPlace:
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
    def test_marker_without_a_meaning_is_refused(self, bucket: str, path: str, reason: str) -> None:
        for use in (
            FileSystemCheckpointStorage,
            checkpoint_storage,
            latest_checkpoint,
            lambda uri: sweep(uri, "job"),
        ):
            with pytest.raises(InvalidRequestError, match=reason):
                use(f"{bucket}{path}")

    @pytest.mark.parametrize("path", ["/.a3", "/.a3/c", "/c/.00/d", "/c/.ff", "/.a3/_entropy_"])
    def test_directory_like_its_replacement_is_refused(
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
    def test_directory_unlike_its_replacement_is_accepted(self, bucket: str, path: str) -> None:
        done = write_checkpoint(job_in(f"{bucket}{path}/_entropy_"), 1)
        assert_complete(done)
        done.discard()
        assert files_in(bucket) == set()

    def test_marker_on_local_disks_is_refused(self, local_directory: str) -> None:
        with pytest.raises(InvalidRequestError, match="leave _entropy_ out"):
            checkpoint_storage(f"{local_directory}/c/_entropy_")

    @pytest.mark.parametrize("kind", ["memory", "fsspec+file"])
    def test_store_with_directories_is_detected_at_first(
        self, memory_directory: str, local_directory: str, kind: str
    ) -> None:
        directory = memory_directory if kind == "memory" else f"fsspec+{local_directory}"
        storage = checkpoint_storage(f"{directory}/_entropy_", single_writer=True)
        with pytest.raises(InvalidRequestError, match="leave _entropy_ out"):
            storage.create_checkpoint_storage("job").initialize_base_locations_for_checkpoint()
        assert list(file_system_for(directory).list(directory)) == []

    @pytest.mark.usefixtures("access")
    def test_probe_of_partitions_leaves_nothing(self, bucket: str) -> None:
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

    def test_marker_without_state_files_is_refused(self, directory: str) -> None:
        with pytest.raises(InvalidRequestError, match="no state files"):
            MemoryCheckpointStorage(directory=directory)

    def test_marker_is_refused_as_a_job_id(self, bucket: str) -> None:
        with pytest.raises(InvalidRequestError, match="_entropy_"):
            check_job_id("_entropy_")
        assert check_job_id("cross_entropy_loss") == "cross_entropy_loss"

    def test_marker_within_a_name_is_a_name(self, bucket: str) -> None:
        done = write_checkpoint(job_in(f"{bucket}/cross_entropy_loss"), 1)
        assert {uripath.parent(file.uri) for file in files_of(done)} == {
            done.location.external_pointer
        }


class TestLayout:
    def test_state_has_random_characters_in_its_path_and_metadata_has_not(
        self, bucket: str
    ) -> None:
        access = job_in(f"{bucket}/c//d/_entropy_/")
        access.claim_job()
        location = access.initialize_location_for_checkpoint(7)
        handles = [write_state(location), write_state(location, SHARED)]
        done = complete_checkpoint(location, metadata_of(*handles, checkpoint_id=7))
        assert done.location.external_pointer == f"{bucket}/c/d/job/chk-7"
        by_name = {f"c/d/job/chk-7/{METADATA_FILE}", "c/d/job/_epoch/1"}
        expected = set(by_name)
        for handle, place in zip(handles, ("chk-7", "shared"), strict=True):
            name = uripath.name(handle.uri)
            random = name.rpartition("-")[2][:2]
            expected.add(f"c/d/.{random}/job/{place}/{name}")
        assert files_in(bucket) == expected
        assert {uripath.local_path(file.uri).lstrip("/") for file in handles} == expected - by_name

    def test_every_file_gets_its_own_digits(self, access: CheckpointStorageAccess) -> None:
        directories = {
            uripath.parent(file.uri) for file in files_of(write_checkpoint(access, 1, files=200))
        }
        assert len(directories) > 100

    def test_entropy_makes_the_paths_of_exclusive_state_absolute(
        self, access: CheckpointStorageAccess
    ) -> None:
        done = write_checkpoint(access, 1)
        content = read(done.location.metadata_handle)
        assert all(file.uri.encode() in content for file in files_of(done))

    def test_metadata_has_relative_paths_without_entropy(self, bucket: str) -> None:
        done = write_checkpoint(job_in(f"{bucket}/holdfast"), 1)
        content = read(done.location.metadata_handle)
        for file in files_of(done):
            assert file.uri.encode() not in content
            assert uripath.name(file.uri).encode() in content

    def test_tasks_spread_files_at_the_default_location(
        self, bucket: str, access: CheckpointStorageAccess
    ) -> None:
        reference = access.initialize_location_for_checkpoint(1).location_reference
        for copy in (reference, type(reference)()):
            factory = access.resolve_checkpoint_storage_location(1, copy)
            for scope in CheckpointedStateScope:
                with factory.create_checkpoint_state_output_stream(scope) as stream:
                    stream.write(b"1")
                    stream.close_and_get_handle()
        places = {re.sub(r"\.[0-9a-f]{2}(.*)/.*", r"_\1", name) for name in files_in(bucket)}
        assert places == {"holdfast/_/job/chk-1", "holdfast/_/job/shared"}

    def test_savepoints_are_not_spread(self, bucket: str, access: CheckpointStorageAccess) -> None:
        location = access.initialize_location_for_savepoint(1)
        handles = [write_state(location, scope) for scope in CheckpointedStateScope]
        done = complete_checkpoint(location, metadata_of(*handles))
        pointer = done.location.external_pointer
        assert pointer.startswith(f"{bucket}/holdfast/savepoints/savepoint-job-")
        assert {uripath.parent(handle.uri) for handle in handles} == {pointer}

    def test_latest_checkpoint_is_found_with_and_without_the_marker(
        self, bucket: str, access: CheckpointStorageAccess
    ) -> None:
        done = [write_checkpoint(access, number) for number in (1, 2)][1]
        for directory in (f"{bucket}/holdfast/_entropy_", f"{bucket}/holdfast"):  # noqa: F402  # no fixture here
            assert checkpoint_storage(directory).jobs() == ["job"]
            latest = latest_checkpoint(directory)
            assert latest is not None
            assert latest.metadata == done.metadata
            assert_complete(latest)

    def test_pointer_may_contain_the_marker(
        self, bucket: str, directory: str, access: CheckpointStorageAccess
    ) -> None:
        done = write_checkpoint(access, 1)
        for pointer in (f"{directory}/job/chk-1", f"{directory}/job/chk-1/_metadata"):
            resolved = resolve_pointer(pointer)
            assert resolved.external_pointer == done.location.external_pointer
            assert load_checkpoint(resolved).metadata == done.metadata

    def test_pointer_never_reaches_the_root_of_a_bucket(
        self, bucket: str, access: CheckpointStorageAccess
    ) -> None:
        content = read(write_checkpoint(access, 1).location.metadata_handle)
        publish(f"{bucket}/{METADATA_FILE}", content, single_writer=False)
        before = files_in(bucket)
        for pointer in (bucket, f"{bucket}/", f"{bucket}/_entropy_", f"{bucket}/_entropy_/"):
            with pytest.raises(InvalidRequestError, match="root directory"):
                resolve_pointer(pointer)
        for pointer in (f"{bucket}/{METADATA_FILE}", f"{bucket}/_entropy_/{METADATA_FILE}"):
            resolved = resolve_pointer(pointer)
            with pytest.raises(InvalidRequestError, match="root directory"):
                resolved.dispose_storage_location()
            with pytest.raises(InvalidRequestError, match="root directory"):
                load_checkpoint(resolved).discard()
        assert files_in(bucket) == before

    def test_local_pointer_is_taken_literally(self, local_directory: str) -> None:
        write_checkpoint(job_in(f"{local_directory}/x"), 1)
        with pytest.raises(CheckpointNotFoundError):
            resolve_pointer(f"{local_directory}/_entropy_/x/job/chk-1")

    @pytest.mark.parametrize("marked_first", [True, False])
    def test_job_resumes_after_the_marker_was_added_or_removed(
        self,
        bucket: str,
        marked_first: bool,  # noqa: FBT001
    ) -> None:
        directories = [f"{bucket}/holdfast/_entropy_", f"{bucket}/holdfast"]
        before, after = (
            job_in(directory) for directory in sorted(directories, reverse=not marked_first)
        )
        first = write_checkpoint(before, 1)
        second = write_checkpoint(after, 2)
        claimed = after.claim_job().completed
        assert list(claimed) == [1, 2]
        assert_complete(first)
        claimed[1].discard()
        assert files_in(bucket) == {
            "holdfast/job/_epoch/1",
            f"holdfast/job/chk-2/{METADATA_FILE}",
            *(file.uri.removeprefix(f"{bucket}/") for file in files_of(second)),
        }
