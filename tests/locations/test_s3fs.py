"""S3 through s3fs: what is the same as through boto3, and what it can't do."""

import logging
import os
import pickle
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from contracts.errors import of_kind
from contracts.patience import HANGS_S, PATIENT
from contracts.processes import output_of
from contracts.values import EXCLUSIVE, read
from fsspec.config import conf
from servers.buckets import OF_OTHERS, faults_before
from servers.s3 import S3Bucket, settings_of

from holdfast.errors import (
    CheckpointConflictError,
    CheckpointError,
    CheckpointNotFoundError,
    InvalidRequestError,
    OutcomeUnknownError,
    StorageFullError,
    StorageUnavailableError,
    StreamClosedError,
)
from holdfast.locations import (
    CheckpointStorage,
    FileSystemCheckpointStorage,
    S3Settings,
    checkpoint_storage,
    use_s3,
)
from holdfast.locations.adapters import (
    ExclusiveFileSystem,
    FileSystem,
    RetryPolicy,
    file_system_for,
    unregister_file_system,
)
from holdfast.locations.file_systems import S3fsFileSystem, abort_uploads, pending_uploads, publish
from holdfast.locations.file_systems.fsspec import s3fs_client
from holdfast.spark.settings import s3_settings
from holdfast.testing import (
    CheckpointStorageContract,
    FileSystemContract,
    HttpFaults,
    s3_operation,
    s3_operation_of,
)

MIB = 1 << 20

SECRET = "the-secret-of-a-test"
TOKEN = "the-token-of-a-test"

NEVER = RetryPolicy(deadline_s=0)
"""Repeats nothing."""

SCHEMES = ("s3", "s3a", "fsspec+s3", "fsspec+s3a")


def write(file_system: FileSystem, uri: str, data: bytes) -> None:
    stream = file_system.create(uri)
    try:
        stream.write(data)
        stream.commit()
    finally:
        stream.abort()


@dataclass
class Watched:
    """A bucket behind a proxy that notes what is asked for, and fails when it is told to."""

    bucket: S3Bucket
    faults: HttpFaults

    @property
    def directory(self) -> str:
        return f"fsspec+s3://{self.bucket.name}/dir"

    @property
    def uri(self) -> str:
        return f"{self.directory}/x"

    def use(self, retries: RetryPolicy = PATIENT, **changes: Any) -> FileSystem:
        """What URIs of the bucket lead to, from now on."""
        changes = {"endpoint_url": self.faults.url, **changes}
        settings = settings_of(self.bucket.server, **changes)
        use_s3(settings, retries=retries)
        return file_system_for(self.directory)

    def counts(self) -> Counter[str]:
        return Counter(s3_operation_of(request) for request in self.faults.requests)


@pytest.fixture
def bucket(s3_bucket: S3Bucket) -> Iterator[S3Bucket]:
    """A bucket on each of the servers; afterwards nothing is left of how it was reached."""
    yield s3_bucket
    for scheme in SCHEMES:
        unregister_file_system(scheme)
    clients = s3fs_client._CLIENTS._values
    while clients:
        clients.popitem()[1].close()


@pytest.fixture
def watched(bucket: S3Bucket) -> Iterator[Watched]:
    with faults_before(bucket.server, over_http=True) as faults:
        yield Watched(bucket, faults)


@pytest.fixture
def used(bucket: S3Bucket) -> S3Bucket:
    """The bucket, reached by `fsspec+s3://`."""
    use_s3(settings_of(bucket.server), retries=PATIENT)
    return bucket


# The contracts


not_on_moto = pytest.mark.parametrize(
    "s3_bucket", ["memory", pytest.param("ministack", marks=OF_OTHERS)], indirect=True
)


@not_on_moto
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
        key = uri.removeprefix(f"fsspec+s3://{self.bucket.name}/")
        self.bucket.client.put_object(Bucket=self.bucket.name, Key=key, Body=data)

    def test_it_can_not_publish(self, file_system: FileSystem) -> None:
        assert not isinstance(file_system, ExclusiveFileSystem)

    def test_it_pickles(self, file_system: FileSystem, directory: str) -> None:
        write(pickle.loads(pickle.dumps(file_system)), f"{directory}/x", b"1")
        assert self.files(directory) == {"x": b"1"}

    @pytest.mark.parametrize("size", [5, 6 * MIB])
    def test_a_name_that_is_taken_is_a_conflict_and_kept(
        self, file_system: FileSystem, directory: str, size: int
    ) -> None:
        self.put(f"{directory}/x", b"first")
        with pytest.raises(CheckpointConflictError):
            write(file_system, f"{directory}/x", bytes(size))
        assert self.files(directory) == {"x": b"first"}
        assert self.bucket.uploads() == []

    def test_what_others_wrote_meanwhile_is_listed(
        self, file_system: FileSystem, directory: str
    ) -> None:
        assert list(file_system.list(directory)) == []
        for name in ("x", "y"):
            self.put(f"{directory}/{name}", b"1")
            found = {entry.uri for entry in file_system.list(directory)}
            assert f"{directory}/{name}" in found


