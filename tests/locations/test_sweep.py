"""What a sweep deletes, and above all what it leaves."""

import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from contracts.errors import of_kind
from contracts.processes import python
from contracts.values import EXCLUSIVE, read

from holdfast.common import crc32c
from holdfast.errors import (
    CheckpointConflictError,
    CheckpointCorruptedError,
    CheckpointError,
    CheckpointNotFoundError,
    InvalidRequestError,
    OutcomeUnknownError,
    StorageUnavailableError,
    UnsupportedFormatError,
)
from holdfast.locations import (
    CheckpointStorageAccess,
    CheckpointStorageLocation,
    CompletedCheckpoint,
    FileSystemCheckpointStorage,
    SweepReport,
    checkpoint_storage,
    complete_checkpoint,
    load_checkpoint,
    sweep,
)
from holdfast.locations.adapters import (
    METADATA_FILE,
    CheckpointedStateScope,
    FileStateHandle,
    FileStatus,
    MemoryFileSystem,
    file_system_for,
    register_file_system,
    unregister_file_system,
)
from holdfast.locations.coordination import GRACE_S
from holdfast.testing import ANY_CALL, Faults, ManualClock, metadata_of

SHARED = CheckpointedStateScope.SHARED
GRACE = 3600.0
"""Seconds, of the store's clock; which moves when it is told to."""


@pytest.fixture(autouse=True)
def clock() -> Iterator[ManualClock]:
    """The clock of `memory://`; each look at it takes a millisecond."""
    clock = ManualClock(tick_ms=1)
    register_file_system("memory", lambda: MemoryFileSystem(clock))
    yield clock
    unregister_file_system("memory")


def job_in(directory: str, job_id: str = "job") -> CheckpointStorageAccess:
    storage = FileSystemCheckpointStorage(
        directory, inline_threshold=0, savepoint_directory=f"{directory}/savepoints"
    )
    access = storage.create_checkpoint_storage(job_id)
    access.initialize_base_locations_for_checkpoint()
    return access


def write(
    location: CheckpointStorageLocation,
    data: bytes = b"state",
    scope: CheckpointedStateScope = EXCLUSIVE,
) -> FileStateHandle:
    with location.create_checkpoint_state_output_stream(scope) as stream:
        stream.write(data)
        handle = stream.close_and_get_handle()
    assert isinstance(handle, FileStateHandle)
    return handle


def completed(
    access: CheckpointStorageAccess, checkpoint_id: int, *shared: FileStateHandle
) -> CompletedCheckpoint:
    """A checkpoint with an exclusive file, a shared one, and those of others."""
    location = access.initialize_location_for_checkpoint(checkpoint_id)
    streams = (write(location), write(location, b"shared", SHARED), *shared)
    metadata = metadata_of(*streams, checkpoint_id=checkpoint_id, commit_token=uuid.uuid4().hex)
    return complete_checkpoint(location, metadata)


def shared_of(checkpoint: CompletedCheckpoint) -> FileStateHandle:
    (found,) = [
        one
        for one in checkpoint.metadata.streams()
        if isinstance(one, FileStateHandle) and "/shared/" in one.uri
    ]
    return found


def files_below(directory: str) -> set[str]:
    """Every file below a directory, by URI."""
    found = set()
    for entry in file_system_for(directory).list(directory):
        found |= files_below(entry.uri) if entry.is_directory else {entry.uri}
    return found


def directories_below(directory: str) -> set[str]:
    found = set()
    for entry in file_system_for(directory).list(directory):
        if entry.is_directory:
            found |= {entry.uri} | directories_below(entry.uri)
    return found


def put(uri: str, data: bytes = b"x") -> str:
    """A file that nobody of us wrote."""
    file_system = file_system_for(uri)
    file_system.prepare_directory(uri.rpartition("/")[0])
    stream = file_system.create(uri)
    try:
        stream.write(data)
        stream.commit()
    finally:
        stream.abort()
    return uri


def overwrite(uri: str, data: bytes) -> None:
    file_system_for(uri).delete([uri])
    put(uri, data)


def assert_complete(checkpoint: CompletedCheckpoint) -> None:
    """It is found, and all its files are what was written."""
    found = load_checkpoint(checkpoint.location)
    assert found.metadata == checkpoint.metadata
    for stream in found.metadata.streams():
        assert len(read(stream)) == stream.size


