"""A real NameNode and two DataNodes that are down, silent or in safe mode."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from typing import Any

import hdfs_native
import pytest
from contracts.hdfs_faults import (
    IMPATIENT,
    MIB,
    PATIENT,
    SOON,
    Ends,
    Use,
    at_first_retry,
    begin,
    check,
    content,
    directory,
    end_all,
    in_background,
    lose_answer,
    proxy,
    small_blocks,
    stream_of,
    use,
)
from contracts.patience import HANGS_S, wait_until
from contracts.processes import python
from servers.hdfs import HdfsDirectory, NameNodeProxy

from holdfast.errors import StorageUnavailableError
from holdfast.locations.file_systems import HdfsFileSystem, RetryingExclusiveFileSystem, publish
from holdfast.locations.file_systems.hdfs_client import HdfsPatience

__all__ = ["directory", "proxy", "small_blocks", "use"]


def test_silent_name_node_times_out(directory: str, proxy: NameNodeProxy) -> None:
    """The next call uses a separate connection."""
    answered = threading.Event()
    file_system = HdfsFileSystem(patience=HdfsPatience(call_s=0.5))
    for _ in range(2):
        proxy.interrupt("getListing", answered.wait)
        with pytest.raises(StorageUnavailableError, match=r"no answer in 0\.5 s"):
            file_system.list(directory)
    assert list(file_system.list(directory)) == []
    answered.set()


def test_aborted_streams_keep_no_connection(hdfs_directory: HdfsDirectory) -> None:
    file_system = HdfsFileSystem()

    def begin() -> list[Any]:
        streams: list[Any] = []
        for number in range(10):
            stream: Any = file_system.create(f"{hdfs_directory.uri}/{number}")
            stream.write(b"1")
            stream.sync()
            streams.append(stream)
        return streams

    before = sockets()
    streams = begin()
    opened = sockets() - before
    assert len(opened) >= 10
    for stream in streams:
        stream.abort()
    # hdfs-native closes them in the background; those to the NameNode stay.
    wait_until(lambda: len(opened & sockets()) <= 2, "connections are kept")
    assert hdfs_directory.files() == []


def sockets() -> set[str]:
    """Return the kernel's names of the sockets of this process."""
    links = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # closed in the meantime
            links.add(os.readlink(f"/proc/self/fd/{name}"))
    return {link for link in links if link.startswith("socket:")}


class TestStoppedNameNode:
    def test_streams_survive_its_restart(
        self, hdfs_directory: HdfsDirectory, small_blocks: None
    ) -> None:
        """Streams survive after any amount of data: nothing, a little, a block, some, all.

        A stream that ends a block while the NameNode has just started and is in safe mode may fail; it
        leaves nothing then.
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
    def test_file_survives_its_restart_during_close(
        self, moment: str, hdfs_directory: HdfsDirectory
    ) -> None:
        server = hdfs_directory.server
        data = content(MIB + 77)
        with ThreadPoolExecutor(1) as pool:

            def restart() -> None:
                server.kill_name_node()
                pool.submit(server.start_name_node)

            def restart_unheard() -> None:
                restart()
                lose_answer()

            around = {"before": restart} if moment == "before" else {"after": restart_unheard}
            stream = stream_of(f"{hdfs_directory.uri}/x", wrap=partial(Ends, **around))
            stream.write(data)
            stream.commit()
        assert hdfs_directory.files() == ["x"]
        assert hdfs_directory.read("x") == data

    @pytest.mark.parametrize("moment", ["before", "after"])
    def test_publication_survives_its_restart_during_the_rename(
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
        # The hidden file of the first attempt could not be deleted; a sweep will do it.
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
    def test_every_call_fails_eventually(
        self,
        act: Callable[[RetryingExclusiveFileSystem, str], object],
        directory: str,
        proxy: NameNodeProxy,
        use: Use,
    ) -> None:
        proxy.stop()
        with pytest.raises(StorageUnavailableError, match="refused") as caught:
            act(use(SOON, IMPATIENT), directory)
        assert caught.value.location.startswith(directory)

    def test_stream_of_any_length_fails_eventually(
        self, directory: str, proxy: NameNodeProxy
    ) -> None:
        file_system = HdfsFileSystem(retries=SOON, patience=IMPATIENT)
        streams = {length: file_system.create(f"{directory}/{length}") for length in (0, 100, MIB)}
        for length, stream in streams.items():
            stream.write(content(length))
        proxy.stop()
        for stream in streams.values():
            with pytest.raises(StorageUnavailableError):
                stream.write(b"1")
                stream.commit()

    def test_process_with_an_unfinished_stream_ends(
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
    def test_writers_wait_for_its_end_and_readers_do_not(
        self, hdfs_directory: HdfsDirectory, use: Use
    ) -> None:
        server = hdfs_directory.server
        uri = hdfs_directory.uri
        hdfs_directory.write("x", b"1")
        streams = {
            length: HdfsFileSystem(retries=PATIENT).create(f"{uri}/{length}") for length in (0, MIB)
        }
        for length, stream in streams.items():
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
        assert f"{uri}/x" in [entry.uri for entry in file_system.list(uri)]
        with file_system.open(f"{uri}/x") as file:
            assert file.read() == b"1"
        with at_first_retry(lambda: server.safe_mode(on=False)):
            for length, stream in streams.items():
                stream.write(content(2 * MIB)[length:])
                stream.commit()
        assert hdfs_directory.files() == ["0", str(MIB), "x"]
        for length in streams:
            assert hdfs_directory.read(str(length)) == content(2 * MIB)


SHORT_SYNCS = HdfsPatience(head_s=2.0, end_s=2.0)
"""Ends a sync in which hdfs-native would wait forever, because a DataNode has died."""


class TestDataNodes:
    def test_streams_survive_the_loss_of_one(
        self, hdfs_directory: HdfsDirectory, small_blocks: None
    ) -> None:
        """Streams that need another block may fail, and leave nothing then; all others survive.

        The test takes the 12 seconds in which the NameNode assigns the dead DataNode to new files.
        """
        file_system = HdfsFileSystem(retries=PATIENT, patience=SHORT_SYNCS)
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

    def test_loss_of_both_fails_writes_and_reads_continue_afterwards(
        self, hdfs_directory: HdfsDirectory, use: Use
    ) -> None:
        server = hdfs_directory.server
        file_system = HdfsFileSystem(retries=SOON, patience=SHORT_SYNCS)
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
