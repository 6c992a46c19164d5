"""S3 through s3fs: faults, retries and errors."""

import logging
import os
import traceback
from collections.abc import Callable
from contextlib import suppress

import pytest
from contracts.errors import of_kind
from contracts.files import write
from contracts.s3fs_buckets import (
    MIB,
    NEVER,
    SECRET,
    TOKEN,
    WatchedBucket,
    bucket,
    s3_bucket,
    watched_bucket,
)

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
from holdfast.locations.adapters import (
    FileSystem,
)
from holdfast.locations.file_systems import publish
from holdfast.testing import (
    s3_operation,
)

__all__ = ["bucket", "s3_bucket", "watched_bucket"]


CALLS: dict[str, Callable[[WatchedBucket, FileSystem], object]] = {
    "PutObject": lambda watched_bucket, store: write(store, watched_bucket.uri, b"1"),
    "HeadObject": lambda watched_bucket, store: write(store, watched_bucket.uri, b"1"),
    "UploadPart": lambda watched_bucket, store: write(store, watched_bucket.uri, bytes(6 * MIB)),
    "GetObject": lambda watched_bucket, store: store.open(watched_bucket.uri).close(),
    "ListObjectsV2": lambda watched_bucket, store: store.list(watched_bucket.directory),
    "DeleteObjects": lambda watched_bucket, store: store.delete([watched_bucket.uri]),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("status", [500, 503])
def test_neither_s3fs_nor_botocore_repeats_anything(
    watched_bucket: WatchedBucket, name: str, status: int
) -> None:
    watched_bucket.faults.answer(status, s3_operation(name), "every")
    # A 500 may have been performed.
    may_be_there = name == "PutObject" and status == 500
    with pytest.raises(OutcomeUnknownError if may_be_there else StorageUnavailableError):
        CALLS[name](watched_bucket, watched_bucket.use(NEVER, part_size=5 * MIB, concurrency=1))
    assert watched_bucket.counts()[name] == 1


@pytest.mark.parametrize("name", [call for call in CALLS if call != "GetObject"])
@pytest.mark.parametrize("fault", ["answer", "reset"])
def test_third_attempt_succeeds(watched_bucket: WatchedBucket, name: str, fault: str) -> None:
    if fault == "answer":
        watched_bucket.faults.answer(503, s3_operation(name), times=2)
    else:
        watched_bucket.faults.reset(s3_operation(name), times=2)
    file_system = watched_bucket.use(part_size=5 * MIB)
    CALLS[name](watched_bucket, file_system)
    assert watched_bucket.counts()[name] == 3 + (name == "UploadPart")
    if name in {"PutObject", "HeadObject", "UploadPart"}:
        data = bytes(6 * MIB) if name == "UploadPart" else b"1"
        assert watched_bucket.bucket.read("dir/x") == data
    assert watched_bucket.bucket.uploads() == []


@pytest.mark.parametrize(("name", "size"), [("PutObject", 1), ("CompleteMultipartUpload", 6 * MIB)])
def test_commit_with_a_lost_answer_succeeds(
    watched_bucket: WatchedBucket, name: str, size: int
) -> None:
    data = os.urandom(size)
    watched_bucket.faults.lose_answer(s3_operation(name))
    write(watched_bucket.use(part_size=5 * MIB), watched_bucket.uri, data)
    assert watched_bucket.bucket.read("dir/x") == data
    assert watched_bucket.bucket.uploads() == []


def test_commit_without_any_answer_is_unknown(
    watched_bucket: WatchedBucket,
) -> None:
    watched_bucket.faults.lose_answer(s3_operation("PutObject"), "every")
    with pytest.raises(OutcomeUnknownError):
        write(watched_bucket.use(NEVER), watched_bucket.uri, b"1")


def test_metadata_with_a_lost_answer_is_published_once(watched_bucket: WatchedBucket) -> None:
    watched_bucket.faults.lose_answer(s3_operation("PutObject"))
    watched_bucket.use()
    publish(watched_bucket.uri, b"ours", single_writer=True)
    with pytest.raises(CheckpointConflictError):
        publish(watched_bucket.uri, b"others", single_writer=True)
    assert watched_bucket.bucket.read("dir/x") == b"ours"


def test_failed_writer_leaves_no_truncated_file(watched_bucket: WatchedBucket) -> None:
    stream = watched_bucket.use(part_size=5 * MIB).create(watched_bucket.uri)
    stream.write(bytes(6 * MIB))
    stream.abort()
    with pytest.raises(StreamClosedError):
        stream.commit()
    del stream
    assert watched_bucket.bucket.keys() == []
    assert watched_bucket.bucket.uploads() == []


def test_refused_part_leaves_nothing(watched_bucket: WatchedBucket) -> None:
    watched_bucket.faults.answer(403, s3_operation("UploadPart"))
    with pytest.raises(InvalidRequestError):
        write(watched_bucket.use(part_size=5 * MIB), watched_bucket.uri, bytes(12 * MIB))
    assert watched_bucket.bucket.keys() == []
    assert watched_bucket.bucket.uploads() == []


def test_read_resumes_after_a_lost_connection(watched_bucket: WatchedBucket) -> None:
    data = os.urandom(3 * MIB)
    watched_bucket.bucket.client.put_object(
        Bucket=watched_bucket.bucket.name, Key="dir/x", Body=data
    )
    watched_bucket.faults.truncate(MIB + 1, s3_operation("GetObject"))
    with watched_bucket.use().open(watched_bucket.uri) as stream:
        assert stream.read() == data


def test_silent_server_is_not_waited_for_forever(
    watched_bucket: WatchedBucket,
) -> None:
    _, may_answer = watched_bucket.faults.blocking(s3_operation("ListObjectsV2"))
    with pytest.raises(StorageUnavailableError):
        watched_bucket.use(NEVER, read_timeout=0.2).list(watched_bucket.directory)
    may_answer.set()


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
def test_error_names_the_way_out_and_reveals_no_secret(
    watched_bucket: WatchedBucket,
    status: int,
    code: str,
    expected: type[CheckpointError],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    for name in ("s3fs", "fsspec", "holdfast"):
        caplog.set_level(logging.DEBUG, name)
    watched_bucket.faults.answer(status, s3_operation("PutObject"), "every", code=code)
    file_system = watched_bucket.use(NEVER, secret_key=SECRET, session_token=TOKEN)
    with pytest.raises(expected) as caught:
        write(file_system, watched_bucket.uri, b"1")
    assert caught.value.location == watched_bucket.uri
    text = "".join(traceback.format_exception(caught.value)) + caplog.text + repr(file_system)
    assert "CALL: put_object" in text
    assert SECRET not in text
    assert TOKEN not in text


def test_missing_bucket_is_not_an_empty_directory(watched_bucket: WatchedBucket) -> None:
    with pytest.raises(InvalidRequestError, check=of_kind("no-bucket")):
        watched_bucket.use().list("fsspec+s3://missing/dir")


def test_missing_server_is_unavailable(watched_bucket: WatchedBucket) -> None:
    file_system = watched_bucket.use(NEVER, endpoint="http://127.0.0.1:1")
    with pytest.raises(StorageUnavailableError):
        file_system.list(watched_bucket.directory)


def test_body_resent_after_a_broken_connection_is_complete(
    watched_bucket: WatchedBucket,
) -> None:
    file_system = watched_bucket.use(NEVER, part_size=5 * MIB, concurrency=1)
    data = os.urandom(12 * MIB)
    stream = file_system.create(watched_bucket.uri)
    stream.write(data[: 5 * MIB])
    watched_bucket.faults.reset(s3_operation("UploadPart"), nth=1)
    with suppress(StorageUnavailableError):  # aiohttp may not have kept it
        stream.write(data[5 * MIB :])
        stream.commit()
    stream.abort()
    assert watched_bucket.bucket.uploads() == []
    assert all(watched_bucket.bucket.read(key) == data for key in watched_bucket.bucket.keys(""))
