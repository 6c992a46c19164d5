"""Objects in S3: written, read, listed and deleted."""

import io
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from contracts.files import write
from contracts.patience import HANGS_S, wait_for_parts
from contracts.s3_objects import (
    MIB,
    content,
    directory,
    file_system,
    on_each_server,
    put_many,
    s3,
    small_parts,
)
from servers.s3 import S3Bucket
from servers.watched import WatchedBucket

from holdfast.errors import (
    CheckpointConflictError,
    CheckpointError,
    CheckpointNotFoundError,
    InvalidRequestError,
)
from holdfast.locations import FileSystemCheckpointStorage
from holdfast.locations.file_systems import S3FileSystem
from holdfast.locations.file_systems.s3_streams import SKIPPED_BYTES
from holdfast.testing import s3_operation, s3_operation_of

__all__ = ["directory", "file_system", "s3", "small_parts"]

WRITING = ("PutObject", "CreateMultipartUpload")
ALL = (*WRITING, "UploadPart", "CompleteMultipartUpload", "AbortMultipartUpload")


def write_in_every_way(watched: WatchedBucket, **changes: Any) -> None:
    file_system = watched.file_system(part_size=100, **changes)
    file_system.publish(f"{watched.directory}/published", b"1")
    write(file_system, f"{watched.directory}/small", b"1")
    write(file_system, f"{watched.directory}/large", bytes(250))
    stream = file_system.create(f"{watched.directory}/aborted")
    stream.write(bytes(250))
    stream.abort()
    wait_for_parts()
    list(file_system.list(watched.directory))
    content(file_system, f"{watched.directory}/small")
    file_system.delete([f"{watched.directory}/small"])


@pytest.mark.usefixtures("small_parts")
@on_each_server
@pytest.mark.parametrize(
    ("changes", "headers"),
    [
        ({"server_side_encryption": "AES256"}, {"x-amz-server-side-encryption": "AES256"}),
        (
            {"server_side_encryption": "aws:kms", "kms_key": "key-1"},
            {
                "x-amz-server-side-encryption": "aws:kms",
                "x-amz-server-side-encryption-aws-kms-key-id": "key-1",
            },
        ),
        ({"storage_class": "INTELLIGENT_TIERING"}, {"x-amz-storage-class": "INTELLIGENT_TIERING"}),
    ],
)
def test_storage_parameters_are_sent_when_an_object_is_created(
    watched: WatchedBucket, changes: dict[str, str], headers: dict[str, str]
) -> None:
    write_in_every_way(watched, **changes)
    for name in WRITING:
        assert watched.request_headers(name)
        for sent in watched.request_headers(name):
            assert sent.items() >= headers.items()
    for sent in watched.request_headers("UploadPart"):
        assert not sent.keys() & headers.keys()
    head = watched.bucket.client.head_object(Bucket=watched.bucket.name, Key="dir/large")
    expected = changes.get("server_side_encryption")
    if expected:
        assert head["ServerSideEncryption"] == expected
    if "storage_class" in changes:
        assert head["StorageClass"] == changes["storage_class"]


@pytest.mark.usefixtures("small_parts")
@on_each_server
def test_request_payer_is_sent_with_every_request(watched: WatchedBucket) -> None:
    write_in_every_way(watched, requester_pays=True)
    names = {*ALL, "ListObjectsV2", "GetObject", "DeleteObjects"}
    assert watched.counts().keys() >= names
    for request in watched.faults.requests:
        assert request.headers.get("x-amz-request-payer") == "requester", s3_operation_of(request)


def test_request_payer_is_sent_when_a_late_abort_deletes_the_file(
    watched: WatchedBucket,
) -> None:
    reached, may_answer = watched.faults.blocking(s3_operation("PutObject"), performed=True)
    stream = watched.file_system(requester_pays=True).create(f"{watched.directory}/x")
    stream.write(b"1")
    with ThreadPoolExecutor(1) as pool:
        committing = pool.submit(stream.commit)
        assert reached.wait(HANGS_S)
        stream.abort()
        may_answer.set()
        with pytest.raises(CheckpointError):
            committing.result(HANGS_S)
    assert watched.bucket.keys() == []
    [sent] = watched.request_headers("DeleteObject")
    assert sent.get("x-amz-request-payer") == "requester"


