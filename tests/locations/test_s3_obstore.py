"""obstore, which gets some requests before boto3."""

import hashlib
import logging
import os
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from contracts.errors import of_kind
from contracts.files import write
from contracts.processes import of_many_threads, output_of
from contracts.s3_objects import on_each_server
from servers.s3 import S3Bucket, settings_of
from servers.watched import SOON, WatchedBucket

from holdfast.errors import (
    CheckpointConflictError,
    CheckpointCorruptedError,
    CheckpointError,
    CheckpointNotFoundError,
    InvalidRequestError,
    StorageUnavailableError,
)
from holdfast.locations import S3Settings
from holdfast.locations.file_systems import S3FileSystem, connection_for, obstore_bucket
from holdfast.locations.file_systems.obstore_bucket import HEAD_BYTES
from holdfast.locations.file_systems.obstore_requests import was_not_performed
from holdfast.testing import s3_operation

MIB = 1 << 20

TOKEN = "the-token-of-a-test"


@pytest.fixture(name="watched")
def watched_bucket(watched_over_http: WatchedBucket) -> WatchedBucket:
    """A server, because faults can't be injected into obstore itself."""
    return watched_over_http


def by_obstore(watched: WatchedBucket, **changes: Any) -> S3FileSystem:
    return watched.file_system(state_files="obstore", **changes)


def agents(watched: WatchedBucket, name: str) -> list[str]:
    """The library of a request: boto3 names itself, obstore only its user."""
    return [
        "boto3" if "Boto3" in sent["user-agent"] else "obstore"
        for sent in watched.request_headers(name)
    ]


# Requests through obstore


@on_each_server
def test_file_is_written_and_read_by_one_request_each(watched: WatchedBucket) -> None:
    file_system = by_obstore(watched)
    write(file_system, f"{watched.directory}/x", b"content")
    with file_system.open(f"{watched.directory}/x") as stream:
        assert stream.read() == b"content"
    assert watched.counts() == {"PutObject": 1, "GetObject": 1}
    assert agents(watched, "PutObject") + agents(watched, "GetObject") == [
        "obstore",
        "obstore",
    ]


def test_store_checks_the_body_by_its_sha256(watched: WatchedBucket) -> None:
    write(by_obstore(watched), f"{watched.directory}/x", b"content")
    [sent] = watched.request_headers("PutObject")
    assert sent["x-amz-content-sha256"] == hashlib.sha256(b"content").hexdigest()
    assert sent["if-none-match"] == "*"


def test_settings_reach_its_requests(watched: WatchedBucket) -> None:
    file_system = by_obstore(
        watched,
        storage_class="STANDARD_IA",
        server_side_encryption="aws:kms",
        kms_key="some-key",
        requester_pays=True,
        session_token=TOKEN,
    )
    with suppress(CheckpointError):
        write(file_system, f"{watched.directory}/x", b"1")
    [sent] = [
        headers
        for headers in watched.request_headers("PutObject")
        if "Boto3" not in headers["user-agent"]
    ]
    assert sent["x-amz-storage-class"] == "STANDARD_IA"
    assert sent["x-amz-server-side-encryption"] == "aws:kms"
    assert sent["x-amz-server-side-encryption-aws-kms-key-id"] == "some-key"
    assert sent["x-amz-request-payer"] == "requester"
    assert sent["x-amz-security-token"] == TOKEN
    assert sent["user-agent"] == "holdfast"


@on_each_server
def test_obstore_reads_the_head_and_boto3_the_rest_of_a_large_file(
    watched: WatchedBucket,
) -> None:
    file_system = by_obstore(watched, part_size=5 * MIB)
    data = os.urandom(11 * MIB + 7)
    write(file_system, f"{watched.directory}/x", data)
    assert set(agents(watched, "UploadPart")) == {"boto3"}
    with file_system.open(f"{watched.directory}/x") as stream:
        assert stream.read() == data
    assert agents(watched, "GetObject") == ["obstore", "boto3"]
    head = HEAD_BYTES
    ranges = [sent["range"] for sent in watched.request_headers("GetObject")]
    assert ranges == [f"bytes=0-{head - 1}", f"bytes={head}-"]


@on_each_server
@pytest.mark.parametrize("size", [0, 1, HEAD_BYTES - 1, HEAD_BYTES, HEAD_BYTES + 1])
def test_objects_about_as_long_as_the_head_are_complete(watched: WatchedBucket, size: int) -> None:
    data = os.urandom(size)
    watched.bucket.client.put_object(Bucket=watched.bucket.name, Key="dir/x", Body=data)
    with by_obstore(watched).open(f"{watched.directory}/x") as stream:
        assert stream.read() == data
        assert stream.read() == b""


