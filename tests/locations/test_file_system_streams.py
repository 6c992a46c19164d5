import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from contracts.files import files_below
from contracts.values import EXCLUSIVE, read

from holdfast.errors import (
    CheckpointConflictError,
    CheckpointError,
    OutcomeUnknownError,
    StorageUnavailableError,
    StreamClosedError,
)
from holdfast.locations import FileSystemCheckpointStorage
from holdfast.locations.adapters import (
    ByteStreamStateHandle,
    CheckpointStateOutputStream,
    CheckpointStorageLocation,
    FileStateHandle,
    file_system_for,
)
from holdfast.locations.checksums import checksum_of
from holdfast.testing import Faults

BROKEN = StorageUnavailableError("out of reach")


def location_in(
    directory: str, threshold: int = 20, buffer_bytes: int = 64
) -> CheckpointStorageLocation:
    storage = FileSystemCheckpointStorage(
        directory, inline_threshold=threshold, write_buffer_bytes=buffer_bytes
    )
    return storage.create_checkpoint_storage("job").initialize_location_for_checkpoint(1)


def files_in(faults: Faults) -> dict[str, bytes]:
    below = f"{faults.inner_directory}/job/chk-1/"
    return {
        uri.removeprefix(below): file_system_for(uri).open(uri).read()
        for uri in files_below(faults.inner_directory)
        if uri.startswith(below)
    }


class TestThresholds:
    @pytest.mark.parametrize(
        ("threshold", "buffer_bytes", "writes", "inline"),
        [
            (20, 64, [20], True),
            (20, 64, [21], False),
            (20, 64, [10, 10], True),
            (20, 64, [10, 10, 1], False),
            (20, 64, [63], False),
            (20, 64, [64], False),
            (20, 64, [64, 1], False),
            (20, 64, [1], True),
            (20, 20, [19, 1], True),
            (20, 20, [19, 2], False),
            # As in Flink: a write of a whole buffer bypasses it.
            (20, 20, [20], False),
            (20, 0, [19, 1], True),
            (0, 64, [1], False),
            (0, 0, [1], False),
            (0, 0, [0, 1, 0], False),
            (1 << 20, 0, [(1 << 20) - 1, 1], True),
            (1 << 20, 0, [1 << 20, 1], False),
        ],
    )
    def test_small_state_is_in_its_handle_and_larger_in_a_file(
        self,
        memory_directory: str,
        threshold: int,
        buffer_bytes: int,
        writes: list[int],
        inline: bool,  # noqa: FBT001
    ) -> None:
        location = location_in(memory_directory, threshold, buffer_bytes)
        with location.create_checkpoint_state_output_stream(EXCLUSIVE) as stream:
            for size in writes:
                stream.write(b"x" * size)
            handle = stream.close_and_get_handle()
        assert isinstance(handle, ByteStreamStateHandle if inline else FileStateHandle)
        assert read(handle) == b"x" * sum(writes)

    def test_file_is_created_when_the_buffer_overflows(self, faults: Faults) -> None:
        location = location_in(faults.directory)
        faults.calls.clear()
        with location.create_checkpoint_state_output_stream(EXCLUSIVE) as stream:
            for _ in range(64):
                stream.write(b"1")
            assert faults.calls == []
            stream.write(b"1")
            assert faults.calls == ["create", "write"]
            assert stream.tell() == 65

    def test_flush_creates_no_file_for_inline_state(self, faults: Faults) -> None:
        location = location_in(faults.directory, threshold=10)
        for size, begins in ((10, False), (11, True)):
            faults.calls.clear()
            with location.create_checkpoint_state_output_stream(EXCLUSIVE) as stream:
                stream.write(bytes(size))
                stream.flush()
                assert ("create" in faults.calls) == begins

    def test_flush_to_file_creates_a_file_for_any_state(self, faults: Faults) -> None:
        location = location_in(faults.directory)
        with location.create_checkpoint_state_output_stream(EXCLUSIVE) as stream:
            stream.write(b"1")
            stream.flush_to_file()
            handle = stream.close_and_get_handle()
        assert isinstance(handle, FileStateHandle)
        assert read(handle) == b"1"

    def test_sync_reaches_the_file_and_not_the_buffer(self, faults: Faults) -> None:
        location = location_in(faults.directory)
        with location.create_checkpoint_state_output_stream(EXCLUSIVE) as stream:
            stream.write(bytes(100))
            faults.calls.clear()
            stream.write(b"held back")
            stream.sync()
            assert faults.calls == ["sync"]


