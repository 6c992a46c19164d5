"""S3 as a store: what it keeps, how much it asks for, what it refuses."""

import gc
import io
import logging
import os
import pickle
import threading
import time
import traceback
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from typing import Any

import boto3
import moto.s3.models
import pytest
from contracts.errors import of_kind
from contracts.patience import HANGS_S
from contracts.processes import forked, of_many_threads, output_of
from contracts.values import EXCLUSIVE, read
from servers.s3 import S3Bucket, settings_of
from servers.watched import SOON, Watched, empty

from holdfast.errors import (
    CheckpointConflictError,
    CheckpointError,
    CheckpointNotFoundError,
    InvalidRequestError,
    StorageUnavailableError,
    StreamClosedError,
)
from holdfast.locations import (
    CheckpointStorage,
    ExclusiveFileSystem,
    FileSystemCheckpointStorage,
    S3FileSystem,
    S3Settings,
    checkpoint_storage,
    complete_checkpoint,
    file_system_for,
    latest_checkpoint,
    load_checkpoint,
    unregister_file_system,
    use_s3,
)
from holdfast.locations.file_systems import check_exclusive
from holdfast.locations.file_systems import s3 as s3_package
from holdfast.locations.file_systems.s3 import (
    multipart_upload,
    s3_client,
    s3_input_stream,
    s3_settings,
)
from holdfast.testing import (
    CheckpointStorageContract,
    ExclusiveFileSystemContract,
    http_faults,
    metadata_of,
    s3_operation,
    s3_operation_of,
)

MIB = 1 << 20

SECRET = "the-secret-of-a-test"
TOKEN = "the-token-of-a-test"

both_servers = pytest.mark.parametrize("bucket", ["moto_bucket", "ministack_bucket"], indirect=True)
only_ministack = pytest.mark.parametrize("bucket", ["ministack_bucket"], indirect=True)


def write(file_system: Any, uri: str, data: Any) -> None:
    stream = file_system.create(uri)
    try:
        stream.write(data)
        stream.commit()
    finally:
        stream.abort()


def content(file_system: Any, uri: str) -> bytes:
    with file_system.open(uri) as stream:
        found: bytes = stream.read()
    return found


@pytest.fixture
def file_system(bucket: S3Bucket) -> S3FileSystem:
    return S3FileSystem(settings_of(bucket.server, state_files="boto3"), retries=SOON)


@pytest.fixture
def directory(bucket: S3Bucket) -> str:
    return f"s3://{bucket.name}/dir"


