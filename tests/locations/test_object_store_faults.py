"""Faults of requests to Google Cloud Storage and Azure, before and after their effect; errors without secrets."""

import pickle
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from contracts.errors import of_kind
from contracts.files import write
from servers.clouds import AZURE, AzureServer, CloudBucket, azurite, cloud_bucket, memory_gcs

from holdfast.errors import (
    CheckpointConflictError,
    InvalidRequestError,
    OutcomeUnknownError,
    StorageFullError,
    StorageUnavailableError,
)
from holdfast.locations.adapters import RetryPolicy
from holdfast.locations.file_systems import ObjectStoreFileSystem, RetryingExclusiveFileSystem
from holdfast.testing import HttpFaults, HttpRequest

__all__ = ["azurite", "cloud_bucket", "memory_gcs"]

MIB = 1 << 20

PATIENT = RetryPolicy(first_wait_s=0.001, max_wait_s=0.01)
ONCE = RetryPolicy(deadline_s=0)

SECRET = "TheSecretOfATest"


@dataclass
class FaultyStore:
    """A bucket whose proxy fails on demand."""

    bucket: CloudBucket
    faults: HttpFaults
    endpoint: str

    @property
    def uri(self) -> str:
        return f"{self.bucket.uri}/dir/x"

    def file_system(self, retries: RetryPolicy, **changes: Any) -> RetryingExclusiveFileSystem:
        inner = self.bucket.server.file_system(retries, endpoint=self.endpoint, **changes)
        return RetryingExclusiveFileSystem(inner, retries)

    def counts(self, matches: Callable[[HttpRequest], object]) -> int:
        return len([request for request in self.faults.requests if matches(request)])


@pytest.fixture
def store(cloud_bucket: CloudBucket) -> Iterator[FaultyStore]:
    with cloud_bucket.server.faults() as (faults, endpoint):
        yield FaultyStore(cloud_bucket, faults, endpoint)


def is_put(request: HttpRequest) -> bool:
    return request.method == "PUT"


def is_part(request: HttpRequest) -> bool:
    return is_put(request) and bool({"partNumber", "blockid"} & request.query.keys())


def is_end_of_upload(request: HttpRequest) -> bool:
    by_google = request.method == "POST" and "uploadId" in request.query
    return by_google or request.query.get("comp") == "blocklist"


def is_get(request: HttpRequest) -> bool:
    return request.method == "GET" and "list-type" not in request.query


def publish(store: FaultyStore, retries: RetryPolicy) -> None:
    store.file_system(retries).publish(store.uri, b"small")


def write_small(store: FaultyStore, retries: RetryPolicy) -> None:
    write(store.file_system(retries), store.uri, b"small")


def write_large(store: FaultyStore, retries: RetryPolicy) -> None:
    write(store.file_system(retries), store.uri, bytes(6 * MIB), bytes(6 * MIB))


@pytest.mark.parametrize("status", [500, 503, 429])
@pytest.mark.parametrize("action", [publish, write_small])
def test_failed_request_without_effect_is_repeated(
    store: FaultyStore, action: Callable[..., None], status: int
) -> None:
    store.faults.answer(status, is_put, times=2)
    action(store, PATIENT)
    assert store.bucket.contents("dir/") == {"x": b"small"}
    assert store.counts(is_put) == 3


@pytest.mark.parametrize("is_reset", [True, False])
def test_stream_recognizes_its_object_after_a_lost_answer(
    store: FaultyStore, *, is_reset: bool
) -> None:
    if is_reset:
        store.faults.reset(is_put, performed=True)
    else:
        store.faults.answer(500, is_put, performed=True)
    write_small(store, PATIENT)
    assert store.bucket.contents("dir/") == {"x": b"small"}


def test_stream_without_retries_deletes_the_object_of_a_lost_answer(store: FaultyStore) -> None:
    store.faults.reset(is_put, performed=True)
    with pytest.raises(OutcomeUnknownError):
        write_small(store, ONCE)
    assert store.bucket.contents("dir/") == {}


def test_publishing_without_an_answer_has_an_unknown_outcome(store: FaultyStore) -> None:
    store.faults.reset(is_put, performed=True)
    with pytest.raises(OutcomeUnknownError):
        publish(store, ONCE)
    assert store.bucket.contents("dir/") == {"x": b"small"}


def test_repeated_publishing_meets_its_own_file_as_a_conflict(store: FaultyStore) -> None:
    store.faults.reset(is_put, performed=True)
    with pytest.raises(CheckpointConflictError):  # `publish` of the package compares the bytes
        publish(store, PATIENT)


