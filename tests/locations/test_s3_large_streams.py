"""Files in S3 of several parts, and the leftovers of aborted ones."""

import gc
import logging
import os
import threading
import tracemalloc
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import pytest
from contracts.files import write
from contracts.patience import HANGS_S, wait_for_parts, wait_until
from contracts.s3_objects import MIB, directory, on_each_server, only_on_ministack, s3, small_parts
from contracts.values import EXCLUSIVE
from servers.s3 import S3Bucket, SmallPartsSettings, settings_of
from servers.watched import SOON, WatchedBucket

from holdfast.errors import InvalidRequestError, StorageUnavailableError, StreamClosedError
from holdfast.locations import S3Settings, checkpoint_storage
from holdfast.locations.file_systems import Retrier, S3FileSystem, connection_for, s3_streams
from holdfast.locations.file_systems.s3_object import S3Object
from holdfast.locations.file_systems.s3_streams import MultipartUpload
from holdfast.testing import s3_operation

__all__ = ["directory", "s3", "small_parts"]


@on_each_server
@pytest.mark.parametrize("checksum", ["crc32c", "crc32", "off"])
def test_large_stream_goes_in_parts(watched: WatchedBucket, checksum: str) -> None:
    file_system = watched.file_system(part_size=5 * MIB, checksum=checksum)
    data = os.urandom(12 * MIB + 1)
    stream = file_system.create(f"{watched.directory}/x")
    for first in range(0, len(data), MIB // 3):
        stream.write(data[first : first + MIB // 3])
    stream.commit()
    assert watched.bucket.read("dir/x") == data
    counts = watched.counts()
    assert counts == {
        "CreateMultipartUpload": 1,
        "UploadPart": 3,
        "CompleteMultipartUpload": 1,
    }
    parts = [request for request in watched.faults.requests if s3_operation("UploadPart")(request)]
    assert sorted(int(request.query["partNumber"]) for request in parts) == [1, 2, 3]
    assert sorted(request.body_bytes for request in parts) == [2 * MIB + 1, 5 * MIB, 5 * MIB]
    names = {"crc32c": "x-amz-checksum-crc32c", "crc32": "x-amz-checksum-crc32"}
    for part in parts:
        sent = {name for name in part.headers if name.startswith("x-amz-checksum-crc")}
        assert sent == ({names[checksum]} if checksum in names else set())
    [done] = watched.request_headers("CompleteMultipartUpload")
    assert done["if-none-match"] == "*"
    assert done["x-amz-mp-object-size"] == str(len(data))


@pytest.mark.usefixtures("small_parts")
@on_each_server
@pytest.mark.parametrize("size", [99, 100, 101, 200, 201])
def test_sizes_around_those_of_parts_are_whole(watched: WatchedBucket, size: int) -> None:
    data = os.urandom(size)
    write(watched.file_system(part_size=100), f"{watched.directory}/x", data)
    assert watched.bucket.read("dir/x") == data
    assert watched.bucket.uploads() == []


@pytest.mark.usefixtures("small_parts")
def test_parts_grow_with_the_stream(watched: WatchedBucket) -> None:
    class FourPartsPerSize(SmallPartsSettings):
        PARTS_PER_SIZE = 4

    file_system = watched.file_system(kind=FourPartsPerSize, part_size=10, concurrency=1)
    data = os.urandom(4 * 10 + 4 * 20 + 40 + 7)
    write(file_system, f"{watched.directory}/x", data)
    parts = {
        int(request.query["partNumber"]): request.body_bytes
        for request in watched.faults.requests
        if s3_operation("UploadPart")(request)
    }
    assert [parts[number] for number in sorted(parts)] == [10] * 4 + [20] * 4 + [40, 7]
    assert watched.bucket.read("dir/x") == data


@only_on_ministack  # moto would hold the parts in this process
def test_large_stream_buffers_only_parts_in_progress(bucket: S3Bucket) -> None:
    settings = settings_of(bucket.server, part_size=5 * MIB, concurrency=2)
    stream = S3FileSystem(settings).create(f"s3://{bucket.name}/x")
    chunk = bytes(MIB)
    tracemalloc.start()
    for _ in range(50):
        stream.write(chunk)
    stream.commit()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < (2 + 1) * 5 * MIB + 3 * MIB


def start_upload(settings: S3Settings, uri: str) -> MultipartUpload:
    """Start an upload without a stream."""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    client = connection_for(settings).client
    target = S3Object(client, settings, Retrier(SOON), uri, bucket, key)
    return MultipartUpload(target, "token")


@contextmanager
def no_collection() -> Iterator[None]:
    """Only unreferenced objects are freed, no reference cycles."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.usefixtures("small_parts")
def test_committed_upload_is_freed_without_a_collection(bucket: S3Bucket) -> None:
    upload = start_upload(settings_of(bucket.server, part_size=100), f"s3://{bucket.name}/x")
    upload.write(memoryview(bytes(950)))
    forgotten = weakref.ref(upload)
    with no_collection():
        upload.complete()
        del upload
        assert forgotten() is None


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("order", ["before", "after"])
def test_upload_with_refused_parts_is_freed(
    watched: WatchedBucket, order: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)  # log records keep their exceptions
    # botocore and tenacity make reference cycles of other errors, which stay until a collection.
    may_answer = threading.Event()
    watched.faults.delay(may_answer, s3_operation("UploadPart"), "every")
    watched.faults.answer(403, s3_operation("UploadPart"), "every", code="AccessDenied")
    upload = start_upload(watched.file_system(part_size=100).settings, f"{watched.directory}/x")
    upload.write(memoryview(bytes(250)))
    if order == "before":
        may_answer.set()
        wait_until(partial(is_refused, upload), "refused parts are not reported")
    forgotten = weakref.ref(upload)
    with no_collection():
        upload.abort()
        del upload
        may_answer.set()
        wait_for_parts()
        assert forgotten() is None


def is_refused(upload: MultipartUpload) -> bool:
    """Return whether the next part is refused because an earlier one was."""
    try:
        upload.send(bytearray(100))
    except InvalidRequestError:
        return True
    return False


@pytest.mark.usefixtures("small_parts")
def test_failed_writer_can_not_commit_a_file_without_a_piece(
    watched: WatchedBucket,
) -> None:
    watched.faults.answer(403, s3_operation("CreateMultipartUpload"), 1, code="AccessDenied")
    stream = watched.file_system(part_size=100).create(f"{watched.directory}/x")
    with pytest.raises(InvalidRequestError):
        stream.write(bytes(250))
    with pytest.raises(StreamClosedError):
        stream.commit()
    assert watched.bucket.keys() == []


@pytest.mark.usefixtures("small_parts")
def test_commit_ends_when_another_thread_aborts_waiting_parts(
    watched: WatchedBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_continue, waits = threading.Event(), threading.Event()
    note = s3_streams.recycle_part

    def slowly(room: Any, failures: Any, part: Any) -> None:
        note(room, failures, part)
        if not part.cancelled():  # the only worker stops after it released its slot
            waits.set()
            may_continue.wait(HANGS_S)

    monkeypatch.setattr(s3_streams, "recycle_part", slowly)
    # Not before the writer has noticed it, because it would wait otherwise.
    noted = threading.Event()
    watched.faults.delay(noted, s3_operation("UploadPart"))
    stream = watched.file_system(part_size=4, concurrency=1).create(f"{watched.directory}/x")
    stream.write(b"12345")
    noted.set()
    with ThreadPoolExecutor(1) as pool:
        committed = pool.submit(stream.commit)
        assert waits.wait(HANGS_S)
        stream.abort()
        may_continue.set()
        with pytest.raises(StreamClosedError):
            committed.result(HANGS_S)
    assert watched.bucket.keys() == []
    assert watched.bucket.uploads() == []


@pytest.mark.parametrize("checksum", ["crc32c", "off"])
def test_of_parts_the_checksum_is_signed_and_of_all_else_the_body(
    watched: WatchedBucket, checksum: str
) -> None:
    file_system = watched.file_system(part_size=5 * MIB, checksum=checksum)
    write(file_system, f"{watched.directory}/large", bytes(6 * MIB))
    write(file_system, f"{watched.directory}/small", b"1")
    file_system.delete([f"{watched.directory}/large"])
    signed = {
        name: {
            sent["x-amz-content-sha256"] != "UNSIGNED-PAYLOAD"
            for sent in watched.request_headers(name)
        }
        for name in ("PutObject", "UploadPart", "CompleteMultipartUpload", "DeleteObjects")
    }
    parts_too = checksum == "off"
    assert signed == {
        "PutObject": {True},
        "UploadPart": {parts_too},
        "CompleteMultipartUpload": {True},
        "DeleteObjects": {True},
    }
    if not parts_too:
        assert all(
            "x-amz-checksum-crc32c" in sent["authorization"]
            for sent in watched.request_headers("UploadPart")
        )


def test_parts_reach_the_largest_object_of_s3() -> None:
    part, total = S3Settings().part_size, 0
    for number in range(1, S3Settings.MAX_PARTS + 1):
        total += part
        if number % S3Settings.PARTS_PER_SIZE == 0:
            part *= 2
    assert total >= 5 << 40
    assert part // 2 <= 5 << 30  # the largest part


@pytest.mark.usefixtures("small_parts")
def test_too_many_parts_are_refused_and_leave_nothing(watched: WatchedBucket) -> None:
    class ThreeParts(SmallPartsSettings):
        MAX_PARTS = 3

    file_system = watched.file_system(kind=ThreeParts, part_size=10)
    with pytest.raises(InvalidRequestError, match="more than 3 parts"):
        write(file_system, f"{watched.directory}/x", bytes(45))
    wait_for_parts()
    assert watched.bucket.keys() == []
    assert watched.bucket.uploads() == []


@only_on_ministack
@pytest.mark.parametrize("checksum", ["crc32c", "crc32", "off"])
def test_bytes_changed_in_transit_are_refused_if_the_store_checks(
    bucket: S3Bucket, directory: str, checksum: str
) -> None:
    file_system = S3FileSystem(settings_of(bucket.server, checksum=checksum), retries=SOON)
    events = connection_for(file_system.settings).client.meta.events

    def damage(request: Any, **_: Any) -> None:
        body = request.body if isinstance(request.body, bytes) else request.body.read()
        request.body = b"X" + body[1:]

    events.register("before-send.s3.PutObject", damage, "damage")
    try:
        if checksum == "off":
            file_system.publish(f"{directory}/x", b"data")
            assert bucket.read("dir/x") == b"Xata"
            return
        with pytest.raises(StorageUnavailableError):
            file_system.publish(f"{directory}/x", b"data")
    finally:
        events.unregister("before-send.s3.PutObject", unique_id="damage")
    assert bucket.keys() == []


@pytest.mark.parametrize("checksum", ["crc32c", "crc32", "off"])
@on_each_server
def test_store_checks_a_file_of_one_request(watched: WatchedBucket, checksum: str) -> None:
    file_system = watched.file_system(checksum=checksum)
    file_system.publish(f"{watched.directory}/published", b"data")
    write(file_system, f"{watched.directory}/written", b"data")
    for sent in watched.request_headers("PutObject"):
        known = {"crc32c": "x-amz-checksum-crc32c", "crc32": "x-amz-checksum-crc32"}
        assert {name for name in sent if "checksum-crc" in name} == {
            name for mode, name in known.items() if mode == checksum
        }
        assert sent["if-none-match"] == "*"


@on_each_server
@pytest.mark.parametrize("ending", ["close", "raise", "forget"])
def test_discarded_state_stream_leaves_no_upload(s3: S3Bucket, ending: str) -> None:
    access = checkpoint_storage(f"s3://{s3.name}/data").create_checkpoint_storage("job")
    location = access.initialize_location_for_checkpoint(1)
    stream = location.create_checkpoint_state_output_stream(EXCLUSIVE)
    stream.write(bytes(9 * MIB))
    assert len(s3.uploads()) == 1
    if ending == "close":
        stream.close()
    elif ending == "raise":
        with pytest.raises(ZeroDivisionError), stream:
            raise ZeroDivisionError
    else:
        with pytest.warns(ResourceWarning, match="neither kept nor closed"):
            del stream
            gc.collect()
    wait_for_parts()
    assert s3.uploads() == []
    assert s3.keys() == []


@pytest.mark.usefixtures("small_parts")
@on_each_server
def test_garbage_collected_file_leaves_no_upload(bucket: S3Bucket, directory: str) -> None:
    file_system = S3FileSystem(settings_of(bucket.server, part_size=100), retries=SOON)
    stream = file_system.create(f"{directory}/x")
    stream.write(bytes(150))
    with suppress(ResourceWarning):
        del stream
        gc.collect()
    wait_for_parts()
    assert bucket.uploads() == []


@pytest.mark.usefixtures("small_parts")
@on_each_server
def test_no_thread_outlives_its_stream(bucket: S3Bucket, directory: str) -> None:
    file_system = S3FileSystem(settings_of(bucket.server, part_size=100), retries=SOON)
    for ending in ("commit", "abort"):
        stream = file_system.create(f"{directory}/{ending}")
        stream.write(bytes(1000))
        getattr(stream, ending)()
    wait_for_parts()
    assert [thread.name for thread in threading.enumerate() if "holdfast-s3" in thread.name] == []
