"""The files that a sweep deletes and reports, and the clock that counts."""

import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from contracts.checkpointed_jobs import assert_complete, job_in, write_state
from contracts.files import directories_below, files_below
from contracts.processes import python
from contracts.sweeps import (
    GRACE,
    access,
    age,
    clock,
    put,
    uris,
    write_checkpoint,
)
from contracts.values import SHARED

from holdfast.errors import CheckpointNotFoundError, InvalidRequestError
from holdfast.locations import checkpoint_storage, complete_checkpoint, sweep
from holdfast.locations.adapters import (
    METADATA_FILE,
    CheckpointStorageAccess,
    FileStateHandle,
    FileStatus,
    MemoryFileSystem,
    file_system_for,
    register_file_system,
    unregister_file_system,
)
from holdfast.locations.coordination import SweepReport
from holdfast.testing import ManualClock, metadata_of

__all__ = ["access", "clock"]


class TestSweptFiles:
    def test_files_of_an_incomplete_attempt_are_swept(
        self, access: CheckpointStorageAccess, memory_directory: str, clock: ManualClock
    ) -> None:
        kept = write_checkpoint(access, 1)
        before = files_below(memory_directory)
        location = access.initialize_location_for_checkpoint(2)
        orphans = {write_state(location).uri, write_state(location, SHARED, b"12345").uri}
        clock.advance(GRACE + 1)
        report = sweep(memory_directory, "job", grace_s=GRACE)
        assert uris(report) == orphans
        assert report.total_bytes == 10
        assert files_below(memory_directory) == before
        assert_complete(kept)

    def test_files_of_a_lost_attempt_next_to_the_winners_are_swept(
        self, access: CheckpointStorageAccess, memory_directory: str, clock: ManualClock
    ) -> None:
        loser = access.initialize_location_for_checkpoint(1)
        orphans = {write_state(loser).uri for _ in range(3)}
        kept = write_checkpoint(access, 1)
        clock.advance(GRACE + 1)
        report = sweep(memory_directory, "job", grace_s=GRACE)
        assert uris(report) == orphans
        assert report.directories == ()
        assert_complete(kept)

    def test_rest_of_a_half_deleted_checkpoint_is_swept(
        self, access: CheckpointStorageAccess, memory_directory: str, clock: ManualClock
    ) -> None:
        cut_short, kept = write_checkpoint(access, 1), write_checkpoint(access, 2)
        file_system_for(memory_directory).delete(
            [f"{cut_short.location.external_pointer}/{METADATA_FILE}"]
        )
        clock.advance(GRACE + 1)
        sweep(memory_directory, "job", grace_s=GRACE)
        assert cut_short.location.external_pointer not in directories_below(memory_directory)
        assert not files_below(memory_directory) & {
            stream.uri
            for stream in cut_short.metadata.streams()
            if isinstance(stream, FileStateHandle)
        }
        assert_complete(kept)

    def test_hidden_files_and_probes_of_a_dead_process_are_swept(
        self, access: CheckpointStorageAccess, memory_directory: str, clock: ManualClock
    ) -> None:
        kept = write_checkpoint(access, 1)
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

    def test_empty_directories_of_older_checkpoints_are_swept_at_once(
        self, access: CheckpointStorageAccess, memory_directory: str, clock: ManualClock
    ) -> None:
        for number in (1, 2, 4, 5):
            access.initialize_location_for_checkpoint(number)
        write_checkpoint(access, 3)
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
        orphan = write_state(mine)
        write_state(other.initialize_location_for_savepoint(1))
        finished = access.initialize_location_for_savepoint(1)
        kept = complete_checkpoint(finished, metadata_of(write_state(finished), checkpoint_id=1))
        write_state(finished)  # by a late task; the savepoint is the user's now
        before = files_below(memory_directory)
        clock.advance(GRACE + 1)
        report = sweep(memory_directory, "job", savepoint_directory=savepoints, grace_s=GRACE)
        assert uris(report) == {orphan.uri}
        assert set(report.directories) == {mine.external_pointer, empty.external_pointer}
        assert files_below(memory_directory) == before - {orphan.uri}
        assert len(directories_below(savepoints)) == 2
        assert_complete(kept)

    def test_savepoints_stay_unless_requested(
        self, access: CheckpointStorageAccess, memory_directory: str, clock: ManualClock
    ) -> None:
        orphan = write_state(access.initialize_location_for_savepoint(1))
        clock.advance(GRACE + 1)
        assert sweep(memory_directory, "job", grace_s=GRACE).files == ()
        assert orphan.uri in files_below(memory_directory)

    def test_files_of_a_killed_process_are_swept(self, local_directory: str) -> None:
        """On disk it leaves a hidden file; a second sweep finds nothing."""
        access = job_in(local_directory)
        kept = write_checkpoint(access, 1)
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
        assert (report.files, report.within_grace) == ((), 4)
        age(local_directory, left, 7200)
        assert uris(sweep(local_directory, "job", grace_s=3600)) == left
        assert files_below(local_directory) == before
        assert sweep(local_directory, "job", grace_s=3600).files == ()
        assert_complete(kept)