@pytest.fixture
def s3(bucket: S3Bucket) -> Iterator[S3Bucket]:
    """The bucket, reached by `s3://` and `s3a://`."""
    use_s3(settings_of(bucket.server))
    yield bucket
    unregister_file_system("s3")
    unregister_file_system("s3a")


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a part be as small as a test wants it; no server here but moto minds."""
    monkeypatch.setattr(s3_settings, "_LEAST_PART_BYTES", 1)
    monkeypatch.setattr(moto.s3.models, "S3_UPLOAD_PART_MIN_SIZE", 1)


def put_many(bucket: S3Bucket, keys: list[str], data: bytes = b"") -> None:
    """Store the same under many keys; in moto without asking it for each."""
    if bucket.server.name == "moto":
        backend = next(
            found["aws"]
            for found in moto.s3.models.s3_backends.values()
            if bucket.name in found["aws"].buckets
        )
        for key in keys:
            backend.put_object(bucket.name, key, data)
        return

    def put(key: str) -> None:
        bucket.client.put_object(Bucket=bucket.name, Key=key, Body=data)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, keys))


# The contracts


class OfBuckets:
    """What the suites need of a store of objects."""

    bucket: S3Bucket

    @pytest.fixture(autouse=True)
    def _bucket(self, s3_bucket: S3Bucket) -> Iterator[None]:
        self.bucket = s3_bucket
        yield
        empty(s3_bucket)

    def _all(self, prefix: str) -> dict[str, bytes]:
        return {key.removeprefix(prefix): self.bucket.read(key) for key in self.bucket.keys(prefix)}


class TestS3FileSystem(OfBuckets, ExclusiveFileSystemContract):
    has_directories = False
    state_files = "boto3"

    @pytest.fixture
    def file_system(self, s3_bucket: S3Bucket) -> ExclusiveFileSystem:
        return S3FileSystem(settings_of(s3_bucket.server, state_files=self.state_files))

    @pytest.fixture
    def directory(self, s3_bucket: S3Bucket) -> str:
        return f"s3://{s3_bucket.name}/dir"

    def files(self, directory: str) -> dict[str, bytes]:
        return self._all(directory.partition("://")[2].partition("/")[2] + "/")

    def put(self, uri: str, data: bytes) -> None:
        put_many(self.bucket, [uri.removeprefix(f"s3://{self.bucket.name}/")], data)


@pytest.mark.parametrize("s3_bucket", ["ministack"], indirect=True)
class TestS3FileSystemByObstore(TestS3FileSystem):
    state_files = "obstore"


class TestS3Storage(OfBuckets, CheckpointStorageContract):
    state_files = "boto3"

    @pytest.fixture(autouse=True)
    def _registered(self, s3_bucket: S3Bucket) -> Iterator[None]:
        use_s3(settings_of(s3_bucket.server, state_files=self.state_files))
        yield
        unregister_file_system("s3")
        unregister_file_system("s3a")

    @pytest.fixture
    def storage(self, s3_bucket: S3Bucket) -> CheckpointStorage:
        return checkpoint_storage(f"s3://{s3_bucket.name}/data")

    def files(self, storage: CheckpointStorage) -> set[str]:
        return {f"s3://{self.bucket.name}/{key}" for key in self.bucket.keys("")}


@pytest.mark.parametrize("s3_bucket", ["ministack"], indirect=True)
class TestS3StorageByObstore(TestS3Storage):
    state_files = "obstore"


@both_servers
def test_a_checkpoint_on_s3_is_found_loaded_and_discarded_whole(s3: S3Bucket) -> None:
    storage = checkpoint_storage(f"s3://{s3.name}/data")
    access = storage.create_checkpoint_storage("job")
    location = access.initialize_location_for_checkpoint(1)
    data = os.urandom(20 * MIB)
    with location.create_checkpoint_state_output_stream(EXCLUSIVE) as stream:
        for first in range(0, len(data), 3 * MIB):
            stream.write(data[first : first + 3 * MIB])
        handle = stream.close_and_get_handle()
    assert handle is not None
    done = complete_checkpoint(location, metadata_of(handle))
    found = latest_checkpoint(access)
    assert found is not None
    assert found.checkpoint_id == load_checkpoint(done.location).checkpoint_id == 1
    assert read(handle) == data
    done.discard()
    assert s3.keys() == []
    assert s3.uploads() == []


# Large streams


@both_servers
@pytest.mark.parametrize("checksum", ["crc32c", "crc32", "off"])
def test_a_large_stream_goes_in_parts(watched: Watched, checksum: str) -> None:
    file_system = watched.file_system(part_bytes=5 * MIB, checksum=checksum)
    data = os.urandom(12 * MIB + 1)
    stream = file_system.create(f"{watched.directory}/x")
    for first in range(0, len(data), MIB // 3):
        stream.write(data[first : first + MIB // 3])
    stream.commit()
    assert watched.bucket.read("dir/x") == data
    counts = watched.counts()
    assert counts == {
        "CreateMultipartUpload": 1,
        "UploadPart": 3,
        "CompleteMultipartUpload": 1,
    }
    parts = [one for one in watched.faults.requests if s3_operation("UploadPart")(one)]
    assert sorted(int(one.query["partNumber"]) for one in parts) == [1, 2, 3]
    assert sorted(one.body_bytes for one in parts) == [2 * MIB + 1, 5 * MIB, 5 * MIB]
    names = {"crc32c": "x-amz-checksum-crc32c", "crc32": "x-amz-checksum-crc32"}
    for part in parts:
        sent = {name for name in part.headers if name.startswith("x-amz-checksum-crc")}
        assert sent == ({names[checksum]} if checksum in names else set())
    [done] = watched.asked("CompleteMultipartUpload")
    assert done["if-none-match"] == "*"
    assert done["x-amz-mp-object-size"] == str(len(data))


@pytest.mark.usefixtures("small_parts")
@both_servers
@pytest.mark.parametrize("size", [99, 100, 101, 200, 201])
def test_sizes_around_those_of_parts_are_whole(watched: Watched, size: int) -> None:
    data = os.urandom(size)
    write(watched.file_system(part_bytes=100), f"{watched.directory}/x", data)
    assert watched.bucket.read("dir/x") == data
    assert watched.bucket.uploads() == []


@pytest.mark.usefixtures("small_parts")
def test_parts_grow_so_that_a_stream_has_no_end(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multipart_upload, "_GROWS_EVERY", 4)
    file_system = watched.file_system(part_bytes=10, concurrency=1)
    data = os.urandom(4 * 10 + 4 * 20 + 40 + 7)
    write(file_system, f"{watched.directory}/x", data)
    parts = {
        int(one.query["partNumber"]): one.body_bytes
        for one in watched.faults.requests
        if s3_operation("UploadPart")(one)
    }
    assert [parts[number] for number in sorted(parts)] == [10] * 4 + [20] * 4 + [40, 7]
    assert watched.bucket.read("dir/x") == data


@only_ministack  # moto would hold the parts in this process
def test_a_large_stream_holds_no_more_than_the_parts_on_their_way(bucket: S3Bucket) -> None:
    settings = settings_of(bucket.server, part_bytes=5 * MIB, concurrency=2)
    stream = S3FileSystem(settings).create(f"s3://{bucket.name}/x")
    chunk = bytes(MIB)
    tracemalloc.start()
    for _ in range(50):
        stream.write(chunk)
    stream.commit()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < (2 + 1) * 5 * MIB + 3 * MIB


@contextmanager
def no_collection() -> Iterator[None]:
    """Only what nobody refers to goes, no circles of references."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.usefixtures("small_parts")
def test_an_upload_that_was_committed_is_forgotten_without_a_collection(bucket: S3Bucket) -> None:
    settings = settings_of(bucket.server, part_bytes=100)
    stream: Any = S3FileSystem(settings).create(f"s3://{bucket.name}/x")
    stream.write(bytes(950))
    forgotten = weakref.ref(stream._upload)
    with no_collection():
        stream.commit()
        del stream
        assert forgotten() is None


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("order", ["before", "after"])
def test_an_upload_whose_parts_are_refused_before_or_after_an_abort_is_forgotten(
    watched: Watched, order: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)  # what is logged keeps its exceptions
    # Of other errors botocore and tenacity make circles, which are left for a collection.
    go_on = threading.Event()
    watched.faults.delay(go_on, s3_operation("UploadPart"), "every")
    watched.faults.answer(403, s3_operation("UploadPart"), "every", code="AccessDenied")
    stream: Any = watched.file_system(part_bytes=100).create(f"{watched.directory}/x")
    stream.write(bytes(250))
    upload = stream._upload
    assert upload is not None
    if order == "before":
        go_on.set()
        wait(upload._parts)
    pool, forgotten = upload._pool, weakref.ref(upload)
    with no_collection():
        stream.abort()
        del stream, upload
        go_on.set()
        pool.shutdown()  # waits for parts that are on their way
        assert forgotten() is None


@pytest.mark.usefixtures("small_parts")
def test_a_writer_that_failed_can_not_commit_what_is_missing_a_piece(watched: Watched) -> None:
    watched.faults.answer(403, s3_operation("CreateMultipartUpload"), 1, code="AccessDenied")
    stream = watched.file_system(part_bytes=100).create(f"{watched.directory}/x")
    with pytest.raises(InvalidRequestError):
        stream.write(bytes(250))
    with pytest.raises(StreamClosedError):
        stream.commit()
    assert watched.bucket.keys() == []


