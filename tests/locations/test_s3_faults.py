"""Every operation on S3, and everything that can happen to it on the way."""

import logging
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import moto.s3.models
import pytest
from botocore.exceptions import SSLError
from contracts.patience import HANGS_S, PATIENT
from servers.s3 import S3Bucket
from servers.watched import forget_clients

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
from holdfast.locations import S3Settings
from holdfast.locations.adapters import (
    RetryPolicy,
    file_system_for,
    register_file_system,
    unregister_file_system,
)
from holdfast.locations.file_systems import RetryingExclusiveFileSystem, S3FileSystem, publish
from holdfast.locations.file_systems.s3 import (
    s3_client,
    s3_input_stream,
    s3_settings,
    through_obstore,
)
from holdfast.testing import HttpFaults, HttpRequest, http_faults, s3_operation, s3_operation_of

SOON = RetryPolicy(deadline_s=0.03, first_wait_s=0.001, longest_wait_s=0.002)
"""Gives up at once; for what never succeeds."""

PART = 1000
SMALL = b"small"
LARGE = bytes(range(250)) * 14  # four parts, the last one not full


@dataclass
class Store:
    """A bucket behind a proxy that fails when it is told to.

    Attributes:
        bucket: The bucket, which no fault reaches.
        faults: What goes wrong on the way of the adapter.
        settings: The adapter's.
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
        """All objects behind the back of the adapter."""
        return {key.removeprefix("dir/"): self.bucket.read(key) for key in self.bucket.keys("")}

    def put(self, name: str, data: bytes) -> None:
        self.bucket.client.put_object(Bucket=self.bucket.name, Key=f"dir/{name}", Body=data)

    def requested(self) -> list[str]:
        """What the adapter asked for so far."""
        return [s3_operation_of(request) for request in self.faults.requests]

    @property
    def is_by_obstore(self) -> bool:
        """Whether boto3 repeats at once what obstore fails at."""
        return self.settings.state_files == "obstore"

    def use(self, policy: RetryPolicy) -> RetryingExclusiveFileSystem:
        """Reach `s3://` by this policy, and nothing that waits for longer."""
        register_file_system(
            "s3", lambda: S3FileSystem(self.settings, retries=policy), retries=policy
        )
        file_system = file_system_for(self.uri)
        assert isinstance(file_system, RetryingExclusiveFileSystem)
        return file_system


@pytest.fixture(params=["moto boto3", "ministack boto3", "ministack obstore"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    server, state_files = request.param.split()
    monkeypatch.setattr(s3_settings, "_LEAST_PART_BYTES", 1)
    monkeypatch.setattr(moto.s3.models, "S3_UPLOAD_PART_MIN_SIZE", 1)
    bucket: S3Bucket = request.getfixturevalue(f"{server}_bucket")
    faults: HttpFaults = request.getfixturevalue(f"{server}_faults")
    faults.clear()
    faults.requests.clear()
    settings = S3Settings(
        endpoint_url=faults.url,
        region=bucket.server.region,
        path_style=True,
        access_key=bucket.server.access_key,
        secret_key=bucket.server.secret_key,
        part_bytes=PART,
        read_timeout_s=HANGS_S,
        state_files=state_files,
    )
    yield Store(bucket, faults, settings)
    faults.clear()
    wait_for_parts()
    unregister_file_system("s3")


@pytest.fixture(scope="module")
def moto_faults(moto: Any) -> Iterator[HttpFaults]:
    with http_faults(moto.endpoint) as faults:
        yield faults
    forget_clients(faults.url)


@pytest.fixture(scope="module")
def ministack_faults(ministack: Any) -> Iterator[HttpFaults]:
    with http_faults(ministack.endpoint) as faults:
        yield faults
    forget_clients(faults.url)


# What is done


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


@dataclass(frozen=True)
class Operation:
    """Something that the adapter does.

    Attributes:
        act: Does it through `file_system_for`.
        asks: Which requests of S3's it needs.
        before: What is stored before.
        after: What is stored when it has succeeded.
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
    "read": Operation(read_whole, ("GetObject",), before=TWO, after=BOTH),
    "list": Operation(list_all, ("ListObjectsV2",), before=TWO, after=BOTH),
    "delete": Operation(delete_two, ("DeleteObjects",), before=TWO),
    "delete tree": Operation(
        delete_below, ("ListObjectsV2", "DeleteObjects", "ListMultipartUploads"), before=TWO
    ),
}

