"""Everything that can happen to HDFS while Holdfast uses it, on a real NameNode and two DataNodes."""

import functools
import logging
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import hdfs_native
import pytest
from contracts.patience import HANGS_S, wait_until
from contracts.processes import python
from servers.hdfs import HdfsDirectory, HdfsServer, NameNodeProxy, name_node_proxy

from holdfast.errors import (
    CheckpointConflictError,
    OutcomeUnknownError,
    StorageUnavailableError,
    StreamClosedError,
)
from holdfast.locations.adapters import (
    FileOutputStream,
    RetryPolicy,
    file_system_for,
    register_file_system,
    unregister_file_system,
)
from holdfast.locations.file_systems import HdfsFileSystem, RetryingExclusiveFileSystem, publish
from holdfast.locations.file_systems.hdfs import hdfs_client, hdfs_output_stream

MIB = 1 << 20

SOON = RetryPolicy(deadline_s=0.2, first_wait_s=0.01, longest_wait_s=0.02)
"""Gives up at once; for what never succeeds."""

PATIENT = RetryPolicy(deadline_s=HANGS_S, first_wait_s=0.01, longest_wait_s=0.1)
"""Never gives up in a test."""

Use = Callable[[RetryPolicy], RetryingExclusiveFileSystem]


@pytest.fixture
def use() -> Iterator[Use]:
    """Reach `hdfs://` by a policy."""

    def register(policy: RetryPolicy) -> RetryingExclusiveFileSystem:
        register_file_system("hdfs", lambda: HdfsFileSystem(retries=policy), retries=policy)
        file_system = file_system_for("hdfs://any/x")
        assert isinstance(file_system, RetryingExclusiveFileSystem)
        return file_system

    yield register
    unregister_file_system("hdfs")


@pytest.fixture
def proxy(hdfs: HdfsServer) -> Iterator[NameNodeProxy]:
    with name_node_proxy(hdfs) as proxy:
        yield proxy
    for key in [key for key in hdfs_client._CLIENTS._values if key[0] == proxy.uri]:
        hdfs_client._CLIENTS.drop(key)


@pytest.fixture
def directory(proxy: NameNodeProxy, hdfs_directory: HdfsDirectory) -> str:
    """The URI of `hdfs_directory` through the proxy."""
    return proxy.uri + hdfs_directory.path


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that are made from now on don't wait for a NameNode that is down."""
    monkeypatch.setattr(hdfs_client, "_FOR_STREAMS", hdfs_client._FOR_CALLS)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 1 MiB, the least that HDFS takes."""
    options = functools.partial(hdfs_native.WriteOptions, block_size=MIB)
    monkeypatch.setattr(hdfs_native, "WriteOptions", options)


def content(length: int) -> bytes:
    """Bytes none of whose kibibytes are the same."""
    return b"".join(b"%1024d" % number for number in range(length // 1024 + 1))[:length]


@contextmanager
def in_background(action: Callable[[], object]) -> Iterator[None]:
    """Do it in another thread, and wait for its end behind the block."""
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(action)
        yield
        done.result()


@contextmanager
def at_first_retry(action: Callable[[], object]) -> Iterator[None]:
    """Do it in another thread as soon as a call has failed and will be repeated."""
    failed = threading.Event()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            failed.set()

    def wait_and_act() -> None:
        failed.wait()
        action()

    log = logging.getLogger("holdfast.locations.file_systems.retries")
    handler = Handler()
    log.addHandler(handler)
    try:
        with in_background(wait_and_act):
            try:
                yield
                assert failed.is_set(), "nothing failed"
            finally:
                failed.set()
    finally:
        log.removeHandler(handler)


class Ends:
    """A writer of hdfs-native's with something happening around its closing."""

    def __init__(
        self,
        writer: Any,
        *,
        before: Callable[[], object] = lambda: None,
        after: Callable[[], object] = lambda: None,
    ) -> None:
        self.writer = writer
        self.before = before
        self.after = after

    def close(self) -> None:
        self.before()
        self.writer.close()
        self.after()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.writer, name)


def lose_answer() -> None:
    """What hdfs-native says when an answer does not come."""
    raise OSError("RPC listener disconnected")


@dataclass(frozen=True)
class Lost:
    """A call of the NameNode that is lost, or its answer.

    Attributes:
        method: Which one.
        is_done: Whether the NameNode does it.
    """

    method: str
    is_done: bool

    def __str__(self) -> str:
        return f"{self.method} {'done' if self.is_done else 'not done'}"


