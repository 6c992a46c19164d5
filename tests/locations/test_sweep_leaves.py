"""The files that a sweep leaves, and metadata that stops it."""

import os
import shutil
from pathlib import Path

import pytest
from contracts.checkpointed_jobs import assert_complete, job_in, write_state
from contracts.files import directories_below, files_below
from contracts.sweeps import (
    GRACE,
    access,
    age,
    clock,
    overwrite,
    put,
    uris,
    write_checkpoint,
)
from contracts.values import SHARED

from holdfast.common import crc32c
from holdfast.errors import (
    CheckpointCorruptedError,
    CheckpointError,
    UnsupportedFormatError,
)
from holdfast.locations import complete_checkpoint, sweep
from holdfast.locations.adapters import (
    METADATA_FILE,
    CheckpointStorageAccess,
    FileStateHandle,
    file_system_for,
)
from holdfast.locations.checksums import checksum_of
from holdfast.locations.coordination import GRACE_S
from holdfast.testing import Faults, ManualClock, metadata_of

__all__ = ["access", "clock"]


class TestKeptFiles:
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
    def test_files_with_foreign_names_or_places_stay(
        self, access: CheckpointStorageAccess, memory_directory: str, clock: ManualClock, name: str
    ) -> None:
        kept = write_checkpoint(access, 1)
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

    def test_claim(
        self, access: CheckpointStorageAccess, memory_directory: str, clock: ManualClock
    ) -> None:
        owner = access.claim_job()
        clock.advance(2 * GRACE)
        sweep(memory_directory, "job", grace_s=0)
        owner.check()

    def test_files_within_the_grace_period_are_counted(
        self, access: CheckpointStorageAccess, memory_directory: str, clock: ManualClock
    ) -> None:
        location = access.initialize_location_for_checkpoint(1)
        old = write_state(location)
        clock.advance(GRACE)
        young = {write_state(location).uri, write_state(location, SHARED).uri}
        report = sweep(memory_directory, "job", grace_s=GRACE)
        assert uris(report) == {old.uri}
        assert report.within_grace == 2
        assert young <= files_below(memory_directory)

    def test_old_file_is_young_after_it_was_linked(self, tmp_path: Path) -> None:
        """A segment that a failing query has kept for two days is finally stored, under a second name."""
        segment = tmp_path / "segment"
        segment.write_bytes(b"x" * 100)
        age("", [str(segment)], 2 * GRACE_S)
        location = job_in(f"file://{tmp_path}/storage").initialize_location_for_checkpoint(1)
        stream = location.create_checkpoint_state_output_stream(SHARED)
        assert stream.adopt(str(segment), 100, checksum_of(segment.read_bytes()))
        assert sweep(f"file://{tmp_path}/storage", "job").files == ()
        handle = stream.close_and_get_handle()
        report = sweep(f"file://{tmp_path}/storage", "job")
        assert (report.files, report.within_grace) == ((), 1)
        assert isinstance(handle, FileStateHandle)
        assert segment.samefile(handle.uri.removeprefix("file://"))

    def test_savepoint_copied_with_its_times_is_young(self, tmp_path: Path) -> None:
        """`cp -a` copies so; it copies `_metadata` at any time."""
        access = job_in(f"file://{tmp_path}")
        handle = write_state(access.initialize_location_for_savepoint(1))
        age("", [handle.uri], 2 * GRACE_S)
        copy = tmp_path / "savepoints" / "savepoint-job-0123456789ab"
        copy.mkdir()
        shutil.copy2(handle.uri.removeprefix("file://"), copy)
        report = sweep(tmp_path, "job", savepoint_directory=tmp_path / "savepoints")
        assert (uris(report), report.within_grace) == ({handle.uri}, 1)

    def test_directories_with_entries_are_not_reported_as_empty(
        self, access: CheckpointStorageAccess, memory_directory: str, clock: ManualClock
    ) -> None:
        foreign = put(f"{memory_directory}/job/chk-1/notes.txt")
        location = access.initialize_location_for_checkpoint(2)
        young = write_state(location)
        write_checkpoint(access, 3)
        report = sweep(memory_directory, "job", grace_s=GRACE)
        assert {foreign, young.uri} <= files_below(memory_directory)
        assert report.directories == ()

    def test_directory_reused_by_a_new_driver_stays(self, local_directory: str) -> None:
        """Another driver died in it long ago. Tasks make no directories; they need this one."""
        access = job_in(local_directory)
        write_checkpoint(access, 1)
        orphan = write_state(access.initialize_location_for_checkpoint(2))
        age(local_directory, [orphan.uri], 2 * GRACE)
        pending = access.initialize_location_for_checkpoint(2)
        report = sweep(local_directory, "job", grace_s=GRACE)
        assert uris(report) == {orphan.uri}
        complete_checkpoint(pending, metadata_of(write_state(pending), checkpoint_id=2))

    def test_grace_period_is_a_day_by_default(
        self, access: CheckpointStorageAccess, memory_directory: str, clock: ManualClock
    ) -> None:
        orphan = write_state(access.initialize_location_for_checkpoint(1))
        clock.advance(24 * 3600 - 60)
        assert GRACE_S == 24 * 3600
        assert sweep(memory_directory, "job").within_grace == 1
        clock.advance(120)
        assert uris(sweep(memory_directory, "job")) == {orphan.uri}

    def test_links_to_files_and_directories_elsewhere_lead_nowhere_for_it(
        self, local_directory: str, tmp_path: Path
    ) -> None:
        access = job_in(local_directory)
        kept = write_checkpoint(access, 1)
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

    def test_shared_files_known_by_another_uri_stay(
        self, faults: Faults, clock: ManualClock
    ) -> None:
        """A job that writes to s3a:// and is swept at s3:// is such a case: all its metadata names s3a."""
        kept = write_checkpoint(job_in(faults.directory), 1)
        clock.advance(2 * GRACE)
        sweep(faults.inner_directory, "job", grace_s=GRACE)
        assert_complete(kept)

    def test_shared_files_known_by_a_path_through_a_link_stay(
        self, local_directory: str, tmp_path: Path
    ) -> None:
        (tmp_path / "disk").mkdir()
        os.symlink(tmp_path / "disk", tmp_path / "link")
        kept = write_checkpoint(job_in(f"{local_directory}/link"), 1)
        age(local_directory, files_below(f"{local_directory}/disk"), 7200)
        sweep(f"{local_directory}/disk", "job", grace_s=3600)
        assert_complete(kept)