@pytest.mark.parametrize("lands", [False, True], ids=["before", "after"])
def test_copy_is_repeated_after_a_failure(store: FaultyStore, *, lands: bool) -> None:
    store.bucket.put("dir/y", b"small")
    store.faults.answer(503, is_put, performed=lands)
    file_system = store.file_system(PATIENT)
    inner = file_system.inner
    assert isinstance(inner, ObjectStoreFileSystem)
    file_system.retrier.call("copy", lambda: inner.copy(f"{store.bucket.uri}/dir/y", store.uri))
    assert store.bucket.contents("dir/") == {"x": b"small", "y": b"small"}
    assert store.counts(is_put) == 2


def test_failed_part_is_repeated(store: FaultyStore) -> None:
    store.faults.answer(503, is_part, 2)
    write_large(store, PATIENT)
    assert store.bucket.contents("dir/") == {"x": bytes(12 * MIB)}


def test_upload_is_recognized_after_a_lost_answer_to_its_end(store: FaultyStore) -> None:
    store.faults.reset(is_end_of_upload, performed=True)
    write_large(store, PATIENT)
    assert store.bucket.contents("dir/") == {"x": bytes(12 * MIB)}


def test_failed_upload_leaves_no_object(store: FaultyStore) -> None:
    store.faults.answer(403, is_part, "every")
    with pytest.raises(InvalidRequestError, check=of_kind("refused")):
        write_large(store, PATIENT)
    assert store.bucket.contents("dir/") == {}


def test_read_resumes_after_a_lost_connection(store: FaultyStore) -> None:
    data = bytes(range(256)) * (6 * MIB // 256)
    store.bucket.put("dir/x", data)
    store.faults.truncate(5 * MIB, is_get, 2)
    store.faults.reset(is_get)
    with store.file_system(PATIENT).open(store.uri) as stream:
        assert b"".join(iter(lambda: stream.read(MIB), b"")) == data


def test_full_store_is_reported_as_full(store: FaultyStore) -> None:
    store.faults.answer(507, is_put, "every")
    with pytest.raises(StorageFullError):
        publish(store, PATIENT)
    assert store.counts(is_put) == 1


@pytest.mark.parametrize("code", ["ContainerBeingDeleted", "LeaseIdMissing"])
def test_conflict_about_something_else_is_transient(store: FaultyStore, code: str) -> None:
    store.faults.answer(409, is_put, code=code)
    publish(store, PATIENT)
    assert store.bucket.contents("dir/") == {"x": b"small"}


def test_answer_of_the_store_is_not_in_errors(store: FaultyStore) -> None:
    store.faults.answer(
        403, is_put, "every", code="AuthenticationFailed", headers={"x-secret": SECRET}
    )
    store.faults.answer(503, is_get, "every", code=f"Busy</Code><Message>{SECRET}</Message>")
    errors: list[BaseException] = []
    for action in (publish, write_small, lambda *at: store.file_system(ONCE).open(at[0].uri)):
        with pytest.raises((InvalidRequestError, StorageUnavailableError)) as caught:
            action(store, ONCE)
        errors.append(caught.value)
    shown = "".join("".join(traceback.format_exception(error)) for error in errors)
    assert "AuthenticationFailed" in shown
    assert SECRET not in shown
    assert "Message>" not in shown


def test_unreachable_store_has_done_nothing(cloud_bucket: CloudBucket) -> None:
    file_system = cloud_bucket.server.file_system(ONCE, endpoint="http://127.0.0.1:1")
    with pytest.raises(StorageUnavailableError) as caught:
        file_system.publish(f"{cloud_bucket.uri}/x", b"1")
    assert type(caught.value) is StorageUnavailableError


def test_silent_store_is_unavailable_after_the_read_timeout(store: FaultyStore) -> None:
    store.bucket.put("dir/x", b"1")
    _, released = store.faults.blocking(is_get)
    file_system = store.file_system(ONCE, read_timeout=0.2)
    with pytest.raises(StorageUnavailableError):
        file_system.open(store.uri)
    released.set()


@AZURE
def test_directory_with_files_is_kept(azurite: AzureServer) -> None:
    bucket = azurite.new_bucket()
    with azurite.faults() as (faults, endpoint):
        store = FaultyStore(bucket, faults, endpoint)
        faults.answer(409, nth="every", code="DirectoryIsNotEmpty")
        store.file_system(ONCE).delete_empty_directory(store.uri)
        assert len(faults.requests) == 1


def test_file_system_of_an_executor_is_the_same(cloud_bucket: CloudBucket) -> None:
    file_system = pickle.loads(pickle.dumps(cloud_bucket.server.file_system(ONCE)))  # ours
    file_system.publish(f"{cloud_bucket.uri}/x", b"1")
    assert cloud_bucket.contents() == {"x": b"1"}