@pytest.mark.exhaustive  # each request takes 5 ms; of file systems the contract above says the same
@not_on_moto
class TestS3fsStorage(CheckpointStorageContract):
    @pytest.fixture
    def storage(self, used: S3Bucket, request: pytest.FixtureRequest) -> CheckpointStorage:
        if "_of_eight_racing_" in request.node.name:
            pytest.skip("it is for a single writer")
        self.bucket = used
        return checkpoint_storage(f"fsspec+s3://{used.name}/data", single_writer=True)

    def files(self, storage: CheckpointStorage) -> set[str]:
        return {f"fsspec+s3://{self.bucket.name}/{key}" for key in self.bucket.keys("")}

    @pytest.fixture(autouse=True)
    def no_upload_dangles(self, used: S3Bucket) -> Iterator[None]:
        yield
        assert used.uploads() == []


def test_without_the_promise_of_a_single_writer_it_is_refused(used: S3Bucket) -> None:
    storage = checkpoint_storage(f"fsspec+s3://{used.name}/data")
    with pytest.raises(InvalidRequestError, check=of_kind("not-exclusive")):
        storage.create_checkpoint_storage("job").claim_job()
    assert used.keys() == []


def test_large_state_comes_back_as_it_was_stored(used: S3Bucket) -> None:
    storage = FileSystemCheckpointStorage(f"fsspec+s3://{used.name}/data", single_writer=True)
    location = storage.create_checkpoint_storage("job").initialize_location_for_checkpoint(1)
    state = os.urandom(20 * MIB + 1)
    with location.create_checkpoint_state_output_stream(EXCLUSIVE) as stream:
        for first in range(0, len(state), 3 * MIB):
            stream.write(state[first : first + 3 * MIB])
        handle = stream.close_and_get_handle()
    assert handle is not None
    assert read(handle) == state
    handle.discard_state()
    assert used.keys() == []
    assert used.uploads() == []


# What is asked for


def test_a_small_file_is_looked_for_and_put_without_a_condition(watched: Watched) -> None:
    write(watched.use(), watched.uri, b"1")
    assert watched.counts() == {"HeadObject": 1, "PutObject": 1}
    [put] = [one for one in watched.faults.requests if s3_operation("PutObject")(one)]
    assert "if-none-match" not in put.headers
    assert "x-amz-checksum-crc32c" in put.headers


def test_a_large_file_goes_in_parts(watched: Watched) -> None:
    data = os.urandom(12 * MIB + 1)
    write(watched.use(part_bytes=5 * MIB), watched.uri, data)
    assert watched.bucket.read("dir/x") == data
    assert watched.counts() == {
        "CreateMultipartUpload": 1,
        "UploadPart": 3,
        "HeadObject": 1,
        "CompleteMultipartUpload": 1,
    }
    assert not any("if-none-match" in one.headers for one in watched.faults.requests)


def test_a_file_is_read_by_one_request(watched: Watched) -> None:
    data = os.urandom(3 * MIB)
    watched.bucket.client.put_object(Bucket=watched.bucket.name, Key="dir/x", Body=data)
    with watched.use().open(watched.uri) as stream:
        assert stream.read() == data
    assert watched.counts() == {"GetObject": 1}


def test_a_thousand_files_are_deleted_by_one_request(watched: Watched) -> None:
    watched.use().delete([f"{watched.directory}/{number}" for number in range(1000)])
    assert watched.counts() == {"DeleteObjects": 1}


# What goes wrong