@pytest.mark.usefixtures("small_parts")
def test_a_commit_ends_when_another_thread_aborts_parts_that_wait(
    bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, waits = threading.Event(), threading.Event()
    note = multipart_upload._note

    def slowly(room: Any, failures: Any, part: Any) -> None:
        note(room, failures, part)
        if not part.cancelled():  # the only worker comes no further after it gave its room back
            waits.set()
            goes_on.wait(HANGS_S)

    monkeypatch.setattr(multipart_upload, "_note", slowly)
    settings = settings_of(bucket.server, part_bytes=4, concurrency=1)
    stream = S3FileSystem(settings).create(f"s3://{bucket.name}/x")
    stream.write(b"12345")
    with ThreadPoolExecutor(1) as pool:
        committed = pool.submit(stream.commit)
        assert waits.wait(HANGS_S)
        stream.abort()
        goes_on.set()
        with pytest.raises(StreamClosedError):
            committed.result(HANGS_S)
    assert bucket.keys() == []
    assert bucket.uploads() == []


@pytest.mark.parametrize("checksum", ["crc32c", "off"])
def test_of_parts_the_checksum_is_signed_and_of_all_else_the_body(
    watched: Watched, checksum: str
) -> None:
    file_system = watched.file_system(part_bytes=5 * MIB, checksum=checksum)
    write(file_system, f"{watched.directory}/large", bytes(6 * MIB))
    write(file_system, f"{watched.directory}/small", b"1")
    file_system.delete([f"{watched.directory}/large"])
    signed = {
        name: {sent["x-amz-content-sha256"] != "UNSIGNED-PAYLOAD" for sent in watched.asked(name)}
        for name in ("PutObject", "UploadPart", "CompleteMultipartUpload", "DeleteObjects")
    }
    parts_too = checksum == "off"
    assert signed == {
        "PutObject": {True},
        "UploadPart": {parts_too},
        "CompleteMultipartUpload": {True},
        "DeleteObjects": {True},
    }
    if not parts_too:
        assert all(
            "x-amz-checksum-crc32c" in sent["authorization"] for sent in watched.asked("UploadPart")
        )


def test_parts_reach_what_s3_can_hold() -> None:
    part, total = S3Settings().part_bytes, 0
    for number in range(1, multipart_upload._MOST_PARTS + 1):
        total += part
        if number % multipart_upload._GROWS_EVERY == 0:
            part *= 2
    assert total >= 5 << 40
    assert part // 2 <= 5 << 30  # the largest part


@pytest.mark.usefixtures("small_parts")
def test_too_many_parts_are_refused_and_leave_nothing(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multipart_upload, "_MOST_PARTS", 3)
    with pytest.raises(InvalidRequestError, match="more than 3 parts"):
        write(watched.file_system(part_bytes=10), f"{watched.directory}/x", bytes(45))
    settle()
    assert watched.bucket.keys() == []
    assert watched.bucket.uploads() == []


@only_ministack
@pytest.mark.parametrize("checksum", ["crc32c", "crc32", "off"])
def test_what_was_changed_on_its_way_is_refused_where_the_store_is_to_check_it(
    bucket: S3Bucket, directory: str, checksum: str
) -> None:
    file_system = S3FileSystem(settings_of(bucket.server, checksum=checksum), retries=SOON)
    events = s3_client.connection_for(file_system.settings).client.meta.events

    def damage(request: Any, **_: Any) -> None:
        body = request.body if isinstance(request.body, bytes) else request.body.read()
        request.body = b"X" + body[1:]

    events.register("before-send.s3.PutObject", damage, "damage")
    try:
        if checksum == "off":
            file_system.publish(f"{directory}/x", b"data")
            assert bucket.read("dir/x") == b"Xata"
            return
        with pytest.raises(StorageUnavailableError):
            file_system.publish(f"{directory}/x", b"data")
    finally:
        events.unregister("before-send.s3.PutObject", unique_id="damage")
    assert bucket.keys() == []


@pytest.mark.parametrize("checksum", ["crc32c", "crc32", "off"])
@both_servers
def test_what_is_written_at_once_is_checked_by_the_store(watched: Watched, checksum: str) -> None:
    file_system = watched.file_system(checksum=checksum)
    file_system.publish(f"{watched.directory}/published", b"data")
    write(file_system, f"{watched.directory}/written", b"data")
    for sent in watched.asked("PutObject"):
        known = {"crc32c": "x-amz-checksum-crc32c", "crc32": "x-amz-checksum-crc32"}
        assert {name for name in sent if "checksum-crc" in name} == {
            name for mode, name in known.items() if mode == checksum
        }
        assert sent["if-none-match"] == "*"


# Requests that write


WRITING = ("PutObject", "CreateMultipartUpload")
ALL = (*WRITING, "UploadPart", "CompleteMultipartUpload", "AbortMultipartUpload")


def write_in_every_way(watched: Watched, **changes: Any) -> None:
    file_system = watched.file_system(part_bytes=100, **changes)
    file_system.publish(f"{watched.directory}/published", b"1")
    write(file_system, f"{watched.directory}/small", b"1")
    write(file_system, f"{watched.directory}/large", bytes(250))
    stream = file_system.create(f"{watched.directory}/aborted")
    stream.write(bytes(250))
    stream.abort()
    settle()
    list(file_system.list(watched.directory))
    content(file_system, f"{watched.directory}/small")
    file_system.delete([f"{watched.directory}/small"])


@pytest.mark.usefixtures("small_parts")
@both_servers
@pytest.mark.parametrize(
    ("changes", "headers"),
    [
        ({"server_side_encryption": "AES256"}, {"x-amz-server-side-encryption": "AES256"}),
        (
            {"server_side_encryption": "aws:kms", "kms_key_id": "key-1"},
            {
                "x-amz-server-side-encryption": "aws:kms",
                "x-amz-server-side-encryption-aws-kms-key-id": "key-1",
            },
        ),
        ({"storage_class": "INTELLIGENT_TIERING"}, {"x-amz-storage-class": "INTELLIGENT_TIERING"}),
    ],
)
def test_how_to_store_is_said_when_an_object_is_made(
    watched: Watched, changes: dict[str, str], headers: dict[str, str]
) -> None:
    write_in_every_way(watched, **changes)
    for name in WRITING:
        assert watched.asked(name)
        for sent in watched.asked(name):
            assert sent.items() >= headers.items()
    for sent in watched.asked("UploadPart"):
        assert not sent.keys() & headers.keys()
    found = watched.bucket.client.head_object(Bucket=watched.bucket.name, Key="dir/large")
    expected = changes.get("server_side_encryption")
    if expected:
        assert found["ServerSideEncryption"] == expected
    if "storage_class" in changes:
        assert found["StorageClass"] == changes["storage_class"]


@pytest.mark.usefixtures("small_parts")
@both_servers
def test_who_pays_is_said_with_every_request(watched: Watched) -> None:
    write_in_every_way(watched, requester_pays=True)
    names = {*ALL, "ListObjectsV2", "GetObject", "DeleteObjects"}
    assert watched.counts().keys() >= names
    for request in watched.faults.requests:
        assert request.headers.get("x-amz-request-payer") == "requester", s3_operation_of(request)


def test_who_pays_is_said_when_a_late_abort_deletes_what_was_committed(watched: Watched) -> None:
    reached, go_on = watched.faults.blocking(s3_operation("PutObject"), performed=True)
    stream = watched.file_system(requester_pays=True).create(f"{watched.directory}/x")
    stream.write(b"1")
    with ThreadPoolExecutor(1) as pool:
        committing = pool.submit(stream.commit)
        assert reached.wait(HANGS_S)
        stream.abort()
        go_on.set()
        with pytest.raises(CheckpointError):
            committing.result(HANGS_S)
    assert watched.bucket.keys() == []
    [sent] = watched.asked("DeleteObject")
    assert sent.get("x-amz-request-payer") == "requester"


# Reading


@both_servers
def test_an_empty_object_is_read_by_one_request(watched: Watched) -> None:
    file_system = watched.file_system()
    for name in ("published", "written"):
        uri = f"{watched.directory}/{name}"
        if name == "published":
            file_system.publish(uri, b"")
        else:
            write(file_system, uri, b"")
        assert watched.bucket.read(f"dir/{name}") == b""
        with file_system.open(uri) as stream:
            assert stream.read() == b""
            assert stream.seek(0, io.SEEK_END) == 0
    assert watched.counts() == {"PutObject": 2, "GetObject": 2}


@both_servers
def test_small_gaps_are_skipped_and_large_ones_asked_for(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_input_stream, "_SKIPPED_BYTES", 100)
    data = os.urandom(10_000)
    watched.bucket.client.put_object(Bucket=watched.bucket.name, Key="dir/x", Body=data)
    with watched.file_system().open(f"{watched.directory}/x") as stream:
        for position, ranges in (
            (0, 1),
            (10, 1),  # where it stands
            (120, 1),  # a gap of 100
            (231, 2),  # one of 101
            (241, 2),
            (0, 3),  # back
            (9_995, 4),
        ):
            assert stream.seek(position) == position
            assert stream.read(10) == data[position : position + 10]
            assert len(watched.asked("GetObject")) == ranges
        assert stream.tell() == 10_000
        assert stream.seek(5, io.SEEK_END) == 10_005
        assert stream.read(10) == b""
        with pytest.raises(InvalidRequestError):
            stream.seek(-1)
        assert stream.seek(-10_000, io.SEEK_END) == 0
        assert stream.read() == data
    ranges_asked = [sent.get("range", "all") for sent in watched.asked("GetObject")]
    assert ranges_asked == ["all", "bytes=231-", "bytes=0-", "bytes=9995-", "bytes=0-"]


@both_servers
def test_an_object_that_is_replaced_while_it_is_read_is_an_error_and_no_mix(
    bucket: S3Bucket, file_system: S3FileSystem, directory: str
) -> None:
    bucket.client.put_object(Bucket=bucket.name, Key="dir/x", Body=b"a" * MIB)
    with file_system.open(f"{directory}/x") as stream:
        assert stream.read(10) == b"a" * 10
        bucket.client.put_object(Bucket=bucket.name, Key="dir/x", Body=b"b" * MIB)
        stream.seek(900_000)  # too far to be skipped
        with pytest.raises(CheckpointError) as caught:
            stream.read(10)
    # It is not that somebody else owns the job: what was to be read is there no more.
    assert not isinstance(caught.value, CheckpointConflictError)


@both_servers
def test_an_object_that_is_deleted_while_it_is_read_is_missing(
    bucket: S3Bucket, file_system: S3FileSystem, directory: str
) -> None:
    bucket.client.put_object(Bucket=bucket.name, Key="dir/x", Body=b"a" * MIB)
    with file_system.open(f"{directory}/x") as stream:
        bucket.client.delete_object(Bucket=bucket.name, Key="dir/x")
        stream.seek(900_000)  # too far to be skipped
        with pytest.raises(CheckpointNotFoundError):
            stream.read(10)


def test_a_stream_that_is_not_read_to_its_end_leaves_no_connection_behind(
    watched: Watched,
) -> None:
    watched.bucket.client.put_object(Bucket=watched.bucket.name, Key="dir/x", Body=bytes(4 * MIB))
    file_system = watched.file_system()
    for _ in range(50):  # more than the pool has
        with file_system.open(f"{watched.directory}/x") as stream:
            assert stream.read(1) == b"\0"
    assert watched.counts() == {"GetObject": 50}


# Listing and deleting

ODD = [
    "a b",
    "a+b",
    "100%",
    "%41",
    "ä",
    "ae\u0308",
    "日本",
    "\U0001f600",
    "'single'",
    '"double"',
    "<&>",
    "a\tb",
    "a\nb",
    "back\\slash",
    "*?[]",
    "#x",
    "..x",
    "...",
    "~",
    "a=b&c=d;e",
]


@both_servers
@pytest.mark.parametrize("name", ODD)
def test_odd_names_are_taken_as_they_are(
    bucket: S3Bucket, file_system: S3FileSystem, directory: str, name: str
) -> None:
    if bucket.server.name == "moto" and "\n" in name:
        pytest.skip("moto finds no route for it")
    write(file_system, f"{directory}/{name}", b"1")
    write(file_system, f"{directory}/{name}/{name}", b"2")
    assert bucket.keys() == sorted([f"dir/{name}", f"dir/{name}/{name}"])
    assert content(file_system, f"{directory}/{name}/{name}") == b"2"
    entries = {(entry.uri, entry.is_directory) for entry in file_system.list(directory)}
    assert entries == {(f"{directory}/{name}", False), (f"{directory}/{name}", True)}
    assert [entry.uri for entry in file_system.list(f"{directory}/{name}")] == [
        f"{directory}/{name}/{name}"
    ]
    file_system.delete([f"{directory}/{name}"])
    assert bucket.keys() == [f"dir/{name}/{name}"]
    file_system.delete_tree(f"{directory}/{name}")
    assert bucket.keys() == []


@both_servers
def test_names_that_lead_up_are_brought_into_their_one_form(s3: S3Bucket) -> None:
    storage = FileSystemCheckpointStorage(f"S3://{s3.name}//a/../b/./c/")
    assert storage.directory == f"s3://{s3.name}/b/c"


@both_servers
def test_markers_of_directories_are_no_files(
    bucket: S3Bucket, file_system: S3FileSystem, directory: str
) -> None:
    for key in ("dir/", "dir/inner/", "dir/x"):
        bucket.client.put_object(Bucket=bucket.name, Key=key, Body=b"")
    entries = {(entry.uri, entry.is_directory) for entry in file_system.list(directory)}
    assert entries == {(f"{directory}/inner", True), (f"{directory}/x", False)}
    assert list(file_system.list(f"{directory}/inner")) == []
    file_system.delete_tree(directory)
    assert bucket.keys() == []


@both_servers
def test_doubled_slashes_lead_nobody_in_a_circle(
    bucket: S3Bucket, file_system: S3FileSystem, directory: str
) -> None:
    bucket.client.put_object(Bucket=bucket.name, Key="dir//x", Body=b"1")
    entries = list(file_system.list(directory))
    assert directory not in {entry.uri.rstrip("/") for entry in entries}
    file_system.delete_tree(directory)
    assert bucket.keys() == []


@both_servers
def test_a_listing_has_all_of_its_pages(watched: Watched) -> None:
    names = [f"{number:05}" for number in range(2_100)]
    put_many(watched.bucket, [f"dir/{name}" for name in names] + ["dir/sub/1", "dir2/x"])
    entries = list(watched.file_system().list(watched.directory))
    assert len(entries) == 2_101
    assert {entry.uri.rpartition("/")[2] for entry in entries} == {*names, "sub"}
    assert watched.counts() == {"ListObjectsV2": 3}
    watched.faults.requests.clear()
    watched.file_system().delete_tree(watched.directory)
    assert watched.bucket.keys() == ["dir2/x"]
    assert watched.counts() == {"ListObjectsV2": 3, "DeleteObjects": 3, "ListMultipartUploads": 1}


def test_two_thousand_five_hundred_objects_are_deleted_by_three_requests(watched: Watched) -> None:
    names = [f"{number:05}" for number in range(2_500)]
    put_many(watched.bucket, [f"dir/{name}" for name in names] + ["dir/kept"])
    watched.file_system().delete(f"{watched.directory}/{name}" for name in names)
    assert watched.counts() == {"DeleteObjects": 3}
    assert watched.bucket.keys() == ["dir/kept"]


def test_two_thousand_objects_are_disposed_of_by_few_requests(watched: Watched) -> None:
    put_many(watched.bucket, [f"dir/{number:05}" for number in range(2_000)])
    watched.file_system().delete_tree(watched.directory)
    assert watched.bucket.keys() == []
    assert watched.counts() == {"ListObjectsV2": 2, "DeleteObjects": 2, "ListMultipartUploads": 1}


@both_servers
def test_files_of_two_buckets_are_deleted_by_one_call(
    bucket: S3Bucket, file_system: S3FileSystem
) -> None:
    with bucket.server.new_bucket() as other:
        for one in (bucket, other):
            one.client.put_object(Bucket=one.name, Key="x", Body=b"1")
        file_system.delete([f"s3://{bucket.name}/x", f"s3a://{other.name}/x"])
        assert bucket.keys() == other.keys() == []


@both_servers
def test_no_upload_that_a_killed_process_began_outlives_its_directory(
    bucket: S3Bucket, file_system: S3FileSystem, directory: str
) -> None:
    bucket.client.create_multipart_upload(Bucket=bucket.name, Key="dir/x")
    bucket.client.create_multipart_upload(Bucket=bucket.name, Key="dir2/x")
    file_system.delete_tree(directory)
    assert [key for key, _ in bucket.uploads()] == ["dir2/x"]


@both_servers
def test_a_bucket_with_versions_keeps_what_was_deleted_behind_a_marker(
    bucket: S3Bucket, file_system: S3FileSystem, directory: str
) -> None:
    bucket.client.put_bucket_versioning(
        Bucket=bucket.name, VersioningConfiguration={"Status": "Enabled"}
    )
    file_system.publish(f"{directory}/x", b"1")
    with pytest.raises(CheckpointConflictError):
        file_system.publish(f"{directory}/x", b"2")
    file_system.delete_tree(directory)
    # Nothing that anybody sees; the version and its marker stay for a lifecycle rule.
    assert bucket.keys() == []
    assert list(file_system.list(directory)) == []
    with pytest.raises(CheckpointNotFoundError):
        file_system.open(f"{directory}/x")
    assert [key for key, _ in bucket.versions()] == ["dir/x", "dir/x"]
    file_system.publish(f"{directory}/x", b"2")
    assert content(file_system, f"{directory}/x") == b"2"


# Nothing dangles


def settle() -> None:
    """Let parts arrive that were on their way: `abort` waits for none."""
    for thread in threading.enumerate():
        if thread.name.startswith("holdfast-s3-part"):
            thread.join(HANGS_S)


@both_servers
@pytest.mark.parametrize("ending", ["close", "raise", "forget"])
def test_a_state_stream_that_is_not_kept_leaves_no_upload(s3: S3Bucket, ending: str) -> None:
    access = checkpoint_storage(f"s3://{s3.name}/data").create_checkpoint_storage("job")
    location = access.initialize_location_for_checkpoint(1)
    stream = location.create_checkpoint_state_output_stream(EXCLUSIVE)
    stream.write(bytes(9 * MIB))
    assert len(s3.uploads()) == 1
    if ending == "close":
        stream.close()
    elif ending == "raise":
        with pytest.raises(ZeroDivisionError), stream:
            raise ZeroDivisionError
    else:
        with pytest.warns(ResourceWarning, match="neither kept nor closed"):
            del stream
            gc.collect()
    settle()
    assert s3.uploads() == []
    assert s3.keys() == []


@pytest.mark.usefixtures("small_parts")
@both_servers
def test_a_file_that_is_forgotten_leaves_no_upload(bucket: S3Bucket, directory: str) -> None:
    file_system = S3FileSystem(settings_of(bucket.server, part_bytes=100), retries=SOON)
    stream = file_system.create(f"{directory}/x")
    stream.write(bytes(150))
    with suppress(ResourceWarning):
        del stream
        gc.collect()
    settle()
    assert bucket.uploads() == []


@pytest.mark.usefixtures("small_parts")
@both_servers
def test_no_thread_outlives_its_stream(bucket: S3Bucket, directory: str) -> None:
    file_system = S3FileSystem(settings_of(bucket.server, part_bytes=100), retries=SOON)
    for ending in ("commit", "abort"):
        stream = file_system.create(f"{directory}/{ending}")
        stream.write(bytes(1000))
        getattr(stream, ending)()
    settle()
    assert [one.name for one in threading.enumerate() if "holdfast-s3" in one.name] == []


# Refusals


@both_servers
@pytest.mark.parametrize("call", ["publish", "create", "list", "delete", "delete_tree", "open"])
def test_a_bucket_that_is_not_there_is_one_clear_error(
    bucket: S3Bucket, file_system: S3FileSystem, call: str
) -> None:
    uri = f"s3://{bucket.name}-missing/dir/x"
    actions: dict[str, Callable[[], object]] = {
        "publish": lambda: file_system.publish(uri, b"1"),
        "create": lambda: write(file_system, uri, b"1"),
        "list": lambda: list(file_system.list(uri)),
        "delete": lambda: file_system.delete([uri]),
        "delete_tree": lambda: file_system.delete_tree(uri),
        "open": lambda: file_system.open(uri),
    }
    with pytest.raises(InvalidRequestError, check=of_kind("no-bucket")):
        actions[call]()


@pytest.mark.parametrize("uri", ["s3:///x", "s3://Bad_Bucket!/x"])
def test_a_name_that_is_no_bucket_is_refused(file_system: S3FileSystem, uri: str) -> None:
    with pytest.raises(InvalidRequestError):
        file_system.publish(uri, b"1")
    with pytest.raises(InvalidRequestError):
        file_system.open(uri)


def test_no_credentials_are_one_clear_error(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    file_system = watched.file_system(access_key=None, secret_key=None)
    for call in (
        lambda: file_system.publish(f"{watched.directory}/x", b"1"),
        lambda: file_system.open(f"{watched.directory}/x"),
        lambda: list(file_system.list(watched.directory)),
        lambda: file_system.delete([f"{watched.directory}/x"]),
        lambda: write(file_system, f"{watched.directory}/x", b"1"),
    ):
        with pytest.raises(InvalidRequestError, match="no credentials for S3"):
            call()
    assert watched.faults.requests == []


def test_a_profile_that_is_not_there_is_one_clear_error(
    file_system: S3FileSystem, directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    file_system = S3FileSystem(S3Settings(endpoint_url="http://127.0.0.1:1", region="nowhere"))
    with pytest.raises(InvalidRequestError):
        file_system.publish(f"{directory}/x", b"1")


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (403, "SignatureDoesNotMatch"),
        (403, "InvalidAccessKeyId"),
        (403, "AccessDenied"),
        (400, "AuthorizationHeaderMalformed"),
        (301, "PermanentRedirect"),
        (400, "InvalidToken"),
    ],
)
@pytest.mark.parametrize("name", ["PutObject", "ListObjectsV2", "DeleteObjects", "GetObject"])
def test_what_the_store_refuses_is_one_clear_error_without_secrets(
    watched: Watched, status: int, code: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    file_system = watched.file_system(secret_key=SECRET, session_token=TOKEN)
    headers = {"x-amz-bucket-region": "eu-west-1"} if status == 301 else {}
    watched.faults.answer(status, nth="every", code=code, headers=headers)
    actions: dict[str, Callable[[], object]] = {
        "PutObject": lambda: file_system.publish(f"{watched.directory}/x", b"1"),
        "ListObjectsV2": lambda: list(file_system.list(watched.directory)),
        "DeleteObjects": lambda: file_system.delete([f"{watched.directory}/x"]),
        "GetObject": lambda: file_system.open(f"{watched.directory}/x"),
    }
    with pytest.raises(InvalidRequestError) as caught:
        actions[name]()
    assert code in str(caught.value)
    assert "credentials" in str(caught.value)
    text = "".join(traceback.format_exception(caught.value)) + caplog.text
    assert SECRET not in text
    assert TOKEN not in text
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"checksum": "md5"}, "checksum is 'md5'"),
        ({"part_bytes": 5 * MIB - 1}, "too small"),
        ({"concurrency": 0}, "concurrency is 0"),
        ({"access_key": "a"}, "come together"),
        ({"secret_key": "a"}, "come together"),
    ],
)
def test_settings_that_can_not_be_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        S3Settings(**settings)