def lost(*methods: str) -> pytest.MarkDecorator:
    """A test for each call of these methods that is lost, and for each answer."""
    values = [Lost(method, is_done) for method in methods for is_done in (False, True)]
    return pytest.mark.parametrize("call", values, ids=str)


@dataclass(frozen=True)
class Change:
    """A call of a file system that changes something.

    Attributes:
        method: The NameNode's.
        make: Makes it, below a URI.
    """

    method: str
    make: Callable[[RetryingExclusiveFileSystem, str], object]


class TestLostAnswers:
    """One call of the NameNode, or its answer, is lost on the way."""

    @lost("create", "addBlock", "getFileInfo", "fsync", "complete")
    def test_a_stream_ends_whole(
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

    @lost("create", "addBlock", "fsync", "complete", "rename2")
    def test_a_file_is_published_once(
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

    @lost("create", "addBlock", "fsync", "complete", "rename2")
    def test_nothing_is_left_of_an_attempt_to_publish_whose_deletion_is_lost_too(
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

    def test_who_comes_in_between_wins(
        self, directory: str, proxy: NameNodeProxy, hdfs_directory: HdfsDirectory, use: Use
    ) -> None:
        use(PATIENT)
        proxy.lose("rename2", is_done=False, meanwhile=lambda: hdfs_directory.write("x", b"theirs"))
        with pytest.raises(CheckpointConflictError):
            publish(f"{directory}/x", b"ours", single_writer=False)
        assert hdfs_directory.files() == ["x"]
        assert hdfs_directory.read("x") == b"theirs"

    def test_a_rename_that_is_never_heard_of_is_unknown(
        self, directory: str, proxy: NameNodeProxy, hdfs_directory: HdfsDirectory, use: Use
    ) -> None:
        use(SOON)
        proxy.lose("rename2", is_done=False, times=1000)
        with pytest.raises(OutcomeUnknownError, match="did not say whether"):
            publish(f"{directory}/x", b"ours", single_writer=False)
        assert hdfs_directory.files() == []

    def test_a_name_node_that_goes_after_the_rename_leaves_the_outcome_unknown(
        self, directory: str, proxy: NameNodeProxy, hdfs_directory: HdfsDirectory, use: Use
    ) -> None:
        use(SOON)
        proxy.lose("rename2", is_done=True, meanwhile=proxy.stop)
        with pytest.raises(OutcomeUnknownError):
            publish(f"{directory}/x", b"ours", single_writer=False)
        assert hdfs_directory.files() == ["x"]
        assert hdfs_directory.read("x") == b"ours"

    def test_a_file_whose_creation_is_given_up_is_not_left(
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
    def test_a_change_is_repeated_until_it_is_made(
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
            found = set()
            for entry in files.list(hdfs_directory.uri):
                found |= {entry.uri} | {one.uri for one in files.list(entry.uri)}
            return found

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

    @lost("getListing", "getBlockLocations")
    def test_reading_goes_on(
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
        assert [one.uri for one in file_system.list(directory)] == [f"{directory}/x"]
        with file_system.open(f"{directory}/x") as stream:
            assert stream.read() == content(MIB)
        assert proxy.pending() == set()

    @lost("addBlock", "fsync")
    def test_between_blocks_it_ends_the_stream_or_is_survived(
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
def aborting(stream: Any) -> Iterator[Callable[[], None]]:
    """What gives the stream up in another thread, and returns as soon as it counts as given up.

    It does not wait for the deletion, which may be behind the call that is held up.
    """
    is_given_up = threading.Event()
    delete = stream._delete

    def noted() -> None:
        is_given_up.set()
        delete()

    stream._delete = noted
    with ThreadPoolExecutor(1) as pool:

        def abort() -> None:
            pool.submit(stream.abort)
            assert is_given_up.wait(HANGS_S)

        yield abort


class TestAbort:
    """Another thread gives the stream up at every moment at which it waits for the NameNode."""

    @pytest.mark.parametrize("moment", ["before", "instead of the answer"])
    @pytest.mark.parametrize("method", ["addBlock", "getFileInfo", "fsync", "complete"])
    def test_nothing_is_left(
        self,
        method: str,
        moment: str,
        directory: str,
        proxy: NameNodeProxy,
        hdfs_directory: HdfsDirectory,
    ) -> None:
        stream = HdfsFileSystem(retries=PATIENT).create(f"{directory}/x")
        with aborting(stream) as abort:
            if moment == "before":
                proxy.interrupt(method, abort)
            else:
                proxy.lose(method, is_done=True, meanwhile=abort)
            with pytest.raises(StreamClosedError):
                stream.write(content(MIB + 77))
                stream.commit()
        assert proxy.pending() == set()
        assert hdfs_directory.files() == []

    @lost("complete")
    def test_nothing_is_left_of_a_file_that_is_being_closed_by_the_name_node(
        self,
        call: Lost,
        directory: str,
        proxy: NameNodeProxy,
        hdfs_directory: HdfsDirectory,
    ) -> None:
        stream = HdfsFileSystem(retries=PATIENT).create(f"{directory}/x")
        stream.write(content(MIB))
        proxy.lose(call.method, is_done=call.is_done)
        with aborting(stream) as abort:
            proxy.interrupt("recoverLease", abort)
            with pytest.raises(StreamClosedError):
                stream.commit()
        assert proxy.pending() == set()
        assert hdfs_directory.files() == []


Lengths = tuple[int, int]
"""Of a file when something happens, and when it is whole."""


def begin(
    directory: HdfsDirectory, file_system: HdfsFileSystem, data: bytes, lengths: list[Lengths]
) -> dict[Lengths, FileOutputStream]:
    """Streams with the first bytes of the data in them."""
    streams = {}
    for before, after in lengths:
        stream = file_system.create(f"{directory.uri}/{before}-{after}")
        stream.write(data[:before])
        streams[before, after] = stream
    return streams


def end_all(streams: dict[Lengths, FileOutputStream], data: bytes) -> set[Lengths]:
    """Write the rest, all at the same time; those that did not fail."""

    def ends(lengths: Lengths) -> bool:
        before, after = lengths
        try:
            streams[lengths].write(data[before:after])
            streams[lengths].commit()
        except StorageUnavailableError:
            return False
        return True

    with ThreadPoolExecutor(len(streams)) as pool:
        done = pool.map(ends, streams)
        return {lengths for lengths, is_done in zip(streams, done, strict=True) if is_done}


def check(directory: HdfsDirectory, data: bytes, ended: set[Lengths]) -> None:
    """These are whole, and there is nothing else."""
    assert set(directory.files()) == {f"{before}-{after}" for before, after in ended}
    for before, after in ended:
        assert directory.read(f"{before}-{after}") == data[:after]


def test_a_name_node_that_does_not_answer_is_given_up(
    directory: str, proxy: NameNodeProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call after it has a connection of its own."""
    monkeypatch.setattr(hdfs_client, "_CALL_S", 0.5)
    answered = threading.Event()
    file_system = HdfsFileSystem()
    for _ in range(2):
        proxy.interrupt("getListing", answered.wait)
        with pytest.raises(StorageUnavailableError, match=r"no answer in 0\.5 s"):
            file_system.list(directory)
    assert list(file_system.list(directory)) == []
    answered.set()


def test_streams_that_are_given_up_keep_no_connection(hdfs_directory: HdfsDirectory) -> None:
    file_system = HdfsFileSystem()

    def begin() -> list[Any]:
        streams: list[Any] = []
        for number in range(10):
            stream: Any = file_system.create(f"{hdfs_directory.uri}/{number}")
            stream.write(b"1")
            stream.sync()
            streams.append(stream)
        return streams

    before = n_sockets()
    streams = begin()
    assert n_sockets() >= before + 10
    for stream in streams:
        stream.abort()
    # hdfs-native closes them behind our back.
    wait_until(lambda: n_sockets() <= before + 2, "connections are kept")
    assert hdfs_directory.files() == []


def n_sockets() -> int:
    """Connections of this process."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # closed meanwhile
            found += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
    return found


class TestNameNodeIsDown:
    def test_streams_outlive_its_restart(
        self, hdfs_directory: HdfsDirectory, small_blocks: None
    ) -> None:
        """Whatever they have written before: nothing, a little, a block, some, all.

        But for one that has to end a block while the NameNode, just started, is in safe mode; it
        leaves nothing if it fails.
        """
        whole = 4 * MIB + 77
        some = 2 * MIB + 100
        data = content(whole)
        survive = [(0, whole), (100, whole), (MIB, whole), (some, some + 900), (whole, whole)]
        may_fail = [(some, whole)]
        streams = begin(hdfs_directory, HdfsFileSystem(retries=PATIENT), data, survive + may_fail)
        hdfs_directory.server.kill_name_node()
        with in_background(hdfs_directory.server.start_name_node):
            ended = end_all(streams, data)
        assert set(survive) <= ended
        check(hdfs_directory, data, ended)

    @pytest.mark.parametrize("moment", ["before", "after"])
    def test_a_file_outlives_its_restart_at_the_closing(
        self, moment: str, hdfs_directory: HdfsDirectory
    ) -> None:
        server = hdfs_directory.server
        data = content(MIB + 77)
        stream: Any = HdfsFileSystem(retries=PATIENT).create(f"{hdfs_directory.uri}/x")
        stream.write(data)
        with ThreadPoolExecutor(1) as pool:

            def restart() -> None:
                server.kill_name_node()
                pool.submit(server.start_name_node)

            def restart_unheard() -> None:
                restart()
                lose_answer()

            if moment == "before":
                stream._writer = Ends(stream._writer, before=restart)
            else:
                stream._writer = Ends(stream._writer, after=restart_unheard)
            stream.commit()
        assert hdfs_directory.files() == ["x"]
        assert hdfs_directory.read("x") == data

    @pytest.mark.parametrize("moment", ["before", "after"])
    def test_what_is_published_outlives_its_restart_at_the_rename(
        self,
        moment: str,
        hdfs_directory: HdfsDirectory,
        use: Use,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        use(PATIENT)
        server = hdfs_directory.server
        rename = hdfs_native.Client.rename
        renames = 0

        def killing(client: Any, source: str, target: str, *, overwrite: bool) -> None:
            nonlocal renames
            renames += 1
            if renames == 1 and moment == "before":
                server.kill_name_node()
            rename(client, source, target, overwrite=overwrite)
            if renames == 1 and moment == "after":
                server.kill_name_node()
                lose_answer()

        monkeypatch.setattr(hdfs_native.Client, "rename", killing)
        with at_first_retry(server.start_name_node):
            publish(f"{hdfs_directory.uri}/x", b"ours", single_writer=False)
        assert hdfs_directory.read("x") == b"ours"
        # The hidden file of the first attempt could not be deleted: it is the sweep's.
        left = [name for name in hdfs_directory.files() if not name.endswith(".inprogress")]
        assert left == ["x"]

    @pytest.mark.parametrize(
        "act",
        [
            lambda files, uri: files.prepare_directory(f"{uri}/a"),
            lambda files, uri: files.create(f"{uri}/x"),
            lambda files, uri: files.publish(f"{uri}/x", b"1"),
            lambda files, uri: publish(f"{uri}/x", b"1", single_writer=False),
            lambda files, uri: publish(f"{uri}/x", b"1", single_writer=True),
            lambda files, uri: files.open(f"{uri}/x"),
            lambda files, uri: files.list(uri),
            lambda files, uri: files.delete([f"{uri}/x", f"{uri}/y"]),
            lambda files, uri: files.delete_empty_directory(uri),
            lambda files, uri: files.delete_tree(uri),
        ],
        ids=[
            "prepare_directory",
            "create",
            "publish",
            "publish by many",
            "publish by one",
            "open",
            "list",
            "delete",
            "delete_empty_directory",
            "delete_tree",
        ],
    )
    def test_every_call_fails_in_the_end(
        self,
        act: Callable[[RetryingExclusiveFileSystem, str], object],
        directory: str,
        proxy: NameNodeProxy,
        use: Use,
        impatient: None,
    ) -> None:
        proxy.stop()
        with pytest.raises(StorageUnavailableError, match="refused") as caught:
            act(use(SOON), directory)
        assert caught.value.location.startswith(directory)

    def test_a_stream_fails_in_the_end_wherever_it_is(
        self, directory: str, proxy: NameNodeProxy, impatient: None
    ) -> None:
        file_system = HdfsFileSystem(retries=SOON)
        streams = {length: file_system.create(f"{directory}/{length}") for length in (0, 100, MIB)}
        for length, stream in streams.items():
            stream.write(content(length))
        proxy.stop()
        for stream in streams.values():
            with pytest.raises(StorageUnavailableError):
                stream.write(b"1")
                stream.commit()

    def test_a_process_with_an_unfinished_stream_ends(
        self, directory: str, proxy: NameNodeProxy
    ) -> None:
        source = """
import sys
from holdfast.locations.file_systems import HdfsFileSystem
stream = HdfsFileSystem().create(sys.argv[1])
stream.write(b"1" * 2_000_000)
print("ready", flush=True)
sys.stdin.readline()
"""
        with python(source, f"{directory}/x") as process:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
            proxy.stop()
            _, errors = process.communicate("\n", timeout=HANGS_S)
        assert (process.returncode, errors) == (0, "")


class TestSafeMode:
    def test_it_is_waited_for_by_writers_and_does_not_stop_readers(
        self, hdfs_directory: HdfsDirectory, use: Use
    ) -> None:
        server = hdfs_directory.server
        uri = hdfs_directory.uri
        hdfs_directory.write("x", b"1")
        begun = {
            length: HdfsFileSystem(retries=PATIENT).create(f"{uri}/{length}") for length in (0, MIB)
        }
        for length, stream in begun.items():
            stream.write(content(length))
        file_system = use(SOON)
        refused: list[Callable[[], object]] = [
            lambda: file_system.prepare_directory(f"{uri}/a"),
            lambda: file_system.create(f"{uri}/y"),
            lambda: file_system.publish(f"{uri}/y", b"1"),
            lambda: publish(f"{uri}/y", b"1", single_writer=False),
            lambda: file_system.delete([f"{uri}/x"]),
            lambda: file_system.delete_empty_directory(f"{uri}/x"),
            lambda: file_system.delete_tree(f"{uri}/x"),
        ]
        server.safe_mode(on=True)
        for call in refused:
            with pytest.raises(StorageUnavailableError, match="SafeModeException"):
                call()
        assert f"{uri}/x" in [one.uri for one in file_system.list(uri)]
        with file_system.open(f"{uri}/x") as file:
            assert file.read() == b"1"
        with at_first_retry(lambda: server.safe_mode(on=False)):
            for length, stream in begun.items():
                stream.write(content(2 * MIB)[length:])
                stream.commit()
        assert hdfs_directory.files() == ["0", str(MIB), "x"]
        for length in begun:
            assert hdfs_directory.read(str(length)) == content(2 * MIB)


@pytest.fixture
def short_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync that hdfs-native would wait in for ever, because a DataNode has died, is given up."""
    for name in ("_HEAD_S", "_END_S"):
        monkeypatch.setattr(hdfs_output_stream, name, 2.0)


@pytest.mark.usefixtures("short_syncs")
class TestDataNodes:
    def test_streams_outlive_one_of_them(
        self, hdfs_directory: HdfsDirectory, small_blocks: None
    ) -> None:
        """All but those that need another block; of these nothing is left if they fail.

        It takes the 12 seconds in which the NameNode gives the dead one to new files.
        """
        file_system = HdfsFileSystem(retries=PATIENT)
        data = content(3 * MIB)
        survive = [(0, 100), (100, 200), (MIB, MIB), (2 * MIB + 7, 2 * MIB + 99)]
        may_fail = [(100, 2 * MIB + 7), (MIB + 100, 3 * MIB)]
        streams = begin(hdfs_directory, file_system, data, survive + may_fail)
        aborted = file_system.create(f"{hdfs_directory.uri}/aborted")
        aborted.write(data)
        hdfs_directory.server.kill_data_node()
        aborted.abort()

        ended = end_all(streams, data)
        assert set(survive) <= ended
        check(hdfs_directory, data, ended)

    def test_nothing_outlives_both_and_reading_goes_on_when_they_are_back(
        self, hdfs_directory: HdfsDirectory, use: Use
    ) -> None:
        server = hdfs_directory.server
        file_system = HdfsFileSystem(retries=SOON)
        data = content(8 * MIB)
        hdfs_directory.write("whole", data)
        streams = [file_system.create(f"{hdfs_directory.uri}/{length}") for length in (0, 100, MIB)]
        for stream, length in zip(streams, (0, 100, MIB), strict=True):
            stream.write(data[:length])
        server.kill_data_node("data1")
        server.kill_data_node("data2")
        for stream in streams:
            with pytest.raises(StorageUnavailableError):
                stream.write(data)
                stream.commit()
        with pytest.raises(StorageUnavailableError):
            file_system.publish(f"{hdfs_directory.uri}/small", b"1")
        assert hdfs_directory.files() == ["whole"]

        def start() -> None:
            server.start_data_node("data1")
            server.start_data_node("data2")

        with closing(use(PATIENT).open(f"{hdfs_directory.uri}/whole")) as file:
            with at_first_retry(start):
                assert file.read(MIB) == data[:MIB]
            server.kill_data_node("data1")
            assert file.read() == data[MIB:]