# What happens to it


@dataclass(frozen=True)
class Fault:
    """What goes wrong.

    Attributes:
        plan: Arranges it for the requests that match.
        is_transient: Whether it is over when it has happened, if it does not happen each time.
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

BOTH_SERVERS = ("reset", "answer lost", "500 after", "409", "403")
"""Faults after which the server's own answers to what is repeated count; ministack has them all."""


BY_OBSTORE = ("small file", "empty file", "read")
"""What obstore has a part in."""


def cases(*stores: str) -> list[Any]:
    """Each operation, each of its requests and what happens to it, in each store."""
    return [
        pytest.param(store, name, asked, fault, id=f"{store}-{name}-{asked}-{fault}")
        for store in stores
        for name, done in OPERATIONS.items()
        for asked in done.asks
        for fault in FAULTS
        if store.startswith("ministack") or fault in BOTH_SERVERS
        if store.endswith("boto3") or name in BY_OBSTORE
    ]


def outcome(operation: Operation, store: Store) -> CheckpointError | None:
    """What it raises: only errors of our own."""
    try:
        operation.act(store)
    except CheckpointError as error:
        return error
    return None


def check_nothing_is_left(store: Store, operation: Operation, error: CheckpointError) -> None:
    """After an error nothing has changed, unless it says that nobody knows."""
    stored = store.contents()
    if isinstance(error, OutcomeUnknownError):
        assert stored in ({}, dict(operation.after))
    elif operation.before:
        assert set(stored) <= set(operation.before)
    else:
        assert stored == {}
    assert store.bucket.uploads() == []


@pytest.mark.parametrize(
    ("store", "name", "asked", "fault"),
    cases("moto boto3", "ministack boto3", "ministack obstore"),
    indirect=["store"],
)
def test_what_goes_wrong_once_ends_in_success_or_in_a_clean_error(
    store: Store, name: str, asked: str, fault: str
) -> None:
    done, wrong = OPERATIONS[name], FAULTS[fault]
    store.use(PATIENT)
    for file in done.before:
        store.put(file, LARGE)
    wrong.plan(store.faults, s3_operation(asked), "next")
    error = outcome(done, store)
    assert asked in store.requested()
    if wrong.is_transient:
        assert error is None
    if error is None:
        assert store.contents() == dict(done.after)
        if asked != "AbortMultipartUpload" or wrong.is_transient:
            assert store.bucket.uploads() == []
    else:
        assert isinstance(error, InvalidRequestError)
        check_nothing_is_left(store, done, error)


@pytest.mark.parametrize(
    ("store", "name", "asked", "fault"),
    cases("ministack boto3", "ministack obstore"),
    indirect=["store"],
)
def test_what_never_works_ends_in_a_clean_error(
    store: Store, name: str, asked: str, fault: str
) -> None:
    done, wrong = OPERATIONS[name], FAULTS[fault]
    store.use(SOON)
    for file in done.before:
        store.put(file, LARGE)
    wrong.plan(store.faults, s3_operation(asked), "every")
    error = outcome(done, store)
    if asked == "AbortMultipartUpload":
        assert error is None  # it never raises; what it can't remove is for a sweep
        assert store.contents() == {}
        return
    if error is None:
        # The answer had no body, or an attempt was performed; `abort` does not wait for parts.
        # To list uploads is a permission of its own, which nothing else needs.
        assert (
            name == "abort"
            or asked == "ListMultipartUploads"
            or fault in ("answer truncated", "answer lost", "500 after")
        )
        assert store.contents() == dict(done.after)
        assert store.bucket.uploads() == []
    else:
        assert isinstance(
            error, InvalidRequestError | OutcomeUnknownError | StorageUnavailableError
        )
        if not wrong.is_transient:
            assert isinstance(error, InvalidRequestError)
        check_nothing_is_left(store, done, error)


# Unknown, refused, full


@pytest.mark.parametrize("fault", ["500", "reset", "answer lost", "500 after", "200 and an error"])
def test_publishing_without_an_answer_is_unknown_and_never_unavailable(
    store: Store, fault: str
) -> None:
    FAULTS[fault].plan(store.faults, s3_operation("PutObject"), "every")
    with pytest.raises(OutcomeUnknownError) as caught:
        S3FileSystem(store.settings).publish(store.uri, SMALL)
    assert caught.value.location == store.uri
    assert store.requested() == ["PutObject"]
    store.use(SOON)
    with pytest.raises(OutcomeUnknownError):
        file_system_for(store.uri).publish(store.uri, SMALL)  # type: ignore[attr-defined]  # S3 has it


