"""Races of drivers, a sweep, savepoints and readers of one job, interleaved call by call in random orders.

Each of them runs in a separate thread, which waits before each call to the store until it is chosen at random. All choices
depend on a seed, so the same seed gives the same order. Sometimes a driver becomes a zombie: it waits while another
one claims the job.

Each driver writes its name into the rows, so the state shows who has processed a batch. A batch that a driver has
completed must be in all later checkpoints, once, and no batch may have rows of two drivers.
"""

import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from contracts.files import files_below
from jobs.coordinator import coordinator, progress
from jobs.segments import Backend, contents, run_subtasks

from holdfast.errors import CheckpointError
from holdfast.locations import copy_checkpoint, latest_checkpoint, load_checkpoint, sweep
from holdfast.locations.adapters import (
    METADATA_FILE,
    FileStateHandle,
    MemoryFileSystem,
    file_system_for,
    register_file_system,
    unregister_file_system,
)
from holdfast.locations.coordination import CheckpointsCleaner, load_checkpoints
from holdfast.locations.metadata import CheckpointMetadata
from holdfast.testing import ANY_CALL, ManualClock, faulty_file_system

_LONGEST_S = 120.0
_GRACE_S = 3600.0
_SLEEPS = 0.03
_BATCHES = 2
_BEFORE = 2

Call = tuple[str, str]
"""A racer and its call."""