@on_each_server
def test_empty_object_is_read_by_one_request(watched: WatchedBucket) -> None:
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


@on_each_server
def test_small_gaps_are_skipped_and_large_ones_asked_for(watched: WatchedBucket) -> None:
    gap, size = SKIPPED_BYTES, 3 * SKIPPED_BYTES
    data = os.urandom(size)
    watched.bucket.client.put_object(Bucket=watched.bucket.name, Key="dir/x", Body=data)
    with watched.file_system().open(f"{watched.directory}/x") as stream:
        for position, ranges in (
            (0, 1),
            (10, 1),  # its position
            (20 + gap, 1),
            (31 + 2 * gap, 2),  # one byte too many
            (41 + 2 * gap, 2),
            (0, 3),  # back
            (size - 5, 4),
        ):
            assert stream.seek(position) == position
            assert stream.read(10) == data[position : position + 10]
            assert len(watched.request_headers("GetObject")) == ranges
        assert stream.tell() == size
        assert stream.seek(5, io.SEEK_END) == size + 5
        assert stream.read(10) == b""
        with pytest.raises(InvalidRequestError):
            stream.seek(-1)
        assert stream.seek(-size, io.SEEK_END) == 0
        assert stream.read() == data
    ranges_asked = [sent.get("range", "all") for sent in watched.request_headers("GetObject")]
    second, last = f"bytes={31 + 2 * gap}-", f"bytes={size - 5}-"
    assert ranges_asked == ["all", second, "bytes=0-", last, "bytes=0-"]


@on_each_server
def test_object_replaced_during_a_read_is_an_error(
    bucket: S3Bucket, file_system: S3FileSystem, directory: str
) -> None:
    bucket.client.put_object(Bucket=bucket.name, Key="dir/x", Body=b"a" * MIB)
    with file_system.open(f"{directory}/x") as stream:
        assert stream.read(10) == b"a" * 10
        bucket.client.put_object(Bucket=bucket.name, Key="dir/x", Body=b"b" * MIB)
        stream.seek(900_000)  # too far to be skipped
        with pytest.raises(CheckpointError) as caught:
            stream.read(10)
    # Not a conflict of owners: the object that was being read is gone.
    assert not isinstance(caught.value, CheckpointConflictError)


@on_each_server
def test_object_deleted_during_a_read_is_missing(
    bucket: S3Bucket, file_system: S3FileSystem, directory: str
) -> None:
    bucket.client.put_object(Bucket=bucket.name, Key="dir/x", Body=b"a" * MIB)
    with file_system.open(f"{directory}/x") as stream:
        bucket.client.delete_object(Bucket=bucket.name, Key="dir/x")
        stream.seek(900_000)  # too far to be skipped
        with pytest.raises(CheckpointNotFoundError):
            stream.read(10)


def test_half_read_stream_leaves_no_connection(
    watched: WatchedBucket,
) -> None:
    watched.bucket.client.put_object(Bucket=watched.bucket.name, Key="dir/x", Body=bytes(4 * MIB))
    file_system = watched.file_system()
    for _ in range(50):  # more than the pool has
        with file_system.open(f"{watched.directory}/x") as stream:
            assert stream.read(1) == b"\0"
    assert watched.counts() == {"GetObject": 50}


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


@on_each_server
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


@on_each_server
def test_names_with_dots_are_normalized(s3: S3Bucket) -> None:
    storage = FileSystemCheckpointStorage(f"S3://{s3.name}//a/../b/./c/")
    assert storage.directory == f"s3://{s3.name}/b/c"


@on_each_server
def test_directory_markers_are_not_listed(
    bucket: S3Bucket, file_system: S3FileSystem, directory: str
) -> None:
    for key in ("dir/", "dir/inner/", "dir/x"):
        bucket.client.put_object(Bucket=bucket.name, Key=key, Body=b"")
    entries = {(entry.uri, entry.is_directory) for entry in file_system.list(directory)}
    assert entries == {(f"{directory}/inner", True), (f"{directory}/x", False)}
    assert list(file_system.list(f"{directory}/inner")) == []
    file_system.delete_tree(directory)
    assert bucket.keys() == []