def uris(report: SweepReport) -> set[str]:
    return {file.uri for file in report.files}


@pytest.fixture
def access(memory_directory: str) -> CheckpointStorageAccess:
    return job_in(memory_directory)


class TestWhatIsSwept:
    def test_files_of_an_attempt_that_was_never_completed(
        self, access: CheckpointStorageAccess, memory_directory: str, clock: ManualClock
    ) -> None:
        kept = completed(access, 1)
        before = files_below(memory_directory)
        location = access.initialize_location_for_checkpoint(2)
        orphans = {write(location).uri, write(location, b"12345", SHARED).uri}
        clock.advance(GRACE + 1)
        report = sweep(memory_directory, "job", grace_s=GRACE)
        assert uris(report) == orphans
        assert report.total_bytes == 10
        assert files_below(memory_directory) == before
        assert_complete(kept)

    def test_files_that_a_lost_attempt_has_left_beside_those_of_the_winner(
        self, access: CheckpointStorageAccess, memory_directory: str, clock: ManualClock
    ) -> None:
        loser = access.initialize_location_for_checkpoint(1)
        orphans = {write(loser).uri for _ in range(3)}
        kept = completed(access, 1)
        clock.advance(GRACE + 1)
        report = sweep(memory_directory, "job", grace_s=GRACE)
        assert uris(report) == orphans
        assert report.directories == ()
        assert_complete(kept)

    def test_what_is_left_of_a_checkpoint_whose_deletion_was_cut_short(
        self, access: CheckpointStorageAccess, memory_directory: str, clock: ManualClock
    ) -> None:
        cut_short, kept = completed(access, 1), completed(access, 2)
        file_system_for(memory_directory).delete(
            [f"{cut_short.location.external_pointer}/{METADATA_FILE}"]
        )
        clock.advance(GRACE + 1)
        sweep(memory_directory, "job", grace_s=GRACE)
        assert cut_short.location.external_pointer not in directories_below(memory_directory)
        assert not files_below(memory_directory) & {
            one.uri for one in cut_short.metadata.streams() if isinstance(one, FileStateHandle)
        }
        assert_complete(kept)

    def test_hidden_files_and_probes_of_a_process_that_died(
        self, access: CheckpointStorageAccess, memory_directory: str, clock: ManualClock
    ) -> None:
        kept = completed(access, 1)
        before = files_below(memory_directory)
        token = uuid.uuid4().hex
        orphans = {
            put(f"{memory_directory}/job/{name}")
            for name in (
                f"_probe-{token}",
                f"._probe-{token}.{token}.inprogress",
                f"chk-1/.{token}.{token}.inprogress",
                f"chk-1/.0123abcd-{token}.{token}.inprogress",
                f"chk-1/._metadata.{token}.inprogress",
                f"chk-2/._metadata.{token}.inprogress",
                f"shared/.{token}.{token}.inprogress",
                f"_epoch/.7.{token}.inprogress",
            )
        }
        clock.advance(GRACE + 1)
        assert uris(sweep(memory_directory, "job", grace_s=GRACE)) == orphans
        assert files_below(memory_directory) == before
        assert_complete(kept)

    def test_empty_directories_of_older_checkpoints_at_once_and_others_after_the_grace_period(
        self, access: CheckpointStorageAccess, memory_directory: str, clock: ManualClock
    ) -> None:
        for number in (1, 2, 4, 5):
            access.initialize_location_for_checkpoint(number)
        completed(access, 3)
        job = f"{memory_directory}/job"
        report = sweep(memory_directory, "job", grace_s=GRACE)
        assert set(report.directories) == {f"{job}/chk-1", f"{job}/chk-2"}
        assert not directories_below(job) & set(report.directories)
        assert {f"{job}/chk-{number}" for number in (3, 4, 5)} <= directories_below(job)

    def test_unfinished_savepoints_of_this_job_only(
        self, access: CheckpointStorageAccess, memory_directory: str, clock: ManualClock
    ) -> None:
        other = job_in(memory_directory, "job-2")
        savepoints = f"{memory_directory}/savepoints"
        mine = access.initialize_location_for_savepoint(1)
        empty = access.initialize_location_for_savepoint(1)
        orphan = write(mine)
        write(other.initialize_location_for_savepoint(1))
        finished = access.initialize_location_for_savepoint(1)
        kept = complete_checkpoint(finished, metadata_of(write(finished), checkpoint_id=1))
        write(finished)  # a task that was too late; it is the user's now
        before = files_below(memory_directory)
        clock.advance(GRACE + 1)
        report = sweep(memory_directory, "job", savepoint_directory=savepoints, grace_s=GRACE)
        assert uris(report) == {orphan.uri}
        assert set(report.directories) == {mine.external_pointer, empty.external_pointer}
        assert files_below(memory_directory) == before - {orphan.uri}
        assert len(directories_below(savepoints)) == 2
        assert_complete(kept)

    def test_savepoints_are_left_alone_unless_asked_for(
        self, access: CheckpointStorageAccess, memory_directory: str, clock: ManualClock
    ) -> None:
        orphan = write(access.initialize_location_for_savepoint(1))
        clock.advance(GRACE + 1)
        assert sweep(memory_directory, "job", grace_s=GRACE).files == ()
        assert orphan.uri in files_below(memory_directory)

    def test_what_a_killed_process_was_writing(self, local_directory: str) -> None:
        """On disk it leaves a hidden file; a second sweep finds nothing."""
        access = job_in(local_directory)
        kept = completed(access, 1)
        before = files_below(local_directory)
        source = """
import sys
from holdfast.locations import *
from holdfast.locations.adapters import *
storage = FileSystemCheckpointStorage(sys.argv[1], inline_threshold=0)
access = storage.create_checkpoint_storage("job")
location = access.initialize_location_for_checkpoint(2)
for scope in CheckpointedStateScope:
    with location.create_checkpoint_state_output_stream(scope) as stream:
        stream.write(b"whole")
        stream.close_and_get_handle()
streams = [location.create_checkpoint_state_output_stream(one) for one in CheckpointedStateScope]
for stream in streams:
    stream.write(b"half of it")
    stream.flush_to_file()
print("ready", flush=True)
sys.stdin.readline()
"""
        with python(source, local_directory) as process:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
            process.kill()
            process.communicate()
        left = files_below(local_directory) - before
        assert len(left) == 4
        report = sweep(local_directory, "job", grace_s=3600)
        assert (report.files, report.too_young) == ((), 4)
        age(local_directory, left, 7200)
        assert uris(sweep(local_directory, "job", grace_s=3600)) == left
        assert files_below(local_directory) == before
        assert sweep(local_directory, "job", grace_s=3600).files == ()
        assert_complete(kept)


