"""HDFS as a store, on a real NameNode and DataNode."""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from servers.hdfs import HdfsDirectory

from holdfast.errors import (
    CheckpointConflictError,
    CheckpointError,
    CheckpointNotFoundError,
    StorageFullError,
    StorageUnavailableError,
)
from holdfast.locations import (
    CheckpointStorage,
    ExclusiveFileSystem,
    FileSystemCheckpointStorage,
    HdfsFileSystem,
    checkpoint_storage,
)
from holdfast.locations.file_systems import publish
from holdfast.testing import CheckpointStorageContract, ExclusiveFileSystemContract

MIB = 1 << 20


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


def test_eight_racing_publishers_have_one_winner(hdfs_directory: HdfsDirectory) -> None:
    uri = f"{hdfs_directory.uri}/x"

    def race(number: int) -> bool:
        try:
            publish(uri, b"%d" % number, single_writer=False)
        except CheckpointConflictError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(race, range(8)))
    assert won.count(True) == 1
    assert hdfs_directory.read("x") == b"%d" % won.index(True)
    assert hdfs_directory.files() == ["x"]


def test_files_and_directories_are_their_owners_alone(hdfs_directory: HdfsDirectory) -> None:
    HdfsFileSystem().prepare_directory(f"{hdfs_directory.uri}/a/b")
    write(f"{hdfs_directory.uri}/a/b/x", b"1")
    HdfsFileSystem().publish(f"{hdfs_directory.uri}/a/b/y", b"1")
    modes = {
        name: hdfs_directory.client.get_file_info(f"{hdfs_directory.path}/{name}").permission
        for name in ("a", "a/b", "a/b/x", "a/b/y")
    }
    assert modes == {"a": 0o700, "a/b": 0o700, "a/b/x": 0o600, "a/b/y": 0o600}


def test_a_zombie_can_not_bring_a_deleted_directory_back(hdfs_directory: HdfsDirectory) -> None:
    file_system = HdfsFileSystem()
    uri = f"{hdfs_directory.uri}/gone"
    file_system.prepare_directory(uri)
    stream = file_system.create(f"{uri}/x")
    stream.write(b"1" * MIB)
    file_system.delete_tree(uri)
    with pytest.raises(CheckpointNotFoundError, match="was deleted while it was written"):
        stream.commit()
    with pytest.raises(CheckpointNotFoundError):
        file_system.create(f"{uri}/y")
    with pytest.raises(CheckpointNotFoundError):
        file_system.publish(f"{uri}/z", b"1")
    assert hdfs_directory.files() == []
    assert list(file_system.list(hdfs_directory.uri)) == []


def test_safe_mode_is_waited_for(hdfs_directory: HdfsDirectory) -> None:
    hdfs_directory.server.safe_mode(on=True)
    with pytest.raises(StorageUnavailableError, match="SafeMode"):
        HdfsFileSystem().publish(f"{hdfs_directory.uri}/x", b"1")
    hdfs_directory.server.safe_mode(on=False)
    HdfsFileSystem().publish(f"{hdfs_directory.uri}/x", b"1")
    assert hdfs_directory.read("x") == b"1"


def test_a_quota_that_is_used_up_is_said_to_be(hdfs_directory: HdfsDirectory) -> None:
    hdfs_directory.server.set_quota(hdfs_directory.path, names=2)
    write(f"{hdfs_directory.uri}/x", b"1")
    with pytest.raises(StorageFullError, match="quota"):
        write(f"{hdfs_directory.uri}/y", b"1")
    assert hdfs_directory.files() == ["x"]


def test_a_large_stream_comes_back_as_it_was(hdfs_directory: HdfsDirectory) -> None:
    data = os.urandom(20 * MIB + 7)
    write(f"{hdfs_directory.uri}/x", data)
    with HdfsFileSystem().open(f"{hdfs_directory.uri}/x") as stream:
        assert stream.read() == data
        stream.seek(5 * MIB + 3)
        assert stream.read(10) == data[5 * MIB + 3 : 5 * MIB + 13]


def test_a_name_node_that_comes_back_is_waited_for(hdfs_directory: HdfsDirectory) -> None:
    hdfs_directory.server.restart_name_node()
    HdfsFileSystem().publish(f"{hdfs_directory.uri}/x", b"1")
    assert hdfs_directory.read("x") == b"1"


def test_a_killed_data_node_is_an_error_or_survived(hdfs_directory: HdfsDirectory) -> None:
    stream = HdfsFileSystem().create(f"{hdfs_directory.uri}/x")
    stream.write(b"1" * MIB)
    hdfs_directory.server.kill_data_node()
    with pytest.raises(CheckpointError):
        for _ in range(64):
            stream.write(b"1" * MIB)
        stream.commit()
    assert hdfs_directory.files() == []