@dataclass(slots=True)
class Race:
    """The outcome of a race.

    Attributes:
        calls: All calls with their racers, in order.
        completed: The driver that has completed a checkpoint, by its id.
        failures: Violations.
    """

    calls: list[Call] = field(default_factory=list)
    completed: dict[int, str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


class _Racer:
    """A thread that waits before each call.

    Args:
        name: Name of the racer.
        action: Its action.
    """

    def __init__(self, name: str, action: Callable[[], object]) -> None:
        self.name = name
        self.thread = threading.Thread(target=self._run, name=name)
        self.error: BaseException | None = None
        self.call = "begin"
        self._action = action
        self._may_proceed = threading.Semaphore(0)
        self._is_waiting = threading.Semaphore(0)

    def _run(self) -> None:
        self._may_proceed.acquire()
        try:
            self._action()
        except BaseException as error:  # noqa: BLE001  # the race reports it
            self.error = error
        self.call = ""
        self._is_waiting.release()

    def wait_before(self, call: str) -> None:
        """Wait before a call, in its own thread, until the racer is chosen."""
        self.call = call
        self._is_waiting.release()
        self._may_proceed.acquire()

    def make_call(self) -> bool:
        """Perform one call; returns whether there is another one."""
        self._may_proceed.release()
        if not self._is_waiting.acquire(timeout=_LONGEST_S):
            raise AssertionError(f"{self.name} waits for a thread that does not run")
        return bool(self.call)


def race(directory: str, seed: int) -> Race:
    """Run a race in the order of a seed.

    Args:
        directory: URI of an empty directory in memory; the race sets the clock of `memory://`.
        seed: Determines the order.
    """
    clock = ManualClock(tick_ms=1)
    register_file_system("memory", lambda: MemoryFileSystem(clock))
    try:
        return _race(directory, Random(seed), clock)  # noqa: S311  # not a secret
    finally:
        unregister_file_system("memory")


def _race(directory: str, random: Random, clock: ManualClock) -> Race:
    outcome = Race()
    racers: dict[threading.Thread, _Racer] = {}
    with faulty_file_system(directory) as faults:
        # Threads that a racer starts read and delete; their calls belong to its current call.
        def wait_before_call() -> None:
            racer = racers.get(threading.current_thread())
            if racer is not None:
                racer.wait_before(faults.calls[-1])

        job = faults.directory
        file_system_for(job).prepare_directory(job)
        _drive(job, "first", range(_BEFORE), outcome)
        clock.advance(2 * _GRACE_S)  # files of the first driver are old enough for the sweep
        faults.before(ANY_CALL, wait_before_call, nth="every")
        actions: dict[str, Callable[[], object]] = {
            f"driver {number}": lambda name=f"driver {number}": _drive(  # type: ignore[misc]
                job, name, range(_BEFORE, _BEFORE + _BATCHES), outcome
            )
            for number in range(1, 3)
        }
        actions["sweep"] = lambda: sweep(job, "job", grace_s=_GRACE_S)
        actions["savepoint"] = lambda: _save(job)
        actions["reader"] = lambda: _read(job)
        started = [_Racer(name, action) for name, action in actions.items()]
        for racer in started:
            racers[racer.thread] = racer
            racer.thread.start()
        _interleave(started, random, outcome.calls)
        for racer in started:
            racer.thread.join()
            if racer.error is not None and not isinstance(racer.error, CheckpointError):
                failure = f"{racer.name}: {type(racer.error).__name__}: {racer.error}"
                outcome.failures.append(failure)
        faults.clear()
        try:
            _check(job, outcome)
        except (AssertionError, CheckpointError) as error:
            outcome.failures.append(f"{type(error).__name__}: {error}")
    file_system_for(directory).delete_tree(directory)
    return outcome


def _interleave(racers: list[_Racer], random: Random, calls: list[Call]) -> None:
    """Run all racers to their ends in a random order, which is appended to `calls`."""
    running = list(racers)
    asleep: dict[_Racer, int] = {}
    while running:
        awake = [racer for racer in running if asleep.get(racer, 0) <= len(calls)]
        racer = random.choice(awake or running)
        if random.random() < _SLEEPS:  # the next zombie
            asleep[racer] = len(calls) + random.choice([30, 100, 300])
        # Some make many calls while others wait, as threads and machines do.
        for _ in range(random.choice([1, 1, 2, 5, 40])):
            calls.append((racer.name, racer.call))
            if not racer.make_call():
                running.remove(racer)
                break


def random_races(seed: int, count: int) -> tuple[int, list[str]]:
    """Run several races in different orders, some of them twice: the same seed must give the same order.

    Returns:
        The number of calls, and all failures.
    """
    calls = 0
    failures = []
    for number in range(count):
        own_seed = seed * 1_000_003 + number
        outcome = race(f"memory:///{uuid.uuid4().hex}", own_seed)
        calls += len(outcome.calls)
        failures += [f"race {own_seed}: {failure}" for failure in outcome.failures]
        if number % 20 == 0:
            again = race(f"memory:///{uuid.uuid4().hex}", own_seed)
            if again.calls != outcome.calls:
                failures.append(f"race {own_seed} has another order when it is repeated")
    return calls, failures


def _drive(directory: str, name: str, batches: range, outcome: Race) -> None:
    """Run a driver from the last checkpoint of the job; it may lose the job to another one."""
    cleaner = CheckpointsCleaner()
    cleaner.close()  # it deletes in its driver's thread
    driver = coordinator(directory, num_retained=1, cleaner=cleaner)
    latest = latest_checkpoint(directory, "job") if batches.start else None
    start = latest.checkpoint_id if latest is not None else batches.start
    for batch_id in range(start, start + len(batches)):

        def change(subtask: int, backend: Backend, batch_id: int = batch_id) -> None:
            if batch_id % 3 == 2:  # merge all segments
                merged = b"".join(backend.segments.values())
                backend.segments.clear()
                backend.add(merged)
            backend.add(b"%d of %d by %s;" % (batch_id, subtask, name.encode()))

        pending = driver.begin(batch_id)
        if pending is None:
            continue  # another driver has completed it, and this one resumes from there
        try:
            driver.complete(pending, run_subtasks(pending, change), progress(batch_id))
        except Exception as error:
            driver.abort(pending, error)
            raise
        number = batch_id + 1
        if number in outcome.completed:
            other = outcome.completed[number]
            outcome.failures.append(f"checkpoint {number} was completed by {other} and {name}")
        outcome.completed[number] = name


def _save(directory: str) -> None:
    """Copy the newest checkpoint, and check that the copy is complete."""
    latest = latest_checkpoint(directory, "job")
    _expect(latest is not None, "job has no checkpoint")
    assert latest is not None
    copied = copy_checkpoint(latest, f"{directory}/archive")
    _rows_in(load_checkpoint(copied.location).metadata)


def _read(directory: str) -> None:
    """Read the whole newest checkpoint, which may be deleted concurrently."""
    for _ in range(3):
        latest = latest_checkpoint(directory, "job")
        if latest is not None:
            _rows_in(latest.metadata)


def _rows_in(metadata: CheckpointMetadata) -> dict[int, str]:
    """Return the driver of each batch in a checkpoint.

    Raises:
        AssertionError: A batch is missing, has rows of two drivers, or differs between subtasks.
    """
    (operator,) = metadata.operators.values()
    drivers: dict[int, str] = {}
    for index, segments in enumerate(contents(list(operator.subtasks.values()))):
        rows = b"".join(segments.values()).decode().split(";")[:-1]
        parts = [row.partition(f" of {index} by ") for row in rows]
        batches = sorted(int(batch) for batch, _, _ in parts)
        number = metadata.checkpoint_id
        _expect(batches == list(range(number)), f"checkpoint {number} has batches {batches}")
        for batch, _, name in parts:
            _expect(drivers.setdefault(int(batch), name) == name, f"two drivers in batch {batch}")
    return drivers


def _check(directory: str, outcome: Race) -> None:
    """Check that the next driver has all completed batches, and that a sweep leaves no other files."""
    newest = latest_checkpoint(directory, "job")
    _expect(newest is not None, "all checkpoints are gone")
    assert newest is not None
    drivers = _rows_in(newest.metadata)
    for number, name in outcome.completed.items():
        _expect(drivers.get(number - 1) == name, f"checkpoint {number} of {name} is lost")
    last = Race()
    _drive(directory, "last", range(newest.checkpoint_id, newest.checkpoint_id + 1), last)
    _expect(last.completed == {newest.checkpoint_id + 1: "last"}, "no driver can resume")
    access = coordinator(directory).job.access
    sweep(directory, "job", grace_s=0)
    reachable = set()
    for checkpoint in load_checkpoints(access):
        reachable.add(f"{checkpoint.location.external_pointer}/{METADATA_FILE}")
        reachable |= {
            stream.uri
            for stream in checkpoint.metadata.streams()
            if isinstance(stream, FileStateHandle)
        }
    files = {uri for uri in files_below(f"{directory}/job") if "/_epoch/" not in uri}
    _expect(files == reachable, f"garbage: {sorted(files - reachable)[:3]}")


def _expect(holds: object, otherwise: str) -> None:
    """Raise an `AssertionError`, also if Python runs without assertions."""
    if not holds:
        raise AssertionError(otherwise)
