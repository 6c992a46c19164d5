"""Crash points: a job crashes before and after each call to its store, and another driver takes over.

A driver's whole run is recorded: it claims the job, commits batches of operator and keyed state, merges segments,
releases old checkpoints, copies one to a savepoint, aborts a batch, is replaced, and sweeps. The content of the store
around each call is recorded. A killed process leaves nothing else.

Then each content is restored, and a driver starts: it must resume from the last completed checkpoint or from the
next one, with exactly its rows, and complete a batch; after a sweep there must be no unreachable files.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from contracts.files import files_below, write
from contracts.values import read
from jobs.coordinator import begin_checkpoint, coordinator, progress
from jobs.segments import Backend, contents, list_of, run_batch, run_subtasks_with_lists

from holdfast.common import uripath
from holdfast.errors import CheckpointNotFoundError
from holdfast.locations import copy_checkpoint, find_checkpoints, sweep
from holdfast.locations.adapters import METADATA_FILE, FileStateHandle, FileStatus, file_system_for
from holdfast.locations.coordination import SweepReport, load_checkpoints, sweep_savepoints
from holdfast.locations.metadata import CheckpointMetadata
from holdfast.spark.query import CLEANER
from holdfast.testing import ANY_CALL, Faults, faulty_file_system

_RETAINED = 2
_MAX_SWEEPS, _BETWEEN_SWEEPS_S = 30, 0.1
_SUBTASKS = 2


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """The content of a store around a call.

    Attributes:
        number: Number of the call, from 1.
        call: Name of the call.
        is_before: Whether this is the content before the call.
        completed: The newest checkpoint that the driver had completed.
        files: The content of each file, by its path in the directory.
        directories: Paths in the directory.
    """

    number: int
    call: str
    is_before: bool
    completed: int
    files: dict[str, bytes]
    directories: tuple[str, ...]

    def __str__(self) -> str:
        return f"{'before' if self.is_before else 'after'} call {self.number}, {self.call}"


@dataclass(slots=True)
class Crashes:
    """The outcome of a job that crashed at each of these points.

    Attributes:
        calls: Number of calls in its run.
        points: Number of crash points.
        states: Number of different contents of the store.
        restarts: Number of restarts after them.
        failures: Violations after a restart, as texts.
    """

    calls: int
    points: int
    states: int
    restarts: int = 0
    failures: list[str] = field(default_factory=list)


def crash_everywhere(
    directory: str, *, every: int = 1, restart: Callable[[str, int], None] | None = None
) -> Crashes:
    """Let a job crash at each point of its run, in a directory of any store.

    Args:
        directory: URI of an empty directory.
        every: Take only every n-th call.
        restart: Checks a directory, given the newest completed checkpoint; raises an error for violations.
    """
    check = restart or resume_job
    with faulty_file_system(directory) as faults:
        points = _record(faults, every)
        states: dict[object, CrashPoint] = {}
        for point in points:
            left = (tuple(sorted(point.files.items())), point.directories, point.completed)
            states.setdefault(left, point)
        crashes = Crashes(len(faults.calls), len(points), len(states))
        faults.clear()
        for point in states.values():
            _restore(faults.inner_directory, point)
            crashes.restarts += 1
            try:
                check(faults.directory, point.completed)
            except Exception as error:  # noqa: BLE001  # each error is a violation
                crashes.failures.append(f"{point}: {type(error).__name__}: {error}")
        return crashes


def resume_job(directory: str, completed: int) -> None:
    """Run a driver after a crash, and check the job.

    Raises:
        AssertionError: A violation.
        CheckpointError: The driver can't resume.
    """
    driver = coordinator(directory, num_retained=_RETAINED)
    before = load_checkpoints(driver.job.access)
    latest = before[-1].checkpoint_id if before else 0
    _expect(latest in (completed, completed + 1), f"resumes from {latest} after {completed}")
    run_batch(driver, latest, add_rows(latest), report=run_subtasks_with_lists)
    CLEANER.wait()
    _sweep_until_all_is_old(lambda: sweep(directory, "job", grace_s=0))
    _sweep_until_all_is_old(lambda: sweep_savepoints(f"{directory}/archive", "job", grace_s=0))
    kept = load_checkpoints(driver.job.access)
    ids = [checkpoint.checkpoint_id for checkpoint in kept]
    _expect(ids == list(range(max(latest, 1), latest + 2)), f"keeps {ids} after {latest}")
    savepoints = [
        entry.outcome
        for entry in find_checkpoints(f"{directory}/archive")
        if not isinstance(entry.outcome, Exception)
    ]
    reachable = set()
    for checkpoint in (*kept, *savepoints):
        _expect_rows(checkpoint.metadata)
        reachable.add(f"{checkpoint.location.external_pointer}/{METADATA_FILE}")
        reachable |= {
            stream.uri
            for stream in checkpoint.metadata.streams()
            if isinstance(stream, FileStateHandle)
        }
    garbage = {uri for uri in files_below(directory) - reachable if "/_epoch/" not in uri}
    _expect(not garbage, f"garbage: {sorted(garbage)[:3]}")


def _sweep_until_all_is_old(sweep_once: Callable[[], SweepReport]) -> None:
    """Sweep again while files are as old as the sweep itself: the clocks of some stores tick once a second."""
    for _ in range(_MAX_SWEEPS):
        if not sweep_once().within_grace:
            return
        time.sleep(_BETWEEN_SWEEPS_S)


def _record(faults: Faults, every: int) -> list[CrashPoint]:
    """Run a job; returns the content of its store around every n-th call."""
    points: list[CrashPoint] = []
    known: dict[FileStatus, bytes] = {}
    completed = 0

    def keep(*, is_before: bool) -> None:
        if len(faults.calls) % every:
            return
        points.append(
            CrashPoint(
                len(faults.calls),
                faults.calls[-1],
                is_before,
                completed,
                *_read_all(faults.inner_directory, known),
            )
        )

    def note_completed(checkpoint_id: int) -> None:
        nonlocal completed
        completed = checkpoint_id

    faults.before(ANY_CALL, lambda: keep(is_before=True), nth="every")
    faults.after(ANY_CALL, lambda: keep(is_before=False), nth="every")
    run_job(faults.directory, note_completed)
    return points


def run_job(directory: str, note_completed: Callable[[int], object]) -> None:
    """Run a job to its end.

    Args:
        directory: URI of an empty directory.
        note_completed: Called with each checkpoint that its driver has completed.
    """
    driver = coordinator(directory, num_retained=_RETAINED)
    for batch_id in range(8):
        if batch_id == 5:
            driver = coordinator(directory, num_retained=_RETAINED)
        if batch_id == 6:
            aborted = begin_checkpoint(driver, batch_id)
            run_subtasks_with_lists(aborted, add_rows(batch_id))
            driver.abort(aborted)
        change = merge_rows(batch_id) if batch_id == 3 else add_rows(batch_id)
        pending = begin_checkpoint(driver, batch_id)
        driver.complete(pending, run_subtasks_with_lists(pending, change), progress(batch_id))
        note_completed(batch_id + 1)
        CLEANER.wait()
        if batch_id == 4:
            copy_checkpoint(load_checkpoints(driver.job.access)[-1], f"{directory}/archive")
    sweep(directory, "job", grace_s=0)


def add_rows(batch_id: int) -> Callable[[int, Backend], object]:
    """Return a batch that adds a row in a new segment to each subtask."""
    return lambda subtask, backend: backend.add(b"batch %d of %d;" % (batch_id, subtask))


def merge_rows(batch_id: int) -> Callable[[int, Backend], object]:
    """Return a batch that adds a row, and merges all segments of each subtask."""

    def merge(subtask: int, backend: Backend) -> None:
        merged = b"".join(backend.segments.values())
        backend.segments.clear()
        backend.add(merged + b"batch %d of %d;" % (batch_id, subtask))

    return merge


def _expect_rows(metadata: CheckpointMetadata) -> None:
    """Check that each subtask has exactly the rows of all batches up to the checkpoint."""
    number = metadata.checkpoint_id
    (operator,) = metadata.operators.values()
    subtasks: Sequence[dict[str, bytes]] = contents(list(operator.subtasks.values()))
    _expect(len(subtasks) == _SUBTASKS, f"{len(subtasks)} subtasks in {number}")
    for index, segments in enumerate(subtasks):
        rows = sorted(b"".join(segments.values()).split(b";"))
        wanted = sorted([b"", *(b"batch %d of %d" % (batch, index) for batch in range(number))])
        _expect(rows == wanted, f"subtask {index} of checkpoint {number} has {rows}")
    for index, subtask in operator.subtasks.items():
        lists = [read(handle.stream) for handle in subtask.managed_operator]
        _expect(
            lists == [list_of(number, index)],
            f"subtask {index} of checkpoint {number} has the operator state {lists}",
        )


def _expect(holds: object, otherwise: str) -> None:
    """Raise an `AssertionError`, also if Python runs without assertions."""
    if not holds:
        raise AssertionError(otherwise)


def _read_all(
    directory: str, known: dict[FileStatus, bytes]
) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """Read all files and directories; starts again if another thread of the driver deletes one.

    Files are written only once, so known ones are not read again.
    """
    while True:
        try:
            files = {}
            paths = []
            for entry in _entries_below(directory):
                path = entry.uri.removeprefix(f"{directory}/")
                if entry.is_directory:
                    paths.append(path)
                else:
                    if entry not in known:
                        known[entry] = _read(entry.uri)
                    files[path] = known[entry]
        except CheckpointNotFoundError:
            continue
        return files, tuple(sorted(paths))


def _entries_below(directory: str) -> Iterator[FileStatus]:
    for entry in file_system_for(directory).list(directory):
        yield entry
        if entry.is_directory:
            yield from _entries_below(entry.uri)


def _read(uri: str) -> bytes:
    with file_system_for(uri).open(uri) as stream:
        return stream.read()


def _restore(directory: str, point: CrashPoint) -> None:
    store = file_system_for(directory)
    store.delete_tree(directory)
    for path in (
        "",
        *point.directories,
        *(str(PurePosixPath(file).parent) for file in point.files),
    ):
        store.prepare_directory(uripath.join(directory, path) if path else directory)
    for path, content in point.files.items():
        write(store, uripath.join(directory, path), content)