class TestReports:
    def test_dry_run_reports_the_files_and_deletes_nothing(
        self, access: CheckpointStorageAccess, memory_directory: str, clock: ManualClock
    ) -> None:
        write_checkpoint(access, 3)
        for number in (1, 2, 5):
            location = access.initialize_location_for_checkpoint(number)
            write_state(location)
            write_state(location, SHARED)
        access.initialize_location_for_checkpoint(6)
        clock.advance(2 * GRACE)
        young = write_state(access.initialize_location_for_checkpoint(2))
        before = (files_below(memory_directory), directories_below(memory_directory))
        dry = sweep(memory_directory, "job", grace_s=GRACE, dry_run=True)
        assert dry.dry_run
        assert (files_below(memory_directory), directories_below(memory_directory)) == before
        run = sweep(memory_directory, "job", grace_s=GRACE)
        assert run == replace(dry, dry_run=False)
        assert before[0] - files_below(memory_directory) == uris(dry)
        assert before[1] - directories_below(memory_directory) == set(dry.directories)
        assert young.uri in files_below(memory_directory)

    def test_second_run_finds_nothing(
        self, access: CheckpointStorageAccess, memory_directory: str, clock: ManualClock
    ) -> None:
        write_state(access.initialize_location_for_checkpoint(1))
        clock.advance(2 * GRACE)
        assert sweep(memory_directory, "job", grace_s=GRACE).files
        assert sweep(memory_directory, "job", grace_s=GRACE) == SweepReport((), (), 0, False)

    def test_job_without_a_directory_is_not_found_and_makes_none(
        self, memory_directory: str
    ) -> None:
        with pytest.raises(CheckpointNotFoundError):
            sweep(memory_directory, "job")
        assert directories_below(memory_directory) == set()

    @pytest.mark.parametrize("job_id", ["", ".", "..", "a/b", "../job"])
    def test_invalid_job_id_is_refused(self, memory_directory: str, job_id: str) -> None:
        with pytest.raises(InvalidRequestError):
            sweep(memory_directory, job_id)

    def test_negative_grace_period_is_refused(
        self, access: CheckpointStorageAccess, memory_directory: str
    ) -> None:
        with pytest.raises(InvalidRequestError, match="must be >= 0"):
            sweep(memory_directory, "job", grace_s=-1)

    def test_time_other_than_the_store_s_needs_a_dry_run(
        self, access: CheckpointStorageAccess, memory_directory: str
    ) -> None:
        with pytest.raises(InvalidRequestError, match="now_ms needs dry_run"):
            sweep(memory_directory, "job", now_ms=1_700_000_000_000)


class _SkewedFileSystem(MemoryFileSystem):
    """A store whose clock is hours off."""

    skew_ms = 0

    def list(self, uri: str, /) -> Iterable[FileStatus]:
        inner = uri.replace("skewed:", "memory:")
        return [
            replace(
                entry,
                uri=entry.uri.replace("memory:", "skewed:"),
                modified_ms=entry.modified_ms + self.skew_ms,
            )
            for entry in super().list(inner)
        ]


class TestTheClock:
    @pytest.fixture
    def directory(self, memory_directory: str, clock: ManualClock) -> Iterator[str]:
        name = memory_directory.removeprefix("memory:///")

        def redirect(method: str) -> Callable[..., object]:
            plain = getattr(MemoryFileSystem, method)

            def call(self: MemoryFileSystem, uri: object, *rest: object) -> object:
                if isinstance(uri, str):
                    return plain(self, uri.replace("skewed:", "memory:"), *rest)
                assert isinstance(uri, Iterable)
                return plain(self, [part.replace("skewed:", "memory:") for part in uri], *rest)

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
        kind = type("Skewed", (_SkewedFileSystem,), {name: redirect(name) for name in methods})
        register_file_system("skewed", lambda: kind(clock))
        try:
            yield f"skewed:///{name}"
        finally:
            unregister_file_system("skewed")
            _SkewedFileSystem.skew_ms = 0

    @pytest.mark.parametrize("hours", [-30, -5, 0, 5, 30])
    def test_clock_of_the_store_counts_and_not_the_local_one(
        self, directory: str, clock: ManualClock, hours: int
    ) -> None:
        _SkewedFileSystem.skew_ms = hours * 3_600_000
        access = job_in(directory)
        orphan = write_state(access.initialize_location_for_checkpoint(1))
        report = sweep(directory, "job", grace_s=3600)
        assert (report.files, report.within_grace) == ((), 1)
        clock.advance(3601)
        assert uris(sweep(directory, "job", grace_s=3600)) == {orphan.uri}


def test_whole_directory_can_be_named_by_a_path(local_directory: str, tmp_path: Path) -> None:
    job_in(local_directory)
    assert sweep(tmp_path, "job") == sweep(local_directory, "job")
    assert checkpoint_storage(tmp_path) == checkpoint_storage(local_directory)