class TestFailures:
    @pytest.mark.parametrize("call", ["flush", "flush_to_file", "sync"])
    def test_failed_flush_closes_the_stream_and_leaves_nothing(
        self, faults: Faults, call: str
    ) -> None:
        stream = location_in(faults.directory).create_checkpoint_state_output_stream(EXCLUSIVE)
        stream.write(bytes(100))
        stream.write(b"held back")
        step = "sync" if call == "sync" else "write"
        faults.before(step, BROKEN, nth=faults.calls.count(step) + 1)
        with pytest.raises(StorageUnavailableError):
            getattr(stream, call)()
        with pytest.raises(StreamClosedError):
            stream.close_and_get_handle()
        assert files_in(faults) == {}

    @pytest.mark.parametrize("call", ["create", "write", "commit"])
    def test_failing_call_is_raised_and_leaves_nothing(self, faults: Faults, call: str) -> None:
        stream = location_in(faults.directory).create_checkpoint_state_output_stream(EXCLUSIVE)
        faults.before(call, BROKEN)
        stream.write(b"123")
        stream.write(b"1" * 61)
        with pytest.raises(StorageUnavailableError), stream:
            stream.close_and_get_handle()
        assert files_in(faults) == {}
        assert "delete" not in faults.calls

    @pytest.mark.parametrize("when", ["before", "after"])
    @pytest.mark.parametrize("nth", [1, 2])
    def test_failed_write_is_not_followed_by_a_wrong_file(
        self, faults: Faults, when: str, nth: int
    ) -> None:
        stream = location_in(faults.directory).create_checkpoint_state_output_stream(EXCLUSIVE)
        getattr(faults, when)("write", BROKEN, nth)
        accepted = b""
        for part in (b"a" * 100, b"b" * 100, b"c" * 100):
            try:
                stream.write(part)
            except (StorageUnavailableError, StreamClosedError):
                continue
            accepted += part
        try:
            handle = stream.close_and_get_handle()
        except CheckpointError:
            assert files_in(faults) == {}
        else:
            assert handle is not None
            assert read(handle) == accepted

    def test_unknown_outcome_keeps_the_file(self, faults: Faults) -> None:
        stream = location_in(faults.directory).create_checkpoint_state_output_stream(EXCLUSIVE)
        faults.after("commit", OutcomeUnknownError("no answer"))
        stream.write(b"1" * 100)
        with pytest.raises(OutcomeUnknownError), stream:
            stream.close_and_get_handle()
        assert list(files_in(faults).values()) == [b"1" * 100]

    def test_close_while_a_file_is_created_leaves_nothing(self, faults: Faults) -> None:
        stream = location_in(faults.directory).create_checkpoint_state_output_stream(EXCLUSIVE)
        faults.after("create", stream.close)
        with pytest.raises(CheckpointError):
            stream.write(b"1" * 100)
        assert faults.calls[-1] == "abort"
        assert files_in(faults) == {}

    def test_two_states_never_share_a_name(self, faults: Faults) -> None:
        location = location_in(faults.directory)
        for _ in range(20):
            stream = location.create_checkpoint_state_output_stream(EXCLUSIVE)
            stream.write(b"1" * 100)
            stream.close_and_get_handle()
        assert len(files_in(faults)) == 20