def age(directory: str, files: Iterable[str], seconds: float) -> None:
    """Let files on disk have been written long ago, and the directories that they are in."""
    then = time.time() - seconds
    for uri in files:
        path = uri.removeprefix("file://")
        os.utime(path, (then, then), follow_symlinks=False)
        os.utime(os.path.dirname(path), (then, then))


class TestWhatIsLeft:
    @pytest.mark.parametrize(
        "name",
        [
            "notes.txt",
            "_probe-1",
            "0123456789abcdef0123456789abcdef",
            ".hidden",
            "chk-1/notes.txt",
            "chk-1/0123456789abcdef",
            "chk-1/0123456789ABCDEF0123456789ABCDEF",
            "chk-1/0123456789abcdef0123456789abcdef.bak",
            "chk-1/0123456-0123456789abcdef0123456789abcdef",
            "chk-1/._metadata.inprogress",
            "chk-1/_metadata.bak",
            "chk-1/below/0123456789abcdef0123456789abcdef",
            "chk-5/notes.txt",
            "chk-5/below/0123456789abcdef0123456789abcdef",
            "chk-01/0123456789abcdef0123456789abcdef",
            "chk-x/0123456789abcdef0123456789abcdef",
            "Chk-1/0123456789abcdef0123456789abcdef",
            "chk-1.bak/0123456789abcdef0123456789abcdef",
            "shared/notes.txt",
            "shared/below/0123456789abcdef0123456789abcdef",
            "_epoch/notes.txt",
            "_epoch/17",
            "other/0123456789abcdef0123456789abcdef",
            "../0123456789abcdef0123456789abcdef",
            "../other/chk-1/0123456789abcdef0123456789abcdef",
            "../savepoints/0123456789abcdef0123456789abcdef",
            "../savepoints/savepoint-job-x/0123456789abcdef0123456789abcdef",
            "../savepoints/savepoint-jobs-0123456789ab/0123456789abcdef0123456789abcdef",
            "../savepoints/savepoint-job-0123456789ab/notes.txt",
        ],
    )
    def test_what_has_no_name_of_ours_or_stands_elsewhere(
        self, access: CheckpointStorageAccess, memory_directory: str, clock: ManualClock, name: str
    ) -> None:
        kept = completed(access, 1)
        uri = f"{memory_directory}/job/{name}".replace("/job/../", "/")
        put(uri)
        clock.advance(2 * GRACE)
        sweep(
            memory_directory,
            "job",
            savepoint_directory=f"{memory_directory}/savepoints",
            grace_s=GRACE,
        )
        assert uri in files_below(memory_directory)
        assert_complete(kept)

    def test_the_claim(
        self, access: CheckpointStorageAccess, memory_directory: str, clock: ManualClock
    ) -> None:
        owner = access.claim_job()
        clock.advance(2 * GRACE)
        sweep(memory_directory, "job", grace_s=0)
        owner.check()

    def test_what_is_younger_than_the_grace_period_is_counted(
        self, access: CheckpointStorageAccess, memory_directory: str, clock: ManualClock
    ) -> None:
        location = access.initialize_location_for_checkpoint(1)
        old = write(location)
        clock.advance(GRACE)
        young = {write(location).uri, write(location, scope=SHARED).uri}
        report = sweep(memory_directory, "job", grace_s=GRACE)
        assert uris(report) == {old.uri}
        assert report.too_young == 2
        assert young <= files_below(memory_directory)

    def test_directories_that_hold_something_are_not_said_to_be_empty(
        self, access: CheckpointStorageAccess, memory_directory: str, clock: ManualClock
    ) -> None:
        foreign = put(f"{memory_directory}/job/chk-1/notes.txt")
        location = access.initialize_location_for_checkpoint(2)
        young = write(location)
        completed(access, 3)
        report = sweep(memory_directory, "job", grace_s=GRACE)
        assert {foreign, young.uri} <= files_below(memory_directory)
        assert report.directories == ()

    def test_a_directory_that_a_new_driver_has_begun_to_use_again(
        self, local_directory: str
    ) -> None:
        """Another driver died in it long ago. Tasks make no directories; they need this one."""
        access = job_in(local_directory)
        completed(access, 1)
        orphan = write(access.initialize_location_for_checkpoint(2))
        age(local_directory, [orphan.uri], 2 * GRACE)
        pending = access.initialize_location_for_checkpoint(2)
        report = sweep(local_directory, "job", grace_s=GRACE)
        assert uris(report) == {orphan.uri}
        complete_checkpoint(pending, metadata_of(write(pending), checkpoint_id=2))

    def test_the_grace_period_is_a_day_unless_told(
        self, access: CheckpointStorageAccess, memory_directory: str, clock: ManualClock
    ) -> None:
        orphan = write(access.initialize_location_for_checkpoint(1))
        clock.advance(24 * 3600 - 60)
        assert GRACE_S == 24 * 3600
        assert sweep(memory_directory, "job").too_young == 1
        clock.advance(120)
        assert uris(sweep(memory_directory, "job")) == {orphan.uri}

    def test_links_to_files_and_directories_elsewhere_lead_nowhere_for_it(
        self, local_directory: str, tmp_path: Path
    ) -> None:
        access = job_in(local_directory)
        kept = completed(access, 1)
        outside = tmp_path / "outside"
        outside.mkdir()
        name = "0123456789abcdef0123456789abcdef"
        (outside / name).write_bytes(b"theirs")
        (outside / f"{name[::-1]}").write_bytes(b"theirs")
        os.symlink(outside, tmp_path / "job" / "chk-7")
        os.symlink(outside / name, tmp_path / "job" / "chk-1" / name)
        os.symlink(tmp_path / "nowhere", tmp_path / "job" / "chk-1" / name[::-1])
        age(local_directory, [f"file://{outside}/{name}", f"file://{outside}/{name[::-1]}"], 7200)
        sweep(local_directory, "job", grace_s=3600)
        assert (outside / name).read_bytes() == b"theirs"
        assert (outside / name[::-1]).read_bytes() == b"theirs"
        assert_complete(kept)

    def test_shared_files_that_are_known_by_another_uri(
        self, faults: Faults, clock: ManualClock
    ) -> None:
        """As when a job writes to s3a:// and is swept at s3://: all of its metadata names s3a."""
        kept = completed(job_in(faults.directory), 1)
        clock.advance(2 * GRACE)
        sweep(faults.behind, "job", grace_s=GRACE)
        assert_complete(kept)

    def test_shared_files_that_are_known_by_a_path_through_a_link(
        self, local_directory: str, tmp_path: Path
    ) -> None:
        (tmp_path / "disk").mkdir()
        os.symlink(tmp_path / "disk", tmp_path / "link")
        kept = completed(job_in(f"{local_directory}/link"), 1)
        age(local_directory, files_below(f"{local_directory}/disk"), 7200)
        sweep(f"{local_directory}/disk", "job", grace_s=3600)
        assert_complete(kept)


