"""Races: drivers, a sweep, savepoints and readers of one job take turns, call by call, in random orders.

Each of them runs in a thread of its own and stands still before each call to the store, until a dice lets it go on. All
that is thrown comes from a seed, so the same seed gives the same order. Any of the drivers is a zombie now and then: it
stands still while another one claims the job.

Each driver puts its name into the rows. So it shows in the state whose batch it was: what a driver was told to be
completed must be in all that comes later, once, and of no batch there may be rows of two drivers.
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

Turn = tuple[str, str]
"""Who went on, and with which call."""


@dataclass(slots=True)
class Race:
    """What became of a race.

    Attributes:
        turns: Who went on with which call, in order.
        completed: Who has completed which checkpoint, by its number, as the drivers were told.
        failures: What is wrong.
    """

    turns: list[Turn] = field(default_factory=list)
    completed: dict[int, str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


class _Racer:
    """One who takes turns.

    Args:
        name: The racer's name.
        action: What it does.
    """

    def __init__(self, name: str, action: Callable[[], object]) -> None:
        self.name = name
        self.thread = threading.Thread(target=self._run, name=name)
        self.error: BaseException | None = None
        self.call = "begin"
        self._action = action
        self._may_go_on = threading.Semaphore(0)
        self._stands_still = threading.Semaphore(0)

    def _run(self) -> None:
        self._may_go_on.acquire()
        try:
            self._action()
        except BaseException as error:  # noqa: BLE001  # whatever it is, the race is told
            self.error = error
        self.call = ""
        self._stands_still.release()

    def stand_still(self, call: str) -> None:
        """Before a call, in its own thread: wait for the next turn."""
        self.call = call
        self._stands_still.release()
        self._may_go_on.acquire()

    def go_on(self) -> bool:
        """Do one call, up to the next; whether there is a next."""
        self._may_go_on.release()
        if not self._stands_still.acquire(timeout=_LONGEST_S):
            raise AssertionError(f"{self.name} waits for somebody who stands still")
        return bool(self.call)


def race(directory: str, seed: int) -> Race:
    """Let everybody race in the order that a seed gives.

    Args:
        directory: URI of an empty directory in memory, whose clock is set while the race goes on.
        seed: Which order.
    """
    clock = ManualClock(tick_ms=1)
    register_file_system("memory", lambda: MemoryFileSystem(clock))
    try:
        return _race(directory, Random(seed), clock)  # noqa: S311  # no secret
    finally:
        unregister_file_system("memory")


def _race(directory: str, random: Random, clock: ManualClock) -> Race:
    outcome = Race()
    racers: dict[threading.Thread, _Racer] = {}
    with faulty_file_system(directory) as faults:
        # Threads that a racer begins look and delete; they belong to its turn.
        def take_turn() -> None:
            racer = racers.get(threading.current_thread())
            if racer is not None:
                racer.stand_still(faults.calls[-1])

        job = faults.directory
        file_system_for(job).prepare_directory(job)
        _drive(job, "first", range(_BEFORE), outcome)
        clock.advance(2 * _GRACE_S)  # what the first driver has written is old enough for the sweep
        faults.before(ANY_CALL, take_turn, nth="every")
        actions: dict[str, Callable[[], object]] = {
            f"driver {number}": lambda name=f"driver {number}": _drive(  # type: ignore[misc]
                job, name, range(_BEFORE, _BEFORE + _BATCHES), outcome
            )
            for number in range(1, 3)
        }
        actions["sweep"] = lambda: sweep(job, "job", grace_s=_GRACE_S)
        actions["savepoint"] = lambda: _save(job)
        actions["reader"] = lambda: _look(job)
        going = [_Racer(name, action) for name, action in actions.items()]
        for racer in going:
            racers[racer.thread] = racer
            racer.thread.start()
        _take_turns(going, random, outcome.turns)
        for racer in going:
            racer.thread.join()
            if racer.error is not None and not isinstance(racer.error, CheckpointError):
                told = f"{racer.name}: {type(racer.error).__name__}: {racer.error}"
                outcome.failures.append(told)
        faults.clear()
        try:
            _check(job, outcome)
        except (AssertionError, CheckpointError) as error:
            outcome.failures.append(f"{type(error).__name__}: {error}")
    file_system_for(directory).delete_tree(directory)
    return outcome


def _take_turns(racers: list[_Racer], random: Random, turns: list[Turn]) -> None:
    """Until all have come to their end; notes who went on."""
    going = list(racers)
    asleep: dict[_Racer, int] = {}
    while going:
        awake = [racer for racer in going if asleep.get(racer, 0) <= len(turns)]
        racer = random.choice(awake or going)
        if random.random() < _SLEEPS:  # the next zombie
            asleep[racer] = len(turns) + random.choice([30, 100, 300])
        # Some run on for long while others stand still, as threads and machines do.
        for _ in range(random.choice([1, 1, 2, 5, 40])):
            turns.append((racer.name, racer.call))
            if not racer.go_on():
                going.remove(racer)
                break


def random_races(seed: int, count: int) -> tuple[int, list[str]]:
    """Race so often, each in an order of its own, and some of them twice: the same seed must give the same order.

    Returns:
        The number of turns that were taken, and what was wrong.
    """
    turns = 0
    failures = []
    for number in range(count):
        own_seed = seed * 1_000_003 + number
        outcome = race(f"memory:///{uuid.uuid4().hex}", own_seed)
        turns += len(outcome.turns)
        failures += [f"race {own_seed}: {failure}" for failure in outcome.failures]
        if number % 20 == 0:
            again = race(f"memory:///{uuid.uuid4().hex}", own_seed)
            if again.turns != outcome.turns:
                failures.append(f"race {own_seed} is another one when it is run again")
    return turns, failures


def _drive(directory: str, name: str, batches: range, outcome: Race) -> None:
    """A driver: it starts where the job is, and may be told to stop."""
    cleaner = CheckpointsCleaner()
    cleaner.close()  # it deletes in its driver's turns
    driver = coordinator(directory, num_retained=1, cleaner=cleaner)
    latest = latest_checkpoint(directory, "job") if batches.start else None
    start = latest.checkpoint_id if latest is not None else batches.start
    for batch_id in range(start, start + len(batches)):

        def change(subtask: int, backend: Backend, batch_id: int = batch_id) -> None:
            if batch_id % 3 == 2:  # a single segment of all
                merged = b"".join(backend.segments.values())
                backend.segments.clear()
                backend.add(merged)
            backend.add(b"%d of %d by %s;" % (batch_id, subtask, name.encode()))

        pending = driver.begin(batch_id)
        if pending is None:
            continue  # another driver has completed it, and this one goes on from there
        try:
            driver.complete(pending, run_subtasks(pending, change), progress(batch_id))
        except Exception as error:
            driver.abort(pending, error)
            raise
        number = batch_id + 1
        if number in outcome.completed:
            others = outcome.completed[number]
            outcome.failures.append(f"checkpoint {number} is completed by {others} and {name}")
        outcome.completed[number] = name


def _save(directory: str) -> None:
    """A savepoint is whole, or is not there."""
    latest = latest_checkpoint(directory, "job")
    _expect(latest is not None, "job has no checkpoint")
    assert latest is not None
    copied = copy_checkpoint(latest, f"{directory}/archive")
    _rows_in(load_checkpoint(copied.location).metadata)


def _look(directory: str) -> None:
    """Somebody reads all of the newest checkpoint; it may go meanwhile."""
    for _ in range(3):
        latest = latest_checkpoint(directory, "job")
        if latest is not None:
            _rows_in(latest.metadata)


def _rows_in(metadata: CheckpointMetadata) -> dict[int, str]:
    """By batch, whose rows a checkpoint has.

    Raises:
        AssertionError: There are none of a batch, those of two drivers, or others than in another subtask.
    """
    (operator,) = metadata.operators.values()
    drivers: dict[int, str] = {}
    for index, segments in enumerate(contents(list(operator.subtasks.values()))):
        rows = b"".join(segments.values()).decode().split(";")[:-1]
        told = [row.partition(f" of {index} by ") for row in rows]
        batches = sorted(int(batch) for batch, _, _ in told)
        number = metadata.checkpoint_id
        _expect(batches == list(range(number)), f"checkpoint {number} has batches {batches}")
        for batch, _, name in told:
            _expect(drivers.setdefault(int(batch), name) == name, f"two drivers in batch {batch}")
    return drivers


def _check(directory: str, outcome: Race) -> None:
    """Whoever goes on has what was completed, and behind a sweep there is nothing else."""
    newest = latest_checkpoint(directory, "job")
    _expect(newest is not None, "all checkpoints are gone")
    assert newest is not None
    drivers = _rows_in(newest.metadata)
    for number, name in outcome.completed.items():
        _expect(drivers.get(number - 1) == name, f"checkpoint {number} of {name} is lost")
    last = Race()
    _drive(directory, "last", range(newest.checkpoint_id, newest.checkpoint_id + 1), last)
    _expect(last.completed == {newest.checkpoint_id + 1: "last"}, "nobody can go on")
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
    """Checks that stay when Python leaves assertions out."""
    if not holds:
        raise AssertionError(otherwise)
