"""Local copies of segments of keyed state, without Spark: fetched once, verified, deleted when they are not needed."""

import gc
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from contracts.patience import wait_until
from jobs.keyed import totals_job, totals_rows

from holdfast.backends.keyed import BackendName
from holdfast.backends.keyed.segments import segment as segment_module
from holdfast.backends.keyed.segments import trailer as trailer_module
from holdfast.backends.keyed.segments.segment import Segment
from holdfast.backends.keyed.segments.segment_store import OpenSegment, SegmentStore
from holdfast.backends.keyed.segments.trailer import FRAME, Trailer
from holdfast.locations.adapters import FileStateHandle
from holdfast.spark.settings import StateSettings
from holdfast.spark.subtask import LocalFiles
from holdfast.testing import ManualClock

KEYS = range(4000)
LARGE = 1 << 30


class Host:
    """A host that runs all subtasks of a job, whose state is large enough for files.

    Tasks find nothing in memory, as in new processes, unless there is memory of workers.
    """

    def __init__(self, storage: str, local: Path, max_bytes: int = LARGE) -> None:
        self.storage = storage
        self.local = local
        self.max_bytes = max_bytes
        self.duplicate_files = True
        self.worker_bytes = 0
        self.prefetch = False
        self.backend: BackendName = "columnar"
        self.start()
        self.rounds = 0

    def start(self, parallelism: int = 2) -> None:
        """Start the query, maybe again."""
        self.job = totals_job(
            self.storage,
            parallelism=parallelism,
            state=StateSettings(
                local_bytes=self.max_bytes,
                duplicate_files=self.duplicate_files,
                worker_bytes=self.worker_bytes,
                prefetch=self.prefetch,
                backend=self.backend,
            ),
        )

    def run(self, keys: range = KEYS) -> None:
        """Run a batch with a row of each key; all keys have had the same number of rows."""
        output = self.job.run(totals_rows(keys))
        self.rounds += 1
        assert {row["key"]: row["rows"] for row in output} == dict.fromkeys(keys, self.rounds)

    def copies(self) -> set[Path]:
        return {path for path in self.files() if path.read_bytes()[-12:-4] == FRAME.magic}

    def files(self) -> set[Path]:
        """The copies of state files and of segments."""
        return {path for path in self.local.glob("holdfast/*/*") if len(path.name) == 32}

    def names(self) -> set[str]:
        """The segments in files that the last checkpoint leads to."""
        streams = self.job.latest.metadata.shared_streams()
        return {
            name
            for subtask in self.job.latest.metadata.operators["operator"].subtasks.values()
            for name, stream in subtask.shared_streams().items()
            if isinstance(stream, FileStateHandle) and stream in streams
        }


@pytest.fixture
def host(memory_directory: str, task_directory: Path) -> Host:
    return Host(memory_directory, task_directory)


def test_written_segments_are_mapped_by_the_next_task(host: Host) -> None:
    host.run()
    assert host.names() == {path.name for path in host.copies()} != set()
    host.run()
    assert host.job.sources == {"local"}


def test_missing_segment_is_fetched_once_per_host(host: Host) -> None:
    host.run()
    for path in host.copies():
        path.unlink()
    host.run()
    assert host.job.sources == {"storage"}
    host.run()
    assert host.job.sources == {"local"}
    host.start(parallelism=3)
    host.run()
    assert host.job.sources == {"local"}  # all three share what two have left


def test_fetched_bytes_and_requests_are_in_the_statistics(host: Host) -> None:
    host.run()
    sizes = [path.stat().st_size for path in host.copies()]
    for path in host.copies():
        path.unlink()
    fetched = []
    for _ in range(2):
        host.run()
        subtasks = host.job.latest.metadata.operators["operator"].subtasks.values()
        statistics = [subtask.statistics for subtask in subtasks if subtask.statistics]
        fetched.append((
            sum(each.fetched_bytes for each in statistics),
            sum(each.fetch_requests for each in statistics),
        ))  # fmt: skip
    assert fetched == [(sum(sizes), len(sizes)), (0, 0)]