class TestReports:
    def test_a_dry_run_deletes_nothing_and_says_what_a_run_deletes(
        self, access: CheckpointStorageAccess, memory_directory: str, clock: ManualClock
    ) -> None:
        completed(access, 3)
        for number in (1, 2, 5):
            location = access.initialize_location_for_checkpoint(number)
            write(location)
            write(location, scope=SHARED)
        access.initialize_location_for_checkpoint(6)
        clock.advance(2 * GRACE)
        young = write(access.initialize_location_for_checkpoint(2))
        before = (files_below(memory_directory), directories_below(memory_directory))
        dry = sweep(memory_directory, "job", grace_s=GRACE, dry_run=True)
        assert dry.dry_run
        assert (files_below(memory_directory), directories_below(memory_directory)) == before
        run = sweep(memory_directory, "job", grace_s=GRACE)
        assert run == replace(dry, dry_run=False)
        assert before[0] - files_below(memory_directory) == uris(dry)
        assert before[1] - directories_below(memory_directory) == set(dry.directories)
        assert young.uri in files_below(memory_directory)

    def test_a_second_run_finds_nothing(
        self, access: CheckpointStorageAccess, memory_directory: str, clock: ManualClock
    ) -> None:
        write(access.initialize_location_for_checkpoint(1))
        clock.advance(2 * GRACE)
        assert sweep(memory_directory, "job", grace_s=GRACE).files
        assert sweep(memory_directory, "job", grace_s=GRACE) == SweepReport((), (), 0, False)

    def test_a_job_without_a_directory_is_not_found_and_makes_none(
        self, memory_directory: str
    ) -> None:
        with pytest.raises(CheckpointNotFoundError):
            sweep(memory_directory, "job")
        assert directories_below(memory_directory) == set()

    @pytest.mark.parametrize("job_id", ["", ".", "..", "a/b", "../job"])
    def test_what_is_no_job_id_is_refused(self, memory_directory: str, job_id: str) -> None:
        with pytest.raises(InvalidRequestError):
            sweep(memory_directory, job_id)

    def test_a_negative_grace_period_is_refused(
        self, access: CheckpointStorageAccess, memory_directory: str
    ) -> None:
        with pytest.raises(InvalidRequestError, match="negative"):
            sweep(memory_directory, "job", grace_s=-1)


