"""Requests that S3 did not answer, refused, or had no room for."""

from typing import Any

import pytest
from contracts.s3_faults import (
    FAULTS,
    OPERATIONS,
    SMALL,
    SOON,
    Store,
    check_nothing_is_left,
    outcome,
)
from servers.buckets import forget_clients

from holdfast.errors import OutcomeUnknownError, StorageFullError, StorageUnavailableError
from holdfast.locations import S3Settings
from holdfast.locations.adapters import file_system_for
from holdfast.locations.file_systems import S3FileSystem, s3_client
from holdfast.testing import http_faults, s3_operation


@pytest.mark.parametrize("fault", ["500", "reset", "answer lost", "500 after", "200 and an error"])
def test_publishing_without_an_answer_is_unknown_and_never_unavailable(
    store: Store, fault: str
) -> None:
    FAULTS[fault].plan(store.faults, s3_operation("PutObject"), "every")
    with pytest.raises(OutcomeUnknownError) as caught:
        S3FileSystem(store.settings).publish(store.uri, SMALL)
    assert caught.value.location == store.uri
    assert store.requested_operations() == ["PutObject"]
    store.use(SOON)
    with pytest.raises(OutcomeUnknownError):
        file_system_for(store.uri).publish(store.uri, SMALL)  # type: ignore[attr-defined]  # S3 has the object


def test_publishing_stays_unknown_when_a_later_attempt_is_turned_away(store: Store) -> None:
    file_system = store.use(SOON)
    store.faults.lose_answer(s3_operation("PutObject"))
    store.faults.answer(503, s3_operation("PutObject"), 2, times=10_000)
    with pytest.raises(OutcomeUnknownError):
        file_system.publish(store.uri, SMALL)
    assert store.contents() == {"x": SMALL}


@pytest.mark.parametrize("code", ["SlowDown", "ConditionalRequestConflict", "RequestTimeout"])
def test_publication_rejected_by_the_store_is_unavailable(store: Store, code: str) -> None:
    store.faults.answer(503 if code == "SlowDown" else 409, s3_operation("PutObject"), code=code)
    with pytest.raises(StorageUnavailableError):
        S3FileSystem(store.settings).publish(store.uri, SMALL)
    assert store.contents() == {}


def test_broken_encryption_leaves_the_outcome_unknown(store: Store) -> None:
    events = s3_client.connection_for(store.settings).client.meta.events

    from botocore.exceptions import SSLError

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
def test_unreachable_store_has_done_nothing(store: Store, name: str) -> None:
    with http_faults(store.bucket.server.endpoint) as gone:
        url = gone.url
    store.settings = S3Settings(endpoint=url, region="x", access_key="a", secret_key="b")
    store.use(SOON)
    error = outcome(OPERATIONS[name], store)
    forget_clients(url)
    assert type(error) is StorageUnavailableError
    assert "S3 did not answer PutObject (" in str(error)


@pytest.mark.parametrize(
    ("status", "code"), [(507, "InsufficientCapacity"), (403, "QuotaExceeded")]
)
@pytest.mark.parametrize("name", ["publish", "small file", "large file"])
def test_full_store_differs_from_a_silent_one(
    store: Store, name: str, status: int, code: str
) -> None:
    store.use(SOON)
    asked = OPERATIONS[name].asks[-1]
    store.faults.answer(status, s3_operation(asked), "every", code=code)
    error = outcome(OPERATIONS[name], store)
    assert type(error) is StorageFullError
    repeats = store.is_by_obstore and name == "small file"
    assert store.requested_operations().count(asked) == (2 if repeats else 1)
    check_nothing_is_left(store, OPERATIONS[name], error)
