"""HDFS as a store, on a real NameNode and two DataNodes."""

import functools
import json
import multiprocessing
import os
import socket
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.synchronize import Barrier
from typing import Any

import hdfs_native
import pytest
from contracts.hdfs_faults import stream_of
from contracts.patience import HANGS_S
from contracts.processes import output_of, python
from contracts.values import EXCLUSIVE
from servers.hdfs import HdfsDirectory, HdfsServer

from holdfast.errors import (
    CheckpointConflictError,
    CheckpointError,
    CheckpointNotFoundError,
    InvalidRequestError,
    StorageFullError,
    StorageUnavailableError,
)
from holdfast.locations import (
    CheckpointStorage,
    FileSystemCheckpointStorage,
    checkpoint_storage,
    complete_checkpoint,
    sweep,
)
from holdfast.locations.adapters import (
    ExclusiveFileSystem,
    RetryPolicy,
    file_system_for,
    register_file_system,
    unregister_file_system,
)
from holdfast.locations.file_systems import HdfsFileSystem, publish
from holdfast.testing import CheckpointStorageContract, ExclusiveFileSystemContract, metadata_of

MIB = 1 << 20

SOON = RetryPolicy(deadline_s=0.2, first_wait_s=0.01, max_wait_s=0.02)
"""Fails almost at once; for calls that never succeed."""


class TestHdfsFileSystem(ExclusiveFileSystemContract):
    @pytest.fixture
    def file_system(self) -> ExclusiveFileSystem:
        return HdfsFileSystem()

    @pytest.fixture
    def directory(self, hdfs_directory: HdfsDirectory) -> str:
        self.hdfs = hdfs_directory
        return hdfs_directory.uri

    def files(self, directory: str) -> dict[str, bytes]:
        return {name: self.hdfs.read(name) for name in self.hdfs.files()}

    def put(self, uri: str, data: bytes) -> None:
        self.hdfs.write(uri.removeprefix(f"{self.hdfs.uri}/"), data)

    def put_all(self, uris: Iterable[str], data: bytes) -> None:
        with ThreadPoolExecutor(32) as pool:
            list(pool.map(lambda uri: self.put(uri, data), uris))


class TestHdfsCheckpointStorage(CheckpointStorageContract):
    @pytest.fixture
    def storage(self, hdfs_directory: HdfsDirectory) -> CheckpointStorage:
        self.hdfs = hdfs_directory
        return checkpoint_storage(f"{hdfs_directory.uri}/checkpoints")

    def files(self, storage: CheckpointStorage) -> set[str]:
        assert isinstance(storage, FileSystemCheckpointStorage)
        return {f"{self.hdfs.uri}/{name}" for name in self.hdfs.files()}


def write(uri: str, data: bytes) -> None:
    stream: Any = HdfsFileSystem().create(uri)
    stream.write(data)
    stream.commit()


def publishes(uri: str, data: bytes) -> bool:
    try:
        publish(uri, data, single_writer=False)
    except CheckpointConflictError:
        return False
    return True


def races(start: Barrier, uri: str, number: int) -> bool:
    """Publish in a separate process at the same time as the others; returns whether it succeeded."""
    start.wait(HANGS_S)
    return publishes(uri, b"%d" % number)