@pytest.mark.parametrize(
    "settings", [{"connect_timeout_s": 0.0}, {"connect_timeout_s": -1.0}, {"read_timeout_s": 0.0}]
)
def test_timeouts_that_can_not_be_are_refused_at_the_first_request_at_the_latest(
    bucket: S3Bucket, settings: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequestError):
        S3FileSystem(settings_of(bucket.server, **settings)).publish(f"s3://{bucket.name}/x", b"1")


@pytest.mark.parametrize("endpoint", ["127.0.0.1:9000", "ftp//x", "http://"])
def test_an_endpoint_that_is_no_url_is_refused(endpoint: str) -> None:
    settings = S3Settings(endpoint_url=endpoint, region="x", access_key="a", secret_key=SECRET)
    with pytest.raises(InvalidRequestError) as caught:
        S3FileSystem(settings).publish("s3://bucket/x", b"1")
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_a_file_of_certificates_that_is_missing_is_one_clear_error(
    bucket: S3Bucket, tmp_path: Any
) -> None:
    endpoint = bucket.server.endpoint.replace("http://", "https://")
    missing = str(tmp_path / "missing")
    settings = settings_of(bucket.server, endpoint_url=endpoint, ca_bundle=missing)
    with pytest.raises(InvalidRequestError):
        list(S3FileSystem(settings).list(f"s3://{bucket.name}/x"))