class TestMetadataCommit:
    def finalize(self, faults: Faults, content: bytes = b"ours") -> bytes:
        stream = location_in(faults.directory).create_metadata_output_stream()
        stream.write(content)
        with stream:
            return read(stream.close_and_finalize_checkpoint().metadata_handle)

    def test_lost_answer_to_our_own_write_is_success(self, faults: Faults) -> None:
        faults.after("publish", CheckpointConflictError("exists already"))
        assert self.finalize(faults) == b"ours"
        assert files_in(faults) == {"_metadata": b"ours"}

    @pytest.mark.parametrize("theirs", [b"", b"our", b"ours and more", b"them"])
    def test_bytes_of_another_writer_are_a_conflict(self, faults: Faults, theirs: bytes) -> None:
        self.finalize(faults, theirs)
        with pytest.raises(CheckpointConflictError):
            self.finalize(faults)
        assert files_in(faults) == {"_metadata": theirs}

    @pytest.mark.parametrize("disappears", [False, True])
    def test_unknown_owner_is_an_unknown_outcome(
        self,
        faults: Faults,
        disappears: bool,  # noqa: FBT001
    ) -> None:
        def vanish() -> None:
            file_system_for(faults.inner_directory).delete(files_below(faults.inner_directory))

        faults.after("publish", CheckpointConflictError("exists already"))
        failure: BaseException | Callable[[], None] = vanish if disappears else BROKEN
        faults.before("open", failure)
        # A file that is gone again was another writer's, or another process has cleaned it up.
        with pytest.raises(CheckpointConflictError if disappears else OutcomeUnknownError):
            self.finalize(faults)
        assert not [call for call in faults.calls if call.startswith("delete")]

    @pytest.mark.parametrize("error", [BROKEN, OutcomeUnknownError("no answer")])
    def test_other_failures_come_through_and_nothing_is_deleted(
        self, faults: Faults, error: CheckpointError
    ) -> None:
        faults.before("publish", error)
        with pytest.raises(type(error)):
            self.finalize(faults)
        assert files_in(faults) == {}
        assert not [call for call in faults.calls if call.startswith("delete")]

    def test_metadata_is_published_in_one_step(self, faults: Faults) -> None:
        stream = location_in(faults.directory).create_metadata_output_stream()
        faults.calls.clear()
        for _ in range(1000):
            stream.write(bytes(1000))
        assert faults.calls == []
        stream.close_and_finalize_checkpoint()
        assert faults.calls == ["publish"]


class TestAdoption:
    """A file on the disk of the storage gets a second name there instead of being copied."""

    CONTENT = b"x" * 100

    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        path = tmp_path / "file"
        path.write_bytes(self.CONTENT)
        return path

    def adopt_file(self, directory: str, file: Path) -> tuple[CheckpointStateOutputStream, bool]:
        stream = location_in(directory).create_checkpoint_state_output_stream(EXCLUSIVE)
        return stream, stream.adopt(str(file), len(self.CONTENT), checksum_of(self.CONTENT))

    def test_file_on_the_same_disk_is_linked_and_outlives_its_source(
        self, tmp_path: Path, file: Path
    ) -> None:
        stream, is_adopted = self.adopt_file(f"file://{tmp_path}/storage", file)
        assert is_adopted
        handle = stream.close_and_get_handle()
        assert isinstance(handle, FileStateHandle)
        assert file.samefile(handle.uri.removeprefix("file://"))
        file.unlink()
        assert read(handle) == self.CONTENT

    def test_discarded_link_keeps_the_other_name(self, tmp_path: Path, file: Path) -> None:
        stream, is_adopted = self.adopt_file(f"file://{tmp_path}/storage", file)
        assert is_adopted
        stream.close()
        assert list((tmp_path / "storage" / "job" / "chk-1").iterdir()) == []
        assert file.read_bytes() == self.CONTENT

    def test_deleted_link_is_not_a_success(self, tmp_path: Path, file: Path) -> None:
        stream, _ = self.adopt_file(f"file://{tmp_path}/storage", file)
        (stored,) = (tmp_path / "storage" / "job" / "chk-1").iterdir()
        stored.unlink()
        with pytest.raises(StorageUnavailableError, match="deleted while it was being written"):
            stream.close_and_get_handle()

    def test_other_stores_small_files_and_missing_files_are_written_instead(
        self, tmp_path: Path, file: Path, memory_directory: str
    ) -> None:
        for directory, path in (
            (memory_directory, file),
            (f"file://{tmp_path}/storage", tmp_path / "none"),
        ):
            stream, is_adopted = self.adopt_file(directory, path)
            assert not is_adopted
            stream.close()
        location = location_in(f"file://{tmp_path}/more", threshold=200)
        with location.create_checkpoint_state_output_stream(EXCLUSIVE) as small:
            assert not small.adopt(str(file), 100, checksum_of(self.CONTENT))
            small.write(self.CONTENT)
            handle = small.close_and_get_handle()
        assert handle == ByteStreamStateHandle(self.CONTENT)

    def test_disk_without_links_is_written_to_instead(
        self, tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fails(*_: object) -> None:
            raise OSError(errno.EXDEV, "another disk")

        monkeypatch.setattr(os, "link", fails)
        stream, is_adopted = self.adopt_file(f"file://{tmp_path}/storage", file)
        assert not is_adopted
        stream.write(self.CONTENT)
        handle = stream.close_and_get_handle()
        assert isinstance(handle, FileStateHandle)
        assert read(handle) == self.CONTENT