class TestUnreadableMetadata:
    @pytest.fixture(params=["first", "middle", "last"])
    def damaged(
        self, request: pytest.FixtureRequest, access: CheckpointStorageAccess, clock: ManualClock
    ) -> str:
        """URI of the metadata of one of three checkpoints, beside orphans."""
        number = ["first", "middle", "last"].index(request.param)
        found = [completed(access, one) for one in (1, 2, 3)]
        write(access.initialize_location_for_checkpoint(2))
        write(access.initialize_location_for_checkpoint(9), scope=SHARED)
        clock.advance(2 * GRACE)
        uri = found[number].location.metadata_handle
        assert isinstance(uri, FileStateHandle)
        return uri.uri

    @pytest.mark.parametrize("kept_bytes", [0, 1, 19, 20, 100, -1])
    def test_that_was_cut_off_stops_it(
        self, damaged: str, memory_directory: str, kept_bytes: int
    ) -> None:
        overwrite(damaged, content_of(damaged)[:kept_bytes])
        self.is_stopped(memory_directory, CheckpointCorruptedError, damaged)

    def test_that_a_newer_version_wrote_stops_it(self, damaged: str, memory_directory: str) -> None:
        content = content_of(damaged)[:-4]
        newer = content[:8] + (2).to_bytes(4) + content[12:]
        overwrite(damaged, newer + crc32c(newer).to_bytes(4))
        self.is_stopped(memory_directory, UnsupportedFormatError, damaged)

    def test_that_is_another_kind_of_file_stops_it(
        self, damaged: str, memory_directory: str
    ) -> None:
        overwrite(damaged, b"Flink's own, or whatever")
        self.is_stopped(memory_directory, CheckpointCorruptedError, damaged)

    def is_stopped(self, directory: str, kind: type[CheckpointError], metadata: str) -> None:
        before = (files_below(directory), directories_below(directory))
        for dry_run in (True, False):
            with pytest.raises(kind) as caught:
                sweep(directory, "job", grace_s=0, dry_run=dry_run)
            assert caught.value.location == metadata
        assert (files_below(directory), directories_below(directory)) == before


