"""Local copies of columnar segments: which are kept, and corrupt copies, and full disks."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from contracts.columnar_tables import ROWS, TablesJob, put, uris, value_spec, values

from holdfast.backends.keyed.segments import (
    ColumnarStateTables,
    MergePolicy,
    Workspace,
)
from holdfast.backends.keys import KeyGroupRange
from holdfast.errors import (
    CheckpointCorruptedError,
    CheckpointNotFoundError,
    InvalidRequestError,
    StorageFullError,
)
from holdfast.locations.file_systems import file_system_for
from holdfast.testing import Faults


def test_restore_opens_segments_on_demand(job: TablesJob) -> None:
    tables = job.restore()
    put(tables.table(value_spec()), range(ROWS))
    handle = job.complete(tables)
    job.on_another_worker()
    for stream in handle.segments.values():
        stream.discard_state()
    table = job.restore(handle).table(value_spec())
    with pytest.raises(CheckpointNotFoundError):
        values(table, range(1))


def test_segment_is_fetched_once_and_then_read_from_the_local_copy(job: TablesJob) -> None:
    tables = job.restore()
    put(tables.table(value_spec()), range(ROWS), 5)
    handle = job.complete(tables)
    job.on_another_worker()
    assert values(job.restore(handle).table(value_spec()), range(3)) == [5] * 3
    assert job.local_files() == handle.segments.keys()
    for stream in handle.segments.values():
        stream.discard_state()
    job.workspace = Workspace()
    assert values(job.restore(handle).table(value_spec()), range(3)) == [5] * 3


def test_local_copies_stay_while_a_confirmed_checkpoint_needs_them(job: TablesJob) -> None:
    tables = job.restore(policy=MergePolicy())
    table = tables.table(value_spec())
    put(table, range(ROWS), 1)
    first = job.complete(tables)
    assert job.local_files() == first.segments.keys()
    put(table, range(ROWS), 2)  # all is merged
    second = job.snapshot(tables)
    assert not first.segments.keys() & second.segments.keys()
    assert job.local_files() == first.segments.keys() | second.segments.keys()
    tables.notify_checkpoint_complete(job.checkpoint)
    assert job.local_files() == second.segments.keys()


def truncate(content: bytes) -> bytes:
    return content[:5000]


def change_the_middle(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def change_the_end(content: bytes) -> bytes:
    return content[:-30] + bytes(30)


def truncate_all(_: bytes) -> bytes:
    return b""


TRUNCATE_DURING_A_READ = """
import os, sys
from holdfast.backends.keyed.segments.segment import Segment