# Secrets


def test_no_secret_is_in_what_is_printed_or_pickled(s3: S3Bucket) -> None:
    use_s3(settings_of(s3.server, secret_key=SECRET, session_token=TOKEN))
    storage = checkpoint_storage(f"s3://{s3.name}/data")
    access = storage.create_checkpoint_storage("job")
    location = access.initialize_location_for_checkpoint(1)
    with location.create_checkpoint_state_output_stream(EXCLUSIVE) as stream:
        stream.write(bytes(100_000))
        handle = stream.close_and_get_handle()
    assert handle is not None
    done = complete_checkpoint(location, metadata_of(handle))
    for thing in (storage, access, location, handle, done, done.location):
        shown = repr(thing).encode() + pickle.dumps(thing)
        assert SECRET.encode() not in shown
        assert TOKEN.encode() not in shown
    for key in s3.keys(""):
        assert SECRET.encode() not in s3.read(key)
    settings = S3Settings(access_key="name", secret_key=SECRET, session_token=TOKEN)
    for text in (repr(settings), str(settings), f"{settings}"):
        assert "name" in text
        assert SECRET not in text
        assert TOKEN not in text


def test_a_password_in_the_endpoint_is_not_shown() -> None:
    try:
        shown = repr(S3Settings(endpoint_url=f"http://user:{SECRET}@127.0.0.1:1"))
    except InvalidRequestError as error:
        shown = str(error)
    assert SECRET not in shown