@on_each_server
def test_reader_reads_the_same_object_after_a_seek(watched: WatchedBucket) -> None:
    beginning = HEAD_BYTES
    data = os.urandom(3 * beginning)
    write(by_obstore(watched), f"{watched.directory}/x", data)
    with by_obstore(watched).open(f"{watched.directory}/x") as stream:
        for position, requests in (
            (0, 1),
            (beginning - 10, 1),
            (beginning, 2),
            (5, 3),
            (2 * beginning, 4),
            (3 * beginning - 10, 5),
        ):
            stream.seek(position)
            assert stream.read(10) == data[position : position + 10]
            assert len(watched.request_headers("GetObject")) == requests
        watched.bucket.client.put_object(Bucket=watched.bucket.name, Key="dir/x", Body=data * 2)
        stream.seek(beginning + MIB)
        with pytest.raises(CheckpointCorruptedError, match="was replaced"):
            stream.read(10)


@on_each_server
@pytest.mark.parametrize("name", ["ä ö", "100%", "a+b&c=d", "#?;,:@!$'()*~", "%2F", "...", "名"])
def test_any_name_is_the_same_to_boto3_and_to_obstore(watched: WatchedBucket, name: str) -> None:
    write(by_obstore(watched), f"{watched.directory}/1/{name}", b"1")
    write(watched.file_system(), f"{watched.directory}/2/{name}", b"2")
    assert watched.bucket.keys("dir/") == [f"dir/1/{name}", f"dir/2/{name}"]
    for file_system in (by_obstore(watched), watched.file_system()):
        for number in (1, 2):
            with file_system.open(f"{watched.directory}/{number}/{name}") as stream:
                assert stream.read() == b"%d" % number


def test_sixteen_threads_share_one_bucket(watched: WatchedBucket) -> None:
    file_system = by_obstore(watched)

    def work(number: int) -> bytes:
        data = os.urandom(2000)
        write(file_system, f"{watched.directory}/{number}", data)
        with file_system.open(f"{watched.directory}/{number}") as stream:
            assert stream.read() == data
        return data

    with ThreadPoolExecutor(16) as pool:
        written = list(pool.map(work, range(64)))
    assert [watched.bucket.read(f"dir/{number}") for number in range(64)] == written
    assert set(agents(watched, "PutObject") + agents(watched, "GetObject")) == {"obstore"}


# Endpoints


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("bucket", {}, "https://bucket.s3.eu-central-1.amazonaws.com/key"),
        ("bucket", {"path_style_access": True}, "https://s3.eu-central-1.amazonaws.com/bucket/key"),
        ("my.bucket", {}, "https://s3.eu-central-1.amazonaws.com/my.bucket/key"),
        ("bucket", {"region": "cn-north-1"}, "https://bucket.s3.cn-north-1.amazonaws.com.cn/key"),
        ("bucket", {"region": "us-east-1"}, "https://bucket.s3.amazonaws.com/key"),
        ("bucket", {"endpoint": "https://s.example:9"}, "https://s.example:9/bucket/key"),
        ("bucket", {"endpoint": "https://s.example/s3/"}, "https://s.example/s3/bucket/key"),
        (
            "bucket",
            {"endpoint": "https://bucket.vpce-1.s3.eu-central-1.vpce.amazonaws.com"},
            "https://bucket.vpce-1.s3.eu-central-1.vpce.amazonaws.com/bucket/key",
        ),
        ("bucket", {"endpoint": "http://127.0.0.1:9"}, "http://127.0.0.1:9/bucket/key"),
    ],
)
def test_obstore_uses_the_endpoint_of_boto3(
    name: str, settings: dict[str, Any], expected: str
) -> None:
    values: dict[str, Any] = {"region": "eu-central-1", "access_key": "a", "secret_key": "b"}
    reached = S3Settings(**{**values, **settings})
    client = connection_for(reached).client
    asked: list[str] = []

    def instead(request: Any, **_: Any) -> Any:
        asked.append(request.url)
        raise RuntimeError("is not sent")

    client.meta.events.register("before-send.s3.GetObject", instead)
    with pytest.raises(RuntimeError):
        client.get_object(Bucket=name, Key="key")
    client.meta.events.unregister("before-send.s3.GetObject", instead)
    assert asked == [expected]
    base, is_path_style = obstore_bucket.endpoint_of(client, name)
    assert (f"{base}/{name}/key" if is_path_style else f"{base}/key") == expected


@pytest.mark.parametrize(
    "name",
    [
        "arn:aws:s3:eu-central-1:111122223333:accesspoint:name",
        "bucket--euc1-az1--x-s3",
        "accesspoint--euc1-az1--xa-s3",
    ],
)
def test_unusual_bucket_is_left_to_boto3(name: str) -> None:
    settings = S3Settings(region="eu-central-1", access_key="a", secret_key="b")
    assert obstore_bucket.obstore_for(settings, name) is None


