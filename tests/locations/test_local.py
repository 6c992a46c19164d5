import errno
import inspect
import os
import resource
import shutil
import signal
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from contracts.patience import HANGS_S
from contracts.processes import output_of, python

from holdfast.errors import (
    CheckpointConflictError,
    CheckpointError,
    InvalidRequestError,
    OutcomeUnknownError,
    StorageUnavailableError,
    StreamClosedError,
)
from holdfast.locations.adapters import ExclusiveFileSystem, FileSystem, LocalFileSystem
from holdfast.testing import ExclusiveFileSystemContract
from holdfast.testing.exclusive_file_systems import Write, both_writes

UNPRIVILEGED = 65534

RACERS = 8


def path_of(uri: str) -> Path:
    return Path(uri.removeprefix("file://"))


def create_for_publishing(file_system: FileSystem, uri: str, data: bytes) -> None:
    stream = file_system.create(uri)
    stream.write(data)
    stream.commit(durable_name=False)


def create_and_commit(file_system: FileSystem, uri: str, data: bytes) -> None:
    stream = file_system.create(uri)
    stream.write(data)
    stream.commit()


def publish(file_system: ExclusiveFileSystem, uri: str, data: bytes) -> None:
    file_system.publish(uri, data)


def publish_next_to_files(file_system: ExclusiveFileSystem, uri: str, data: bytes) -> None:
    create_for_publishing(file_system, f"{uri}-state", data)
    publish(file_system, uri, data)


