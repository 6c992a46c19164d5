"""S3 in this process: botocore gets the same faults as over HTTP, and an error for unknown operations."""

import os
from typing import Any

import pytest
from botocore.exceptions import BotoCoreError, ClientError
from contracts.processes import of_many_threads, run_in_fork
from contracts.s3_faults import FAULTS
from servers.buckets import MemoryS3Server, faults_before
from servers.s3 import S3Bucket, settings_of
from urllib3.exceptions import HTTPError

from holdfast.locations.file_systems import S3FileSystem
from holdfast.testing import HttpRequest

DATA = bytes(range(250)) * 14


def error_of(call: Any) -> tuple[str, ...]:
    """Return the type of botocore's error, and the answer that it is about."""
    try:
        answer = call()
        body = answer["Body"].read() if "Body" in answer else b""
    except ClientError as error:
        return type(error).__name__, error.response["Error"]["Code"]
    except (BotoCoreError, HTTPError) as error:
        return (type(error).__name__,)
    return "done", str(answer["ResponseMetadata"]["HTTPStatusCode"]), str(body)


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_the_same_to_botocore_as_over_http(
    memory_s3: MemoryS3Server, memory_bucket: S3Bucket, fault: str
) -> None:
    bucket = memory_bucket.name
    seen: list[Any] = []
    for over_http in (False, True):
        memory_bucket.put("there", DATA)
        with faults_before(memory_s3, over_http=over_http) as faults:
            client = memory_s3.client(faults.url)
            calls = {
                "put": lambda: client.put_object(Bucket=bucket, Key="x", Body=DATA),  # noqa: B023
                "get": lambda: client.get_object(Bucket=bucket, Key="there"),  # noqa: B023
                "head": lambda: client.head_object(Bucket=bucket, Key="there"),  # noqa: B023
                "list": lambda: client.list_objects_v2(Bucket=bucket),  # noqa: B023
            }
            outcomes = []
            for name, call in calls.items():
                FAULTS[fault].plan(faults, lambda _: True, "next")
                outcomes.append((name, *error_of(call)))
                faults.clear()
            reports = [
                (request.method, request.performed, request.status, request.body_bytes)
                for request in faults.requests
            ]
            seen.append((outcomes, reports, memory_bucket.keys()))
            client.close()
        memory_s3.store.drop_bucket(bucket)
        memory_s3.store.add_bucket(bucket)
    assert seen[0] == seen[1]


@of_many_threads
def test_fork_reaches_the_store_of_its_parent(memory_bucket: S3Bucket) -> None:
    file_system = S3FileSystem(settings_of(memory_bucket.server, state_files="boto3"))
    uri = f"s3://{memory_bucket.name}/x"
    assert run_in_fork(lambda: file_system.publish(uri, b"by %d" % os.getpid())) == 0
    written = memory_bucket.read("x")
    assert written.startswith(b"by ")
    assert written != b"by %d" % os.getpid()


def test_unknown_operation_is_not_implemented(memory_bucket: S3Bucket) -> None:
    with pytest.raises(ClientError) as caught:
        memory_bucket.client.restore_object(
            Bucket=memory_bucket.name, Key="x", RestoreRequest={"Days": 1}
        )
    assert caught.value.response["Error"]["Code"] == "NotImplemented"
    with pytest.raises(ClientError) as caught:
        memory_bucket.client.get_bucket_policy(Bucket=memory_bucket.name)
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 501


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        ({"ContentMD5": "AAAAAAAAAAAAAAAAAAAAAA=="}, "BadDigest"),
        ({"ChecksumCRC32": "AAAAAA=="}, "BadDigest"),
        ({"ChecksumCRC32C": "AAAAAA=="}, "BadDigest"),
        ({"IfNoneMatch": "*"}, "PreconditionFailed"),
        ({"IfMatch": '"other"'}, "PreconditionFailed"),
    ],
)
def test_body_contradicting_its_request_is_refused(
    memory_bucket: S3Bucket, sent: dict[str, str], code: str
) -> None:
    memory_bucket.put("x", b"before")
    with pytest.raises(ClientError) as caught:
        memory_bucket.client.put_object(Bucket=memory_bucket.name, Key="x", Body=b"after", **sent)
    assert caught.value.response["Error"]["Code"] == code
    assert memory_bucket.read("x") == b"before"


def test_request_of_a_finalizer_does_not_hang(
    memory_s3: MemoryS3Server, memory_bucket: S3Bucket
) -> None:
    class Forgotten:
        def __del__(self) -> None:
            memory_bucket.client.delete_object(Bucket=memory_bucket.name, Key="x")

    class Parameters(dict[str, str]):
        """Called while the store answers; a garbage collection runs here."""

        def get(self, *arguments: Any) -> Any:
            self.pop("forgotten", None)
            return super().get(*arguments)

    for key in ("x", "y"):
        memory_bucket.put(key, DATA)
    query = Parameters({"list-type": "2", "forgotten": Forgotten()})  # type: ignore[dict-item]
    listing = HttpRequest("GET", f"/{memory_bucket.name}", query, {})
    assert memory_s3.store.answer(listing, b"").status == 200
    assert memory_bucket.keys() == ["y"]