def test_publishing_stays_unknown_when_a_later_attempt_is_turned_away(store: Store) -> None:
    file_system = store.use(SOON)
    store.faults.lose_answer(s3_operation("PutObject"))
    store.faults.answer(503, s3_operation("PutObject"), 2, times=10_000)
    with pytest.raises(OutcomeUnknownError):
        file_system.publish(store.uri, SMALL)
    assert store.contents() == {"x": SMALL}


@pytest.mark.parametrize("code", ["SlowDown", "ConditionalRequestConflict", "RequestTimeout"])
def test_publishing_that_the_store_turned_away_is_unavailable(store: Store, code: str) -> None:
    store.faults.answer(503 if code == "SlowDown" else 409, s3_operation("PutObject"), code=code)
    with pytest.raises(StorageUnavailableError):
        S3FileSystem(store.settings).publish(store.uri, SMALL)
    assert store.contents() == {}


def test_a_broken_encryption_does_not_say_that_nothing_was_done(store: Store) -> None:
    events = s3_client.connection_for(store.settings).client.meta.events

    def perform_and_fail(**_: Any) -> None:
        store.put("x", SMALL)
        raise SSLError(endpoint_url=store.faults.url, error="bad record mac")  # of the answer

    events.register("before-send.s3.PutObject", perform_and_fail, "fail")
    try:
        with pytest.raises(OutcomeUnknownError):
            S3FileSystem(store.settings).publish(store.uri, SMALL)
    finally:
        events.unregister("before-send.s3.PutObject", unique_id="fail")


@pytest.mark.parametrize("name", ["publish", "small file", "large file"])
def test_a_store_that_nobody_can_reach_has_done_nothing(store: Store, name: str) -> None:
    with http_faults(store.bucket.server.endpoint) as gone:
        url = gone.url
    store.settings = S3Settings(endpoint_url=url, region="x", access_key="a", secret_key="b")
    store.use(SOON)
    error = outcome(OPERATIONS[name], store)
    forget_clients(url)
    assert type(error) is StorageUnavailableError


@pytest.mark.parametrize(
    ("status", "code"), [(507, "InsufficientCapacity"), (403, "QuotaExceeded")]
)
@pytest.mark.parametrize("name", ["publish", "small file", "large file"])
def test_a_full_store_is_told_from_one_that_did_not_answer(
    store: Store, name: str, status: int, code: str
) -> None:
    store.use(SOON)
    asked = OPERATIONS[name].asks[-1]
    store.faults.answer(status, s3_operation(asked), "every", code=code)
    error = outcome(OPERATIONS[name], store)
    assert type(error) is StorageFullError
    repeats = store.is_by_obstore and name == "small file"
    assert store.requested().count(asked) == (2 if repeats else 1)
    check_nothing_is_left(store, OPERATIONS[name], error)


# Uploads


def test_a_completion_whose_answer_was_lost_finds_its_file_where_the_upload_is_gone(
    store: Store,
) -> None:
    store.use(PATIENT)
    asked = s3_operation("CompleteMultipartUpload")
    store.faults.lose_answer(asked, 1)
    store.faults.answer(404, asked, 2, code="NoSuchUpload")  # as S3 says; the servers here don't
    write(LARGE)(store)
    assert store.contents() == {"x": LARGE}
    assert store.bucket.uploads() == []


def test_a_completion_whose_answer_was_lost_finds_its_file_where_the_name_is_taken(
    store: Store,
) -> None:
    store.use(PATIENT)
    asked = s3_operation("CompleteMultipartUpload")
    store.faults.lose_answer(asked, 1)
    store.faults.answer(412, asked, 2)
    write(LARGE)(store)
    assert store.contents() == {"x": LARGE}


def test_an_upload_that_somebody_aborted_fails_and_leaves_nothing(store: Store) -> None:
    store.use(SOON)
    stream = file_system_for(store.uri).create(store.uri)
    stream.write(LARGE)
    [(key, upload)] = store.bucket.uploads()
    store.faults.answer(404, s3_operation("CompleteMultipartUpload"), code="NoSuchUpload")
    store.bucket.client.abort_multipart_upload(Bucket=store.bucket.name, Key=key, UploadId=upload)
    with pytest.raises(CheckpointError):
        stream.commit()
    stream.abort()
    assert store.contents() == {}
    assert store.bucket.uploads() == []


