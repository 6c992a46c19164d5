"""Uploads to S3 in parts that are interrupted, aborted or completed twice."""

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from contracts.patience import HANGS_S, PATIENT, wait_for_parts
from contracts.s3_faults import (
    FAULTS,
    LARGE,
    OPERATIONS,
    PART,
    SOON,
    Store,
    check_nothing_is_left,
    give_up,
    outcome,
    write,
)
from servers.buckets import OF_OTHERS

from holdfast.errors import (
    CheckpointConflictError,
    CheckpointError,
    InvalidRequestError,
    OutcomeUnknownError,
    StreamClosedError,
)
from holdfast.locations.adapters import file_system_for
from holdfast.locations.file_systems import S3FileSystem
from holdfast.testing import s3_operation


def test_lost_completion_finds_its_file_if_the_upload_is_gone(
    store: Store,
) -> None:
    store.use(PATIENT)
    asked = s3_operation("CompleteMultipartUpload")
    store.faults.lose_answer(asked, 1)
    store.faults.answer(404, asked, 2, code="NoSuchUpload")  # as S3 does; the servers here don't
    write(LARGE)(store)
    assert store.contents() == {"x": LARGE}
    assert store.bucket.uploads() == []


def test_lost_completion_finds_its_file_if_the_name_is_taken(
    store: Store,
) -> None:
    store.use(PATIENT)
    asked = s3_operation("CompleteMultipartUpload")
    store.faults.lose_answer(asked, 1)
    store.faults.answer(412, asked, 2)
    write(LARGE)(store)
    assert store.contents() == {"x": LARGE}


def test_upload_aborted_by_another_process_fails_and_leaves_nothing(store: Store) -> None:
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
def test_failed_check_of_the_owner_is_repeated(store: Store, name: str, fault: str) -> None:
    store.use(PATIENT)
    asked = s3_operation(OPERATIONS[name].asks[-1])
    store.faults.lose_answer(asked, 1)
    store.faults.answer(412, asked, 2)
    FAULTS[fault].plan(store.faults, s3_operation("HeadObject"), "next")
    OPERATIONS[name].act(store)
    assert "HeadObject" in store.requested_operations()
    assert store.contents() == dict(OPERATIONS[name].after)


@pytest.mark.parametrize("name", ["small file", "large file"])
def test_outcome_is_unknown_if_the_owner_can_not_be_read(store: Store, name: str) -> None:
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
def test_file_of_another_writer_is_not_ours_after_a_lost_answer(store: Store, name: str) -> None:
    store.use(PATIENT)
    store.put("x", b"theirs")
    asked = s3_operation(OPERATIONS[name].asks[-1])
    store.faults.reset(asked)
    with pytest.raises(CheckpointConflictError):
        OPERATIONS[name].act(store)
    assert store.contents() == {"x": b"theirs"}
    assert store.bucket.uploads() == []


def test_missing_upload_is_aborted_silently(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    store.use(PATIENT)
    store.faults.answer(404, s3_operation("AbortMultipartUpload"), "every", code="NoSuchUpload")
    with caplog.at_level(logging.WARNING):
        give_up(store)
    assert [record for record in caplog.records if "could not abort" in record.message] == []


def test_failed_abort_is_logged(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    store.use(SOON)
    store.faults.answer(403, s3_operation("AbortMultipartUpload"), "every")
    give_up(store)
    assert "could not abort" in caplog.text
    assert store.uri in caplog.text


def test_failed_part_stops_the_writer_and_nothing_is_left(store: Store) -> None:
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
    "store",
    # For moto, 500 is a lost upload.
    ["memory boto3", pytest.param("ministack boto3", marks=OF_OTHERS)],
    indirect=True,
)
@pytest.mark.parametrize("at", ["UploadPart", "CompleteMultipartUpload"])
def test_abort_by_another_thread_stops_a_waiting_commit(store: Store, at: str) -> None:
    file_system = store.use(SOON)
    reached, may_answer = store.faults.blocking(s3_operation(at))
    stream = file_system.create(store.uri)
    with ThreadPoolExecutor(1) as pool:

        def make() -> None:
            stream.write(LARGE)
            stream.commit()

        making = pool.submit(make)
        assert reached.wait(HANGS_S)
        stream.abort()
        may_answer.set()
        with pytest.raises(StreamClosedError):
            making.result(HANGS_S)
    assert store.contents() == {}
    assert store.bucket.uploads() == []


@pytest.mark.parametrize("concurrency", [1, 2])
def test_abort_by_another_thread_stops_a_waiting_writer(store: Store, concurrency: int) -> None:
    file_system = S3FileSystem(replace(store.settings, concurrency=concurrency), retries=SOON)
    reached, may_answer = store.faults.blocking(s3_operation("UploadPart"), "every")
    stream = file_system.create(store.uri)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(stream.write, bytes(10 * PART))
        assert reached.wait(HANGS_S)
        stream.abort()
        may_answer.set()
        with pytest.raises(StreamClosedError):
            writing.result(HANGS_S)
    wait_for_parts()
    assert store.contents() == {}
    assert store.bucket.uploads() == []
