"""Forks, spawned processes, interrupts and threads that use S3."""

import os
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import boto3
import pytest
from botocore.response import StreamingBody
from contracts.files import write
from contracts.patience import HANGS_S
from contracts.processes import of_many_threads, output_of, run_in_fork
from contracts.s3_objects import MIB, directory, on_each_server
from servers.s3 import S3Bucket, settings_of
from servers.watched import WatchedBucket

from holdfast.errors import InvalidRequestError
from holdfast.locations.file_systems import s3_client
from holdfast.testing import s3_operation

__all__ = ["directory"]


@pytest.fixture(name="watched")
def watched_bucket(watched_over_http: WatchedBucket) -> WatchedBucket:
    """A server, because a fork has its own copy of a store in memory."""
    return watched_over_http


@of_many_threads
def test_process_has_one_client_and_a_forked_one_its_own(watched: WatchedBucket) -> None:
    file_system = watched.file_system()
    file_system.publish(f"{watched.directory}/parent", b"1")
    ours = s3_client.connection_for(file_system.settings).client
    assert s3_client.connection_for(file_system.settings).client is ours
    child = os.fork()
    if child == 0:
        status = 1
        with suppress(BaseException):
            file_system.publish(f"{watched.directory}/child", b"2")
            status = 3 if s3_client.connection_for(file_system.settings).client is ours else 0
        os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    file_system.publish(f"{watched.directory}/after", b"3")
    assert watched.bucket.keys() == ["dir/after", "dir/child", "dir/parent"]


@of_many_threads
def test_fork_keeps_its_parents_upload(watched: WatchedBucket) -> None:
    uri = f"{watched.directory}/x"
    stream = watched.file_system(part_size=5 * MIB).create(uri)
    stream.write(bytes(6 * MIB))
    assert run_in_fork(stream.abort) == 0
    stream.commit()
    assert watched.bucket.keys() == ["dir/x"]
    assert not watched.request_headers("AbortMultipartUpload")


def test_upload_is_aborted_once(watched: WatchedBucket) -> None:
    uri = f"{watched.directory}/x"
    stream = watched.file_system(part_size=5 * MIB).create(uri)
    stream.write(bytes(6 * MIB))
    watched.faults.answer(403, s3_operation("CompleteMultipartUpload"), code="AccessDenied")
    with pytest.raises(InvalidRequestError):
        stream.commit()
    for _ in range(2):
        stream.abort()
    assert len(watched.request_headers("AbortMultipartUpload")) == 1
    assert watched.bucket.uploads() == []


def test_interrupted_read_keeps_the_position(
    watched: WatchedBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupt the reader after the bytes have arrived."""
    data = bytes(range(256)) * 64
    uri = f"{watched.directory}/x"
    file_system = watched.file_system()
    file_system.publish(uri, data)

    def interrupt_read(body: StreamingBody, length: int) -> bytes:
        assert read_body(body, length)
        raise KeyboardInterrupt

    read_body = StreamingBody.read

    with file_system.open(uri) as stream:
        assert stream.read(1000) == data[:1000]
        with monkeypatch.context() as patched:
            patched.setattr(StreamingBody, "read", interrupt_read)
            with pytest.raises(KeyboardInterrupt):
                stream.read(1000)
        assert stream.tell() == 1000
        assert stream.read(1000) == data[1000:2000]


@of_many_threads
def test_fork_while_another_thread_makes_a_client_does_not_hang(
    watched: WatchedBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    making, may_make = threading.Event(), threading.Event()
    make = boto3.Session

    def slowly(**settings: Any) -> Any:
        making.set()
        may_make.wait(HANGS_S)
        return make(**settings)

    file_system = watched.file_system()
    monkeypatch.setattr(boto3, "Session", slowly)
    with ThreadPoolExecutor(1) as pool:
        publishing = pool.submit(file_system.publish, f"{watched.directory}/parent", b"1")
        assert making.wait(HANGS_S)
        child = os.fork()
        if child == 0:
            boto3.Session = make
            status = 1
            with suppress(BaseException):
                file_system.publish(f"{watched.directory}/child", b"2")
                status = 0
            os._exit(status)
        deadline = time.monotonic() + HANGS_S
        done = 0
        while not done and time.monotonic() < deadline:
            done, status = os.waitpid(child, os.WNOHANG)
            time.sleep(0.01)
        if not done:
            os.kill(child, 9)
            os.waitpid(child, 0)
        may_make.set()
        publishing.result(HANGS_S)
    assert done, "the child waits for a lock that no thread will release"
    assert os.waitstatus_to_exitcode(status) == 0


def test_spawned_process_makes_its_own_client(bucket: S3Bucket, directory: str) -> None:
    settings = settings_of(bucket.server)
    source = (
        "import sys, pickle; from holdfast.locations.file_systems import S3FileSystem;"
        "settings = pickle.loads(bytes.fromhex(sys.argv[1]));"
        "S3FileSystem(settings).publish(sys.argv[2], b'spawned')"
    )
    output_of(source, pickle.dumps(settings).hex(), f"{directory}/x")
    assert bucket.read("dir/x") == b"spawned"


@on_each_server
def test_sixteen_threads_share_a_file_system(watched: WatchedBucket) -> None:
    file_system = watched.file_system()
    start = threading.Barrier(16)

    def work(number: int) -> bytes:
        start.wait(HANGS_S)
        uri = f"{watched.directory}/{number}"
        data = os.urandom(1000)
        file_system.publish(uri, data)
        with file_system.open(uri) as stream:
            assert stream.read() == data
        write(file_system, f"{uri}-large", data * 100)
        return data

    with ThreadPoolExecutor(16) as pool:
        written = list(pool.map(work, range(16)))
    for number, data in enumerate(written):
        assert watched.bucket.read(f"dir/{number}") == data
        assert watched.bucket.read(f"dir/{number}-large") == data * 100
    assert file_system.settings in s3_client.CONNECTIONS.values
