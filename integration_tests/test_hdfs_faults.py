"""Lost answers of a real NameNode, and files that are aborted at the same time."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from contracts.hdfs_faults import (
    MIB,
    PATIENT,
    SOON,
    Lost,
    Use,
    content,
    directory,
    each_lost_call,
    proxy,
    small_blocks,
    stream_of,
    use,
)
from contracts.patience import HANGS_S
from servers.hdfs import HdfsDirectory, NameNodeProxy

from holdfast.errors import (
    CheckpointConflictError,
    OutcomeUnknownError,
    StorageUnavailableError,
    StreamClosedError,
)
from holdfast.locations.file_systems import (
    HdfsFileSystem,
    Retrier,
    RetryingExclusiveFileSystem,
    publish,
)
from holdfast.locations.file_systems.hdfs_streams import HdfsOutputStream

__all__ = ["directory", "proxy", "small_blocks", "use"]


@dataclass(frozen=True)
class Change:
    """A call of a file system that changes something.

    Attributes:
        method: Method of the NameNode.
        make: Makes the change, below a URI.
    """

    method: str
    make: Callable[[RetryingExclusiveFileSystem, str], object]


class TestLostAnswers:
    """One call of the NameNode, or its answer, is lost on the way."""

    @each_lost_call("create", "addBlock", "getFileInfo", "fsync", "complete")
    def test_stream_is_complete(
        self,
        call: Lost,
        directory: str,
        proxy: NameNodeProxy,
        hdfs_directory: HdfsDirectory,
    ) -> None:
        data = content(MIB + 77)
        proxy.lose(call.method, is_done=call.is_done)
        stream = HdfsFileSystem(retries=PATIENT).create(f"{directory}/x")
        stream.write(data)
        stream.commit()
        assert proxy.pending() == set()
        assert hdfs_directory.files() == ["x"]
        assert hdfs_directory.read("x") == data

    @each_lost_call("create", "addBlock", "fsync", "complete", "rename2")
    def test_file_is_published_once(
        self,
        call: Lost,
        directory: str,
        proxy: NameNodeProxy,
        hdfs_directory: HdfsDirectory,
        use: Use,
    ) -> None:
        use(PATIENT)
        proxy.lose(call.method, is_done=call.is_done)
        publish(f"{directory}/x", b"ours", single_writer=False)
        assert proxy.pending() == set()
        assert hdfs_directory.files() == ["x"]
        assert hdfs_directory.read("x") == b"ours"

    @each_lost_call("create", "addBlock", "fsync", "complete", "rename2")
    def test_file_is_published_once_if_a_deletion_is_lost_too(
        self,
        call: Lost,
        directory: str,
        proxy: NameNodeProxy,
        hdfs_directory: HdfsDirectory,
        use: Use,
    ) -> None:
        use(PATIENT)
        proxy.lose(call.method, is_done=call.is_done)
        proxy.lose("delete", is_done=False)
        publish(f"{directory}/x", b"ours", single_writer=False)
        assert hdfs_directory.files() == ["x"]
        assert hdfs_directory.read("x") == b"ours"

    def test_file_written_by_another_process_before_the_retry_wins(
        self, directory: str, proxy: NameNodeProxy, hdfs_directory: HdfsDirectory, use: Use
    ) -> None:
        use(PATIENT)
        proxy.lose("rename2", is_done=False, action=lambda: hdfs_directory.write("x", b"theirs"))
        with pytest.raises(CheckpointConflictError):
            publish(f"{directory}/x", b"ours", single_writer=False)
        assert hdfs_directory.files() == ["x"]
        assert hdfs_directory.read("x") == b"theirs"

    def test_rename_without_any_answer_has_an_unknown_outcome(
        self, directory: str, proxy: NameNodeProxy, hdfs_directory: HdfsDirectory, use: Use
    ) -> None:
        use(SOON)
        proxy.lose("rename2", is_done=False, times=1000)
        with pytest.raises(OutcomeUnknownError, match="did not confirm whether"):
            publish(f"{directory}/x", b"ours", single_writer=False)
        assert hdfs_directory.files() == []

    def test_name_node_lost_after_the_rename_has_an_unknown_outcome(
        self, directory: str, proxy: NameNodeProxy, hdfs_directory: HdfsDirectory, use: Use
    ) -> None:
        use(SOON)
        proxy.lose("rename2", is_done=True, action=proxy.stop)
        with pytest.raises(OutcomeUnknownError):
            publish(f"{directory}/x", b"ours", single_writer=False)
        assert hdfs_directory.files() == ["x"]
        assert hdfs_directory.read("x") == b"ours"

    def test_file_of_a_failed_creation_is_deleted(
        self,
        directory: str,
        proxy: NameNodeProxy,
        hdfs_directory: HdfsDirectory,
    ) -> None:
        proxy.lose("create", is_done=True, times=1000)
        with pytest.raises(StorageUnavailableError):
            HdfsFileSystem(retries=SOON).create(f"{directory}/x")
        assert hdfs_directory.files() == []

    @pytest.mark.parametrize("is_done", [False, True], ids=["not done", "done"])
    @pytest.mark.parametrize(
        "change",
        [
            Change("mkdirs", lambda files, uri: files.prepare_directory(f"{uri}/a/b")),
            Change("delete", lambda files, uri: files.delete([f"{uri}/x"])),
            Change("delete", lambda files, uri: files.delete_empty_directory(f"{uri}/empty")),
            Change("delete", lambda files, uri: files.delete_tree(f"{uri}/tree")),
        ],
        ids=["prepare_directory", "delete", "delete_empty_directory", "delete_tree"],
    )
    def test_change_is_repeated_until_it_is_made(
        self,
        change: Change,
        directory: str,
        proxy: NameNodeProxy,
        hdfs_directory: HdfsDirectory,
        *,
        is_done: bool,
    ) -> None:
        file_system = RetryingExclusiveFileSystem(HdfsFileSystem(), PATIENT)

        def listing() -> set[str]:
            files = HdfsFileSystem()
            uris = set()
            for entry in files.list(hdfs_directory.uri):
                uris |= {entry.uri} | {below.uri for below in files.list(entry.uri)}
            return uris

        def prepare() -> None:
            for name in ("empty", "tree/below"):
                hdfs_directory.client.mkdirs(f"{hdfs_directory.path}/{name}", create_parent=True)
            for name in ("x", "tree/y"):
                hdfs_directory.write(name, b"1")

        prepare()
        change.make(file_system, hdfs_directory.uri)
        after = listing()
        hdfs_directory.client.delete(hdfs_directory.path, recursive=True)
        prepare()
        assert listing() != after
        proxy.lose(change.method, is_done=is_done)
        change.make(file_system, directory)
        assert proxy.pending() == set()
        assert listing() == after

    @each_lost_call("getListing", "getBlockLocations")
    def test_reads_continue(
        self,
        call: Lost,
        directory: str,
        proxy: NameNodeProxy,
        hdfs_directory: HdfsDirectory,
        use: Use,
    ) -> None:
        file_system = use(PATIENT)
        hdfs_directory.write("x", content(MIB))
        proxy.lose(
            call.method, is_done=call.is_done, times=3
        )  # more than hdfs-native repeats by itself
        assert [entry.uri for entry in file_system.list(directory)] == [f"{directory}/x"]
        with file_system.open(f"{directory}/x") as stream:
            assert stream.read() == content(MIB)
        assert proxy.pending() == set()

    @each_lost_call("addBlock", "fsync")
    def test_lost_answer_between_blocks_fails_the_stream_or_is_retried(
        self,
        call: Lost,
        directory: str,
        proxy: NameNodeProxy,
        hdfs_directory: HdfsDirectory,
        small_blocks: None,
    ) -> None:
        data = content(3 * MIB)
        stream = HdfsFileSystem(retries=PATIENT).create(f"{directory}/x")
        stream.write(data[: MIB // 2])
        proxy.lose(call.method, is_done=call.is_done)
        try:
            stream.write(data[MIB // 2 :])
            stream.commit()
        except StorageUnavailableError:
            assert hdfs_directory.files() == []
        else:
            assert hdfs_directory.read("x") == data
        assert proxy.pending() == set()


@contextmanager
def open_and_abort(uri: str) -> Iterator[tuple[HdfsOutputStream, Callable[[], None]]]:
    """Open a stream; yields it with a function that aborts it in another thread.

    The function does not wait for the deletion, which may follow the call that is held up.
    """
    is_aborted = threading.Event()

    class AbortSignal(Retrier):
        def call(self, *arguments: Any, **options: Any) -> Any:
            is_aborted.set()
            return super().call(*arguments, **options)

    stream = stream_of(uri, cleanup=AbortSignal(PATIENT))
    with ThreadPoolExecutor(1) as pool:

        def abort() -> None:
            pool.submit(stream.abort)
            assert is_aborted.wait(HANGS_S)

        yield stream, abort


class TestAbort:
    """Another thread aborts the stream at every moment at which it waits for the NameNode."""

    @pytest.mark.parametrize("moment", ["before", "instead of the answer"])
    @pytest.mark.parametrize("method", ["addBlock", "getFileInfo", "fsync", "complete"])
    def test_file_is_deleted(
        self,
        method: str,
        moment: str,
        directory: str,
        proxy: NameNodeProxy,
        hdfs_directory: HdfsDirectory,
    ) -> None:
        with open_and_abort(f"{directory}/x") as (stream, abort):
            if moment == "before":
                proxy.interrupt(method, abort)
            else:
                proxy.lose(method, is_done=True, action=abort)
            with pytest.raises(StreamClosedError):
                stream.write(content(MIB + 77))
                stream.commit()
        assert proxy.pending() == set()
        assert hdfs_directory.files() == []

    @each_lost_call("complete")
    def test_file_being_closed_by_the_name_node_is_deleted(
        self,
        call: Lost,
        directory: str,
        proxy: NameNodeProxy,
        hdfs_directory: HdfsDirectory,
    ) -> None:
        with open_and_abort(f"{directory}/x") as (stream, abort):
            stream.write(content(MIB))
            proxy.lose(call.method, is_done=call.is_done)
            proxy.interrupt("recoverLease", abort)
            with pytest.raises(StreamClosedError):
                stream.commit()
        assert proxy.pending() == set()
        assert hdfs_directory.files() == []