class TestUnreadableMetadata:
    @pytest.fixture(params=["first", "middle", "last"])
    def damage_metadata(
        self, request: pytest.FixtureRequest, access: CheckpointStorageAccess, clock: ManualClock
    ) -> str:
        """Damage the metadata of one of three checkpoints, next to orphans; returns its URI."""
        number = ["first", "middle", "last"].index(request.param)
        checkpoints = [write_checkpoint(access, checkpoint_id) for checkpoint_id in (1, 2, 3)]
        write_state(access.initialize_location_for_checkpoint(2))
        write_state(access.initialize_location_for_checkpoint(9), SHARED)
        clock.advance(2 * GRACE)
        uri = checkpoints[number].location.metadata_handle
        assert isinstance(uri, FileStateHandle)
        return uri.uri

    @pytest.mark.parametrize("kept_bytes", [0, 1, 19, 20, 100, -1])
    def test_truncated_metadata_stops_it(
        self, damage_metadata: str, memory_directory: str, kept_bytes: int
    ) -> None:
        overwrite(damage_metadata, content_of(damage_metadata)[:kept_bytes])
        self.is_stopped(memory_directory, CheckpointCorruptedError, damage_metadata)

    def test_metadata_of_a_newer_version_stops_it(
        self, damage_metadata: str, memory_directory: str
    ) -> None:
        content = content_of(damage_metadata)[:-4]
        newer = content[:8] + (99).to_bytes(4) + content[12:]
        overwrite(damage_metadata, newer + crc32c(newer).to_bytes(4))
        self.is_stopped(memory_directory, UnsupportedFormatError, damage_metadata)

    def test_metadata_of_another_type_stops_it(
        self, damage_metadata: str, memory_directory: str
    ) -> None:
        overwrite(damage_metadata, b"Flink's own, or whatever")
        self.is_stopped(memory_directory, CheckpointCorruptedError, damage_metadata)

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


def test_metadata_read_by_the_sweep_keeps_its_files(
    access: CheckpointStorageAccess, memory_directory: str, clock: ManualClock
) -> None:
    """Without it the same files are deleted: the tests above would pass with a sweep that sees no files."""
    kept = write_checkpoint(access, 1)
    clock.advance(2 * GRACE)
    assert sweep(memory_directory, "job", grace_s=GRACE).files == ()
    file_system_for(memory_directory).delete([f"{kept.location.external_pointer}/{METADATA_FILE}"])
    assert len(sweep(memory_directory, "job", grace_s=GRACE).files) == 2