@pytest.mark.parametrize("fault", ["500", "reset", "answer lost"])
@pytest.mark.parametrize("name", ["small file", "large file"])
def test_looking_whose_file_it_is_may_fail_and_is_repeated(
    store: Store, name: str, fault: str
) -> None:
    store.use(PATIENT)
    asked = s3_operation(OPERATIONS[name].asks[-1])
    store.faults.lose_answer(asked, 1)
    store.faults.answer(412, asked, 2)
    FAULTS[fault].plan(store.faults, s3_operation("HeadObject"), "next")
    OPERATIONS[name].act(store)
    assert "HeadObject" in store.requested()
    assert store.contents() == dict(OPERATIONS[name].after)


@pytest.mark.parametrize("name", ["small file", "large file"])
def test_where_nobody_can_look_whose_file_it_is_it_stays_unknown(store: Store, name: str) -> None:
    store.use(SOON)
    asked = s3_operation(OPERATIONS[name].asks[-1])
    store.faults.lose_answer(asked, 1)
    store.faults.answer(412, asked, 2)
    store.faults.reset(s3_operation("HeadObject"), "every")
    error = outcome(OPERATIONS[name], store)
    if error is None:  # an upload may be completed twice
        assert store.contents() == dict(OPERATIONS[name].after)
    else:
        assert isinstance(error, OutcomeUnknownError)
        check_nothing_is_left(store, OPERATIONS[name], error)


@pytest.mark.parametrize("name", ["small file", "large file"])
def test_a_file_of_somebody_else_is_not_taken_for_ours_after_a_lost_answer(
    store: Store, name: str
) -> None:
    store.use(PATIENT)
    store.put("x", b"theirs")
    asked = s3_operation(OPERATIONS[name].asks[-1])
    store.faults.reset(asked)
    with pytest.raises(CheckpointConflictError):
        OPERATIONS[name].act(store)
    assert store.contents() == {"x": b"theirs"}
    assert store.bucket.uploads() == []


