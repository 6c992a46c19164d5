"""Operations of the S3 adapter, and faults of their requests."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from contracts.patience import wait_for_parts
from servers.buckets import faults_before
from servers.s3 import S3Bucket, S3Server, settings_of

from holdfast.errors import CheckpointError, OutcomeUnknownError
from holdfast.locations import S3Settings
from holdfast.locations.adapters import (
    RetryPolicy,
    file_system_for,
    register_file_system,
    unregister_file_system,
)
from holdfast.locations.file_systems import RetryingExclusiveFileSystem, S3FileSystem, publish
from holdfast.testing import HttpFaults, HttpRequest, s3_operation_of

SOON = RetryPolicy(deadline_s=0.03, first_wait_s=0.001, max_wait_s=0.002)
"""Fails at once; for requests that never succeed."""

PART = 1000
SMALL = b"small"
LARGE = bytes(range(250)) * 14  # four parts, the last one not full


@dataclass
class Store:
    """A bucket whose proxy fails on demand.

    Attributes:
        bucket: The bucket, accessed without faults.
        faults: Faults of the adapter's requests.
        settings: Settings of the adapter.
    """

    bucket: S3Bucket
    faults: HttpFaults
    settings: S3Settings

    @property
    def directory(self) -> str:
        return f"s3://{self.bucket.name}/dir"

    @property
    def uri(self) -> str:
        return f"{self.directory}/x"

    def contents(self) -> dict[str, bytes]:
        """Return all objects, read without the adapter."""
        return {key.removeprefix("dir/"): self.bucket.read(key) for key in self.bucket.keys("")}

    def put(self, name: str, data: bytes) -> None:
        self.bucket.put(f"dir/{name}", data)

    def requested_operations(self) -> list[str]:
        """Return the operations that the adapter has requested so far."""
        return [s3_operation_of(request) for request in self.faults.requests]

    @property
    def is_by_obstore(self) -> bool:
        """Return whether obstore makes the requests; boto3 repeats those that fail."""
        return self.settings.state_files == "obstore"

    def use(self, policy: RetryPolicy) -> RetryingExclusiveFileSystem:
        """Access `s3://` with this policy, and no other retries."""
        register_file_system(
            "s3", lambda: S3FileSystem(self.settings, retries=policy), retries=policy
        )
        file_system = file_system_for(self.uri)
        assert isinstance(file_system, RetryingExclusiveFileSystem)
        return file_system


OTHERS = ("moto boto3", "ministack boto3", "ministack obstore")
"""Third-party stores, over HTTP."""

STORES = (
    "memory boto3",  # in this process, with its faults
    "memory obstore",  # over HTTP, because obstore has its own network code
    # Our store does not define S3's answers; these take ten times as long.
    *(pytest.param(store, marks=pytest.mark.exhaustive) for store in OTHERS),
)


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    server, state_files = request.param.split()
    if server == "moto":
        monkeypatch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", 1)
    bucket: S3Bucket = request.getfixturevalue(f"{server}_bucket")
    way = "in_process" if request.param == "memory boto3" else server
    faults: HttpFaults = request.getfixturevalue(f"{way}_faults")
    faults.clear()
    faults.requests.clear()
    settings = settings_of(
        bucket.server,
        endpoint=faults.url,
        part_size=PART,
        state_files=state_files,
    )
    yield Store(bucket, faults, settings)
    faults.clear()
    wait_for_parts()
    unregister_file_system("s3")


@pytest.fixture(scope="session")
def in_process_faults(memory_s3: S3Server) -> Iterator[HttpFaults]:
    with faults_before(memory_s3) as faults:
        yield faults


@pytest.fixture(scope="session")
def memory_faults(memory_s3: S3Server) -> Iterator[HttpFaults]:
    yield from _over_http(memory_s3)


@pytest.fixture(scope="session")
def moto_faults(moto: S3Server) -> Iterator[HttpFaults]:
    yield from _over_http(moto)


@pytest.fixture(scope="session")
def ministack_faults(ministack: S3Server) -> Iterator[HttpFaults]:
    yield from _over_http(ministack)


def _over_http(server: S3Server) -> Iterator[HttpFaults]:
    with faults_before(server, over_http=True) as faults:
        yield faults


# Operations


def publish_small(store: Store) -> None:
    publish(store.uri, SMALL, single_writer=False)


def write(data: bytes) -> Callable[[Store], None]:
    def action(store: Store) -> None:
        stream = file_system_for(store.uri).create(store.uri)
        try:
            stream.write(data)
            stream.commit()
        finally:
            stream.abort()
            wait_for_parts()

    return action


def give_up(store: Store) -> None:
    stream = file_system_for(store.uri).create(store.uri)
    try:
        stream.write(LARGE)
    finally:
        stream.abort()
        wait_for_parts()


def read_whole(store: Store) -> None:
    with file_system_for(store.uri).open(store.uri) as stream:
        assert stream.read() == LARGE


def list_all(store: Store) -> None:
    listed = {entry.uri for entry in file_system_for(store.uri).list(store.directory)}
    assert listed == {store.uri, f"{store.directory}/y"}


def delete_two(store: Store) -> None:
    file_system_for(store.uri).delete([store.uri, f"{store.directory}/y"])


def delete_below(store: Store) -> None:
    file_system_for(store.uri).delete_tree(store.directory)


def copy_stored(store: Store) -> None:
    file_system = file_system_for(store.uri)
    inner = file_system.inner
    assert isinstance(inner, S3FileSystem)
    try:
        file_system.retrier.call("copy", lambda: inner.copy(f"{store.directory}/y", store.uri))
    except CheckpointError:
        file_system.delete([store.uri])
        raise


@dataclass(frozen=True)
class Operation:
    """An operation of the adapter.

    Attributes:
        act: Performs it through `file_system_for`.
        asks: S3 requests that it needs.
        before: Names of objects stored before.
        after: Objects stored after it has succeeded.
    """

    act: Callable[[Store], None]
    asks: tuple[str, ...]
    before: tuple[str, ...] = ()
    after: tuple[tuple[str, bytes], ...] = ()


TWO = ("x", "y")
BOTH = (("x", LARGE), ("y", LARGE))
UPLOAD = ("CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload")

OPERATIONS = {
    "publish": Operation(publish_small, ("PutObject",), after=(("x", SMALL),)),
    "small file": Operation(write(SMALL), ("PutObject",), after=(("x", SMALL),)),
    "empty file": Operation(write(b""), ("PutObject",), after=(("x", b""),)),
    "large file": Operation(write(LARGE), UPLOAD, after=(("x", LARGE),)),
    "abort": Operation(give_up, ("UploadPart", "AbortMultipartUpload")),
    "copy": Operation(copy_stored, ("CopyObject",), before=("y",), after=BOTH),
    "read": Operation(read_whole, ("GetObject",), before=TWO, after=BOTH),
    "list": Operation(list_all, ("ListObjectsV2",), before=TWO, after=BOTH),
    "delete": Operation(delete_two, ("DeleteObjects",), before=TWO),
    "delete tree": Operation(
        delete_below, ("ListObjectsV2", "DeleteObjects", "ListMultipartUploads"), before=TWO
    ),
}

# Faults


@dataclass(frozen=True)
class Fault:
    """A fault of requests.

    Attributes:
        plan: Plans it for the matching requests.
        is_transient: Whether a repeated request may succeed.
    """

    plan: Callable[..., None]
    is_transient: bool = True


def answers(status: int, **arguments: Any) -> Callable[..., None]:
    def plan(faults: HttpFaults, when: Callable[[HttpRequest], bool], nth: Any) -> None:
        faults.answer(status, when, nth, **arguments)

    return plan


FAULTS = {
    "500": Fault(answers(500)),
    "503": Fault(answers(503)),
    "three 503": Fault(answers(503, times=3)),
    "429": Fault(answers(429)),
    "reset": Fault(lambda faults, when, nth: faults.reset(when, nth)),
    "answer lost": Fault(lambda faults, when, nth: faults.lose_answer(when, nth)),
    "500 after": Fault(answers(500, performed=True)),
    "200 and an error": Fault(answers(200)),
    "answer truncated": Fault(lambda faults, when, nth: faults.truncate(20, when, nth)),
    "409": Fault(answers(409)),
    "request timeout": Fault(answers(400, code="RequestTimeout")),
    "403": Fault(answers(403), is_transient=False),
    "400": Fault(answers(400, code="InvalidArgument"), is_transient=False),
}


def outcome(operation: Operation, store: Store) -> CheckpointError | None:
    """Perform an operation; returns its error, which must be a `CheckpointError`."""
    try:
        operation.act(store)
    except CheckpointError as error:
        return error
    return None


def check_nothing_is_left(store: Store, operation: Operation, error: CheckpointError) -> None:
    """Check that nothing has changed after an error, except for an unknown outcome."""
    stored = store.contents()
    if isinstance(error, OutcomeUnknownError):
        assert stored in ({}, dict(operation.after))
    elif operation.before:
        assert set(stored) <= set(operation.before)
    else:
        assert stored == {}
    assert store.bucket.uploads() == []