CALLS: dict[str, Callable[[Watched, FileSystem], object]] = {
    "PutObject": lambda watched, store: write(store, watched.uri, b"1"),
    "HeadObject": lambda watched, store: write(store, watched.uri, b"1"),
    "UploadPart": lambda watched, store: write(store, watched.uri, bytes(6 * MIB)),
    "GetObject": lambda watched, store: store.open(watched.uri).close(),
    "ListObjectsV2": lambda watched, store: store.list(watched.directory),
    "DeleteObjects": lambda watched, store: store.delete([watched.uri]),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("status", [500, 503])
def test_neither_s3fs_nor_botocore_repeats_anything(
    watched: Watched, name: str, status: int
) -> None:
    watched.faults.answer(status, s3_operation(name), "every")
    # A 500 may have been performed.
    may_be_there = name == "PutObject" and status == 500
    with pytest.raises(OutcomeUnknownError if may_be_there else StorageUnavailableError):
        CALLS[name](watched, watched.use(NEVER, part_bytes=5 * MIB, concurrency=1))
    assert watched.counts()[name] == 1


@pytest.mark.parametrize("name", [one for one in CALLS if one != "GetObject"])
@pytest.mark.parametrize("fault", ["answer", "reset"])
def test_what_fails_twice_is_done_at_the_third_time(
    watched: Watched, name: str, fault: str
) -> None:
    if fault == "answer":
        watched.faults.answer(503, s3_operation(name), times=2)
    else:
        watched.faults.reset(s3_operation(name), times=2)
    file_system = watched.use(part_bytes=5 * MIB)
    CALLS[name](watched, file_system)
    assert watched.counts()[name] == 3 + (name == "UploadPart")
    if name in {"PutObject", "HeadObject", "UploadPart"}:
        data = bytes(6 * MIB) if name == "UploadPart" else b"1"
        assert watched.bucket.read("dir/x") == data
    assert watched.bucket.uploads() == []


@pytest.mark.parametrize(("name", "size"), [("PutObject", 1), ("CompleteMultipartUpload", 6 * MIB)])
def test_a_commit_whose_answer_was_lost_is_one(watched: Watched, name: str, size: int) -> None:
    data = os.urandom(size)
    watched.faults.lose_answer(s3_operation(name))
    write(watched.use(part_bytes=5 * MIB), watched.uri, data)
    assert watched.bucket.read("dir/x") == data
    assert watched.bucket.uploads() == []


def test_nobody_knows_the_outcome_of_a_commit_whose_answers_are_all_lost(
    watched: Watched,
) -> None:
    watched.faults.lose_answer(s3_operation("PutObject"), "every")
    with pytest.raises(OutcomeUnknownError):
        write(watched.use(NEVER), watched.uri, b"1")


def test_metadata_whose_answer_was_lost_is_published_once(watched: Watched) -> None:
    watched.faults.lose_answer(s3_operation("PutObject"))
    watched.use()
    publish(watched.uri, b"ours", single_writer=True)
    with pytest.raises(CheckpointConflictError):
        publish(watched.uri, b"others", single_writer=True)
    assert watched.bucket.read("dir/x") == b"ours"


def test_a_writer_that_fails_leaves_no_truncated_file(watched: Watched) -> None:
    stream = watched.use(part_bytes=5 * MIB).create(watched.uri)
    stream.write(bytes(6 * MIB))
    stream.abort()
    with pytest.raises(StreamClosedError):
        stream.commit()
    del stream
    assert watched.bucket.keys() == []
    assert watched.bucket.uploads() == []


def test_a_part_that_is_refused_leaves_nothing(watched: Watched) -> None:
    watched.faults.answer(403, s3_operation("UploadPart"))
    with pytest.raises(InvalidRequestError):
        write(watched.use(part_bytes=5 * MIB), watched.uri, bytes(12 * MIB))
    assert watched.bucket.keys() == []
    assert watched.bucket.uploads() == []


def test_reading_goes_on_where_the_connection_was_lost(watched: Watched) -> None:
    data = os.urandom(3 * MIB)
    watched.bucket.client.put_object(Bucket=watched.bucket.name, Key="dir/x", Body=data)
    watched.faults.truncate(MIB + 1, s3_operation("GetObject"))
    with watched.use().open(watched.uri) as stream:
        assert stream.read() == data


def test_a_server_that_says_nothing_is_not_waited_for_forever(watched: Watched) -> None:
    _, go_on = watched.faults.blocking(s3_operation("ListObjectsV2"))
    with pytest.raises(StorageUnavailableError):
        watched.use(NEVER, read_timeout_s=0.2).list(watched.directory)
    go_on.set()


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (403, "AccessDenied", InvalidRequestError),
        (403, "InvalidAccessKeyId", InvalidRequestError),
        (403, "SignatureDoesNotMatch", InvalidRequestError),
        (400, "ExpiredToken", InvalidRequestError),
        (404, "NoSuchBucket", InvalidRequestError),
        (404, "NoSuchKey", CheckpointNotFoundError),
        (403, "QuotaExceeded", StorageFullError),
        (400, "RequestTimeout", StorageUnavailableError),
        (503, "SlowDown", StorageUnavailableError),
        (500, "InternalError", OutcomeUnknownError),
    ],
)
def test_an_error_says_what_to_do_and_tells_no_secret(
    watched: Watched,
    status: int,
    code: str,
    expected: type[CheckpointError],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    for name in ("s3fs", "fsspec", "holdfast"):
        caplog.set_level(logging.DEBUG, name)
    watched.faults.answer(status, s3_operation("PutObject"), "every", code=code)
    file_system = watched.use(NEVER, secret_key=SECRET, session_token=TOKEN)
    with pytest.raises(expected) as caught:
        write(file_system, watched.uri, b"1")
    assert caught.value.location == watched.uri
    told = "".join(traceback.format_exception(caught.value)) + caplog.text + repr(file_system)
    assert "CALL: put_object" in told
    assert SECRET not in told
    assert TOKEN not in told


def test_a_bucket_that_is_missing_is_not_an_empty_directory(watched: Watched) -> None:
    with pytest.raises(InvalidRequestError, check=of_kind("no-bucket")):
        watched.use().list("fsspec+s3://missing/dir")


def test_a_server_that_is_not_there_is_unavailable(watched: Watched) -> None:
    file_system = watched.use(NEVER, endpoint_url="http://127.0.0.1:1")
    with pytest.raises(StorageUnavailableError):
        file_system.list(watched.directory)


def test_what_is_sent_again_after_a_kept_connection_broke_is_whole(watched: Watched) -> None:
    file_system = watched.use(NEVER, part_bytes=5 * MIB, concurrency=1)
    data = os.urandom(12 * MIB)
    stream = file_system.create(watched.uri)
    stream.write(data[: 5 * MIB])
    watched.faults.reset(s3_operation("UploadPart"), nth=1)
    with suppress(StorageUnavailableError):  # aiohttp may not have kept it
        stream.write(data[5 * MIB :])
        stream.commit()
    stream.abort()
    assert watched.bucket.uploads() == []
    assert all(watched.bucket.read(key) == data for key in watched.bucket.keys(""))


# Uploads that were never finished


def test_the_upload_of_a_writer_that_died_is_found_and_given_up(watched: Watched) -> None:
    watched.use()
    begun = watched.bucket.client.create_multipart_upload(
        Bucket=watched.bucket.name, Key="dir/deeper/x"
    )
    [found] = pending_uploads(watched.directory)
    assert (found.uri, found.upload_id) == (f"{watched.directory}/deeper/x", begun["UploadId"])
    abort_uploads([found, found])
    assert watched.bucket.uploads() == []


def test_a_tree_is_deleted_with_the_uploads_in_it(watched: Watched) -> None:
    client, name = watched.bucket.client, watched.bucket.name
    client.create_multipart_upload(Bucket=name, Key="dir/a/x")
    client.create_multipart_upload(Bucket=name, Key="dir/ab/x")
    watched.use().delete_tree(f"{watched.directory}/a")
    assert [key for key, _ in watched.bucket.uploads()] == ["dir/ab/x"]


# Processes and threads


@pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded:DeprecationWarning",
    "ignore:unclosed:ResourceWarning",
)
def test_a_forked_process_connects_anew(watched: Watched) -> None:
    file_system = watched.use()
    write(file_system, f"{watched.directory}/parent", b"1")
    child = os.fork()
    if child == 0:
        status = 1
        with suppress(BaseException):
            write(file_system, f"{watched.directory}/child", b"2")
            status = 0
        os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    write(file_system, f"{watched.directory}/after", b"3")
    assert watched.bucket.keys() == ["dir/after", "dir/child", "dir/parent"]