class TestRaces:
    def test_one_of_eight_publishing_threads_wins(self, hdfs_directory: HdfsDirectory) -> None:
        uri = f"{hdfs_directory.uri}/x"
        with ThreadPoolExecutor(8) as pool:
            won = list(pool.map(lambda number: publishes(uri, b"%d" % number), range(8)))
        assert won.count(True) == 1
        assert hdfs_directory.read("x") == b"%d" % won.index(True)
        assert hdfs_directory.files() == ["x"]

    def test_one_of_eight_publishing_processes_wins(self, hdfs_directory: HdfsDirectory) -> None:
        context = multiprocessing.get_context("spawn")
        uri = f"{hdfs_directory.uri}/x"
        with context.Manager() as manager, context.Pool(8) as pool:
            start = manager.Barrier(8)
            won = pool.starmap(races, [(start, uri, number) for number in range(8)], chunksize=1)
        assert won.count(True) == 1
        assert hdfs_directory.read("x") == b"%d" % won.index(True)
        assert hdfs_directory.files() == ["x"]

    def test_one_of_eight_drivers_completes_a_checkpoint(
        self, hdfs_directory: HdfsDirectory
    ) -> None:
        storage = FileSystemCheckpointStorage(hdfs_directory.uri, inline_threshold=0)

        def completes(number: int) -> str:
            access = storage.create_checkpoint_storage("job")
            access.initialize_base_locations_for_checkpoint()
            location = access.initialize_location_for_checkpoint(1)
            with location.create_checkpoint_state_output_stream(EXCLUSIVE) as stream:
                stream.write(b"%d" % number)
                handle = stream.close_and_get_handle()
            assert handle is not None
            token = uuid.uuid4().hex
            metadata = metadata_of(handle, checkpoint_id=1, commit_token=token)
            try:
                complete_checkpoint(location, metadata)
            except CheckpointConflictError:
                location.dispose_on_failure()
                return ""
            return token

        with ThreadPoolExecutor(8) as pool:
            tokens = [token for token in pool.map(completes, range(8)) if token]
        assert len(tokens) == 1
        assert list(storage.create_checkpoint_storage("job").completed_checkpoints()) == [1]
        files = [name for name in hdfs_directory.files() if "/chk-1/" in name]
        assert len(files) == 2
        [metadata] = [name for name in files if name.endswith("_metadata")]
        assert tokens[0].encode() in hdfs_directory.read(metadata)


class TestDeletedDirectories:
    """A deleted directory is not created again."""

    @pytest.fixture
    def deleted_directory(self, hdfs_directory: HdfsDirectory) -> str:
        return f"{hdfs_directory.uri}/gone"

    @pytest.mark.parametrize("written", [0, 100, MIB])
    def test_stream_in_a_deleted_directory_cannot_be_finished(
        self, written: int, deleted_directory: str, hdfs_directory: HdfsDirectory
    ) -> None:
        file_system = HdfsFileSystem()
        file_system.prepare_directory(deleted_directory)
        writing, closing = (
            file_system.create(f"{deleted_directory}/{name}") for name in ("x", "y")
        )
        writing.write(b"1" * written)
        closing.write(b"1" * written)
        file_system.delete_tree(deleted_directory)
        with pytest.raises(CheckpointNotFoundError, match="was deleted while it was being written"):
            for _ in range(3):
                writing.write(b"1" * MIB)
                writing.sync()
        with pytest.raises(CheckpointNotFoundError, match="was deleted while it was being written"):
            closing.commit()
        assert list(file_system.list(hdfs_directory.uri)) == []

    def test_file_in_a_deleted_directory_cannot_be_created(
        self, deleted_directory: str, hdfs_directory: HdfsDirectory
    ) -> None:
        file_system = HdfsFileSystem()
        with pytest.raises(CheckpointNotFoundError):
            file_system.create(f"{deleted_directory}/y")
        with pytest.raises(CheckpointNotFoundError):
            file_system.publish(f"{deleted_directory}/z", b"1")
        assert list(file_system.list(hdfs_directory.uri)) == []


def test_files_and_directories_are_private(hdfs_directory: HdfsDirectory) -> None:
    HdfsFileSystem().prepare_directory(f"{hdfs_directory.uri}/a/b")
    write(f"{hdfs_directory.uri}/a/b/x", b"1")
    HdfsFileSystem().publish(f"{hdfs_directory.uri}/a/b/y", b"1")
    modes = {
        name: hdfs_directory.client.get_file_info(f"{hdfs_directory.path}/{name}").permission
        for name in ("a", "a/b", "a/b/x", "a/b/y")
    }
    assert modes == {"a": 0o700, "a/b": 0o700, "a/b/x": 0o600, "a/b/y": 0o600}