# Processes and threads


@of_many_threads
def test_a_process_has_one_client_and_a_forked_one_its_own(watched: Watched) -> None:
    file_system = watched.file_system()
    file_system.publish(f"{watched.directory}/parent", b"1")
    ours = s3_client.connection_for(file_system.settings).client
    assert s3_client.connection_for(file_system.settings).client is ours
    child = os.fork()
    if child == 0:
        status = 1
        with suppress(BaseException):
            file_system.publish(f"{watched.directory}/child", b"2")
            status = 3 if s3_client.connection_for(file_system.settings).client is ours else 0
        os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    file_system.publish(f"{watched.directory}/after", b"3")
    assert watched.bucket.keys() == ["dir/after", "dir/child", "dir/parent"]


@of_many_threads
def test_a_fork_does_not_give_up_its_parents_upload(watched: Watched) -> None:
    uri = f"{watched.directory}/x"
    stream = watched.file_system(part_bytes=5 * MIB).create(uri)
    stream.write(bytes(6 * MIB))
    assert forked(stream.abort) == 0
    stream.commit()
    assert watched.bucket.keys() == ["dir/x"]
    assert not watched.asked("AbortMultipartUpload")


def test_an_upload_is_given_up_once(watched: Watched) -> None:
    uri = f"{watched.directory}/x"
    stream = watched.file_system(part_bytes=5 * MIB).create(uri)
    stream.write(bytes(6 * MIB))
    watched.faults.answer(403, s3_operation("CompleteMultipartUpload"), code="AccessDenied")
    with pytest.raises(InvalidRequestError):
        stream.commit()
    for _ in range(2):
        stream.abort()
    assert len(watched.asked("AbortMultipartUpload")) == 1
    assert watched.bucket.uploads() == []


