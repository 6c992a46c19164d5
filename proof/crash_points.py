"""Crash points: a job dies before and after every call to its store, and another driver goes on.

A driver's whole life is recorded: it claims the job, commits batches of operator and keyed state, merges segments, lets old checkpoints go, copies
one to a savepoint, gives a batch up, is replaced, and sweeps. What the store holds around each call is kept. All
that a process has besides is lost when it dies, so each of these is what one that is killed there leaves behind.

Then every one of them is put back, and looked at by a driver that starts: it must go on from the last
checkpoint that was completed or from the next, with all rows of that and no others, complete a batch, and after a
sweep there must be nothing that no checkpoint leads to.
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
_MOST_SWEEPS, _BETWEEN_SWEEPS_S = 30, 0.1
_SUBTASKS = 2


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """What a store holds around a call.

    Attributes:
        number: Which call, counted from 1.
        call: The call's name.
        is_before: Whether the call was still to come.
        completed: The newest checkpoint that the driver had been told of.
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
    """What became of a job that died in each of these points.

    Attributes:
        calls: Number of calls in its life.
        points: Number of crash points.
        states: How many of them have left a store that none before has left.
        restarts: After how many of these a driver has gone on.
        failures: What was wrong after a restart, as texts.
    """

    calls: int
    points: int
    states: int
    restarts: int = 0
    failures: list[str] = field(default_factory=list)


def crash_everywhere(
    directory: str, *, every: int = 1, restart: Callable[[str, int], None] | None = None
) -> Crashes:
    """Let a job die at each point of its life, in a directory of any store.

    Args:
        directory: URI of an empty directory.
        every: Take each so many-th call, where all would take too long.
        restart: What looks at a store that was left, given the directory and the newest checkpoint that was
            completed; it raises where something is wrong.
    """
    check = restart or go_on
    with faulty_file_system(directory) as faults:
        points = _recorded(faults, every)
        states: dict[object, CrashPoint] = {}
        for point in points:
            left = (tuple(sorted(point.files.items())), point.directories, point.completed)
            states.setdefault(left, point)
        crashes = Crashes(len(faults.calls), len(points), len(states))
        faults.clear()
        for point in states.values():
            _put_back(faults.inner_directory, point)
            crashes.restarts += 1
            try:
                check(faults.directory, point.completed)
            except Exception as error:  # noqa: BLE001  # whatever it is, it is wrong
                crashes.failures.append(f"{point}: {type(error).__name__}: {error}")
        return crashes


def go_on(directory: str, completed: int) -> None:
    """What a driver does that starts after a crash, and what must be so.

    Raises:
        AssertionError: Something is not as it must be.
        CheckpointError: The driver can't go on.
    """
    driver = coordinator(directory, num_retained=_RETAINED)
    before = load_checkpoints(driver.job.access)
    latest = before[-1].checkpoint_id if before else 0
    _expect(latest in (completed, completed + 1), f"goes on from {latest} behind {completed}")
    run_batch(driver, latest, adds(latest), report=run_subtasks_with_lists)
    CLEANER.wait()
    _sweep_until_all_is_old(lambda: sweep(directory, "job", grace_s=0))
    _sweep_until_all_is_old(lambda: sweep_savepoints(f"{directory}/archive", "job", grace_s=0))
    kept = load_checkpoints(driver.job.access)
    ids = [checkpoint.checkpoint_id for checkpoint in kept]
    _expect(ids == list(range(max(latest, 1), latest + 2)), f"keeps {ids} behind {latest}")
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
    """Sweep again where files are as old as the sweep itself: the clocks of some stores tick once a second."""
    for _ in range(_MOST_SWEEPS):
        if not sweep_once().within_grace:
            return
        time.sleep(_BETWEEN_SWEEPS_S)


def _recorded(faults: Faults, every: int) -> list[CrashPoint]:
    """Run the life of a job; returns what its store held around each so many-th call."""
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
                *_kept(faults.inner_directory, known),
            )
        )

    def told(checkpoint_id: int) -> None:
        nonlocal completed
        completed = checkpoint_id

    faults.before(ANY_CALL, lambda: keep(is_before=True), nth="every")
    faults.after(ANY_CALL, lambda: keep(is_before=False), nth="every")
    live(faults.directory, told)
    return points


def live(directory: str, told: Callable[[int], object]) -> None:
    """The life of a job.

    Args:
        directory: URI of an empty directory.
        told: Called with each checkpoint that its driver was told to be completed.
    """
    driver = coordinator(directory, num_retained=_RETAINED)
    for batch_id in range(8):
        if batch_id == 5:
            driver = coordinator(directory, num_retained=_RETAINED)
        if batch_id == 6:
            given_up = begin_checkpoint(driver, batch_id)
            run_subtasks_with_lists(given_up, adds(batch_id))
            driver.abort(given_up)
        change = merges(batch_id) if batch_id == 3 else adds(batch_id)
        pending = begin_checkpoint(driver, batch_id)
        driver.complete(pending, run_subtasks_with_lists(pending, change), progress(batch_id))
        told(batch_id + 1)
        CLEANER.wait()
        if batch_id == 4:
            copy_checkpoint(load_checkpoints(driver.job.access)[-1], f"{directory}/archive")
    sweep(directory, "job", grace_s=0)


def adds(batch_id: int) -> Callable[[int, Backend], object]:
    """A batch that puts a row of its own into a segment of each subtask."""
    return lambda subtask, backend: backend.add(b"batch %d of %d;" % (batch_id, subtask))


def merges(batch_id: int) -> Callable[[int, Backend], object]:
    """The same, and a single segment is made of all."""

    def merge(subtask: int, backend: Backend) -> None:
        merged = b"".join(backend.segments.values())
        backend.segments.clear()
        backend.add(merged + b"batch %d of %d;" % (batch_id, subtask))

    return merge


def _expect_rows(metadata: CheckpointMetadata) -> None:
    """Every subtask has the rows of all batches up to the checkpoint, each once, and no others."""
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
    """Checks that stay when Python leaves assertions out."""
    if not holds:
        raise AssertionError(otherwise)


def _kept(
    directory: str, known: dict[FileStatus, bytes]
) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """All files and directories; looked for anew if another thread of the driver has deleted one meanwhile.

    Files are never written twice, so what is known of one is not read again.
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


def _put_back(directory: str, point: CrashPoint) -> None:
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
