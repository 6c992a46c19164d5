import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from contracts.checkpointed_jobs import job_in
from contracts.values import EXCLUSIVE, read

from holdfast.errors import (
    CheckpointConflictError,
    CheckpointCorruptedError,
    CheckpointNotFoundError,
    InvalidRequestError,
    StorageFullError,
    StorageUnavailableError,
)
from holdfast.locations import (
    CheckpointMetadata,
    CheckpointStorage,
    CompletedCheckpoint,
    FileSystemCheckpointStorage,
    checkpoint_storage,
    complete_checkpoint,
    load_checkpoint,
)
from holdfast.locations.adapters import (
    METADATA_FILE,
    CheckpointedStateScope,
    CheckpointStorageAccess,
    CheckpointStorageLocation,
    FileStateHandle,
    StreamStateHandle,
    file_system_for,
)
from holdfast.locations.coordination import dispose_on_error, load_latest_checkpoint
from holdfast.locations.file_systems import memory as store
from holdfast.locations.storages import resolve_pointer
from holdfast.testing import CheckpointStorageContract, Faults, metadata_of


class TestOnLocalDisk(CheckpointStorageContract):
    @pytest.fixture
    def storage(self, local_directory: str) -> CheckpointStorage:
        return checkpoint_storage(local_directory)

    def files(self, storage: CheckpointStorage) -> set[str]:
        assert isinstance(storage, FileSystemCheckpointStorage)
        root = Path(storage.directory.removeprefix("file://"))
        return {f"file://{path}" for path in root.rglob("*") if path.is_file()}


class TestInMemory(CheckpointStorageContract):
    @pytest.fixture
    def storage(self, memory_directory: str) -> CheckpointStorage:
        return checkpoint_storage(memory_directory)

    def files(self, storage: CheckpointStorage) -> set[str]:
        assert isinstance(storage, FileSystemCheckpointStorage)
        return {uri for uri in store.FILES if uri.startswith(f"{storage.directory}/")}


def completed_in(access: CheckpointStorageAccess, checkpoint_id: int = 1) -> CompletedCheckpoint:
    """A checkpoint with one file of 100,000 bytes."""
    location = access.initialize_location_for_checkpoint(checkpoint_id)
    with location.create_checkpoint_state_output_stream(EXCLUSIVE) as stream:
        stream.write(bytes(100_000))
        handle = stream.close_and_get_handle()
    assert handle is not None
    return complete_checkpoint(location, metadata_of(handle, checkpoint_id=checkpoint_id))


def shared_in(location: CheckpointStorageLocation) -> StreamStateHandle:
    """A file of 100,000 bytes that later checkpoints may refer to."""
    with location.create_checkpoint_state_output_stream(CheckpointedStateScope.SHARED) as stream:
        stream.write(bytes(100_000))
        handle = stream.close_and_get_handle()
    assert handle is not None
    return handle


