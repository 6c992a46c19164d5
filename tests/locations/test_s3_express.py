"""Directory buckets of S3 Express One Zone: the contract of exclusive stores, uploads, and a job."""

import uuid
from collections.abc import Iterable, Iterator

import pytest
from contracts.files import write
from contracts.s3_objects import MIB, content
from servers.buckets import MemoryBucket, MemoryS3Server, faults_before
from servers.in_process import serve
from servers.memory_s3_express import MemoryDirectoryBuckets
from servers.s3 import settings_of

from holdfast.errors import InvalidRequestError
from holdfast.locations import use_s3
from holdfast.locations.adapters import RetryPolicy, unregister_file_system
from holdfast.locations.file_systems import S3FileSystem, check_exclusive
from holdfast.testing import ExclusiveFileSystemContract, s3_operation
from proof.crash_points import resume_job, run_job

SOON = RetryPolicy(first_wait_s=0.001, max_wait_s=0.01)


@pytest.fixture(scope="module")
def server() -> Iterator[MemoryS3Server]:
    store = MemoryDirectoryBuckets()
    with serve(store.answer) as endpoint:
        yield MemoryS3Server(name="memory", endpoint=endpoint, store=store)


@pytest.fixture
def bucket(server: MemoryS3Server) -> MemoryBucket:
    name = f"test-{uuid.uuid4().hex[:12]}--use1-az4--x-s3"
    server.store.add_bucket(name)
    return MemoryBucket(server, name, None)


@pytest.fixture
def file_system(server: MemoryS3Server) -> S3FileSystem:
    return S3FileSystem(settings_of(server))


@pytest.fixture
def directory(bucket: MemoryBucket) -> str:
    return f"s3://{bucket.name}/dir"


@pytest.fixture
def job_directory(server: MemoryS3Server, directory: str) -> Iterator[str]:
    use_s3(settings_of(server))
    yield directory
    unregister_file_system("s3")
    unregister_file_system("s3a")


class TestDirectoryBucket(ExclusiveFileSystemContract):
    has_directories = False

    @pytest.fixture
    def file_system(self, server: MemoryS3Server) -> S3FileSystem:
        return S3FileSystem(settings_of(server))

    @pytest.fixture
    def directory(self, bucket: MemoryBucket) -> str:
        return f"s3://{bucket.name}/dir"

    @pytest.fixture(autouse=True)
    def _bucket(self, bucket: MemoryBucket) -> None:
        self.bucket = bucket

    def files(self, directory: str) -> dict[str, bytes]:
        prefix = directory.removeprefix(f"s3://{self.bucket.name}/") + "/"
        keys = self.bucket.keys(prefix)
        return {key.removeprefix(prefix): self.bucket.read(key) for key in keys}

    def put(self, uri: str, data: bytes) -> None:
        self.bucket.put(uri.removeprefix(f"s3://{self.bucket.name}/"), data)

    def put_all(self, uris: Iterable[str], data: bytes) -> None:
        for uri in uris:
            self.put(uri, data)


def test_job_on_directory_bucket_is_claimed_retained_and_swept(
    job_directory: str, bucket: MemoryBucket
) -> None:
    completed: list[int] = []
    check_exclusive(job_directory)
    run_job(job_directory, completed.append)
    resume_job(job_directory, completed[-1])
    assert isinstance(bucket.server, MemoryS3Server)
    assert isinstance(bucket.server.store, MemoryDirectoryBuckets)
    assert bucket.server.store.sessions > 0


def test_large_file_in_directory_bucket_is_sent_in_parts(
    file_system: S3FileSystem, directory: str, bucket: MemoryBucket
) -> None:
    data = b"12345678" * 3 * MIB
    write(file_system, f"{directory}/x", data[: 20 * MIB], data[20 * MIB :])
    assert content(file_system, f"{directory}/x") == data
    aborted = file_system.create(f"{directory}/y")
    aborted.write(data)
    aborted.abort()
    assert bucket.uploads() == []


def test_upload_with_a_lost_first_answer_is_aborted(
    server: MemoryS3Server, directory: str, bucket: MemoryBucket
) -> None:
    with faults_before(
        server, over_http=True
    ) as faults:  # an IP address, so that paths name the bucket
        file_system = S3FileSystem(settings_of(server, endpoint=faults.url), retries=SOON)
        faults.lose_answer(s3_operation("CreateMultipartUpload"))
        write(file_system, f"{directory}/x", bytes(9 * MIB))
    assert bucket.uploads() == []
    assert bucket.keys() == ["dir/x"]


def test_storage_class_of_other_buckets_is_refused(server: MemoryS3Server, directory: str) -> None:
    file_system = S3FileSystem(settings_of(server, storage_class="STANDARD_IA"))
    with pytest.raises(InvalidRequestError, match="InvalidStorageClass"):
        file_system.publish(f"{directory}/x", b"1")