class TestQuotas:
    def test_names_run_out(self, hdfs_directory: HdfsDirectory) -> None:
        server, uri = hdfs_directory.server, hdfs_directory.uri
        server.set_quota(hdfs_directory.path, names=2)
        write(f"{uri}/x", b"1")
        attempts: list[Callable[[], None]] = [
            lambda: write(f"{uri}/y", b"1"),
            lambda: HdfsFileSystem().publish(f"{uri}/y", b"1"),
            lambda: HdfsFileSystem().prepare_directory(f"{uri}/y"),
        ]
        for attempt in attempts:
            with pytest.raises(StorageFullError, match="quota is used up"):
                attempt()
        assert hdfs_directory.files() == ["x"]
        server.set_quota(hdfs_directory.path, names=3)
        write(f"{uri}/y", b"1")
        assert hdfs_directory.read("y") == b"1"

    def test_space_runs_out(self, hdfs_directory: HdfsDirectory) -> None:
        """HDFS reserves the bytes of a whole block of each replica for the first one: 16 MiB in these tests."""
        server, uri = hdfs_directory.server, hdfs_directory.uri
        server.set_quota(hdfs_directory.path, space_bytes=31 * MIB)
        attempts: list[Callable[[], None]] = [
            lambda: write(f"{uri}/x", b"1"),
            lambda: write(f"{uri}/x", b"1" * MIB),
            lambda: HdfsFileSystem().publish(f"{uri}/x", b"1"),
        ]
        for attempt in attempts:
            with pytest.raises(StorageFullError, match="quota is used up"):
                attempt()
            assert hdfs_directory.files() == []
        server.set_quota(hdfs_directory.path, space_bytes=32 * MIB)
        write(f"{uri}/x", b"1")
        assert hdfs_directory.read("x") == b"1"