class TestPointers:
    @pytest.fixture
    def checkpoint(self, local_directory: str) -> CompletedCheckpoint:
        return completed_in(job_in(local_directory))

    @pytest.mark.parametrize("suffix", ["", "/", "//", "/.", f"/{METADATA_FILE}", "/../chk-1"])
    def test_checkpoint_is_found_by_directory_or_file(
        self, checkpoint: CompletedCheckpoint, local_directory: str, suffix: str
    ) -> None:
        resolved = resolve_pointer(checkpoint.location.external_pointer + suffix)
        assert resolved.external_pointer == f"{local_directory}/job/chk-1"
        assert load_checkpoint(resolved).metadata == checkpoint.metadata

    def test_path_is_a_pointer(self, checkpoint: CompletedCheckpoint, tmp_path: Path) -> None:
        resolved = resolve_pointer(tmp_path / "job" / "chk-1")
        assert load_checkpoint(resolved).metadata == checkpoint.metadata

    @pytest.mark.parametrize("name", ["none", "job/chk-2", "job/chk-1/x", "job/chk-1/_metadata/x"])
    def test_missing_checkpoint_is_not_found(
        self, checkpoint: CompletedCheckpoint, local_directory: str, name: str
    ) -> None:
        with pytest.raises(CheckpointNotFoundError) as caught:
            resolve_pointer(f"{local_directory}/{name}")
        assert caught.value.location == f"{local_directory}/{name}"

    def test_directory_without_metadata_is_reported(
        self, checkpoint: CompletedCheckpoint, local_directory: str
    ) -> None:
        with pytest.raises(
            CheckpointNotFoundError,
            match=f"has no {METADATA_FILE}; name the directory of a checkpoint",
        ):
            resolve_pointer(f"{local_directory}/job")

    @pytest.mark.parametrize("pointer", ["", "/tmp/x", "file:///", "nothing:///x/y"])
    def test_pointer_without_a_scheme_is_refused(self, pointer: str) -> None:
        with pytest.raises(InvalidRequestError):
            resolve_pointer(pointer)

    def test_metadata_file_of_another_name_is_read_and_not_deleted(
        self, checkpoint: CompletedCheckpoint, tmp_path: Path
    ) -> None:
        directory = tmp_path / "job" / "chk-1"
        os.rename(directory / METADATA_FILE, directory / "before the upgrade")
        pointer = f"{checkpoint.location.external_pointer}/before the upgrade"
        loaded = load_checkpoint(resolve_pointer(pointer))
        assert loaded.metadata == checkpoint.metadata
        with pytest.raises(InvalidRequestError):
            loaded.discard()
        assert len(list(directory.iterdir())) == 2

    def test_moved_directory_refers_to_its_state(
        self, checkpoint: CompletedCheckpoint, local_directory: str, tmp_path: Path
    ) -> None:
        shutil.move(tmp_path / "job" / "chk-1", tmp_path / "moved")
        resolved = resolve_pointer(f"{local_directory}/moved")
        (handle,) = load_checkpoint(resolved).metadata.streams()
        assert isinstance(handle, FileStateHandle)
        assert handle.uri.startswith(f"{local_directory}/moved/")
        assert read(handle) == bytes(100_000)


