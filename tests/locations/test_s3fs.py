"""S3 through s3fs: the same as through boto3, except for exclusive creation."""

import os
import pickle
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from contracts.errors import of_kind
from contracts.files import write
from contracts.patience import HANGS_S
from contracts.processes import output_of
from contracts.s3_objects import put_many
from contracts.s3fs_buckets import (
    MIB,
    WatchedBucket,
    bucket,
    s3_bucket,
    s3fs_bucket,
    watched_bucket,
)
from contracts.values import EXCLUSIVE, read
from servers.s3 import S3Bucket, settings_of

from holdfast.errors import CheckpointConflictError, InvalidRequestError
from holdfast.locations import FileSystemCheckpointStorage, checkpoint_storage
from holdfast.locations.adapters import ExclusiveFileSystem, FileSystem
from holdfast.locations.file_systems import S3fsFileSystem, abort_uploads, pending_uploads
from holdfast.testing import FileSystemContract, s3_operation

__all__ = ["bucket", "s3_bucket", "s3fs_bucket", "watched_bucket"]


# The contracts


# The contract of storages, in which each request takes 5 ms, runs on MinIO in the integration tests, and this one too.
@pytest.mark.parametrize("s3_bucket", ["memory"], indirect=True)
class TestS3fsFileSystem(FileSystemContract):
    has_directories = False

    @pytest.fixture
    def file_system(self, s3_bucket: S3Bucket) -> FileSystem:
        return S3fsFileSystem(settings_of(s3_bucket.server))

    @pytest.fixture
    def directory(self, s3_bucket: S3Bucket) -> str:
        self.bucket = s3_bucket
        return f"fsspec+s3://{s3_bucket.name}/dir"

    def files(self, directory: str) -> dict[str, bytes]:
        prefix = directory.partition("://")[2].partition("/")[2] + "/"
        return {key.removeprefix(prefix): self.bucket.read(key) for key in self.bucket.keys(prefix)}

    def put(self, uri: str, data: bytes) -> None:
        self.put_all([uri], data)

    def put_all(self, uris: Iterable[str], data: bytes) -> None:
        root = f"fsspec+s3://{self.bucket.name}/"
        put_many(self.bucket, [uri.removeprefix(root) for uri in uris], data)

    def test_it_can_not_publish(self, file_system: FileSystem) -> None:
        assert not isinstance(file_system, ExclusiveFileSystem)

    def test_it_pickles(self, file_system: FileSystem, directory: str) -> None:
        write(pickle.loads(pickle.dumps(file_system)), f"{directory}/x", b"1")
        assert self.files(directory) == {"x": b"1"}

    @pytest.mark.parametrize("size", [5, 6 * MIB])
    def test_existing_name_is_a_conflict_and_kept(
        self, file_system: FileSystem, directory: str, size: int
    ) -> None:
        self.put(f"{directory}/x", b"first")
        with pytest.raises(CheckpointConflictError):
            write(file_system, f"{directory}/x", bytes(size))
        assert self.files(directory) == {"x": b"first"}
        assert self.bucket.uploads() == []

    def test_files_written_by_others_are_listed(
        self, file_system: FileSystem, directory: str
    ) -> None:
        assert list(file_system.list(directory)) == []
        for name in ("x", "y"):
            self.put(f"{directory}/{name}", b"1")
            uris = {entry.uri for entry in file_system.list(directory)}
            assert f"{directory}/{name}" in uris


def test_without_the_promise_of_a_single_writer_it_is_refused(s3fs_bucket: S3Bucket) -> None:
    storage = checkpoint_storage(f"fsspec+s3://{s3fs_bucket.name}/data")
    with pytest.raises(InvalidRequestError, check=of_kind("not-exclusive")):
        storage.create_checkpoint_storage("job").claim_job()
    assert s3fs_bucket.keys() == []


def test_large_state_comes_back_as_it_was_stored(s3fs_bucket: S3Bucket) -> None:
    storage = FileSystemCheckpointStorage(
        f"fsspec+s3://{s3fs_bucket.name}/data", single_writer=True
    )
    location = storage.create_checkpoint_storage("job").initialize_location_for_checkpoint(1)
    state = os.urandom(20 * MIB + 1)
    with location.create_checkpoint_state_output_stream(EXCLUSIVE) as stream:
        for first in range(0, len(state), 3 * MIB):
            stream.write(state[first : first + 3 * MIB])
        handle = stream.close_and_get_handle()
    assert handle is not None
    assert read(handle) == state
    handle.discard_state()
    assert s3fs_bucket.keys() == []
    assert s3fs_bucket.uploads() == []


# Requests