class TestLargeFiles:
    def test_large_file_is_read_back_unchanged(self, hdfs_directory: HdfsDirectory) -> None:
        data = os.urandom(20 * MIB + 7)
        write(f"{hdfs_directory.uri}/x", data)
        with HdfsFileSystem().open(f"{hdfs_directory.uri}/x") as stream:
            assert stream.read() == data
            stream.seek(5 * MIB + 3)
            assert stream.read(10) == data[5 * MIB + 3 : 5 * MIB + 13]

    @pytest.mark.parametrize("length", [MIB, 2 * MIB, 4 * MIB - 1, 4 * MIB, 4 * MIB + 1, 7 * MIB])
    def test_every_block_is_synced_before_the_next_one(
        self, length: int, hdfs_directory: HdfsDirectory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        options = functools.partial(hdfs_native.WriteOptions, block_size=MIB)
        monkeypatch.setattr(hdfs_native, "WriteOptions", options)
        data = os.urandom(length)
        writers: list[SyncRecorder] = []

        def record(raw: Any) -> SyncRecorder:
            writers.append(SyncRecorder(raw))
            return writers[-1]

        stream = stream_of(f"{hdfs_directory.uri}/x", wrap=record)
        stream.write(data[:100])
        stream.write(data[100:])
        stream.commit()
        assert hdfs_directory.read("x") == data
        [writer] = writers
        assert set(range(MIB, length + 1, MIB)) | {length} <= set(writer.synced_at)
        assert hdfs_directory.client.get_file_info(f"{hdfs_directory.path}/x").blocksize == MIB


class SyncRecorder:
    """A writer of hdfs-native that records the length at each sync."""

    def __init__(self, writer: Any) -> None:
        self.writer = writer
        self.length = 0
        self.synced_at: list[int] = []

    def write(self, data: bytes) -> None:
        self.writer.write(data)
        self.length += len(data)

    def hsync(self) -> None:
        self.writer.hsync()
        self.synced_at.append(self.length)

    def close(self) -> None:
        self.writer.close()


@pytest.fixture
def use() -> Iterator[Callable[[dict[str, str]], None]]:
    """Register `hdfs://` and `viewfs://` with Hadoop options and short retries."""

    def register(options: dict[str, str]) -> None:
        for scheme in ("hdfs", "viewfs"):
            register_file_system(
                scheme, lambda: HdfsFileSystem(options, retries=SOON), retries=SOON
            )

    yield register
    unregister_file_system("hdfs")
    unregister_file_system("viewfs")


class TestAddresses:
    def test_viewfs_follows_its_links(
        self, hdfs_directory: HdfsDirectory, use: Callable[[dict[str, str]], None]
    ) -> None:
        for name in ("linked", "rest"):
            hdfs_directory.client.mkdirs(f"{hdfs_directory.path}/{name}")
        use(
            {
                "fs.viewfs.mounttable.one.link./a": f"{hdfs_directory.uri}/linked",
                "fs.viewfs.mounttable.one.linkFallback": f"{hdfs_directory.uri}/rest",
            }
        )
        file_system = file_system_for("viewfs://one/a")
        for directory, name in (("a/", "linked"), ("", "rest")):
            stream = file_system.create(f"viewfs://one/{directory}x")
            stream.write(b"1" * MIB)
            stream.commit()
            publish(f"viewfs://one/{directory}y", b"2", single_writer=False)
            with pytest.raises(CheckpointConflictError):
                publish(f"viewfs://one/{directory}y", b"3", single_writer=False)
            with file_system.open(f"viewfs://one/{directory}x") as file:
                assert file.read() == b"1" * MIB
            assert hdfs_directory.read(f"{name}/y") == b"2"
        listed = {entry.uri for entry in file_system.list("viewfs://one/a")}
        assert listed == {"viewfs://one/a/x", "viewfs://one/a/y"}
        file_system.delete_tree("viewfs://one/a")
        assert hdfs_directory.files() == ["rest/x", "rest/y"]

    def test_uri_without_an_authority_uses_the_default(
        self, hdfs_directory: HdfsDirectory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HADOOP_CONF_DIR", str(hdfs_directory.server.conf_dir))
        source = """
import sys
from holdfast.locations.file_systems import file_system_for, publish
publish(sys.argv[1] + "/x", b"1", single_writer=False)
print([entry.uri for entry in file_system_for(sys.argv[1]).list(sys.argv[1])])
"""
        uri = f"hdfs://{hdfs_directory.path}"
        assert output_of(source, uri) == f"['{uri}/x']"
        assert hdfs_directory.read("x") == b"1"

    def test_wrong_address_is_one_clear_error(
        self, hdfs: HdfsServer, use: Callable[[dict[str, str]], None]
    ) -> None:
        use({"hadoop.security.secret": "hunter2"})
        with socket.create_server(("127.0.0.1", 0)) as closed:
            port = closed.getsockname()[1]
        addresses = json.loads((hdfs.directory / "addresses").read_text())
        wrong: dict[str, tuple[type[CheckpointError], str]] = {
            "hdfs://no-such-host.invalid:8020": (StorageUnavailableError, "lookup address"),
            f"hdfs://127.0.0.1:{port}": (StorageUnavailableError, "refused"),
            f"hdfs://{addresses['name']}": (StorageUnavailableError, "disconnected|Broken pipe"),
            "hdfs://nameservice1": (InvalidRequestError, "HADOOP_CONF_DIR"),
            "viewfs://cluster": (InvalidRequestError, "fallback"),
        }
        for uri, (kind, text) in wrong.items():
            for attempt in (
                lambda: file_system_for(uri).prepare_directory(f"{uri}/a"),  # noqa: B023
                lambda: list(file_system_for(uri).list(f"{uri}/a")),  # noqa: B023
                lambda: publish(f"{uri}/a/x", b"1", single_writer=False),  # noqa: B023
            ):
                with pytest.raises(kind, match=text) as caught:
                    attempt()
                assert caught.value.location.startswith(f"{uri}/a")
                assert "hunter2" not in str(caught.value)


class TestProcesses:
    def test_another_user_is_refused_by_name(
        self, hdfs_directory: HdfsDirectory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file_system = HdfsFileSystem()
        private = f"{hdfs_directory.uri}/private"
        file_system.prepare_directory(private)
        write(f"{private}/x", b"1")
        monkeypatch.setenv("HADOOP_USER_NAME", "mallory")
        source = """
import sys
from holdfast.errors import InvalidRequestError
from holdfast.locations.file_systems import file_system_for, publish
uri = sys.argv[1]
files = file_system_for(uri)
for attempt in (
    lambda: files.prepare_directory(uri + "/a"),
    lambda: files.create(uri + "/y"),
    lambda: publish(uri + "/y", b"1", single_writer=False),
    lambda: files.open(uri + "/x"),
    lambda: files.list(uri),
    lambda: files.delete([uri + "/x"]),
    lambda: files.delete_tree(uri),
):
    try:
        attempt()
    except InvalidRequestError as error:
        print(error)
"""
        refused = output_of(source, private).splitlines()
        assert len(refused) == 7
        for line in refused:
            assert (
                "HDFS refused the request (AccessControlException: Permission denied: user=mall"
                in line
            )
            assert f"location='{private}" in line
        assert hdfs_directory.files() == ["private/x"]

    def test_spawned_process_writes_and_forked_process_is_refused(
        self, hdfs_directory: HdfsDirectory
    ) -> None:
        source = """
import multiprocessing, os, sys
from holdfast.errors import InvalidRequestError
from holdfast.locations.file_systems import HdfsFileSystem

def act(uri):
    HdfsFileSystem().publish(uri, b"1")

if __name__ == "__main__":
    act(sys.argv[1] + "/parent")
    child = os.fork()
    if not child:
        try:
            act(sys.argv[1] + "/forked")
        except InvalidRequestError as error:
            print(error, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    act(sys.argv[1] + "/parent-again")
"""
        message = "can't be used in a process forked after its first use; spawn the process"
        assert message in output_of(source, hdfs_directory.uri)
        context = multiprocessing.get_context("spawn")
        HdfsFileSystem().publish(f"{hdfs_directory.uri}/before", b"1")
        with context.Pool(1) as pool:
            assert pool.apply(publishes, (f"{hdfs_directory.uri}/spawned", b"1"))
        assert hdfs_directory.files() == ["before", "parent", "parent-again", "spawned"]

    def test_files_of_a_killed_process_are_ignored_and_swept(
        self, hdfs_directory: HdfsDirectory
    ) -> None:
        """State files of a task, and the hidden file of a driver that publishes its metadata."""
        uri = hdfs_directory.uri
        storage = FileSystemCheckpointStorage(uri, inline_threshold=0)
        access = storage.create_checkpoint_storage("job")
        access.initialize_base_locations_for_checkpoint()
        location = access.initialize_location_for_checkpoint(1)
        with location.create_checkpoint_state_output_stream(EXCLUSIVE) as stream:
            stream.write(b"state")
            handle = stream.close_and_get_handle()
        assert handle is not None
        complete_checkpoint(location, metadata_of(handle, checkpoint_id=1))
        before = hdfs_directory.files()
        assert len(before) > 1
        source = """
import sys
from holdfast.locations import FileSystemCheckpointStorage
from holdfast.locations.adapters import CheckpointedStateScope
from holdfast.locations.file_systems import publish
import hdfs_native

def stop(*arguments, **options):
    print("ready", flush=True)
    sys.stdin.readline()

storage = FileSystemCheckpointStorage(sys.argv[1], inline_threshold=0)
access = storage.create_checkpoint_storage("job")
location = access.initialize_location_for_checkpoint(2)
streams = [location.create_checkpoint_state_output_stream(one) for one in CheckpointedStateScope]
for stream in streams:
    stream.write(bytes(2_000_000))
    stream.flush_to_file()
hdfs_native.Client.rename = stop
publish(location.external_pointer + "/_metadata", b"metadata", single_writer=False)
"""
        with python(source, uri) as process:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
            process.kill()
            process.communicate()
        left = set(hdfs_directory.files()) - set(before)
        assert len(left) == 3
        assert len([name for name in left if name.endswith(".inprogress")]) == 1
        assert list(access.completed_checkpoints()) == [1]
        assert sweep(uri, "job").files == ()
        swept = {file.uri for file in sweep(uri, "job", grace_s=0).files}
        assert swept == {f"{uri}/{name}" for name in left}
        assert hdfs_directory.files() == before
        assert list(access.completed_checkpoints()) == [1]

    def test_driver_removes_files_of_its_killed_task(self, hdfs_directory: HdfsDirectory) -> None:
        storage = FileSystemCheckpointStorage(hdfs_directory.uri, inline_threshold=0)
        access = storage.create_checkpoint_storage("job")
        access.initialize_base_locations_for_checkpoint()
        location = access.initialize_location_for_checkpoint(1)
        before = hdfs_directory.files()
        source = """
import sys
from holdfast.locations import *
from holdfast.locations.adapters import *
access = FileSystemCheckpointStorage(sys.argv[1], inline_threshold=0).create_checkpoint_storage("job")
reference = CheckpointStorageLocationReference(bytes.fromhex(sys.argv[2]))
factory = access.resolve_checkpoint_storage_location(1, reference)
stream = factory.create_checkpoint_state_output_stream(CheckpointedStateScope.EXCLUSIVE)
stream.write(bytes(2_000_000))
stream.flush_to_file()
print("ready", flush=True)
sys.stdin.readline()
"""
        reference = location.location_reference.encoded.hex()
        with python(source, hdfs_directory.uri, reference) as process:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
            process.kill()
            process.communicate()
        assert len(hdfs_directory.files()) == len(before) + 1
        location.dispose_on_failure()
        assert hdfs_directory.files() == before
