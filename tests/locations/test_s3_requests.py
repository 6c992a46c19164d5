"""The requests to S3: their number, reads after a failed one, and races between them."""

import random
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from contracts.patience import HANGS_S, PATIENT
from contracts.s3_faults import (
    FAULTS,
    LARGE,
    OPERATIONS,
    PART,
    SMALL,
    SOON,
    Store,
    read_whole,
    write,
)
from jobs.coordinator import acknowledge, begin_checkpoint, coordinator, progress
from servers.watched import WatchedBucket

from holdfast.errors import (
    CheckpointConflictError,
    CheckpointError,
    CheckpointNotFoundError,
    InvalidRequestError,
)
from holdfast.locations.file_systems import S3FileSystem, publish, s3_client
from holdfast.locations.file_systems.obstore_bucket import HEAD_BYTES
from holdfast.spark.query import CLEANER
from holdfast.testing import s3_operation

ANNOUNCED = 1 << 20
"""Length of the smallest body that is announced before it is sent."""

# Reading


def test_read_resumes_after_the_last_byte_received(store: Store) -> None:
    store.use(PATIENT)
    store.put("x", LARGE)
    store.faults.truncate(1000, s3_operation("GetObject"), 1)
    store.faults.truncate(500, s3_operation("GetObject"), 2)
    store.faults.reset(s3_operation("GetObject"), 3)
    read_whole(store)
    assert store.requested_operations().count("GetObject") >= 4


@pytest.mark.parametrize("position", [0, HEAD_BYTES + 3000])
def test_error_instead_of_the_content_is_an_error(store: Store, position: int) -> None:
    file_system = S3FileSystem(store.settings)
    store.put("x", bytes(HEAD_BYTES + 5000))
    by_both = store.is_by_obstore and position == 0
    for number in (1, 2) if by_both else (1 if position == 0 else 2,):
        store.faults.answer(200, s3_operation("GetObject"), number)
    with pytest.raises(CheckpointError), file_system.open(store.uri) as stream:
        stream.seek(position)
        stream.read(50)


# Deleting


def some_fail(store: Store, codes: dict[str, str]) -> list[list[str]]:
    """Let the first bulk deletion report these keys as failed, later ones only the permanent failures.

    Returns:
        The keys of each request.
    """
    asked: list[list[str]] = []
    events = s3_client.connection_for(store.settings).client.meta.events

    def note(params: dict[str, Any], **_: Any) -> None:
        asked.append([entry["Key"] for entry in params["Delete"]["Objects"]])

    def report_failures(parsed: dict[str, Any], **_: Any) -> None:
        parsed["Errors"] = [
            {"Key": key, "Code": code}
            for key, code in codes.items()
            if key in asked[-1] and (len(asked) == 1 or code in ("AccessDenied", "NoSuchKey"))
        ]

    events.register("provide-client-params.s3.DeleteObjects", note, "note")
    events.register("after-call.s3.DeleteObjects", report_failures, "failures")
    return asked


@pytest.fixture
def _as_before(store: Store) -> Iterator[None]:
    yield
    events = s3_client.connection_for(store.settings).client.meta.events
    events.unregister("provide-client-params.s3.DeleteObjects", unique_id="note")
    events.unregister("after-call.s3.DeleteObjects", unique_id="failures")


@pytest.mark.usefixtures("_as_before")
@pytest.mark.parametrize("code", ["InternalError", "SlowDown", "ServiceUnavailable"])
def test_failed_keys_are_deleted_again(store: Store, code: str) -> None:
    for name in "abc":
        store.put(name, SMALL)
    asked = some_fail(store, {"dir/b": code})
    store.use(PATIENT).delete(f"{store.directory}/{name}" for name in "abc")
    assert asked[0] == ["dir/a", "dir/b", "dir/c"]
    assert len(asked) == 2
    assert "dir/b" in asked[1]
    assert store.contents() == {}


@pytest.mark.usefixtures("_as_before")
def test_protected_key_does_not_stop_the_other_deletions(store: Store) -> None:
    for name in "abc":
        store.put(name, SMALL)
    asked = some_fail(store, {"dir/a": "AccessDenied", "dir/c": "SlowDown"})
    with pytest.raises(InvalidRequestError, match="AccessDenied") as caught:
        store.use(PATIENT).delete(f"{store.directory}/{name}" for name in "abc")
    assert caught.value.location == f"{store.directory}/a"
    assert any("dir/c" in keys for keys in asked[1:])


@pytest.mark.usefixtures("_as_before")
def test_missing_key_counts_as_deleted_if_the_store_reports_an_error(
    store: Store,
) -> None:
    some_fail(store, {"dir/a": "NoSuchKey"})
    store.use(SOON).delete([f"{store.directory}/a"])


def test_failed_batch_does_not_stop_the_next_one(store: Store) -> None:
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


def test_one_racing_commit_wins_although_all_first_answers_are_lost(store: Store) -> None:
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


# Costs


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
def test_only_needed_requests_are_sent(store: Store, name: str, requests: dict[str, int]) -> None:
    store.use(PATIENT)
    for file in OPERATIONS[name].before:
        store.put(file, LARGE)
    OPERATIONS[name].act(store)
    assert Counter(store.requested_operations()) == requests


@pytest.mark.parametrize(("inline_threshold", "files"), [(0, 2), (1000, 0)])
def test_checkpoint_and_its_deletion_cost_few_requests(
    store: Store, inline_threshold: int, files: int
) -> None:
    store.use(PATIENT)
    driver = coordinator(store.directory, num_retained=1, inline_threshold=inline_threshold)
    for batch_id in range(5):
        if batch_id == 2:
            store.faults.requests.clear()
        pending = begin_checkpoint(driver, batch_id)
        driver.complete(pending, acknowledge(pending), progress(batch_id))
        CLEANER.wait()
    assert Counter(store.requested_operations()) == {
        "PutObject": 3 * (files + 1),
        "ListObjectsV2": 3,  # claims and leases, after the commit
        "DeleteObjects": 3 * (2 if files else 1),  # its metadata, then its files
    }


@pytest.mark.parametrize("size", [0, ANNOUNCED - 1, ANNOUNCED])
def test_only_large_body_waits_for_consent(watched: WatchedBucket, size: int) -> None:
    """Botocore sends it after `100 Continue`, a round trip later."""
    watched.file_system().publish(f"{watched.directory}/x", bytes(size))
    [headers] = watched.request_headers("PutObject")
    assert headers.get("expect") == (None if size < ANNOUNCED else "100-continue")


def test_file_of_one_part_exactly_is_whole(store: Store) -> None:
    store.use(PATIENT)
    write(bytes(PART))(store)
    assert store.contents() == {"x": bytes(PART)}


def test_missing_file_costs_one_request(store: Store) -> None:
    with pytest.raises(CheckpointNotFoundError):
        S3FileSystem(store.settings).open(store.uri)
    assert store.requested_operations() == ["GetObject"]


def test_preparing_a_directory_and_beginning_a_file_cost_nothing(store: Store) -> None:
    file_system = store.use(PATIENT)
    file_system.prepare_directory(store.directory)
    file_system.delete_empty_directory(store.directory)
    file_system.create(store.uri).abort()
    assert store.requested_operations() == []
