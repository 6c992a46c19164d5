"""`gs://` and `az://` through obstore: the contract of exclusive stores, large files, deletions, processes."""

import os
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields

import pytest
from contracts.errors import of_kind
from contracts.files import write
from contracts.patience import HANGS_S
from contracts.processes import of_many_threads, python, run_in_fork
from servers.clouds import (
    AZURE,
    AzureServer,
    CloudBucket,
    GcsServer,
    azurite,
    cloud_bucket,
    memory_gcs,
)

from holdfast.common import uripath
from holdfast.errors import (
    CheckpointConflictError,
    CheckpointCorruptedError,
    CheckpointNotFoundError,
    InvalidRequestError,
    StreamClosedError,
)
from holdfast.locations import AzureSettings
from holdfast.locations.adapters import FileStatus, file_system_for, unregister_file_system
from holdfast.locations.file_systems import (
    AzureFileSystem,
    ObjectStoreFileSystem,
    check_exclusive,
)
from holdfast.testing import ExclusiveFileSystemContract

__all__ = ["azurite", "cloud_bucket", "memory_gcs"]

MIB = 1 << 20


class ObjectStoreContract(ExclusiveFileSystemContract):
    """Requirements of every store through obstore; a subclass provides `bucket`."""

    has_directories = False
    _bucket: CloudBucket

    @pytest.fixture(scope="class")
    @classmethod
    def bucket(cls) -> CloudBucket:
        """A bucket for all tests of the class."""
        raise NotImplementedError

    @pytest.fixture
    def file_system(self, bucket: CloudBucket) -> ObjectStoreFileSystem:
        return bucket.server.file_system()

    @pytest.fixture
    def directory(self, bucket: CloudBucket) -> str:
        self._bucket = bucket
        return f"{bucket.uri}/{uuid.uuid4().hex}"

    def files(self, directory: str) -> dict[str, bytes]:
        return self._bucket.contents(self._key(directory) + "/")

    def put(self, uri: str, data: bytes) -> None:
        self._bucket.put(self._key(uri), data)

    def put_all(self, uris: Iterable[str], data: bytes) -> None:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda uri: self.put(uri, data), uris))

    @staticmethod
    def _key(uri: str) -> str:
        return uri.split("/", 3)[3]

    @pytest.fixture
    def scheme_settings(self, bucket: CloudBucket) -> Iterator[None]:
        """Use the server for its scheme."""
        bucket.server.use()
        yield
        unregister_file_system(bucket.server.scheme)

    def test_large_file_is_sent_in_parts_and_read_at_any_position(
        self, file_system: ObjectStoreFileSystem, directory: str
    ) -> None:
        data = os.urandom(11 * MIB + 7)
        stream = file_system.create(f"{directory}/x")
        for first in range(0, len(data), MIB):
            stream.write(data[first : first + MIB])
        assert list(file_system.list(directory)) == []
        stream.commit()
        with file_system.open(f"{directory}/x") as opened:
            assert opened.read() == data
            for position in (7 * MIB, 7 * MIB + 100, 10, 5 * MIB, len(data) - 1):
                opened.seek(position)
                assert opened.read(5) == data[position : position + 5]
        assert self.files(directory) == {"x": data}

    def test_aborted_large_file_leaves_nothing(
        self, file_system: ObjectStoreFileSystem, directory: str
    ) -> None:
        stream = file_system.create(f"{directory}/x")
        stream.write(bytes(12 * MIB))
        stream.abort()
        with pytest.raises(StreamClosedError):
            stream.commit()
        assert self.files(directory) == {}

    def test_replaced_file_is_not_mixed_with_its_successor(
        self, file_system: ObjectStoreFileSystem, directory: str
    ) -> None:
        self.put(f"{directory}/x", bytes(6 * MIB))
        with file_system.open(f"{directory}/x") as opened:
            self.put(f"{directory}/x", b"1" * 6 * MIB)
            opened.seek(5 * MIB)
            with pytest.raises(CheckpointCorruptedError, match="replaced"):
                opened.read(1)

    def test_missing_names_among_many_do_not_stop_a_deletion(
        self, file_system: ObjectStoreFileSystem, directory: str
    ) -> None:
        uris = [f"{directory}/{number}" for number in range(300)]
        self.put_all(uris[::2], b"1")
        file_system.delete(uris)
        assert self.files(directory) == {}

    def test_missing_bucket_is_reported_as_such(
        self, file_system: ObjectStoreFileSystem, directory: str
    ) -> None:
        missing = f"{directory.partition('://')[0]}://missing-{uuid.uuid4().hex}/x"
        for call in (
            lambda: file_system.publish(missing, b"1"),
            lambda: file_system.open(missing),
            lambda: list(file_system.list(missing)),
        ):
            with pytest.raises(InvalidRequestError, check=of_kind("no-bucket")):
                call()

    @pytest.mark.usefixtures("scheme_settings")
    def test_store_passes_the_check_of_exclusive_creation(self, directory: str) -> None:
        check_exclusive(directory)
        assert self.files(directory) == {}

    def test_one_of_sixteen_racing_threads_wins_each_of_many_rounds(
        self, file_system: ObjectStoreFileSystem, directory: str
    ) -> None:
        def wins(round_number: int, racer: int) -> bool:
            try:
                file_system.publish(f"{directory}/{round_number}", b"%d" % racer)
            except CheckpointConflictError:
                return False
            return True

        with ThreadPoolExecutor(16) as pool:
            for number in range(10):
                won = list(pool.map(lambda racer: wins(number, racer), range(16)))  # noqa: B023
                assert won.count(True) == 1
                assert self.files(directory)[str(number)] == b"%d" % won.index(True)

    @pytest.mark.usefixtures("scheme_settings")
    def test_file_system_of_its_scheme_is_built_in(self, directory: str) -> None:
        write(file_system_for(directory).inner, f"{directory}/x", b"1")
        assert self.files(directory) == {"x": b"1"}