def test_an_interrupt_while_it_is_read_moves_nothing(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes have arrived, and nobody was told."""
    data = bytes(range(256)) * 64
    uri = f"{watched.directory}/x"
    file_system = watched.file_system()
    file_system.publish(uri, data)

    def interrupted(stream: s3_input_stream.S3InputStream, length: int) -> memoryview:
        assert stream._body.read(length)
        raise KeyboardInterrupt

    with file_system.open(uri) as stream:
        assert stream.read(1000) == data[:1000]
        with monkeypatch.context() as patched:
            patched.setattr(s3_input_stream.S3InputStream, "_read", interrupted)
            with pytest.raises(KeyboardInterrupt):
                stream.read(1000)
        assert stream.tell() == 1000
        assert stream.read(1000) == data[1000:2000]


@of_many_threads
def test_a_fork_while_another_thread_makes_a_client_does_not_hang(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    making, go_on = threading.Event(), threading.Event()
    make = s3_client._make

    def slowly(settings: S3Settings) -> Any:
        making.set()
        go_on.wait(HANGS_S)
        return make(settings)

    file_system = watched.file_system()
    monkeypatch.setattr(s3_client, "_make", slowly)
    with ThreadPoolExecutor(1) as pool:
        publishing = pool.submit(file_system.publish, f"{watched.directory}/parent", b"1")
        assert making.wait(HANGS_S)
        child = os.fork()
        if child == 0:
            s3_client._make = make
            status = 1
            with suppress(BaseException):
                file_system.publish(f"{watched.directory}/child", b"2")
                status = 0
            os._exit(status)
        deadline = time.monotonic() + HANGS_S
        done = 0
        while not done and time.monotonic() < deadline:
            done, status = os.waitpid(child, os.WNOHANG)
            time.sleep(0.01)
        if not done:
            os.kill(child, 9)
            os.waitpid(child, 0)
        go_on.set()
        publishing.result(HANGS_S)
    assert done, "the child waits for a lock that nobody will release"
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_spawned_process_makes_its_own_client(bucket: S3Bucket, directory: str) -> None:
    settings = settings_of(bucket.server)
    source = (
        "import sys, pickle; from holdfast.locations import S3FileSystem;"
        "settings = pickle.loads(bytes.fromhex(sys.argv[1]));"
        "S3FileSystem(settings).publish(sys.argv[2], b'spawned')"
    )
    output_of(source, pickle.dumps(settings).hex(), f"{directory}/x")
    assert bucket.read("dir/x") == b"spawned"


@both_servers
def test_sixteen_threads_share_a_file_system(watched: Watched) -> None:
    file_system = watched.file_system()
    start = threading.Barrier(16)

    def work(number: int) -> bytes:
        start.wait(HANGS_S)
        uri = f"{watched.directory}/{number}"
        data = os.urandom(1000)
        file_system.publish(uri, data)
        with file_system.open(uri) as stream:
            assert stream.read() == data
        write(file_system, f"{uri}-large", data * 100)
        return data

    with ThreadPoolExecutor(16) as pool:
        written = list(pool.map(work, range(16)))
    for number, data in enumerate(written):
        assert watched.bucket.read(f"dir/{number}") == data
        assert watched.bucket.read(f"dir/{number}-large") == data * 100
    assert file_system.settings in s3_client._CONNECTIONS._values


# By URI


def test_s3_and_s3a_name_the_same_files(s3: S3Bucket) -> None:
    write(file_system_for("s3://x/"), f"s3://{s3.name}/dir/x", b"1")
    assert content(file_system_for("s3a://x/"), f"s3a://{s3.name}/dir/x") == b"1"
    [entry] = file_system_for("s3a://x/").list(f"s3a://{s3.name}/dir")
    assert entry.uri == f"s3a://{s3.name}/dir/x"
    storage = checkpoint_storage(f"S3A://{s3.name}/data")
    location = storage.create_checkpoint_storage("job").initialize_location_for_checkpoint(1)
    done = complete_checkpoint(location, metadata_of())
    pointer = done.location.external_pointer.replace("s3a://", "s3://")
    assert load_checkpoint(storage.resolve_checkpoint(pointer)).checkpoint_id == 1


def test_use_s3_holds_until_other_settings_are_used(s3: S3Bucket) -> None:
    before = file_system_for("s3://x/")
    use_s3(settings_of(s3.server))
    assert file_system_for("s3://x/") is before
    for scheme in ("s3", "s3a"):
        inner = file_system_for(f"{scheme}://x/").inner
        assert isinstance(inner, s3_package.S3FileSystem)
        assert inner.settings == settings_of(s3.server)
    use_s3(settings_of(s3.server, storage_class="STANDARD_IA"))
    for scheme in ("s3", "s3a"):
        inner = file_system_for(f"{scheme}://x/").inner
        assert isinstance(inner, s3_package.S3FileSystem)
        assert inner.settings.storage_class == "STANDARD_IA"


@both_servers
def test_a_store_that_keeps_writers_apart_is_found_to_do_so(s3: S3Bucket) -> None:
    check_exclusive(f"s3://{s3.name}/data")
    assert s3.keys() == []


def test_a_role_is_assumed(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", watched.bucket.server.endpoint)
    file_system = watched.file_system(role_arn="arn:aws:iam::123456789012:role/holdfast")
    with suppress(CheckpointError):  # the role's account may have another view of the buckets
        file_system.publish(f"{watched.directory}/x", b"1")
    [sent] = watched.asked("PutObject")
    assert "x-amz-security-token" in sent
    assert f"Credential={watched.bucket.server.access_key}/" not in sent["authorization"]


def test_a_role_that_can_not_be_assumed_is_one_clear_error(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    with http_faults(watched.bucket.server.endpoint) as sts:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", sts.url)
        sts.answer(403, nth="every")
        file_system = watched.file_system(role_arn="arn:aws:iam::123456789012:role/refused")
        with pytest.raises(InvalidRequestError) as caught:
            file_system.publish(f"{watched.directory}/x", b"1")
        assert watched.bucket.server.secret_key not in str(caught.value)


def test_without_boto3_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "boto3", None)
    assert boto3 is not None
    settings = S3Settings(region="without-boto3", access_key="a", secret_key="b")
    with pytest.raises(InvalidRequestError, match="pip install"):
        S3FileSystem(settings).publish("s3://bucket/x", b"1")