class TestLayout:
    def test_files_are_in_the_documented_places(self, local_directory: str, tmp_path: Path) -> None:
        access = job_in(local_directory)
        location = access.initialize_location_for_checkpoint(3)
        for scope in CheckpointedStateScope:
            stream = location.create_checkpoint_state_output_stream(scope)
            stream.write(bytes(100_000))
            stream.close_and_get_handle()
        complete_checkpoint(location, metadata_of(checkpoint_id=3))
        job = tmp_path / "job"
        assert sorted(os.listdir(job)) == ["_epoch", "chk-3", "shared"]
        assert len(os.listdir(job / "shared")) == 1
        assert METADATA_FILE in os.listdir(job / "chk-3")
        assert len(os.listdir(job / "chk-3")) == 2

    def test_directories_without_metadata_are_skipped(
        self, local_directory: str, tmp_path: Path
    ) -> None:
        access = job_in(local_directory)
        completed_in(access, 2)
        job = tmp_path / "job"
        for name in ("chk-", "chk-01", "chk-x", "chk-5.old", "chk-3"):
            (job / name).mkdir()
            if name != "chk-3":
                (job / name / METADATA_FILE).touch()
        (job / "chk-4").touch()
        (job / "chk-3" / f".{METADATA_FILE}.0.inprogress").touch()
        assert list(access.completed_checkpoints()) == [2]

    def test_damaged_latest_checkpoint_is_an_error(
        self, local_directory: str, tmp_path: Path
    ) -> None:
        access = job_in(local_directory)
        for checkpoint_id in (1, 2):
            completed_in(access, checkpoint_id)
        (tmp_path / "job" / "chk-2" / METADATA_FILE).write_bytes(b"HOLDFAST")
        with pytest.raises(CheckpointCorruptedError) as caught:
            load_latest_checkpoint(access)
        assert caught.value.location == f"{local_directory}/job/chk-2/{METADATA_FILE}"

    def test_failed_attempt_leaves_its_directory_and_files_of_others(
        self, local_directory: str, tmp_path: Path
    ) -> None:
        access = job_in(local_directory)
        other, failed = (access.initialize_location_for_checkpoint(number) for number in (1, 2))
        handles = [shared_in(location) for location in (other, failed)]
        with failed.create_checkpoint_state_output_stream(CheckpointedStateScope.SHARED) as stream:
            stream.write(bytes(100_000))
            failed.dispose_on_failure()
        assert read(handles[0]) == bytes(100_000)
        assert sorted(os.listdir(tmp_path / "job")) == ["_epoch", "chk-1", "chk-2", "shared"]
        assert os.listdir(tmp_path / "job" / "chk-2") == []
        assert len(os.listdir(tmp_path / "job" / "shared")) == 1

    def test_shared_state_stays_if_another_driver_may_have_resumed(self, faults: Faults) -> None:
        """The checkpoint existed, though the store reports otherwise, and has been cleaned up since."""
        access = job_in(faults.directory)
        location = access.initialize_location_for_checkpoint(1)
        handle = shared_in(location)
        faults.after("publish", CheckpointConflictError("as planned"))
        metadata = f"{faults.inner_directory}/job/chk-1/{METADATA_FILE}"
        faults.before("open", lambda: file_system_for(metadata).delete([metadata]))
        with pytest.raises(CheckpointConflictError):
            complete_checkpoint(location, metadata_of(handle))
        location.dispose_on_failure()
        assert read(handle) == bytes(100_000)

    def test_shared_state_of_a_checkpoint_surely_unpublished_is_deleted(
        self, faults: Faults
    ) -> None:
        location = job_in(faults.directory).initialize_location_for_checkpoint(1)
        handle = shared_in(location)
        faults.before("publish", StorageFullError("as planned"))
        with pytest.raises(StorageFullError):
            complete_checkpoint(location, metadata_of(handle))
        location.dispose_on_failure()
        with pytest.raises(CheckpointNotFoundError):
            handle.open_input_stream()

    def test_jobs_are_listed_by_name(self, local_directory: str, tmp_path: Path) -> None:
        storage = FileSystemCheckpointStorage(local_directory)
        assert storage.jobs() == []
        for job in ("b", "a"):
            job_in(local_directory, job)
        (tmp_path / "c").touch()
        (tmp_path / ".hidden").mkdir()
        assert storage.jobs() == ["a", "b"]

    @pytest.mark.parametrize(
        "job_id", ["", ".", "..", ".hidden", "a/b", "a b", "a\n", "ä", "x" * 129, "a%2Fb", "a\0"]
    )
    def test_job_id_unfit_for_a_directory_is_refused(
        self, local_directory: str, job_id: str
    ) -> None:
        with pytest.raises(InvalidRequestError):
            checkpoint_storage(local_directory).create_checkpoint_storage(job_id)

    @pytest.mark.parametrize("job_id", ["a", "A-1_b.c", "-", "0", "x" * 128])
    def test_plain_job_id_is_accepted(self, local_directory: str, job_id: str) -> None:
        assert job_in(local_directory, job_id).completed_checkpoints() == {}

    @pytest.mark.parametrize(
        "settings",
        [
            {"inline_threshold": -1},
            {"inline_threshold": (1 << 20) + 1},
            {"write_buffer_bytes": -1},
        ],
    )
    def test_numbers_out_of_bounds_are_refused(self, settings: dict[str, Any]) -> None:
        with pytest.raises(InvalidRequestError):
            FileSystemCheckpointStorage("memory:///x", **settings)


class TestInterruptedPublishing:
    """The caller of the store does not know the outcome."""

    @pytest.mark.parametrize("savepoint", [False, True])
    @pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError()])
    def test_files_stay_if_the_store_may_complete_it_later(
        self, faults: Faults, error: BaseException, *, savepoint: bool
    ) -> None:
        location, metadata = pending_in(job_in(faults.directory), faults, savepoint=savepoint)
        faults.before("publish", error)
        with pytest.raises(type(error)), dispose_on_error(location):
            complete_checkpoint(location, metadata)
        checkpoint = complete_checkpoint(location, metadata)  # the store completes it
        (handle,) = load_checkpoint(checkpoint.location).metadata.streams()
        assert read(handle) == bytes(100_000)

    @pytest.mark.parametrize("savepoint", [False, True])
    def test_files_of_a_refused_checkpoint_are_deleted(
        self, faults: Faults, *, savepoint: bool
    ) -> None:
        location, metadata = pending_in(job_in(faults.directory), faults, savepoint=savepoint)
        faults.before("publish", StorageFullError("as planned"))
        with pytest.raises(StorageFullError), dispose_on_error(location):
            complete_checkpoint(location, metadata)
        (handle,) = metadata.streams()
        with pytest.raises(CheckpointNotFoundError):
            handle.open_input_stream()


