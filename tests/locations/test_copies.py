"""State that the store copies by itself: no byte of it is moved through this host."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from contracts.columnar_tables import TablesJob, put, uris, value_spec, values
from contracts.patience import HANGS_S
from contracts.values import SHARED, read
from servers.s3 import settings_of
from servers.watched import WatchedBucket

from holdfast.locations import FileSystemCheckpointStorage, S3Settings
from holdfast.locations.adapters import (
    CheckpointStateOutputStream,
    FileStateHandle,
    RetryPolicy,
    unregister_file_system,
)
from holdfast.locations.coordination import copy_file
from holdfast.locations.file_systems import use_s3
from holdfast.testing import s3_operation

STATE = bytes(range(256)) * 100
SOON = RetryPolicy(deadline_s=0.05, first_wait_s=0.001, max_wait_s=0.002)


@pytest.fixture
def settings(watched: WatchedBucket) -> Iterator[S3Settings]:
    """Settings of `s3://`, whose requests are recorded."""
    settings = settings_of(
        watched.bucket.server, endpoint=watched.faults.url, state_files="boto3", storage_class="X"
    )
    use_s3(settings, retries=SOON)
    yield settings
    unregister_file_system("s3")
    unregister_file_system("s3a")


def stream_in(directory: str, *, inline_threshold: int = 0) -> CheckpointStateOutputStream:
    """Return a stream of shared state of a new checkpoint."""
    storage = FileSystemCheckpointStorage(directory, inline_threshold=inline_threshold)
    access = storage.create_checkpoint_storage("job")
    access.initialize_base_locations_for_checkpoint()
    return access.initialize_location_for_checkpoint(1).create_checkpoint_state_output_stream(
        SHARED
    )


def stored_in(directory: str) -> FileStateHandle:
    """Write a file of state."""
    with stream_in(directory) as stream:
        stream.write(STATE)
        handle = stream.close_and_get_handle()
    assert isinstance(handle, FileStateHandle)
    return handle


@pytest.mark.usefixtures("settings")
class TestS3:
    def test_copy_is_one_request_and_reads_like_its_source(self, watched: WatchedBucket) -> None:
        source = stored_in(f"{watched.directory}/a")
        stream = stream_in(f"{watched.directory}/b")
        watched.faults.requests.clear()
        assert stream.adopt_stored(source)
        assert stream.tell() == len(STATE)
        copy = stream.close_and_get_handle()
        assert watched.counts() == {"CopyObject": 1}
        assert watched.request_headers("CopyObject")[0]["x-amz-storage-class"] == "X"
        assert isinstance(copy, FileStateHandle)
        assert (copy.size, copy.checksum) == (source.size, source.checksum)
        assert copy.uri.startswith(f"{watched.directory}/b/job/shared/")
        assert read(copy) == STATE
        source.discard_state()
        assert read(copy) == STATE

    @pytest.mark.parametrize(
        "fault", ["refused", "too large", "source missing", "unavailable", "answers lost"]
    )
    def test_failed_copy_leaves_nothing_and_is_written_instead(
        self, watched: WatchedBucket, fault: str
    ) -> None:
        source = stored_in(f"{watched.directory}/a")
        if fault == "source missing":
            source.discard_state()
        elif fault == "refused":
            watched.faults.answer(403, s3_operation("CopyObject"))
        elif fault == "unavailable":
            watched.faults.answer(503, s3_operation("CopyObject"), "every")
        elif fault == "answers lost":
            watched.faults.lose_answer(s3_operation("CopyObject"), "every")
        else:
            watched.faults.answer(400, s3_operation("CopyObject"), code="InvalidRequest")
        with stream_in(f"{watched.directory}/b") as stream:
            before = watched.bucket.keys("")
            assert not stream.adopt_stored(source)
            assert watched.bucket.keys("") == before
            stream.write(STATE)
            copy = stream.close_and_get_handle()
        assert isinstance(copy, FileStateHandle)
        assert read(copy) == STATE

    @pytest.mark.parametrize("lands", [False, True], ids=["before", "after"])
    def test_copy_is_repeated_after_a_failure(self, watched: WatchedBucket, *, lands: bool) -> None:
        source = stored_in(f"{watched.directory}/a")
        stream = stream_in(f"{watched.directory}/b")
        watched.faults.answer(503, s3_operation("CopyObject"), performed=lands)
        assert stream.adopt_stored(source)
        copy = stream.close_and_get_handle()
        assert isinstance(copy, FileStateHandle)
        assert read(copy) == STATE

    def test_discarded_copy_leaves_nothing(self, watched: WatchedBucket) -> None:
        source = stored_in(f"{watched.directory}/a")
        stream = stream_in(f"{watched.directory}/b")
        before = watched.bucket.keys("")
        assert stream.adopt_stored(source)
        stream.close()
        assert watched.bucket.keys("") == before

    @pytest.mark.parametrize("is_read", [False, True])
    def test_first_checkpoint_of_a_fork_moves_no_segment(
        self, watched: WatchedBucket, tmp_path: Path, *, is_read: bool
    ) -> None:
        original = TablesJob(f"{watched.directory}/a", tmp_path)
        tables = original.restore()
        for first in range(0, 3000, 1000):
            put(tables.table(value_spec()), range(first, first + 1000), first)
            handle = original.complete(tables)
        assert len(handle.segments) == 3
        fork_directory = f"{watched.directory}/b"
        fork = TablesJob(fork_directory, tmp_path)
        fork.on_another_worker()
        forked = fork.restore(handle, may_refer=False)
        put(forked.table(value_spec()), range(9000, 9100), 7)
        if is_read:
            assert values(forked.table(value_spec()), range(5)) == [0] * 5
        watched.faults.requests.clear()
        own = fork.snapshot(forked)
        # One for each segment; then the new segment, and the manifest.
        assert watched.counts() == {"CopyObject": 3, "PutObject": 2}
        assert not set(uris(own).values()) & set(uris(handle).values())
        fork.confirm(forked, 1)
        for stream in handle.segments.values():
            stream.discard_state()
        for tables in (forked, fork.restore(own), TablesJob(fork_directory, tmp_path).restore(own)):
            table = tables.table(value_spec())
            assert values(table, range(3000)) == list(np.repeat([0, 1000, 2000], 1000))
            assert values(table, range(9000, 9100)) == [7] * 100


def test_files_of_a_snapshot_are_uploaded_together(
    settings: S3Settings, watched: WatchedBucket, tmp_path: Path
) -> None:
    assert settings
    job = TablesJob(f"{watched.directory}/a", tmp_path)
    tables = job.restore()
    for first in range(0, 9000, 3000):
        put(tables.table(value_spec()), range(first, first + 3000), first)
        handle = job.complete(tables)
    fork = TablesJob(f"{watched.directory}/b", tmp_path)
    watched.faults.answer(403, s3_operation("CopyObject"), "every")
    together = threading.Barrier(3)
    watched.faults.delay(lambda: together.wait(HANGS_S), s3_operation("PutObject"), times=3)
    own = fork.snapshot(fork.restore(handle, may_refer=False))
    assert len(own.segments) == 3
    assert not together.broken


def test_copy_on_a_local_disk_is_a_second_name(local_directory: str) -> None:
    source = stored_in(f"{local_directory}/a")
    with stream_in(f"{local_directory}/b") as stream:
        assert stream.adopt_stored(source)
        copy = stream.close_and_get_handle()
    assert isinstance(copy, FileStateHandle)
    paths = [handle.uri.removeprefix("file://") for handle in (source, copy)]
    assert os.path.samefile(*paths)
    source.discard_state()
    assert read(copy) == STATE


def test_file_of_a_savepoint_is_copied_with_or_without_the_store(
    memory_directory: str, local_directory: str
) -> None:
    for directory, is_linked in ((local_directory, True), (memory_directory, False)):
        storage = FileSystemCheckpointStorage(f"{directory}/b", savepoint_directory=directory)
        access = storage.create_checkpoint_storage("job")
        savepoint = access.initialize_location_for_savepoint(1)
        source = stored_in(f"{directory}/a")
        copy = copy_file(source, savepoint)
        assert isinstance(copy, FileStateHandle)
        assert copy.uri.startswith(f"{savepoint.external_pointer}/")
        assert (copy.checksum, read(copy)) == (source.checksum, STATE)
        if is_linked:
            assert os.path.samefile(*(file.uri.removeprefix("file://") for file in (source, copy)))


def test_small_state_and_other_stores_are_not_copied(
    memory_directory: str, local_directory: str
) -> None:
    source = stored_in(f"{local_directory}/a")
    with stream_in(f"{local_directory}/b", inline_threshold=len(STATE)) as stream:
        assert not stream.adopt_stored(source)
    for directory in (memory_directory, f"{memory_directory}/b"):
        with stream_in(directory) as stream:
            assert not stream.adopt_stored(source)
        source = stored_in(f"{memory_directory}/a")
