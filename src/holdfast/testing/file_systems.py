"""Requirements of every file system."""

import io
import threading
from array import array
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    InvalidRequestError,
    StreamClosedError,
)
from holdfast.locations.file_systems import (
    CopyingFileSystem,
    ExclusiveFileSystem,
    FileSystem,
    RetryingFileSystem,
    RetryPolicy,
)
from holdfast.testing.interleaving import Interleaved, at_every_step, code_of


def create_and_commit(file_system: FileSystem, uri: str, data: bytes) -> None:
    stream = file_system.create(uri)
    try:
        stream.write(data)
        stream.commit()
    finally:
        stream.abort()


class FileSystemContract:
    """Requirements of every `FileSystem`; for an `ExclusiveFileSystem` use its own suite instead.

    Subclass it in a test file, under a name that pytest collects, and provide the fixtures
    `file_system` and `directory` and the accessors `files` and `put`. Test the adapter itself, not
    the wrapper that `file_system_for` returns.
    """

    has_directories = True
    """True if directories exist by themselves. In an object store, a directory is only the common prefix of
    some names: a file does not need one, and can't conflict with one."""

    @pytest.fixture
    def file_system(self) -> FileSystem:
        """The adapter."""
        raise NotImplementedError

    @pytest.fixture
    def directory(self) -> str:
        """Normalized URI of an empty directory, a new one for each test."""
        raise NotImplementedError

    def files(self, directory: str) -> dict[str, bytes]:
        """Return all files below a directory by relative name, hidden ones too, without using the adapter."""
        raise NotImplementedError

    def put(self, uri: str, data: bytes) -> None:
        """Store a file in an existing directory, without using the adapter."""
        raise NotImplementedError

    def put_all(self, uris: Iterable[str], data: bytes) -> None:
        """Store many files with the same bytes."""
        for uri in uris:
            self.put(uri, data)

    # Copies

    def test_copy_in_the_store_has_the_bytes_of_its_source(
        self, file_system: FileSystem, directory: str
    ) -> None:
        if not isinstance(file_system, CopyingFileSystem):
            return
        self.put(f"{directory}/x", b"some bytes")
        for _ in range(2):
            file_system.copy(f"{directory}/x", f"{directory}/y")
        assert self.files(directory) == {"x": b"some bytes", "y": b"some bytes"}
        file_system.delete([f"{directory}/x"])
        assert self.files(directory) == {"y": b"some bytes"}
        with pytest.raises(CheckpointNotFoundError):
            file_system.copy(f"{directory}/x", f"{directory}/z")
        assert self.files(directory) == {"y": b"some bytes"}

    # Directories

    def test_prepare_directory_makes_all_levels_and_may_be_repeated(
        self, file_system: FileSystem, directory: str
    ) -> None:
        for _ in range(2):
            file_system.prepare_directory(f"{directory}/a/b/c")
        create_and_commit(file_system, f"{directory}/a/b/c/x", b"1")
        file_system.prepare_directory(f"{directory}/a/b/c")
        assert self.files(directory) == {"a/b/c/x": b"1"}

    @pytest.mark.parametrize("below", ["", "/b", "/b/c"])
    def test_a_file_in_the_way_of_a_directory_is_refused_and_kept(
        self, file_system: FileSystem, directory: str, below: str
    ) -> None:
        self.put(f"{directory}/a", b"mine")
        if self.has_directories:
            with pytest.raises(InvalidRequestError):
                file_system.prepare_directory(f"{directory}/a{below}")
        else:
            file_system.prepare_directory(f"{directory}/a{below}")
        assert self.files(directory) == {"a": b"mine"}

    def test_delete_tree_removes_only_files_in_the_tree(
        self, file_system: FileSystem, directory: str
    ) -> None:
        file_system.prepare_directory(f"{directory}/a/b")
        file_system.prepare_directory(f"{directory}/ab")
        for name in ("a/x", "a/b/y", "a/b/.z", "ab/x"):
            self.put(f"{directory}/{name}", b"1")
        file_system.delete_tree(f"{directory}/a")
        assert self.files(directory) == {"ab/x": b"1"}
        assert [entry.uri for entry in file_system.list(directory)] == [f"{directory}/ab"]

    def test_delete_of_missing_files_succeeds(
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
        names = ("full", "nested") if self.has_directories else ("full",)
        assert left == {f"{directory}/{name}" for name in names}
        assert self.files(directory) == {"full/x": b"1"}

    def test_list_distinguishes_files_and_directories(
        self, file_system: FileSystem, directory: str
    ) -> None:
        file_system.prepare_directory(f"{directory}/inner/deeper")
        create_and_commit(file_system, f"{directory}/file", b"12345")
        create_and_commit(file_system, f"{directory}/inner/hidden from above", b"1")
        entries = list(file_system.list(directory))
        by_uri = {entry.uri: entry for entry in entries}
        assert by_uri.keys() == {f"{directory}/inner", f"{directory}/file"}
        assert len(entries) == len(by_uri)
        inner, file = by_uri[f"{directory}/inner"], by_uri[f"{directory}/file"]
        assert (inner.is_directory, inner.size) == (True, 0)
        assert (file.is_directory, file.size) == (False, 5)
        milliseconds = range(1_600_000_000_000, 10_000_000_000_000)  # the years 2020 to 2286
        assert file.modified_ms in milliseconds

    def test_list_finds_every_one_of_many(self, file_system: FileSystem, directory: str) -> None:
        names = {f"{directory}/{number}" for number in range(1100)}  # stores page by 1000
        self.put_all(names, b"1")
        assert sorted(entry.uri for entry in file_system.list(directory)) == sorted(names)

    def test_a_missing_directory_has_no_entries(
        self, file_system: FileSystem, directory: str
    ) -> None:
        assert list(file_system.list(f"{directory}/missing")) == []

    def test_a_file_has_no_entries(self, file_system: FileSystem, directory: str) -> None:
        self.put(f"{directory}/file", b"1")
        assert list(file_system.list(f"{directory}/file")) == []

    def test_bulk_delete_removes_existing_files(
        self, file_system: FileSystem, directory: str
    ) -> None:
        for name in "abc":
            self.put(f"{directory}/{name}", b"1")
        file_system.delete(f"{directory}/{name}" for name in ("missing", "a", "none", "c"))
        assert self.files(directory) == {"b": b"1"}

    # Files in progress

    def test_unfinished_file_is_visible_only_in_exclusive_stores(
        self, file_system: FileSystem, directory: str
    ) -> None:
        uri = f"{directory}/x"
        stream = file_system.create(uri)
        for call, arguments in (("write", (b"12",)), ("sync", ())):
            getattr(stream, call)(*arguments)
            names = {entry.uri.rpartition("/")[2] for entry in file_system.list(directory)}
            may_show = {"x"} if isinstance(file_system, ExclusiveFileSystem) else set()
            assert {name for name in names if not name.startswith(".")} <= may_show
        stream.commit()
        assert self.files(directory) == {"x": b"12"}

    @pytest.mark.parametrize("durable", [True, False])
    def test_a_name_need_not_be_durable_by_itself(
        self,
        file_system: FileSystem,
        directory: str,
        durable: bool,  # noqa: FBT001
    ) -> None:
        stream = file_system.create(f"{directory}/x")
        stream.write(b"12")
        stream.commit(durable_name=durable)
        assert self.files(directory) == {"x": b"12"}

    @pytest.mark.parametrize("parts", [[], [b""], [b"1"], [bytes(1 << 20), b"end", bytes(3 << 20)]])
    def test_committed_file_is_complete_and_the_only_one(
        self, file_system: FileSystem, directory: str, parts: list[bytes]
    ) -> None:
        stream = file_system.create(f"{directory}/x")
        for part in parts:
            stream.write(part)
        stream.commit()
        stream.abort()
        assert self.files(directory) == {"x": b"".join(parts)}

    def test_all_buffer_types_are_written_as_bytes(
        self, file_system: FileSystem, directory: str
    ) -> None:
        longs = array("q", [1, 2, 3])
        stream = file_system.create(f"{directory}/x")
        for part in (b"a", bytearray(b"b"), memoryview(b"cd")[1:], memoryview(longs)):
            stream.write(part)
        stream.commit()
        assert self.files(directory) == {"x": b"abd" + longs.tobytes()}

    def test_a_buffer_may_be_used_again_after_it_was_written(
        self, file_system: FileSystem, directory: str
    ) -> None:
        buffer = bytearray(b"first")
        stream = file_system.create(f"{directory}/x")
        stream.write(buffer)
        buffer[:] = b"other"
        stream.write(buffer)
        buffer.clear()
        stream.commit()
        assert self.files(directory) == {"x": b"firstother"}

    def test_sync_may_come_at_any_time_and_changes_no_bytes(
        self, file_system: FileSystem, directory: str
    ) -> None:
        stream = file_system.create(f"{directory}/x")
        stream.sync()
        for part in (b"1", b"23"):
            stream.write(part)
            for _ in range(2):
                stream.sync()
        stream.commit()
        assert self.files(directory) == {"x": b"123"}

    @pytest.mark.parametrize("written", [None, b"", b"12", bytes(1 << 20)])
    @pytest.mark.parametrize("synced", [False, True])
    def test_nothing_is_left_after_abort(
        self, file_system: FileSystem, directory: str, written: bytes | None, *, synced: bool
    ) -> None:
        stream = file_system.create(f"{directory}/x")
        if written is not None:
            stream.write(written)
        if synced:
            stream.sync()
        for _ in range(2):
            stream.abort()
        assert self.files(directory) == {}

    @pytest.mark.parametrize("ending", ["commit", "abort"])
    def test_finished_stream_refuses_further_calls(
        self, file_system: FileSystem, directory: str, ending: str
    ) -> None:
        stream = file_system.create(f"{directory}/x")
        getattr(stream, ending)()
        with pytest.raises(StreamClosedError):
            stream.write(b"1")
        with pytest.raises(StreamClosedError):
            stream.sync()
        with pytest.raises(StreamClosedError):
            stream.commit()
        stream.abort()
        assert self.files(directory) == ({"x": b""} if ending == "commit" else {})

    def test_several_files_of_a_directory_can_be_in_progress(
        self, file_system: FileSystem, directory: str
    ) -> None:
        streams = {name: file_system.create(f"{directory}/{name}") for name in "abc"}
        for _ in range(2):
            for name, stream in streams.items():
                stream.write(name.encode())
        streams["a"].commit()
        streams["b"].abort()
        streams["c"].commit()
        assert self.files(directory) == {"a": b"aa", "c": b"cc"}

    def test_create_in_missing_directory_is_refused(
        self, file_system: FileSystem, directory: str
    ) -> None:
        if self.has_directories:
            with pytest.raises(CheckpointNotFoundError):
                create_and_commit(file_system, f"{directory}/missing/x", b"1")
            assert self.files(directory) == {}
        else:
            create_and_commit(file_system, f"{directory}/missing/x", b"1")
            assert self.files(directory) == {"missing/x": b"1"}

    def test_abort_from_another_thread_stops_the_writer(
        self, file_system: FileSystem, directory: str
    ) -> None:
        stream = file_system.create(f"{directory}/x")
        written, over = threading.Event(), threading.Event()

        def write_until_stopped() -> None:
            try:
                while not over.is_set():
                    stream.write(bytes(1000))
                    written.set()
                stream.write(bytes(1000))
            finally:
                written.set()

        with ThreadPoolExecutor(1) as pool:
            writer = pool.submit(write_until_stopped)
            written.wait()
            stream.abort()
            over.set()
            with pytest.raises(StreamClosedError):
                writer.result()
        assert self.files(directory) == {}

    def test_abort_at_any_step_of_a_commit_leaves_the_whole_file_or_nothing(
        self, file_system: FileSystem, directory: str
    ) -> None:
        left: dict[str, bytes] = {}
        names: list[str] = []

        def prepare() -> tuple[Callable[[], None], Callable[[], None]]:
            names.append(f"x{len(names)}")  # a name that was never used before
            stream = file_system.create(f"{directory}/{names[-1]}")
            stream.write(b"whole")
            return stream.commit, stream.abort

        def check(outcome: Interleaved) -> None:
            if outcome.error is None:
                left[names[-1]] = b"whole"
            else:
                assert isinstance(outcome.error, StreamClosedError)
            assert self.files(directory) == left

        stream = file_system.create(f"{directory}/x")
        stream.abort()
        at_every_step(prepare, check, code=code_of(file_system, stream))

    # Reading

    def test_open_of_missing_file_raises_not_found(
        self, file_system: FileSystem, directory: str
    ) -> None:
        for name in ("missing", "missing/x"):
            with pytest.raises(CheckpointNotFoundError) as caught:
                file_system.open(f"{directory}/{name}")
            assert caught.value.location == f"{directory}/{name}"

    def test_a_directory_can_not_be_opened(self, file_system: FileSystem, directory: str) -> None:
        file_system.prepare_directory(f"{directory}/a")
        with pytest.raises(CheckpointError):
            file_system.open(f"{directory}/a")

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
            assert stream.readinto(buffer) == 3  # type: ignore[attr-defined]  # raw streams have it
            assert buffer == b"012"
            assert stream.tell() == 3

    def test_ranges_of_a_file_are_read_by_themselves(
        self, file_system: FileSystem, directory: str
    ) -> None:
        self.put(f"{directory}/x", b"0123456789")
        ranged = RetryingFileSystem(file_system, RetryPolicy(deadline_s=0))
        for start, end in [(0, 10), (3, 7), (8, 12), (10, 12)]:
            assert ranged.read_range(f"{directory}/x", start, end) == b"0123456789"[start:end]
        with pytest.raises(CheckpointNotFoundError):
            ranged.read_range(f"{directory}/missing", 0, 1)

    def test_readers_of_one_file_do_not_meet(self, file_system: FileSystem, directory: str) -> None:
        self.put(f"{directory}/x", b"0123456789")
        with (
            file_system.open(f"{directory}/x") as first,
            file_system.open(f"{directory}/x") as other,
        ):
            assert first.read(5) == b"01234"
            assert other.read(2) == b"01"
            assert first.read() == b"56789"

    def test_names_are_taken_as_they_are(self, file_system: FileSystem, directory: str) -> None:
        for name in ("%2F", "a b", "é", "x?y#z", "*", "-rf"):
            create_and_commit(file_system, f"{directory}/{name}", name.encode())
            assert f"{directory}/{name}" in {entry.uri for entry in file_system.list(directory)}
            assert self.files(directory)[name] == name.encode()
            with file_system.open(f"{directory}/{name}") as stream:
                assert stream.read() == name.encode()

    def test_deleting_one_name_leaves_similar_ones(
        self, file_system: FileSystem, directory: str
    ) -> None:
        for name in ("*", "x", "x*", "xy", ".x"):
            self.put(f"{directory}/{name}", b"1")
        file_system.delete([f"{directory}/*", f"{directory}/x"])
        assert self.files(directory) == dict.fromkeys(("x*", "xy", ".x"), b"1")