def pending_in(
    access: CheckpointStorageAccess, faults: Faults, *, savepoint: bool
) -> tuple[CheckpointStorageLocation, CheckpointMetadata]:
    """A checkpoint or savepoint, and its files."""
    if savepoint:
        location = access.initialize_location_for_savepoint(1, f"{faults.directory}/savepoints")
    else:
        location = access.initialize_location_for_checkpoint(1)
    with location.create_checkpoint_state_output_stream(EXCLUSIVE) as stream:
        stream.write(bytes(100_000))
        handle = stream.close_and_get_handle()
    assert handle is not None
    return location, metadata_of(handle)


class TestDiscard:
    def test_linked_checkpoint_stays(self, local_directory: str, tmp_path: Path) -> None:
        theirs = completed_in(job_in(local_directory))
        trial = job_in(f"{local_directory}/trial")
        (tmp_path / "trial" / "job" / "chk-1").symlink_to(tmp_path / "job" / "chk-1")
        latest = load_latest_checkpoint(trial)
        assert latest is not None
        latest.discard()
        assert trial.completed_checkpoints() == {}
        for stream in load_checkpoint(theirs.location).metadata.streams():
            assert read(stream) == bytes(100_000)

    def test_copy_under_another_name_is_deleted_without_its_neighbours(
        self, local_directory: str, tmp_path: Path
    ) -> None:
        checkpoint = completed_in(job_in(local_directory))
        (tmp_path / "copied" / "job").mkdir(parents=True)
        (tmp_path / "copied" / "job" / "x").touch()
        shutil.copytree(tmp_path / "job" / "chk-1", tmp_path / "copied", dirs_exist_ok=True)
        shutil.copytree(tmp_path / "job" / "chk-1", tmp_path / "separate")
        for name in ("copied", "separate"):
            load_checkpoint(resolve_pointer(tmp_path / name)).discard()
        assert [path.name for path in (tmp_path / "copied").iterdir()] == ["job"]
        assert (tmp_path / "copied" / "job" / "x").exists()
        assert not (tmp_path / "separate").exists()
        assert load_checkpoint(checkpoint.location) == checkpoint

    def test_metadata_is_deleted_first(self, faults: Faults) -> None:
        access = job_in(faults.directory)
        checkpoint = completed_in(access)
        faults.before("delete_tree", StorageUnavailableError("out of reach"))
        with pytest.raises(StorageUnavailableError):
            checkpoint.discard()
        assert access.completed_checkpoints() == {}
        (left,) = checkpoint.metadata.streams()
        assert read(left) == bytes(100_000)
        checkpoint.discard()
        with pytest.raises(CheckpointNotFoundError):
            left.open_input_stream()

    def test_nothing_goes_while_the_metadata_stays(self, faults: Faults) -> None:
        access = job_in(faults.directory)
        checkpoint = completed_in(access)
        nth = faults.calls.count("delete") + 1
        faults.before("delete", StorageUnavailableError("out of reach"), nth=nth)
        with pytest.raises(StorageUnavailableError):
            checkpoint.discard()
        assert list(access.completed_checkpoints()) == [1]
        (left,) = checkpoint.metadata.streams()
        assert read(left) == bytes(100_000)

    def test_state_file_is_discarded_by_one_call(self, faults: Faults) -> None:
        (handle,) = completed_in(job_in(faults.directory)).metadata.streams()
        faults.calls.clear()
        handle.discard_state()
        assert faults.calls == ["delete"]

    def test_task_only_writes_its_files(self, faults: Faults) -> None:
        access = job_in(faults.directory)
        location = access.initialize_location_for_checkpoint(1)
        faults.calls.clear()
        factory = access.resolve_checkpoint_storage_location(1, location.location_reference)
        stream = factory.create_checkpoint_state_output_stream(EXCLUSIVE)
        assert faults.calls == []
        stream.write(bytes(100_000))
        stream.close_and_get_handle()
        assert set(faults.calls) == {"create", "write", "commit", "abort"}