keys = Segment.open(sys.argv[1], "s").section(0).sort_keys
os.truncate(sys.argv[1], 0)
keys.sum()
"""

DAMAGES = [truncate, change_the_middle, change_the_end, truncate_all]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("is_open", [True, False])
def test_corrupt_local_copy_is_fetched_again_with_a_warning(
    job: TablesJob,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[bytes], bytes],
    *,
    is_open: bool,
) -> None:
    tables = job.restore()
    put(tables.table(value_spec()), range(ROWS), 5)
    handle = job.complete(tables)
    (name,) = handle.segments
    written = (job.local / name).read_bytes()
    if not is_open:
        job.workspace = Workspace()
    (job.local / name).write_bytes(damage(written))
    os.utime(job.local / name, ns=(0, 0))  # it may be written twice between two ticks of the clock
    assert set(values(job.restore(handle).table(value_spec()), range(ROWS))) == {5}
    (warning,) = caplog.messages
    assert f"the local copy of segment {name} is corrupt" in warning
    assert (job.local / name).read_bytes() == written


@pytest.mark.parametrize("is_deleted", [True, False])
def test_local_copy_truncated_between_lookups_is_fetched_again(
    job: TablesJob, caplog: pytest.LogCaptureFixture, *, is_deleted: bool
) -> None:
    tables = job.restore()
    put(tables.table(value_spec()), range(ROWS), 5)
    handle = job.complete(tables)
    (name,) = handle.segments
    table = job.restore(handle).table(value_spec())
    assert set(values(table, range(ROWS))) == {5}
    with (job.local / name).open("r+b") as file:
        if is_deleted:
            os.unlink(job.local / name)
        file.truncate(0)
    assert set(values(table, range(ROWS))) == {5}
    assert len(caplog.messages) == (0 if is_deleted else 1)


def test_segment_truncated_before_a_checkpoint_raises_its_name(job: TablesJob) -> None:
    tables = job.restore()
    table = tables.table(value_spec())
    put(table, range(ROWS), 5)
    (name,) = job.snapshot(tables).segments
    os.truncate(job.local / name, 5000)
    with pytest.raises(CheckpointCorruptedError, match=name):
        values(table, range(ROWS))


def test_file_truncated_during_a_read_kills_only_one_worker(
    job: TablesJob, caplog: pytest.LogCaptureFixture
) -> None:
    tables = job.restore()
    put(tables.table(value_spec()), range(ROWS), 5)
    handle = job.complete(tables)
    (name,) = handle.segments
    path = str(job.local / name)
    worker = subprocess.run([sys.executable, "-c", TRUNCATE_DURING_A_READ, path], check=False)
    assert worker.returncode == -signal.SIGBUS
    job.workspace = Workspace()
    assert set(values(job.restore(handle).table(value_spec()), range(ROWS))) == {5}
    (warning,) = caplog.messages
    assert f"the local copy of segment {name} is corrupt" in warning


def test_merge_fetches_a_corrupt_local_copy_again(job: TablesJob) -> None:
    tables = job.restore()
    table = tables.table(value_spec())
    put(table, range(ROWS), 5)
    handle = job.complete(tables)
    job.workspace = Workspace()
    (name,) = handle.segments
    (job.local / name).write_bytes(change_the_middle((job.local / name).read_bytes()))
    merging = job.restore(handle, policy=MergePolicy(rewrite_factor=1e9))
    put(merging.table(value_spec()), range(1), 6)
    merged = job.complete(merging)
    assert merged.segments.keys().isdisjoint(handle.segments)
    assert values(merging.table(value_spec()), range(ROWS)) == [6] + [5] * (ROWS - 1)


@pytest.mark.parametrize("is_gone", [True, False])
def test_segment_corrupt_in_storage_raises_and_is_not_served(
    job: TablesJob, *, is_gone: bool
) -> None:
    tables = job.restore()
    put(tables.table(value_spec()), range(ROWS), 5)
    handle = job.complete(tables)
    (name,) = handle.segments
    uri = uris(handle)[name]
    job.workspace = Workspace()
    written = (job.local / name).read_bytes()
    (job.local / name).write_bytes(change_the_middle(written))
    store = file_system_for(uri)
    store.delete([uri])
    if not is_gone:
        file = store.create(uri)
        file.write(change_the_middle(written))
        file.commit()
    table = job.restore(handle).table(value_spec())
    error = CheckpointNotFoundError if is_gone else CheckpointCorruptedError
    message = uri if is_gone else rf"block \d+ .*{uri}"
    for _ in range(2):
        with pytest.raises(error, match=message):
            values(table, range(ROWS))


def test_segments_without_a_directory_are_in_memory(job: TablesJob) -> None:
    tables = job.restore(is_local=False)
    put(tables.table(value_spec()), range(ROWS), 5)
    handle = job.complete(tables)
    assert not job.local_files()
    restored = job.restore(handle, is_local=False)
    assert set(values(restored.table(value_spec()), range(ROWS))) == {5}
    assert not job.local_files()


@pytest.mark.parametrize("is_full", [True, False])
def test_segments_are_in_memory_if_the_disk_is_full(
    job: TablesJob, monkeypatch: pytest.MonkeyPatch, *, is_full: bool
) -> None:
    tables = job.restore(policy=MergePolicy())
    table = tables.table(value_spec())
    put(table, range(ROWS), 1)
    job.complete(tables)
    before = job.local_files()
    put(table, range(0, ROWS, 2), 2)

    def full(_: str) -> str:
        raise OSError(errno.ENOSPC if is_full else errno.EROFS, "no room")

    with monkeypatch.context() as patch:
        patch.setattr("holdfast.backends.keyed.segments.segment_store.replace_file", full)
        handle = job.complete(tables)
        assert job.local_files() <= before
        restored = job.restore(handle)
        assert values(restored.table(value_spec()), range(ROWS)) == [2, 1] * (ROWS // 2)
    assert values(table, range(ROWS)) == [2, 1] * (ROWS // 2)
    restored = job.restore(handle)
    assert values(restored.table(value_spec()), range(ROWS)) == [2, 1] * (ROWS // 2)
    assert job.local_files()


def test_rejected_merge_keeps_old_segments_until_the_next_one(
    faults: Faults, tmp_path: Path
) -> None:
    job = TablesJob(faults.directory, tmp_path)
    tables = job.restore(
        policy=MergePolicy()
    )  # which merges a state as small as this with each batch
    table = tables.table(value_spec())
    put(table, range(ROWS), 1)
    before = job.complete(tables)
    put(table, range(0, ROWS, 2), 2)
    faults.run_out_of_space(1000)
    with pytest.raises(StorageFullError):
        job.snapshot(tables)
    tables.notify_checkpoint_aborted(job.checkpoint)
    assert values(table, range(ROWS)) == [2, 1] * (ROWS // 2)
    assert set(values(job.restore(before).table(value_spec()), range(ROWS))) == {1}
    faults.make_room()
    after = job.complete(tables)
    assert len(after.segments) == 1
    assert not after.segments.keys() & before.segments.keys()
    restored = job.restore(after)
    assert values(restored.table(value_spec()), range(ROWS)) == [2, 1] * (ROWS // 2)


def test_segment_on_the_disk_of_its_storage_is_written_once(
    local_directory: str, tmp_path: Path
) -> None:
    job = TablesJob(local_directory, tmp_path / "local")
    tables = job.restore()
    table = tables.table(value_spec())
    put(table, range(ROWS), 1)
    aborted = job.snapshot(tables)
    aborted.discard_state()
    tables.notify_checkpoint_aborted(job.checkpoint)
    handle = job.complete(tables)
    ((name, uri),) = uris(handle).items()
    stored = Path(uri.removeprefix("file://"))
    assert stored.samefile(job.local / name)
    (stream,) = handle.segments.values()
    with stream.open_input_stream() as reader:  # which verifies it
        assert reader.read(-1) == stored.read_bytes()
    put(table, range(ROWS), 2)
    merging = job.restore(handle, policy=MergePolicy(rewrite_factor=1e9))
    put(merging.table(value_spec()), range(1), 2)
    job.complete(merging)
    assert name not in job.local_files()
    assert stored.exists()


def test_uri_as_directory_for_copies_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="must be a local path"):
        ColumnarStateTables(KeyGroupRange(0, 7), directory=tmp_path.as_uri())