def test_sixteen_threads_share_a_file_system(watched: Watched) -> None:
    file_system = watched.use()
    start = threading.Barrier(16)

    def work(number: int) -> bool:
        start.wait(HANGS_S)
        data = os.urandom(1000)
        write(file_system, f"{watched.directory}/{number}", data)
        with file_system.open(f"{watched.directory}/{number}") as stream:
            return stream.read() == data

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(work, range(16)))
    assert len(watched.bucket.keys()) == 16


def test_a_spawned_process_reaches_it_by_the_settings_and_without_boto3(used: S3Bucket) -> None:
    source = (
        "import sys, pickle; sys.modules['boto3'] = None;"
        "from holdfast.locations.file_systems import file_system_for, use_s3;"
        "use_s3(pickle.loads(bytes.fromhex(sys.argv[1])));"
        "stream = file_system_for(sys.argv[2]).create(sys.argv[2]);"
        "stream.write(b'spawned'); stream.commit()"
    )
    settings = pickle.dumps(settings_of(used.server)).hex()
    output_of(source, settings, f"fsspec+s3://{used.name}/x")
    assert used.read("x") == b"spawned"


# Settings


def test_a_buckets_own_settings_are_for_it_alone(watched: Watched) -> None:
    watched.use(endpoint_url="http://127.0.0.1:1", retries=NEVER)
    use_s3(settings_of(watched.bucket.server), watched.bucket.name)
    assert list(file_system_for(watched.directory).list(watched.directory)) == []
    with pytest.raises(StorageUnavailableError):
        file_system_for("fsspec+s3://other/dir").list("fsspec+s3://other/dir")