def test_copies_are_completed_after_a_batch(host: Host) -> None:
    host.prefetch = True
    host.start()
    host.run()
    unneeded = {path.name for path in host.copies()}
    for path in host.copies():
        path.unlink()
    host.run(range(1))
    needed = unneeded & host.names()
    assert needed
    wait_until(lambda: needed <= {path.name for path in host.copies()}, "copies stay partial")


@pytest.mark.parametrize("duplicate_files", [False, True])
def test_source_of_state_without_a_local_manifest_is_local(
    host: Host, *, duplicate_files: bool
) -> None:
    host.duplicate_files = duplicate_files  # False by default if storage is a local disk
    host.start()
    host.run()
    manifests = host.files() - host.copies()
    assert bool(manifests) == duplicate_files
    for path in manifests:
        path.unlink()
    host.run()
    assert host.job.sources == {"local"}
    for path in host.copies():
        path.unlink()
    host.run()
    assert host.job.sources == {"storage"}


def test_files_of_storage_on_the_same_disk_are_the_copies(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.storage = f"file://{tmp_path}/checkpoints"
    host.start()
    host.run()
    for path in host.copies():
        path.unlink()
    host.run()
    assert host.job.sources == {"local"}
    restored = {path.name for path in host.copies() if path.stat().st_nlink == 2}
    assert restored
    host.max_bytes = 0  # there is room for what takes none
    host.start()
    host.run()
    assert restored & {path.name for path in host.copies()}


def test_copies_without_a_subtask_are_deleted(host: Host) -> None:
    for _ in range(12):
        before = host.names() if host.rounds else set()
        host.run()
        needed = before | host.names()
        assert {path.name for path in host.copies()} <= needed
    assert host.names() <= {path.name for path in host.copies()}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists mapped files")
def test_workers_unmap_deleted_copies(host: Host) -> None:
    host.worker_bytes = LARGE
    host.duplicate_files = False
    host.start()
    gc.disable()
    try:
        for _ in range(8):
            host.run()
        maps = Path("/proc/self/maps").read_text().splitlines()
        mapped = {line.split()[-1] for line in maps if str(host.local) in line}
    finally:
        gc.enable()
    assert mapped
    assert "(deleted)" not in mapped


def test_workers_release_small_segments_without_a_checkpoint(host: Host) -> None:
    host.worker_bytes = LARGE
    host.start()
    open_segments = []
    for _ in range(40):
        host.run(range(20))
        gc.collect()
        open_segments.append(sum(type(thing) is Segment for thing in gc.get_objects()))
    assert max(open_segments[30:]) <= max(open_segments[:20])


def test_reused_worker_does_not_verify_its_own_segments(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    verified: list[int] = []

    def find_corrupt_block(
        trailer: Trailer, numbers: Sequence[int], blocks: Iterable[memoryview]
    ) -> str | None:
        verified.extend(numbers)
        return trailer_module.find_corrupt_block(trailer, numbers, blocks)

    monkeypatch.setattr(segment_module, "find_corrupt_block", find_corrupt_block)
    host.worker_bytes = LARGE
    host.start()
    for _ in range(3):
        host.run()
    assert verified == []
    host.worker_bytes = 0  # as a new worker has it
    host.start()
    host.run()
    assert verified


def test_copies_stay_within_the_limit(host: Host) -> None:
    host.max_bytes = 60_000
    host.start()
    for _ in range(5):
        host.run()
        assert sum(path.stat().st_size for path in host.files()) <= host.max_bytes


@pytest.mark.parametrize("parallelism", [1, 2])
def test_files_of_a_database_stay_within_the_limit(host: Host, parallelism: int) -> None:
    host.backend = "rocksdb"
    host.max_bytes = 60_000
    host.start(parallelism)
    for _ in range(3):
        host.run()
        assert sum(path.stat().st_size for path in host.files()) <= host.max_bytes


def test_hard_links_to_storage_do_not_count(host: Host, tmp_path: Path) -> None:
    host.max_bytes = 0
    host.run()
    for number, path in enumerate(host.copies()):
        os.link(path, tmp_path / str(number))
    segments = local_segments(host)
    segments.finish(host.names())
    assert {path.name for path in host.copies()} == host.names()


def local_segments(host: Host, clock: ManualClock | None = None) -> LocalFiles:
    """The copies as a task of subtask 0 uses them."""
    (directory,) = {path.parent for path in host.copies()}
    return LocalFiles(
        root=str(directory.parent),
        operator=directory.name,
        subtask=0,
        checkpoint_id=2,
        max_bytes=host.max_bytes,
        clock=clock or ManualClock(),
    )


def test_old_files_of_killed_tasks_are_deleted(host: Host) -> None:
    host.run()
    segments = local_segments(host)
    now_s = segments.clock.now_ms() / 1000
    left = {
        name: Path(segments.directory) / name
        for name in (
            *("0" * 32, "1" * 32, "2" * 32 + ".partial", "3" * 32 + ".partial"),
            *("a.inprogress", "b.inprogress", "7.1", "8.1"),
        )
    }
    for path in left.values():
        path.write_text("")
    for path in list(left.values())[::2]:
        os.utime(path, (now_s - 100_000,) * 2)
    for path in list(left.values())[1::2]:
        os.utime(path, (now_s,) * 2)
    segments.finish(host.names())
    assert [path.exists() for path in left.values()] == [False, True] * 4
    host.run()


def test_partial_copy_next_to_a_complete_one_is_deleted(host: Host) -> None:
    host.run()
    segments = local_segments(host)
    path = next(iter(host.copies()))
    partial = path.with_name(path.name + ".partial")
    partial.write_text("")
    segments.finish(host.names())
    assert path.exists()
    assert not partial.exists()


def test_holes_of_sparse_copies_do_not_count(host: Host) -> None:
    host.run()
    host.max_bytes = sum(path.stat().st_size for path in host.files()) + 20_000
    segments = local_segments(host)
    sparse = Path(segments.directory) / ("0" * 32 + ".partial")
    with sparse.open("wb") as file:
        file.truncate(1 << 30)
        file.write(b"block")
    now_s = segments.clock.now_ms() / 1000
    os.utime(sparse, (now_s,) * 2)
    segments.finish(host.names() | {"0" * 32})
    assert sparse.exists()
    assert {path.name for path in host.copies()} == host.names()


def test_directory_in_use_is_not_stale(host: Host) -> None:
    host.run()
    directory = host.local / "holdfast"
    os.utime(directory, (0, 0))
    local_segments(host).finish(host.names())
    assert directory.stat().st_mtime > 0


def test_damaged_copy_is_fetched_again(host: Host) -> None:
    host.run()
    for path in host.copies():
        content = bytearray(path.read_bytes())
        content[40] ^= 1
        path.write_bytes(content)
    host.run()
    assert host.job.sources == {"storage"}


def test_full_disk_does_not_fail_a_batch(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> str:
        raise OSError(28, "no room")

    monkeypatch.setattr("holdfast.backends.keyed.segments.segment_store.replace_file", full)
    monkeypatch.setattr("holdfast.backends.keyed.segments.sparse_bytes.os.pwrite", full)
    for _ in range(3):
        host.run()
    assert not host.copies()


def test_batch_without_rows_opens_no_segment(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.run()
    opened: list[str] = []
    segment_of = SegmentStore.segment

    def segment(store: SegmentStore, name: str) -> OpenSegment:
        opened.append(name)
        return segment_of(store, name)

    monkeypatch.setattr(SegmentStore, "segment", segment)
    host.job.run()
    assert opened == []
    host.run(range(1))
    assert opened