@on_each_server
def test_doubled_slashes_make_no_circle(
    bucket: S3Bucket, file_system: S3FileSystem, directory: str
) -> None:
    bucket.client.put_object(Bucket=bucket.name, Key="dir//x", Body=b"1")
    entries = list(file_system.list(directory))
    assert directory not in {entry.uri.rstrip("/") for entry in entries}
    file_system.delete_tree(directory)
    assert bucket.keys() == []


@on_each_server
def test_listing_has_all_pages(watched: WatchedBucket) -> None:
    names = [f"{number:05}" for number in range(2_100)]
    put_many(watched.bucket, [f"dir/{name}" for name in names] + ["dir/sub/1", "dir2/x"])
    entries = list(watched.file_system().list(watched.directory))
    assert len(entries) == 2_101
    assert {entry.uri.rpartition("/")[2] for entry in entries} == {*names, "sub"}
    assert watched.counts() == {"ListObjectsV2": 3}
    watched.faults.requests.clear()
    watched.file_system().delete_tree(watched.directory)
    assert watched.bucket.keys() == ["dir2/x"]
    assert watched.counts() == {
        "ListObjectsV2": 3,
        "DeleteObjects": 3,
        "ListMultipartUploads": 1,
    }


def test_two_thousand_five_hundred_objects_are_deleted_by_three_requests(
    watched: WatchedBucket,
) -> None:
    names = [f"{number:05}" for number in range(2_500)]
    put_many(watched.bucket, [f"dir/{name}" for name in names] + ["dir/kept"])
    watched.file_system().delete(f"{watched.directory}/{name}" for name in names)
    assert watched.counts() == {"DeleteObjects": 3}
    assert watched.bucket.keys() == ["dir/kept"]


def test_two_thousand_objects_are_disposed_of_by_few_requests(
    watched: WatchedBucket,
) -> None:
    put_many(watched.bucket, [f"dir/{number:05}" for number in range(2_000)])
    watched.file_system().delete_tree(watched.directory)
    assert watched.bucket.keys() == []
    assert watched.counts() == {
        "ListObjectsV2": 2,
        "DeleteObjects": 2,
        "ListMultipartUploads": 1,
    }


@on_each_server
def test_files_of_two_buckets_are_deleted_by_one_call(
    bucket: S3Bucket, file_system: S3FileSystem
) -> None:
    with bucket.server.new_bucket() as other:
        for place in (bucket, other):
            place.client.put_object(Bucket=place.name, Key="x", Body=b"1")
        file_system.delete([f"s3://{bucket.name}/x", f"s3a://{other.name}/x"])
        assert bucket.keys() == other.keys() == []


@on_each_server
def test_upload_of_a_killed_process_is_deleted_with_its_directory(
    bucket: S3Bucket, file_system: S3FileSystem, directory: str
) -> None:
    bucket.client.create_multipart_upload(Bucket=bucket.name, Key="dir/x")
    bucket.client.create_multipart_upload(Bucket=bucket.name, Key="dir2/x")
    file_system.delete_tree(directory)
    assert [key for key, _ in bucket.uploads()] == ["dir2/x"]


@on_each_server
def test_versioned_bucket_keeps_deleted_objects_under_a_marker(
    bucket: S3Bucket, file_system: S3FileSystem, directory: str
) -> None:
    bucket.client.put_bucket_versioning(
        Bucket=bucket.name, VersioningConfiguration={"Status": "Enabled"}
    )
    file_system.publish(f"{directory}/x", b"1")
    with pytest.raises(CheckpointConflictError):
        file_system.publish(f"{directory}/x", b"2")
    file_system.delete_tree(directory)
    # No object is listed; the version and its marker stay for a lifecycle rule.
    assert bucket.keys() == []
    assert list(file_system.list(directory)) == []
    with pytest.raises(CheckpointNotFoundError):
        file_system.open(f"{directory}/x")
    assert [key for key, _ in bucket.versions()] == ["dir/x", "dir/x"]
    file_system.publish(f"{directory}/x", b"2")
    assert content(file_system, f"{directory}/x") == b"2"