@pytest.mark.parametrize("name", obstore_bucket.OVERRIDING_VARIABLES)
def test_overriding_variables_disable_obstore(
    watched: WatchedBucket, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "sse-c")
    write(by_obstore(watched), f"{watched.directory}/x", b"1")
    assert agents(watched, "PutObject") == ["boto3"]
    [sent] = watched.request_headers("PutObject")
    assert "x-amz-server-side-encryption" not in sent


def test_no_environment_takes_its_signature_away(
    watched: WatchedBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_SKIP_SIGNATURE", "AWS_UNSIGNED_PAYLOAD", "AWS_REQUEST_PAYER"):
        monkeypatch.setenv(name, "true")
    write(by_obstore(watched), f"{watched.directory}/x", b"1")
    assert agents(watched, "PutObject") == ["obstore"]
    [sent] = watched.request_headers("PutObject")
    assert sent["authorization"].startswith("AWS4-HMAC-SHA256")
    assert sent["x-amz-content-sha256"] == hashlib.sha256(b"1").hexdigest()
    assert "x-amz-request-payer" not in sent


# Credentials


class Renewing:
    """Credentials that change with each request for them."""

    def __init__(self) -> None:
        self.times = 0

    def get_frozen_credentials(self) -> Any:
        from botocore.credentials import ReadOnlyCredentials

        self.times += 1
        return ReadOnlyCredentials(f"key-{self.times}", "secret", TOKEN)


def test_credentials_are_asked_for_again_before_they_end() -> None:
    provider = obstore_bucket.Credentials(Renewing())
    first, second = provider(), provider()
    assert (first["access_key_id"], second["access_key_id"]) == ("key-1", "key-2")
    assert first["token"] == TOKEN
    # botocore's own are valid for at least ten minutes, and obstore renews them five before the end.
    assert timedelta(minutes=6) < first["expires_at"] - datetime.now(UTC) <= timedelta(minutes=10)


def test_failed_credentials_are_a_holdfast_error(
    watched: WatchedBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_self: Any) -> Any:
        raise RuntimeError(TOKEN)

    file_system = by_obstore(watched)
    monkeypatch.setattr(obstore_bucket.Credentials, "__call__", fails)
    write(file_system, f"{watched.directory}/x", b"1")  # boto3 signs by itself
    assert agents(watched, "PutObject") == ["boto3"]


# Requests through boto3


def test_boto3_repeats_failed_writes(watched: WatchedBucket) -> None:
    watched.faults.answer(503, s3_operation("PutObject"), 1, code="SlowDown")
    write(by_obstore(watched), f"{watched.directory}/x", b"1")
    assert agents(watched, "PutObject") == ["obstore", "boto3"]
    assert watched.bucket.read("dir/x") == b"1"


@on_each_server
def test_boto3_finds_a_file_after_a_lost_answer_of_obstore(watched: WatchedBucket) -> None:
    watched.faults.lose_answer(s3_operation("PutObject"), 1)
    write(by_obstore(watched), f"{watched.directory}/x", b"1")
    assert watched.bucket.read("dir/x") == b"1"
    assert agents(watched, "PutObject") == ["obstore", "boto3"]
    assert watched.counts()["HeadObject"] == 1


@pytest.mark.parametrize(
    ("kind", "text", "changed_nothing"),
    [
        ("GenericError", "Server returned non-2xx status code: 400 Bad Request: x", True),
        ("GenericError", "Server returned non-2xx status code: 507 Full: x", True),
        ("GenericError", "status code: 503 Slow: <Code>SlowDown</Code>", True),
        ("GenericError", "Bulk delete request failed for key x: reason (code: 412)", True),
        ("GenericError", "Received redirect ... status code: 301 Moved", True),
        ("GenericError", "HTTP error: error sending request ... kind: Connect,", True),
        ("PermissionDeniedError", "no matter", True),
        ("AlreadyExistsError", "no matter", True),
        ("UnauthenticatedError", "no matter", True),
        ("GenericError", "status code: 500 Oops: upstream status code: 404", False),
        ("GenericError", "status code: 502 Bad Gateway: kind: Connect", False),
        ("GenericError", "HTTP error: kind: ConnectionReset", False),
        ("JoinError", "", False),
    ],
)
def test_only_certain_failures_count_as_not_performed(
    kind: str, text: str, *, changed_nothing: bool
) -> None:
    error = type(kind, (Exception,), {})(text)
    assert was_not_performed(error) is changed_nothing


@on_each_server
def test_existing_name_is_a_conflict(watched: WatchedBucket) -> None:
    file_system = by_obstore(watched)
    write(file_system, f"{watched.directory}/x", b"1")
    with pytest.raises(CheckpointConflictError):
        write(file_system, f"{watched.directory}/x", b"2")
    assert watched.bucket.read("dir/x") == b"1"


def test_missing_file_takes_one_request_and_differs_from_a_missing_bucket(
    watched: WatchedBucket,
) -> None:
    with pytest.raises(CheckpointNotFoundError):
        by_obstore(watched).open(f"{watched.directory}/missing")
    assert watched.counts() == {"GetObject": 1}
    with pytest.raises(InvalidRequestError, check=of_kind("no-bucket")):
        by_obstore(watched).open(f"s3://{watched.bucket.name}-missing/x")


def test_missing_store_has_done_nothing(watched: WatchedBucket) -> None:
    url = "http://127.0.0.1:1"
    settings = settings_of(watched.bucket.server, endpoint=url, state_files="obstore")
    stream = S3FileSystem(settings, retries=SOON).create("s3://bucket/x")
    with pytest.raises(StorageUnavailableError) as raised:
        stream.commit()
    assert type(raised.value) is StorageUnavailableError


def test_answers_of_the_store_are_not_passed_on(
    watched: WatchedBucket, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="holdfast")
    watched.faults.answer(403, s3_operation("PutObject"), "every", code=TOKEN)
    watched.faults.answer(404, s3_operation("GetObject"), "every", code="NoSuchKey")
    file_system = by_obstore(watched, session_token=TOKEN, secret_key="the-secret-of-a-test")
    with pytest.raises(CheckpointNotFoundError) as missing:
        file_system.open(f"{watched.directory}/x")
    with pytest.raises(CheckpointError):
        write(file_system, f"{watched.directory}/x", b"1")
    shown = "".join(traceback.format_exception(missing.value)) + "".join(
        record.getMessage() for record in caplog.records if record.name.endswith("obstore_bucket")
    )
    assert "obstore could not write" in shown
    assert "<Code>" not in shown
    assert TOKEN not in shown


# Processes


@of_many_threads
def test_forked_process_uses_boto3_and_does_not_hang(watched: WatchedBucket) -> None:
    file_system = by_obstore(watched)
    write(file_system, f"{watched.directory}/parent", b"1")
    child = os.fork()
    if child == 0:
        status = 1
        with suppress(BaseException):
            write(file_system, f"{watched.directory}/child", b"2")
            with file_system.open(f"{watched.directory}/parent") as stream:
                status = 0 if stream.read() == b"1" else 3
        os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    write(file_system, f"{watched.directory}/after", b"3")
    assert agents(watched, "PutObject") == ["obstore", "boto3", "obstore"]
    assert watched.bucket.keys() == ["dir/after", "dir/child", "dir/parent"]


def test_obstore_is_not_imported_if_boto3_is_required(bucket: S3Bucket) -> None:
    source = (
        "import sys; from holdfast.locations.file_systems import S3FileSystem, S3Settings;"
        "stream = S3FileSystem(S3Settings(endpoint=sys.argv[1], region='us-east-1',"
        "path_style_access=True, access_key=sys.argv[2], secret_key=sys.argv[3],"
        "state_files=sys.argv[4])).create(sys.argv[5]);"
        "stream.write(b'1'); stream.commit(); print('obstore' in sys.modules)"
    )
    server = bucket.server
    for state_files, is_imported in (("boto3", "False"), ("auto", "True")):
        uri = f"s3://{bucket.name}/{state_files}"
        arguments = (server.endpoint, server.access_key, server.secret_key, state_files, uri)
        assert output_of(source, *arguments).strip() == is_imported


@pytest.mark.parametrize("state_files", ["auto", "obstore"])
def test_boto3_replaces_missing_obstore_unless_it_is_required(
    watched: WatchedBucket, monkeypatch: pytest.MonkeyPatch, state_files: str
) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    file_system = watched.file_system(state_files=state_files)
    if state_files == "auto":
        write(file_system, f"{watched.directory}/x", b"1")
        assert agents(watched, "PutObject") == ["boto3"]
    else:
        with pytest.raises(InvalidRequestError, match=r"pip install 'holdfast\[s3,obstore\]'"):
            write(file_system, f"{watched.directory}/x", b"1")


def test_settings_refused_by_obstore_are_left_to_boto3(
    watched: WatchedBucket,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", "/dev/null/missing")
    file_system = by_obstore(watched)
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        assert obstore_bucket.obstore_for(file_system.settings, "other-bucket") is None
    assert "obstore can't be used for bucket other-bucket" in caplog.text


def test_unknown_library_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="must be one of auto, boto3, obstore"):
        S3Settings(state_files="curl")