def test_small_file_is_checked_and_put_without_a_condition(
    watched_bucket: WatchedBucket,
) -> None:
    write(watched_bucket.use(), watched_bucket.uri, b"1")
    assert watched_bucket.counts() == {"HeadObject": 1, "PutObject": 1}
    [put] = [
        request for request in watched_bucket.faults.requests if s3_operation("PutObject")(request)
    ]
    assert "if-none-match" not in put.headers
    assert "x-amz-checksum-crc32c" in put.headers


def test_large_file_goes_in_parts(watched_bucket: WatchedBucket) -> None:
    data = os.urandom(12 * MIB + 1)
    write(watched_bucket.use(part_size=5 * MIB), watched_bucket.uri, data)
    assert watched_bucket.bucket.read("dir/x") == data
    assert watched_bucket.counts() == {
        "CreateMultipartUpload": 1,
        "UploadPart": 3,
        "HeadObject": 1,
        "CompleteMultipartUpload": 1,
    }
    assert not any("if-none-match" in request.headers for request in watched_bucket.faults.requests)


def test_file_is_read_by_one_request(watched_bucket: WatchedBucket) -> None:
    data = os.urandom(3 * MIB)
    watched_bucket.bucket.client.put_object(
        Bucket=watched_bucket.bucket.name, Key="dir/x", Body=data
    )
    with watched_bucket.use().open(watched_bucket.uri) as stream:
        assert stream.read() == data
    assert watched_bucket.counts() == {"GetObject": 1}


def test_thousand_files_are_deleted_by_one_request(watched_bucket: WatchedBucket) -> None:
    watched_bucket.use().delete([f"{watched_bucket.directory}/{number}" for number in range(1000)])
    assert watched_bucket.counts() == {"DeleteObjects": 1}


# Uploads that were never finished


def test_upload_of_a_dead_writer_is_found_and_aborted(
    watched_bucket: WatchedBucket,
) -> None:
    watched_bucket.use()
    started = watched_bucket.bucket.client.create_multipart_upload(
        Bucket=watched_bucket.bucket.name, Key="dir/deeper/x"
    )
    [upload] = pending_uploads(watched_bucket.directory)
    assert (upload.uri, upload.upload_id) == (
        f"{watched_bucket.directory}/deeper/x",
        started["UploadId"],
    )
    abort_uploads([upload, upload])
    assert watched_bucket.bucket.uploads() == []


def test_tree_is_deleted_with_the_uploads_in_it(watched_bucket: WatchedBucket) -> None:
    client, name = watched_bucket.bucket.client, watched_bucket.bucket.name
    client.create_multipart_upload(Bucket=name, Key="dir/a/x")
    client.create_multipart_upload(Bucket=name, Key="dir/ab/x")
    watched_bucket.use().delete_tree(f"{watched_bucket.directory}/a")
    assert [key for key, _ in watched_bucket.bucket.uploads()] == ["dir/ab/x"]


# Processes and threads


@pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded:DeprecationWarning",
    "ignore:unclosed:ResourceWarning",
)
def test_forked_process_makes_its_own_connection(watched_bucket: WatchedBucket) -> None:
    file_system = watched_bucket.use()
    write(file_system, f"{watched_bucket.directory}/parent", b"1")
    child = os.fork()
    if child == 0:
        status = 1
        with suppress(BaseException):
            write(file_system, f"{watched_bucket.directory}/child", b"2")
            status = 0
        os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    write(file_system, f"{watched_bucket.directory}/after", b"3")
    assert watched_bucket.bucket.keys() == ["dir/after", "dir/child", "dir/parent"]


def test_sixteen_threads_share_a_file_system(watched_bucket: WatchedBucket) -> None:
    file_system = watched_bucket.use()
    start = threading.Barrier(16)

    def work(number: int) -> bool:
        start.wait(HANGS_S)
        data = os.urandom(1000)
        write(file_system, f"{watched_bucket.directory}/{number}", data)
        with file_system.open(f"{watched_bucket.directory}/{number}") as stream:
            return stream.read() == data

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(work, range(16)))
    assert len(watched_bucket.bucket.keys()) == 16


def test_spawned_process_needs_only_the_settings_and_no_boto3(
    s3fs_bucket: S3Bucket,
) -> None:
    source = (
        "import sys, pickle; sys.modules['boto3'] = None;"
        "from holdfast.locations.file_systems import file_system_for, use_s3;"
        "use_s3(pickle.loads(bytes.fromhex(sys.argv[1])));"
        "stream = file_system_for(sys.argv[2]).create(sys.argv[2]);"
        "stream.write(b'spawned'); stream.commit()"
    )
    settings = pickle.dumps(settings_of(s3fs_bucket.server)).hex()
    output_of(source, settings, f"fsspec+s3://{s3fs_bucket.name}/x")
    assert s3fs_bucket.read("x") == b"spawned"