def test_an_upload_that_is_gone_already_is_aborted_without_a_word(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    store.use(PATIENT)
    store.faults.answer(404, s3_operation("AbortMultipartUpload"), "every", code="NoSuchUpload")
    with caplog.at_level(logging.WARNING):
        give_up(store)
    assert [record for record in caplog.records if "could not abort" in record.message] == []


def test_what_can_not_be_aborted_is_said(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    store.use(SOON)
    store.faults.answer(403, s3_operation("AbortMultipartUpload"), "every")
    give_up(store)
    assert "could not abort" in caplog.text
    assert store.uri in caplog.text


def test_a_failed_part_stops_the_writer_and_nothing_is_left(store: Store) -> None:
    store.use(SOON)
    store.faults.answer(403, s3_operation("UploadPart"), 2)
    stream = file_system_for(store.uri).create(store.uri)
    with pytest.raises(InvalidRequestError):
        for _ in range(1000):
            stream.write(bytes(PART))
    with pytest.raises(CheckpointError):
        stream.commit()
    stream.abort()
    assert store.contents() == {}
    assert store.bucket.uploads() == []


@pytest.mark.parametrize(
    "store", ["ministack boto3"], indirect=True
)  # to moto, 500 is a lost upload
@pytest.mark.parametrize("at", ["UploadPart", "CompleteMultipartUpload"])
def test_abort_from_another_thread_stops_a_commit_that_waits_for_the_store(
    store: Store, at: str
) -> None:
    file_system = store.use(SOON)
    reached, go_on = store.faults.blocking(s3_operation(at))
    stream = file_system.create(store.uri)
    with ThreadPoolExecutor(1) as pool:

        def make() -> None:
            stream.write(LARGE)
            stream.commit()

        making = pool.submit(make)
        assert reached.wait(HANGS_S)
        stream.abort()
        go_on.set()
        with pytest.raises(StreamClosedError):
            making.result(HANGS_S)
    assert store.contents() == {}
    assert store.bucket.uploads() == []


@pytest.mark.parametrize("concurrency", [1, 2])
def test_abort_from_another_thread_stops_a_writer_that_waits_for_room(
    store: Store, concurrency: int
) -> None:
    file_system = S3FileSystem(changed(store.settings, concurrency=concurrency), retries=SOON)
    reached, go_on = store.faults.blocking(s3_operation("UploadPart"), "every")
    stream = file_system.create(store.uri)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(stream.write, bytes(10 * PART))
        assert reached.wait(HANGS_S)
        stream.abort()
        go_on.set()
        with pytest.raises(StreamClosedError):
            writing.result(HANGS_S)
    wait_for_parts()
    assert store.contents() == {}
    assert store.bucket.uploads() == []


def changed(settings: S3Settings, **changes: Any) -> S3Settings:
    values = {name: getattr(settings, name) for name in S3Settings.__slots__}
    return S3Settings(**{**values, **changes})


def wait_for_parts() -> None:
    """Let parts that are on their way arrive: `abort` waits for none."""
    for thread in threading.enumerate():
        if thread.name.startswith("holdfast-s3-part"):
            thread.join(HANGS_S)


# Reading


def test_reading_goes_on_behind_the_last_byte_that_arrived(store: Store) -> None:
    store.use(PATIENT)
    store.put("x", LARGE)
    store.faults.truncate(1000, s3_operation("GetObject"), 1)
    store.faults.truncate(500, s3_operation("GetObject"), 2)
    store.faults.reset(s3_operation("GetObject"), 3)
    read_whole(store)
    assert store.requested().count("GetObject") >= 4


@pytest.mark.parametrize("position", [0, 3000])
def test_an_error_in_the_place_of_the_content_is_not_taken_for_it(
    store: Store, position: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_input_stream, "_SKIPPED_BYTES", 0)
    file_system = S3FileSystem(store.settings)
    store.put("x", LARGE)
    monkeypatch.setattr(through_obstore, "_HEAD_BYTES", 1000)
    by_both = store.is_by_obstore and position == 0
    for number in (1, 2) if by_both else (1 if position == 0 else 2,):
        store.faults.answer(200, s3_operation("GetObject"), number)
    with pytest.raises(CheckpointError), file_system.open(store.uri) as stream:
        stream.seek(position)
        stream.read(50)


# Deleting


def some_fail(store: Store, codes: dict[str, str]) -> list[list[str]]:
    """Let the first bulk deletion say that these keys failed, later ones only what is for good.

    Returns:
        Which keys were asked for, each time.
    """
    asked: list[list[str]] = []
    events = s3_client.connection_for(store.settings).client.meta.events

    def note(params: dict[str, Any], **_: Any) -> None:
        asked.append([one["Key"] for one in params["Delete"]["Objects"]])

    def say(parsed: dict[str, Any], **_: Any) -> None:
        parsed["Errors"] = [
            {"Key": key, "Code": code}
            for key, code in codes.items()
            if key in asked[-1] and (len(asked) == 1 or code in ("AccessDenied", "NoSuchKey"))
        ]

    events.register("provide-client-params.s3.DeleteObjects", note, "note")
    events.register("after-call.s3.DeleteObjects", say, "say")
    return asked


@pytest.fixture
def _as_before(store: Store) -> Iterator[None]:
    yield
    events = s3_client.connection_for(store.settings).client.meta.events
    events.unregister("provide-client-params.s3.DeleteObjects", unique_id="note")
    events.unregister("after-call.s3.DeleteObjects", unique_id="say")


@pytest.mark.usefixtures("_as_before")
@pytest.mark.parametrize("code", ["InternalError", "SlowDown", "ServiceUnavailable"])
def test_keys_that_failed_are_deleted_again(store: Store, code: str) -> None:
    for name in "abc":
        store.put(name, SMALL)
    asked = some_fail(store, {"dir/b": code})
    store.use(PATIENT).delete(f"{store.directory}/{name}" for name in "abc")
    assert asked[0] == ["dir/a", "dir/b", "dir/c"]
    assert len(asked) == 2
    assert "dir/b" in asked[1]
    assert store.contents() == {}


@pytest.mark.usefixtures("_as_before")
def test_a_key_that_may_not_be_deleted_does_not_keep_the_others_from_it(store: Store) -> None:
    for name in "abc":
        store.put(name, SMALL)
    asked = some_fail(store, {"dir/a": "AccessDenied", "dir/c": "SlowDown"})
    with pytest.raises(InvalidRequestError, match="AccessDenied") as caught:
        store.use(PATIENT).delete(f"{store.directory}/{name}" for name in "abc")
    assert caught.value.location == f"{store.directory}/a"
    assert any("dir/c" in keys for keys in asked[1:])


@pytest.mark.usefixtures("_as_before")
def test_a_key_that_is_missing_counts_as_deleted_where_the_store_calls_it_an_error(
    store: Store,
) -> None:
    some_fail(store, {"dir/a": "NoSuchKey"})
    store.use(SOON).delete([f"{store.directory}/a"])


def test_a_batch_that_fails_does_not_keep_the_next_one_from_being_deleted(store: Store) -> None:
    store.faults.answer(403, s3_operation("DeleteObjects"))
    store.put("last", SMALL)
    uris = [f"{store.directory}/{number}" for number in range(1000)] + [f"{store.directory}/last"]
    with pytest.raises(InvalidRequestError):
        S3FileSystem(store.settings, retries=SOON).delete(uris)
    assert store.contents() == {}


# Races


def test_of_racing_commits_with_lost_answers_exactly_one_wins(store: Store) -> None:
    store.use(PATIENT)
    chance = random.Random(4)
    puts = s3_operation("PutObject")
    for race in range(20):
        uri = f"{store.directory}/{race}"
        store.faults.clear()
        for nth in chance.sample(range(1, 9), 4):
            fault = chance.choice(["answer lost", "409", "500 after", "reset", "503"])
            FAULTS[fault].plan(store.faults, puts, nth)
        start = threading.Barrier(4)

        def wins(racer: int, uri: str = uri, start: threading.Barrier = start) -> bool:
            start.wait(HANGS_S)
            try:
                publish(uri, b"%d" % racer * 100, single_writer=False)
            except CheckpointConflictError:
                return False
            return True

        with ThreadPoolExecutor(4) as pool:
            won = list(pool.map(wins, range(4)))
        assert won.count(True) == 1
        assert store.contents()[str(race)] == b"%d" % won.index(True) * 100


def test_of_racing_commits_whose_first_answers_are_all_lost_exactly_one_wins(store: Store) -> None:
    store.use(PATIENT)
    store.faults.lose_answer(s3_operation("PutObject"), times=4)
    with ThreadPoolExecutor(4) as pool:

        def wins(racer: int) -> bool:
            try:
                publish(store.uri, b"%d" % racer, single_writer=False)
            except CheckpointConflictError:
                return False
            return True

        won = list(pool.map(wins, range(4)))
    assert won.count(True) == 1
    assert store.contents() == {"x": b"%d" % won.index(True)}


# What it costs


@pytest.mark.parametrize(
    ("name", "requests"),
    [
        ("publish", {"PutObject": 1}),
        ("small file", {"PutObject": 1}),
        ("empty file", {"PutObject": 1}),
        ("large file", {"CreateMultipartUpload": 1, "UploadPart": 4, "CompleteMultipartUpload": 1}),
        ("read", {"GetObject": 1}),
        ("list", {"ListObjectsV2": 1}),
        ("delete", {"DeleteObjects": 1}),
        ("delete tree", {"ListObjectsV2": 1, "DeleteObjects": 1, "ListMultipartUploads": 1}),
    ],
)
def test_nothing_is_asked_for_that_is_not_needed(
    store: Store, name: str, requests: dict[str, int]
) -> None:
    store.use(PATIENT)
    for file in OPERATIONS[name].before:
        store.put(file, LARGE)
    OPERATIONS[name].act(store)
    assert Counter(store.requested()) == requests


def test_a_file_of_one_part_exactly_is_whole(store: Store) -> None:
    store.use(PATIENT)
    write(bytes(PART))(store)
    assert store.contents() == {"x": bytes(PART)}


def test_a_missing_file_costs_one_request(store: Store) -> None:
    with pytest.raises(CheckpointNotFoundError):
        S3FileSystem(store.settings).open(store.uri)
    assert store.requested() == ["GetObject"]


def test_preparing_a_directory_and_beginning_a_file_cost_nothing(store: Store) -> None:
    file_system = store.use(PATIENT)
    file_system.prepare_directory(store.directory)
    file_system.delete_empty_directory(store.directory)
    file_system.create(store.uri).abort()
    assert store.requested() == []