def test_s3a_is_the_same(used: S3Bucket) -> None:
    uri = f"fsspec+s3a://{used.name}/x"
    write(file_system_for(uri), uri, b"1")
    assert used.read("x") == b"1"


@pytest.mark.parametrize(
    ("changes", "header", "value"),
    [
        ({"server_side_encryption": "AES256"}, "x-amz-server-side-encryption", "AES256"),
        ({"storage_class": "STANDARD_IA"}, "x-amz-storage-class", "STANDARD_IA"),
        ({"requester_pays": True}, "x-amz-request-payer", "requester"),
        ({"session_token": TOKEN}, "x-amz-security-token", TOKEN),
    ],
)
@pytest.mark.parametrize("size", [1, 6 * MIB])
def test_a_setting_reaches_the_requests(
    watched: Watched, changes: dict[str, Any], header: str, value: str, size: int
) -> None:
    write(watched.use(part_bytes=5 * MIB, **changes), watched.uri, bytes(size))
    name = "PutObject" if size == 1 else "CreateMultipartUpload"
    [made] = [one for one in watched.faults.requests if s3_operation(name)(one)]
    assert made.headers[header] == value


def test_what_the_settings_leave_open_is_fsspecs_to_say(
    bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = bucket.server
    said = {
        "endpoint_url": server.endpoint,
        "key": server.access_key,
        "secret": server.secret_key,
    }
    monkeypatch.setitem(conf, "s3", said)
    file_system = S3fsFileSystem(S3Settings(region=server.region, path_style=True))
    write(file_system, f"fsspec+s3://{bucket.name}/x", b"1")
    assert bucket.read("x") == b"1"


def test_the_settings_come_before_fsspecs(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"endpoint_url": "http://127.0.0.1:1", "key": "other", "secret": SECRET, "token": TOKEN}
    monkeypatch.setitem(conf, "s3", said)
    write(watched.use(), watched.uri, b"1")
    assert not any("x-amz-security-token" in one.headers for one in watched.faults.requests)


def test_a_role_is_refused_with_the_way_out() -> None:
    file_system = S3fsFileSystem(S3Settings(role_arn="arn:aws:iam::1:role/x"))
    with pytest.raises(InvalidRequestError, match="AWS_PROFILE"):
        file_system.list("fsspec+s3://bucket/dir")


def test_certificates_that_are_missing_are_not_a_missing_object(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    missing = str(tmp_path / "missing")
    with pytest.raises(InvalidRequestError, match="certificates"):
        watched.use(ca_bundle=missing).open(watched.uri)
    monkeypatch.setenv("AWS_CA_BUNDLE", missing)
    with pytest.raises(InvalidRequestError):
        watched.use(endpoint_url="https://127.0.0.1:1").open(watched.uri)


def test_who_has_no_credentials_is_told_so(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(InvalidRequestError, match="credentials"):
        watched.use(access_key=None, secret_key=None).list(watched.directory)


def test_without_s3fs_the_message_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(InvalidRequestError, match=r"pip install .* s3fs"):
        S3fsFileSystem(S3Settings(region="without-s3fs")).list("fsspec+s3://bucket/dir")


def test_s3fs_is_imported_only_when_it_is_needed() -> None:
    source = "import sys, holdfast.locations; print({'s3fs', 'aiobotocore'} & sys.modules.keys())"
    assert output_of(source) == "set()"


def test_sparks_settings_of_s3_are_for_it_too() -> None:
    found = s3_settings({"spark.holdfast.s3.region": "here"}, "fsspec+s3://bucket/dir")
    assert found == {"bucket": S3Settings(region="here")}