class TestLocalFileSystem(ExclusiveFileSystemContract):
    @pytest.fixture
    def file_system(self) -> ExclusiveFileSystem:
        return LocalFileSystem()

    @pytest.fixture
    def directory(self, local_directory: str) -> str:
        return local_directory

    def files(self, directory: str) -> dict[str, bytes]:
        root = path_of(directory)
        return {
            str(path.relative_to(root)): path.read_bytes()
            for path in root.rglob("*")
            if path.is_file()
        }

    def put(self, uri: str, data: bytes) -> None:
        path_of(uri).write_bytes(data)

    @both_writes
    def test_one_of_eight_racing_processes_wins(self, directory: str, write: Write) -> None:
        source = f"""
import sys
from holdfast.errors import CheckpointConflictError
from holdfast.locations.adapters import ExclusiveFileSystem, FileSystem, LocalFileSystem
{inspect.getsource(write)}
print("ready", flush=True)
sys.stdin.readline()
try:
    {write.__name__}(LocalFileSystem(), sys.argv[1], sys.argv[2].encode() * 1000)
except CheckpointConflictError:
    print("lost")
else:
    print("won")
"""
        racers = [python(source, f"{directory}/x", str(racer)) for racer in range(RACERS)]
        for racer in racers:
            assert racer.stdout
            assert racer.stdout.readline() == "ready\n"
        for racer in racers:
            assert racer.stdin
            racer.stdin.write("go\n")
            racer.stdin.flush()
        results = [racer.communicate(timeout=HANGS_S)[0].strip() for racer in racers]
        assert sorted(results) == ["lost"] * (RACERS - 1) + ["won"]
        assert self.files(directory) == {"x": b"%d" % results.index("won") * 1000}

    def test_only_the_owner_may_look(
        self, file_system: ExclusiveFileSystem, directory: str
    ) -> None:
        file_system.prepare_directory(f"{directory}/a/b")
        file_system.publish(f"{directory}/a/b/x", b"1")
        for name, mode in (("a", 0o700), ("a/b", 0o700), ("a/b/x", 0o600)):
            assert stat.S_IMODE(path_of(f"{directory}/{name}").stat().st_mode) == mode

    def test_executable_file_in_the_way_of_a_directory_is_refused(
        self, file_system: ExclusiveFileSystem, directory: str
    ) -> None:
        self.put(f"{directory}/x", b"#!")
        path_of(f"{directory}/x").chmod(0o755)
        with pytest.raises(InvalidRequestError):
            file_system.prepare_directory(f"{directory}/x")

    def test_bulk_delete_continues_after_a_failure_and_raises_it(
        self, file_system: ExclusiveFileSystem, directory: str
    ) -> None:
        file_system.prepare_directory(f"{directory}/inner")
        self.put(f"{directory}/x", b"1")
        with pytest.raises(InvalidRequestError) as caught:
            file_system.delete([f"{directory}/inner", f"{directory}/x"])
        assert caught.value.location == f"{directory}/inner"
        assert self.files(directory) == {}

    def test_delete_tree_finishes_despite_concurrent_deletions(
        self, file_system: ExclusiveFileSystem, directory: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file_system.prepare_directory(f"{directory}/a/b")
        for name in ("1", "2", "3", "b/4"):
            self.put(f"{directory}/a/{name}", b"1")
        unlink = os.unlink
        seen: list[str] = []

        def unlink_just_before_us(path: str, *, dir_fd: int | None = None) -> None:
            if not seen:
                unlink(path, dir_fd=dir_fd)
            seen.append(path)
            unlink(path, dir_fd=dir_fd)

        monkeypatch.setattr(os, "unlink", unlink_just_before_us)
        file_system.delete_tree(f"{directory}/a")
        assert not path_of(f"{directory}/a").exists()

    def test_delete_tree_names_the_directory_it_can_not_list(
        self, file_system: ExclusiveFileSystem, directory: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file_system.prepare_directory(f"{directory}/a/b")
        self.put(f"{directory}/a/b/1", b"1")
        scandir = os.scandir

        def refuse(path: str) -> object:
            if path.endswith("/b"):
                raise PermissionError(errno.EACCES, "Permission denied", path)
            return scandir(path)

        monkeypatch.setattr(os, "scandir", refuse)
        with pytest.raises(InvalidRequestError, match="Permission denied") as caught:
            file_system.delete_tree(f"{directory}/a")
        assert caught.value.kind == "refused"

    @pytest.mark.parametrize(
        ("number", "code"),
        [
            (errno.EACCES, "HF-REFUSED"),
            (errno.EROFS, "HF-REFUSED"),
            (errno.ENAMETOOLONG, "HF-LOCATION"),
            (errno.ENOSPC, "HF-STORAGE-FULL"),
            (errno.EIO, "HF-STORE-FAILED"),
        ],
    )
    def test_error_of_the_disk_names_the_operation(
        self, directory: str, monkeypatch: pytest.MonkeyPatch, number: int, code: str
    ) -> None:
        def fail(path: str, mode: int) -> None:
            raise OSError(number, os.strerror(number), path, mode)

        monkeypatch.setattr(os, "mkdir", fail)
        with pytest.raises(CheckpointError) as caught:
            LocalFileSystem().prepare_directory(f"{directory}/new")
        assert str(caught.value).startswith("can't create directory: ")
        assert f"({os.strerror(number)})" in str(caught.value)
        assert caught.value.code == code

    @pytest.mark.parametrize("call", ["write", "fsync"])
    def test_file_without_a_piece_is_never_committed(
        self,
        file_system: ExclusiveFileSystem,
        directory: str,
        monkeypatch: pytest.MonkeyPatch,
        call: str,
    ) -> None:
        def fail(*_: object) -> None:
            raise OSError(errno.EIO, "as planned")

        stream = file_system.create(f"{directory}/x")
        stream.write(b"1")
        with monkeypatch.context() as patched:
            patched.setattr(os, call, fail)
            with pytest.raises(StorageUnavailableError):
                stream.write(b"2") if call == "write" else stream.sync()
        with pytest.raises(StreamClosedError):
            stream.write(b"3")
        with pytest.raises(StreamClosedError):
            stream.commit()
        assert self.files(directory) == {}

    def test_root_directory_is_listed_with_normal_uris(
        self, file_system: ExclusiveFileSystem
    ) -> None:
        links = {entry.uri for entry in file_system.list("file:///")}
        assert links == {f"file:///{name}" for name in os.listdir("/")}

    def test_long_name_is_refused(self, file_system: ExclusiveFileSystem, directory: str) -> None:
        with pytest.raises(InvalidRequestError):
            file_system.publish(f"{directory}/{'x' * 300}", b"1")

    @both_writes
    def test_full_disk_leaves_nothing(
        self, file_system: ExclusiveFileSystem, directory: str, write: Write
    ) -> None:
        with _file_size_limit(64 << 10), pytest.raises(StorageUnavailableError):
            _write_or_abort(file_system, f"{directory}/x", bytes(1 << 20), write)
        assert self.files(directory) == {}

    @pytest.mark.parametrize(
        ("write", "steps"),
        [
            (create_and_commit, ["sync file", "sync directory"]),
            (create_for_publishing, ["sync file"]),
            (publish, ["sync file", "link", "sync directory"]),
            (
                # The state files' names first, so that metadata never exists without them.
                publish_next_to_files,
                ["sync file", "sync file", "sync directory", "link", "sync directory"],
            ),
        ],
    )
    def test_bytes_are_synced_before_names_and_state_before_metadata(
        self,
        file_system: ExclusiveFileSystem,
        directory: str,
        write: Write,
        steps: list[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        # The calls are recorded, because only a power failure would show it.
        names: list[str] = []
        fsync, link = os.fsync, os.link

        def watched_fsync(descriptor: int) -> None:
            fsync(descriptor)
            is_directory = stat.S_ISDIR(os.fstat(descriptor).st_mode)
            names.append("sync directory" if is_directory else "sync file")

        def watched_link(source: str, target: str) -> None:
            link(source, target)
            names.append("link")

        monkeypatch.setattr(os, "fsync", watched_fsync)
        monkeypatch.setattr(os, "link", watched_link)
        write(file_system, f"{directory}/x", b"1")
        assert names == steps

    @both_writes
    def test_failed_directory_sync_is_an_unknown_outcome_and_keeps_the_file(
        self,
        file_system: ExclusiveFileSystem,
        directory: str,
        write: Write,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        # Patched, because an unprivileged test can't make a disk fail a sync.
        fsync = os.fsync

        def fails_for_directories(descriptor: int) -> None:
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                raise OSError(5, "Input/output error")
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", fails_for_directories)
        with pytest.raises(OutcomeUnknownError):
            write(file_system, f"{directory}/x", b"1")
        assert self.files(directory) == {"x": b"1"}

    @pytest.mark.parametrize("call", ["prepare_directory", "delete"])
    def test_failed_directory_sync_is_our_error(
        self,
        file_system: ExclusiveFileSystem,
        directory: str,
        call: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        self.put(f"{directory}/x", b"1")

        def fails(_: int) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(os, "fsync", fails)
        with pytest.raises(CheckpointError):
            if call == "delete":
                file_system.delete([f"{directory}/x"])
            else:
                file_system.prepare_directory(f"{directory}/a")

    def test_name_taken_during_the_publication_is_a_conflict(
        self,
        file_system: ExclusiveFileSystem,
        directory: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        def link(_: str, path: str) -> None:  # its owner deletes it right after the link failed
            raise FileExistsError(17, "File exists", path)

        monkeypatch.setattr(os, "link", link)
        with pytest.raises(CheckpointConflictError):
            file_system.publish(f"{directory}/x", b"1")

    def test_no_descriptor_is_left_open(
        self, file_system: ExclusiveFileSystem, directory: str
    ) -> None:
        before = os.listdir("/proc/self/fd")
        for ending in ("commit", "abort"):
            stream = file_system.create(f"{directory}/{ending}")
            stream.write(b"1")
            getattr(stream, ending)()
        with pytest.raises(CheckpointError):
            file_system.create(f"{directory}/commit")
        with pytest.raises(CheckpointError):
            file_system.publish(f"{directory}/commit", b"2")
        assert len(os.listdir("/proc/self/fd")) == len(before)

    def test_killed_publisher_leaves_no_file_or_the_whole_one(
        self, file_system: ExclusiveFileSystem, directory: str
    ) -> None:
        content = b"whole" * 1000
        outcomes: list[bool] = []
        for step in range(20):
            uri = f"{directory}/{step}/x"
            file_system.prepare_directory(f"{directory}/{step}")
            status = _killed_at(step, uri, content, publish)
            published = path_of(uri).read_bytes() if path_of(uri).exists() else None
            assert published in (None, content)
            names = {
                entry.uri.rpartition("/")[2] for entry in file_system.list(f"{directory}/{step}")
            }
            assert {name for name in names if not name.startswith(".")} <= {"x"}
            outcomes.append(published is not None)
            if status == 0:
                break
            assert status == -signal.SIGKILL
        # It died before the file had its name, then after that, and survived in the end.
        assert outcomes[0] is False
        assert outcomes == sorted(outcomes)
        assert outcomes.count(True) >= 3
        assert status == 0


def _killed_at(step: int, uri: str, content: bytes, write: Write) -> int:
    """Write in a process that kills itself before the n-th change of the disk."""
    source = f"""
import os, signal
from holdfast.locations.adapters import ExclusiveFileSystem, FileSystem, LocalFileSystem
{inspect.getsource(write)}
left = {step}
def deadly(real):
    def call(*arguments, **options):
        global left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        return real(*arguments, **options)
    return call
for name in ("open", "write", "fsync", "link", "unlink"):
    setattr(os, name, deadly(getattr(os, name)))
{write.__name__}(LocalFileSystem(), {uri!r}, {content!r})
os._exit(0)
"""
    with python(source) as process:
        process.communicate(timeout=HANGS_S)
    return process.returncode


@contextmanager
def _file_size_limit(limit: int) -> Iterator[None]:
    """Limit files to a number of bytes: the kernel refuses the rest (EFBIG)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _write_or_abort(file_system: ExclusiveFileSystem, uri: str, data: bytes, write: Write) -> None:
    if write.__name__ == "publish":
        file_system.publish(uri, data)
        return
    stream = file_system.create(uri)
    try:
        stream.write(data)
    finally:
        stream.abort()


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that every user can read; pytest's own are for one user only."""
    path = Path(tempfile.mkdtemp(dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.mark.parametrize("call", ["initialize", "location", "state", "metadata", "nested"])
def test_directory_without_write_permission_is_refused(open_directory: Path, call: str) -> None:
    job = open_directory / "job"
    for name in ("chk-2", "shared", "_epoch"):
        (job / name).mkdir(parents=True)
    source = f"""
import os, sys, warnings
warnings.simplefilter("ignore")
from holdfast.errors import CheckpointError
from holdfast.locations import *
from holdfast.locations.adapters import *
from holdfast.locations.storages import *
if os.getuid() == 0:
    os.setgroups([]); os.setgid({UNPRIVILEGED}); os.setuid({UNPRIVILEGED})
scope = CheckpointedStateScope.EXCLUSIVE
directory = sys.argv[1]
access = checkpoint_storage(directory).create_checkpoint_storage("job")
factory = access.resolve_checkpoint_storage_location(2, CheckpointStorageLocationReference())
location = FileSystemCheckpointStorageLocation(
    directory + "/job/chk-2", factory, single_writer=False, attempt="attempt"
)
calls = {{
    "initialize": access.initialize_base_locations_for_checkpoint,
    "location": lambda: access.initialize_location_for_checkpoint(1),
    "nested": lambda: LocalFileSystem().prepare_directory(directory + "/a/b"),
    "state": lambda: factory.create_checkpoint_state_output_stream(scope).write(bytes(1 << 20)),
    "metadata":
        lambda: location.create_metadata_output_stream().close_and_finalize_checkpoint(),
}}
try:
    calls[{call!r}]()
except CheckpointError as error:
    print(type(error).__name__)
"""
    if os.getuid() != 0:
        for path in (*job.iterdir(), job, open_directory):
            path.chmod(0o555)
    assert output_of(source, f"file://{open_directory}") == "InvalidRequestError"
    for path in (open_directory, job, *job.iterdir()):
        path.chmod(0o755)
    assert sorted(str(path.relative_to(job)) for path in job.rglob("*")) == [
        "_epoch",
        "chk-2",
        "shared",
    ]