class TestGcs(ObjectStoreContract):
    @pytest.fixture(scope="class")
    @classmethod
    def bucket(cls, memory_gcs: GcsServer) -> Iterator[CloudBucket]:
        bucket = memory_gcs.new_bucket()
        yield bucket
        assert memory_gcs.store.uploads(bucket.name, "") == []

    def test_dropped_stream_leaves_no_upload(
        self, file_system: ObjectStoreFileSystem, directory: str, memory_gcs: GcsServer
    ) -> None:
        stream = file_system.create(f"{directory}/x")
        stream.write(bytes(12 * MIB))
        del stream
        assert memory_gcs.store.uploads(self._bucket.name, "") == []

    def test_key_with_empty_part_is_reported_by_a_listing(
        self, file_system: ObjectStoreFileSystem, directory: str, memory_gcs: GcsServer
    ) -> None:
        memory_gcs.store.put(self._bucket.name, f"{self._key(directory)}/a//b", b"1")
        with pytest.raises(InvalidRequestError, match=r"such as a//b"):
            file_system.delete_tree(directory)

    @of_many_threads
    def test_forked_process_is_refused_and_does_not_hang(
        self, file_system: ObjectStoreFileSystem, directory: str
    ) -> None:
        write(file_system, f"{directory}/parent", b"1")

        def child() -> None:
            with pytest.raises(InvalidRequestError, match="forked"):
                file_system.publish(f"{directory}/child", b"2")

        assert run_in_fork(child) == 0
        with pytest.raises(CheckpointNotFoundError):
            file_system.open(f"{directory}/child")


@AZURE
class TestAzure(ObjectStoreContract):
    @pytest.fixture(scope="class")
    @classmethod
    def bucket(cls, azurite: AzureServer) -> CloudBucket:
        return azurite.new_bucket()

    def test_directory_of_hierarchical_namespace_is_deleted_like_a_blob(
        self, file_system: ObjectStoreFileSystem, directory: str
    ) -> None:
        self.put(f"{directory}/chk-1", b"")  # Azurite has no such namespace
        for _ in range(2):
            file_system.delete_empty_directory(f"{directory}/chk-1")
        assert self.files(directory) == {}


class HierarchicalContainer(AzureFileSystem):
    """A container where directories remain after their blobs, as in a hierarchical namespace."""

    def __init__(self, settings: AzureSettings, directories: set[str]) -> None:
        super().__init__(settings)
        self.directories = directories

    def list(self, uri: str, /) -> Iterable[FileStatus]:
        return [
            FileStatus(each, 0, 0, is_directory=True)
            for each in sorted(self.directories)
            if uripath.parent(each) == uri
        ]

    def delete_empty_directory(self, uri: str, /) -> None:
        assert not list(self.list(uri))
        self.directories.discard(uri)


@AZURE
def test_tree_is_deleted_with_its_directories_from_the_bottom_up(azurite: AzureServer) -> None:
    directory = azurite.new_bucket().uri + "/dir"
    inside = {f"{directory}/{name}" for name in ("a", "a/b", "a/b/c", "a/d", "e")}
    settings = azurite.settings
    assert isinstance(settings, AzureSettings)
    file_system = HierarchicalContainer(settings, {directory, *inside})
    file_system.delete_tree(directory)
    assert file_system.directories == set()


RACER = """
import sys
from holdfast.errors import CheckpointConflictError
from holdfast.locations import AzureSettings, GcsSettings
from holdfast.locations.file_systems import AzureFileSystem, ObjectStoreFileSystem

file_system, directory, racer = eval(sys.argv[1]), sys.argv[2], sys.argv[3]
list(file_system.list(directory))  # connects
print("ready", flush=True)
sys.stdin.readline()
for number in range(20):
    try:
        file_system.publish(f"{directory}/{number}", racer.encode())
        print(number)
    except CheckpointConflictError:
        pass
"""


@pytest.mark.exhaustive  # starts eight interpreters
def test_one_of_eight_racing_processes_wins_each_name(cloud_bucket: CloudBucket) -> None:
    settings = cloud_bucket.server.settings
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    arguments = f"{type(settings).__name__}(**{values!r})"
    made = f"{type(cloud_bucket.server.file_system()).__name__}({arguments})"
    racers = [python(RACER, made, f"{cloud_bucket.uri}/dir", str(racer)) for racer in range(8)]
    for racer in racers:
        assert racer.stdout
        assert racer.stdout.readline() == "ready\n"
    with ThreadPoolExecutor(len(racers)) as pool:
        outputs = list(
            pool.map(lambda racer: racer.communicate("go\n", timeout=HANGS_S)[0], racers)
        )
    won = {number: str(racer) for racer, output in enumerate(outputs) for number in output.split()}
    assert sum(len(output.split()) for output in outputs) == len(won) == 20
    stored = cloud_bucket.contents("dir/")
    assert {number: data.decode() for number, data in stored.items()} == won