def content_of(uri: str) -> bytes:
    with file_system_for(uri).open(uri) as stream:
        return stream.read()


class _SkewedFileSystem(MemoryFileSystem):
    """A store whose clock is hours off."""

    skew_ms = 0

    def list(self, uri: str, /) -> Iterable[FileStatus]:
        behind = uri.replace("skewed:", "memory:")
        return [
            replace(
                one,
                uri=one.uri.replace("memory:", "skewed:"),
                modified_ms=one.modified_ms + self.skew_ms,
            )
            for one in super().list(behind)
        ]


class TestTheClock:
    @pytest.fixture
    def directory(self, memory_directory: str, clock: ManualClock) -> Iterator[str]:
        name = memory_directory.removeprefix("memory:///")

        def behind(method: str) -> Callable[..., object]:
            plain = getattr(MemoryFileSystem, method)

            def call(self: MemoryFileSystem, uri: object, *rest: object) -> object:
                if isinstance(uri, str):
                    return plain(self, uri.replace("skewed:", "memory:"), *rest)
                assert isinstance(uri, Iterable)
                return plain(self, [one.replace("skewed:", "memory:") for one in uri], *rest)

            return call

        methods = (
            "prepare_directory",
            "create",
            "publish",
            "open",
            "delete",
            "delete_empty_directory",
            "delete_tree",
        )
        kind = type("Skewed", (_SkewedFileSystem,), {name: behind(name) for name in methods})
        register_file_system("skewed", lambda: kind(clock))
        try:
            yield f"skewed:///{name}"
        finally:
            unregister_file_system("skewed")
            _SkewedFileSystem.skew_ms = 0

    @pytest.mark.parametrize("hours", [-30, -5, 0, 5, 30])
    def test_that_counts_is_the_stores_and_not_the_local_one(
        self, directory: str, clock: ManualClock, hours: int
    ) -> None:
        _SkewedFileSystem.skew_ms = hours * 3_600_000
        access = job_in(directory)
        orphan = write(access.initialize_location_for_checkpoint(1))
        report = sweep(directory, "job", grace_s=3600)
        assert (report.files, report.too_young) == ((), 1)
        clock.advance(3601)
        assert uris(sweep(directory, "job", grace_s=3600)) == {orphan.uri}


