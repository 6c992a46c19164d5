"""Every operation on S3 with every fault of its requests."""

from typing import Any

import pytest
from contracts.patience import PATIENT
from contracts.s3_faults import (
    FAULTS,
    LARGE,
    OPERATIONS,
    SOON,
    Store,
    check_nothing_is_left,
    outcome,
)

from holdfast.errors import InvalidRequestError, OutcomeUnknownError, StorageUnavailableError
from holdfast.testing import s3_operation

BY_OBSTORE = ("small file", "empty file", "read")
"""The operations that obstore takes part in."""

REQUESTS = [(name, asked) for name, done in OPERATIONS.items() for asked in done.asks]
"""Each operation with each of the requests that it needs."""

ON_MOTO = ("reset", "answer lost", "500 after", "409", "403")
"""Faults after which the server's own answers to repeated requests count."""


def by(store: str, name: str, asked: str, fault: str, *, is_exhaustive: bool = False) -> Any:
    # Over HTTP it takes ten times as long, with the same requests.
    marks = [pytest.mark.exhaustive] if is_exhaustive else []
    return pytest.param(
        store, name, asked, fault, id=f"{store}-{name}-{asked}-{fault}", marks=marks
    )


def cases(nth: str) -> list[Any]:
    """Return the operations, each with a request of it that fails, and the fault.

    In this process these are all combinations. Over HTTP each request meets each fault, on one of the
    two servers and either once or each time, so that each two of these four meet. Operations of
    obstore meet each fault, alternately in a usual run.

    Args:
        nth: Whether it fails `"once"`, or `"always"`.
    """
    by_obstore = [pair for pair in REQUESTS if pair[0] in BY_OBSTORE]
    return [
        *(by("memory boto3", *pair, fault) for pair in REQUESTS for fault in FAULTS),
        *(
            by("memory obstore", *pair, fault, is_exhaustive=(row + column) % 3 != 0)
            for row, pair in enumerate(by_obstore)
            for column, fault in enumerate(FAULTS)
        ),
        *(
            by(
                "moto boto3" if nth == "once" and fault in ON_MOTO else "ministack boto3",
                *pair,
                fault,
                is_exhaustive=True,
            )
            for row, pair in enumerate(REQUESTS)
            for column, fault in enumerate(FAULTS)
            if (row + column) % 2 == (nth == "once")
        ),
        *(
            by("ministack obstore", *pair, fault, is_exhaustive=True)
            for row, pair in enumerate(by_obstore)
            for column, fault in enumerate(FAULTS)
            if (row + column) % 3 == 1 + (nth == "once")
        ),
    ]


@pytest.mark.parametrize(
    ("store", "name", "asked", "fault"),
    cases("once"),
    indirect=["store"],
)
def test_single_failure_ends_in_success_or_a_clean_error(
    store: Store, name: str, asked: str, fault: str
) -> None:
    done, wrong = OPERATIONS[name], FAULTS[fault]
    store.use(PATIENT)
    for file in done.before:
        store.put(file, LARGE)
    wrong.plan(store.faults, s3_operation(asked), "next")
    error = outcome(done, store)
    assert asked in store.requested_operations()
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
    cases("always"),
    indirect=["store"],
)
def test_permanent_failure_ends_in_a_clean_error(
    store: Store, name: str, asked: str, fault: str
) -> None:
    done, wrong = OPERATIONS[name], FAULTS[fault]
    store.use(SOON)
    for file in done.before:
        store.put(file, LARGE)
    wrong.plan(store.faults, s3_operation(asked), "every")
    error = outcome(done, store)
    if asked == "AbortMultipartUpload":
        assert error is None  # it never raises; a sweep deletes the rest
        assert store.contents() == {}
        return
    if error is None:
        # The answer had no body, or an attempt was performed; `abort` does not wait for parts.
        # Listing uploads needs a separate permission, which nothing else needs.
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
