"""What every file system must do, written once."""

import io
import pickle
import threading
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from contracts.interleaving import Interleaved, at_every_step

from holdfast.errors import (
    CheckpointConflictError,
    CheckpointNotFoundError,
    InvalidRequestError,
    StreamClosedError,
)
from holdfast.locations import FileSystem

RACERS = 8

Write = Callable[[FileSystem, str, bytes], None]


def create_and_commit(file_system: FileSystem, uri: str, data: bytes) -> None:
    stream = file_system.create(uri)
    stream.write(data)
    stream.commit()


def publish(file_system: FileSystem, uri: str, data: bytes) -> None:
    file_system.publish(uri, data)


both_writes = pytest.mark.parametrize("write", [create_and_commit, publish])


class FileSystemContract:
    """Subclass per file system; provide the fixtures and the accessors."""

    @pytest.fixture
    def file_system(self) -> FileSystem:
        raise NotImplementedError

    @pytest.fixture
    def directory(self) -> str:
        """URI of an empty directory."""
        raise NotImplementedError

    def files(self, directory: str) -> dict[str, bytes]:
        """All files below, hidden ones too, by relative name; read behind the store's back."""
        raise NotImplementedError

    def put(self, uri: str, data: bytes) -> None:
        """Store a file behind the store's back."""
        raise NotImplementedError

    # Directories

    def test_prepare_directory_makes_all_levels_and_may_be_repeated(
        self, file_system: FileSystem, directory: str
    ) -> None:
        for _ in range(2):
            file_system.prepare_directory(f"{directory}/a/b/c")
        file_system.publish(f"{directory}/a/b/c/x", b"1")
        assert self.files(directory) == {"a/b/c/x": b"1"}

    @pytest.mark.parametrize("below", ["", "/b", "/b/c"])
    def test_a_file_in_the_way_of_a_directory_is_refused_and_kept(
        self, file_system: FileSystem, directory: str, below: str
    ) -> None:
        self.put(f"{directory}/a", b"mine")
        with pytest.raises(InvalidRequestError):
            file_system.prepare_directory(f"{directory}/a{below}")
        assert self.files(directory) == {"a": b"mine"}

    def test_delete_tree_removes_all_below_and_nothing_beside(
        self, file_system: FileSystem, directory: str
    ) -> None:
        file_system.prepare_directory(f"{directory}/a/b")
        file_system.prepare_directory(f"{directory}/ab")
        for name in ("a/x", "a/b/y", "a/b/.z", "ab/x"):
            self.put(f"{directory}/{name}", b"1")
        file_system.delete_tree(f"{directory}/a")
        assert self.files(directory) == {"ab/x": b"1"}
        assert [entry.uri for entry in file_system.list(directory)] == [f"{directory}/ab"]

    def test_what_is_missing_counts_as_deleted(
        self, file_system: FileSystem, directory: str
    ) -> None:
        file_system.delete_tree(f"{directory}/missing")
        file_system.delete_empty_directory(f"{directory}/missing")
        file_system.delete([f"{directory}/missing", f"{directory}/missing/x"])
        file_system.delete([])

    def test_a_directory_is_deleted_only_while_it_is_empty(
        self, file_system: FileSystem, directory: str
    ) -> None:
        for name in ("full", "nested/inner", "empty"):
            file_system.prepare_directory(f"{directory}/{name}")
        self.put(f"{directory}/full/x", b"1")
        for name in ("full", "nested", "empty"):
            file_system.delete_empty_directory(f"{directory}/{name}")
        left = {entry.uri for entry in file_system.list(directory)}
        assert left == {f"{directory}/full", f"{directory}/nested"}
        assert self.files(directory) == {"full/x": b"1"}

    def test_list_tells_files_and_directories_apart(
        self, file_system: FileSystem, directory: str
    ) -> None:
        file_system.prepare_directory(f"{directory}/inner/deeper")
        file_system.publish(f"{directory}/file", b"12345")
        file_system.publish(f"{directory}/inner/hidden from above", b"1")
        found = {entry.uri: entry for entry in file_system.list(directory)}
        assert found.keys() == {f"{directory}/inner", f"{directory}/file"}
        inner, file = found[f"{directory}/inner"], found[f"{directory}/file"]
        assert (inner.is_directory, inner.size) == (True, 0)
        assert (file.is_directory, file.size) == (False, 5)
        assert file.modified_ms > 1_600_000_000_000

    def test_a_missing_directory_has_no_entries(
        self, file_system: FileSystem, directory: str
    ) -> None:
        assert list(file_system.list(f"{directory}/missing")) == []

    def test_a_file_has_no_entries(self, file_system: FileSystem, directory: str) -> None:
        self.put(f"{directory}/file", b"1")
        assert list(file_system.list(f"{directory}/file")) == []

    def test_bulk_delete_removes_what_is_there(
        self, file_system: FileSystem, directory: str
    ) -> None:
        for name in "abc":
            self.put(f"{directory}/{name}", b"1")
        file_system.delete(f"{directory}/{name}" for name in ("missing", "a", "none", "c"))
        assert self.files(directory) == {"b": b"1"}

    # Files in the making

    def test_nothing_is_visible_before_commit(
        self, file_system: FileSystem, directory: str
    ) -> None:
        uri = f"{directory}/x"
        stream = file_system.create(uri)
        stream.write(b"12")
        assert uri not in {entry.uri for entry in file_system.list(directory)}
        with pytest.raises(CheckpointNotFoundError):
            file_system.open(uri)
        stream.commit()
        assert self.files(directory) == {"x": b"12"}

    @pytest.mark.parametrize("parts", [[], [b""], [b"1"], [bytes(1 << 20), b"end", bytes(3 << 20)]])
    def test_a_committed_file_is_whole_and_alone(
        self, file_system: FileSystem, directory: str, parts: list[bytes]
    ) -> None:
        stream = file_system.create(f"{directory}/x")
        for part in parts:
            stream.write(part)
        stream.commit()
        stream.abort()
        assert self.files(directory) == {"x": b"".join(parts)}

    def test_every_kind_of_buffer_is_written_as_bytes(
        self, file_system: FileSystem, directory: str
    ) -> None:
        longs = array("q", [1, 2, 3])
        stream = file_system.create(f"{directory}/x")
        for part in (b"a", bytearray(b"b"), memoryview(b"cd")[1:], memoryview(longs)):
            stream.write(part)
        stream.commit()
        assert self.files(directory) == {"x": b"abd" + longs.tobytes()}

    @pytest.mark.parametrize("written", [None, b"", b"12", bytes(1 << 20)])
    def test_nothing_is_left_after_abort(
        self, file_system: FileSystem, directory: str, written: bytes | None
    ) -> None:
        stream = file_system.create(f"{directory}/x")
        if written is not None:
            stream.write(written)
        for _ in range(2):
            stream.abort()
        assert self.files(directory) == {}

    @pytest.mark.parametrize("ending", ["commit", "abort"])
    def test_a_finished_stream_refuses_to_go_on(
        self, file_system: FileSystem, directory: str, ending: str
    ) -> None:
        stream = file_system.create(f"{directory}/x")
        getattr(stream, ending)()
        with pytest.raises(StreamClosedError):
            stream.write(b"1")
        with pytest.raises(StreamClosedError):
            stream.commit()
        stream.abort()
        assert self.files(directory) == ({"x": b""} if ending == "commit" else {})

    @both_writes
    def test_a_conflict_leaves_the_first_file_and_nothing_else(
        self, file_system: FileSystem, directory: str, write: Write
    ) -> None:
        write(file_system, f"{directory}/x", b"first")
        with pytest.raises(CheckpointConflictError):
            write(file_system, f"{directory}/x", b"second")
        assert self.files(directory) == {"x": b"first"}

    @both_writes
    def test_a_directory_under_the_name_is_a_conflict(
        self, file_system: FileSystem, directory: str, write: Write
    ) -> None:
        file_system.prepare_directory(f"{directory}/x")
        with pytest.raises(CheckpointConflictError):
            write(file_system, f"{directory}/x", b"1")
        assert self.files(directory) == {}

    @both_writes
    def test_a_file_needs_its_directory(
        self, file_system: FileSystem, directory: str, write: Write
    ) -> None:
        with pytest.raises(CheckpointNotFoundError):
            write(file_system, f"{directory}/missing/x", b"1")
        assert self.files(directory) == {}

    @both_writes
    def test_one_of_eight_racing_threads_wins(
        self, file_system: FileSystem, directory: str, write: Write
    ) -> None:
        start = threading.Barrier(RACERS)

        def wins(racer: int) -> bool:
            start.wait()
            try:
                write(file_system, f"{directory}/x", b"%d" % racer * 1000)
            except CheckpointConflictError:
                return False
            return True

        with ThreadPoolExecutor(RACERS) as pool:
            won = list(pool.map(wins, range(RACERS)))
        assert won.count(True) == 1
        assert self.files(directory) == {"x": b"%d" % won.index(True) * 1000}

    def test_abort_from_another_thread_stops_the_writer(
        self, file_system: FileSystem, directory: str
    ) -> None:
        stream = file_system.create(f"{directory}/x")
        written = threading.Event()

        def write_until_stopped() -> None:
            while True:
                stream.write(bytes(1000))
                written.set()

        with ThreadPoolExecutor(1) as pool:
            writer = pool.submit(write_until_stopped)
            written.wait()
            stream.abort()
            with pytest.raises(StreamClosedError):
                writer.result()
        assert self.files(directory) == {}

    def test_abort_at_any_step_of_a_commit_leaves_the_whole_file_or_nothing(
        self, file_system: FileSystem, directory: str
    ) -> None:
        def prepare() -> tuple[Callable[[], None], Callable[[], None]]:
            file_system.delete([f"{directory}/x"])
            stream = file_system.create(f"{directory}/x")
            stream.write(b"whole")
            return stream.commit, stream.abort

        def check(outcome: Interleaved) -> None:
            if outcome.error is None:
                assert self.files(directory) == {"x": b"whole"}
            else:
                assert self.files(directory) == {}
                assert isinstance(outcome.error, StreamClosedError)

        at_every_step(prepare, check)

    # Reading

    def test_opening_what_is_missing_says_so(self, file_system: FileSystem, directory: str) -> None:
        for name in ("missing", "missing/x"):
            with pytest.raises(CheckpointNotFoundError) as caught:
                file_system.open(f"{directory}/{name}")
            assert caught.value.location == f"{directory}/{name}"

    def test_reads_are_seekable(self, file_system: FileSystem, directory: str) -> None:
        self.put(f"{directory}/x", b"0123456789")
        with file_system.open(f"{directory}/x") as stream:
            assert stream.seekable()
            assert stream.seek(7) == 7
            assert stream.read(2) == b"78"
            assert stream.seek(-1, io.SEEK_END) == 9
            assert stream.read() == b"9"
            assert stream.read(1) == b""
            assert stream.seek(0) == 0
            buffer = bytearray(3)
            assert stream.readinto(buffer) == 3  # type: ignore[attr-defined]
            assert buffer == b"012"
            assert stream.tell() == 3

    def test_a_deleted_file_can_be_written_again(
        self, file_system: FileSystem, directory: str
    ) -> None:
        for content in (b"1", b"2"):
            file_system.publish(f"{directory}/x", content)
            with file_system.open(f"{directory}/x") as stream:
                assert stream.read() == content
            file_system.delete([f"{directory}/x"])

    def test_names_are_taken_as_they_are(self, file_system: FileSystem, directory: str) -> None:
        for name in ("%2F", "a b", "é", "x?y#z", "*", "-rf"):
            file_system.publish(f"{directory}/{name}", name.encode())
            assert f"{directory}/{name}" in {entry.uri for entry in file_system.list(directory)}
            assert self.files(directory)[name] == name.encode()

    def test_it_pickles(self, file_system: FileSystem, directory: str) -> None:
        pickle.loads(pickle.dumps(file_system)).publish(f"{directory}/x", b"1")
        assert self.files(directory) == {"x": b"1"}