class TestMeanwhile:
    @pytest.mark.parametrize("call", ["create", "open", "delete"])
    def test_a_driver_that_claims_the_job_stops_it(
        self, faults: Faults, clock: ManualClock, call: str
    ) -> None:
        access = job_in(faults.behind)
        access.claim_job()
        completed(access, 1)
        write(access.initialize_location_for_checkpoint(2))
        clock.advance(2 * GRACE)
        before = {
            one for one in files_below(f"{faults.behind}/job") if not one.endswith("/_epoch/1")
        }
        faults.before(call, access.claim_job)
        with pytest.raises(CheckpointConflictError, check=of_kind("contended")):
            sweep(faults.directory, "job", grace_s=GRACE)
        assert before <= files_below(f"{faults.behind}/job")

    @pytest.mark.parametrize("number", range(1, 12))
    def test_a_checkpoint_that_is_completed_survives_it(
        self, faults: Faults, clock: ManualClock, number: int
    ) -> None:
        """Whenever it is completed; its files are as old as they may be."""
        access = job_in(faults.directory)
        old = completed(access, 1)
        clock.advance(2 * GRACE)
        location = access.initialize_location_for_checkpoint(2)
        streams = (write(location), write(location, b"new", SHARED), shared_of(old))
        clock.advance(GRACE - 1)
        made: list[CompletedCheckpoint] = []

        def complete() -> None:
            metadata = metadata_of(*streams, checkpoint_id=2, commit_token="second")
            made.append(complete_checkpoint(location, metadata))

        faults.calls.clear()
        faults.before(ANY_CALL, complete, nth=number)
        sweep(faults.directory, "job", grace_s=GRACE)
        faults.clear()
        assert_complete(old)
        for one in made:
            assert_complete(one)

    def test_a_checkpoint_that_takes_over_shared_files_from_one_that_is_deleted_survives_it(
        self, memory_directory: str, clock: ManualClock
    ) -> None:
        """With one that is retained: the sweep lists the old one, which goes before it is read."""
        from holdfast.testing import faulty_file_system

        number, reached = 0, True
        while reached:
            number += 1
            reached = False
            with faulty_file_system(f"{memory_directory}/{number}") as faults:
                file_system_for(faults.behind).prepare_directory(faults.behind)
                access = job_in(faults.directory)
                old = completed(access, 1)
                clock.advance(2 * GRACE)
                made: list[CompletedCheckpoint] = []

                def go_on(
                    made: list[CompletedCheckpoint] = made,
                    access: CheckpointStorageAccess = access,
                    old: CompletedCheckpoint = old,
                ) -> None:
                    made.append(completed(access, 2, shared_of(old)))
                    old.discard()

                faults.calls.clear()
                faults.before(ANY_CALL, go_on, nth=number)
                sweep(faults.directory, "job", grace_s=GRACE)
                faults.clear()
                for one in made:
                    reached = True
                    assert_complete(one)
        assert number > 10

    @pytest.mark.parametrize("lands", [False, True], ids=["before", "after"])
    def test_a_store_that_fails_anywhere_loses_nothing_that_matters(
        self, memory_directory: str, clock: ManualClock, *, lands: bool
    ) -> None:
        from holdfast.testing import faulty_file_system

        number, failed = 0, True
        while failed:
            number += 1
            with faulty_file_system(f"{memory_directory}/{number}") as faults:
                file_system_for(faults.behind).prepare_directory(faults.behind)
                access = job_in(faults.directory)
                first = completed(access, 1)
                second = completed(access, 3, shared_of(first))
                location = access.initialize_location_for_checkpoint(2)
                orphans = {write(location).uri, write(location, scope=SHARED).uri}
                clock.advance(2 * GRACE)
                faults.calls.clear()
                plan = faults.after if lands else faults.before
                plan(ANY_CALL, StorageUnavailableError("as planned"), nth=number)
                try:
                    sweep(faults.directory, "job", grace_s=GRACE)
                except (StorageUnavailableError, OutcomeUnknownError):
                    failed = True
                else:
                    failed = number <= len(faults.calls) - faults.calls.count("abort")
                    assert not failed, "a call failed, and nobody was told"
                faults.clear()
                assert_complete(first)
                assert_complete(second)
                clock.advance(2 * GRACE)
                sweep(faults.directory, "job", grace_s=GRACE)
                left = files_below(faults.directory)
                assert not left & orphans
                assert not any("_probe-" in one for one in left)
        assert number > 10

    def test_a_checkpoint_whose_metadata_is_deleted_meanwhile_does_not_stop_it(
        self, faults: Faults, clock: ManualClock
    ) -> None:
        access = job_in(faults.directory)
        old, kept = completed(access, 1), completed(access, 2)
        orphan = write(access.initialize_location_for_checkpoint(3))
        clock.advance(2 * GRACE)
        faults.before("open", old.discard)
        report = sweep(faults.directory, "job", grace_s=GRACE)
        assert orphan.uri in uris(report)
        assert_complete(kept)


def test_the_metadata_that_a_sweep_reads_is_what_keeps_files(
    access: CheckpointStorageAccess, memory_directory: str, clock: ManualClock
) -> None:
    """Take it away, and the same files go: the tests above would pass on a sweep that is blind."""
    kept = completed(access, 1)
    clock.advance(2 * GRACE)
    assert sweep(memory_directory, "job", grace_s=GRACE).files == ()
    file_system_for(memory_directory).delete([f"{kept.location.external_pointer}/{METADATA_FILE}"])
    assert len(sweep(memory_directory, "job", grace_s=GRACE).files) == 2


def test_a_whole_directory_can_be_named_by_a_path(local_directory: str, tmp_path: Path) -> None:
    job_in(local_directory)
    assert sweep(tmp_path, "job") == sweep(local_directory, "job")
    assert checkpoint_storage(tmp_path) == checkpoint_storage(local_directory)
