"""Drivers of a job that wait, take over, pause, die and come back, in any order, with clocks that don't agree.

Each active driver runs batches by a coordinator without tasks. Three rules hold:

- a batch is in the state once, whichever drivers were active at the same time;
- a standby takes over only if the active driver has sent no heartbeat for the whole time of silence, or has ended;
- a driver that comes back after a standby has taken over finds that out at its next heartbeat.

In the end, when all drivers are lost, a new one continues the job.
"""

import uuid
from dataclasses import dataclass, field

from contracts.values import read
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from jobs.coordinator import acknowledge, coordinator, progress

from holdfast.errors import CheckpointConflictError
from holdfast.locations.coordination import ActiveDriver, CheckpointsCleaner, Standby
from holdfast.locations.storages import JobDirectory
from holdfast.spark.query import CheckpointCoordinator, PendingCheckpoint
from holdfast.testing import ManualClock

SILENCE_S = 8.0
INTERVAL_S = 2.0

numbers = st.integers(0, 2)


@dataclass
class Driver:
    """A driver's process; it waits until it is active."""

    standby: Standby
    clock: ManualClock
    active: ActiveDriver | None = None
    run: CheckpointCoordinator | None = None
    pending: PendingCheckpoint | None = None


@dataclass
class Term:
    """The last heartbeat in a term, in real time, and whether its driver has ended."""

    shown_s: float
    has_ended: bool = False


@dataclass
class World:
    """The time, Spark's log of batches that have ended, and the history of terms."""

    now_s: float = 0.0
    ended_batches: int = 0
    terms: dict[int, Term] = field(default_factory=dict)


class StandbyMachine(RuleBasedStateMachine):
    """Steps of drivers are in the order of the rules; a driver that makes no step is paused."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = f"memory:///{uuid.uuid4().hex}"
        self.cleaner = CheckpointsCleaner()
        self.world = World()
        self.drivers: list[Driver] = []

    @initialize(offsets=st.lists(st.integers(0, 10**6), min_size=3, max_size=3))
    def start(self, offsets: list[int]) -> None:
        self.drivers = [self.new_driver(offset) for offset in offsets]

    def new_driver(self, offset_s: float) -> Driver:
        clock = ManualClock()
        clock.advance(offset_s + self.world.now_s)
        job = JobDirectory.below(self.directory, "job", single_writer=False)
        return Driver(Standby(job, SILENCE_S, clock), clock)

    @rule(seconds=st.sampled_from([0.5, INTERVAL_S, SILENCE_S, 100.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.now_s += seconds
        for driver in self.drivers:
            driver.clock.advance(seconds)

    @rule(number=numbers)
    def step(self, number: int) -> None:
        """Let a driver look or send a heartbeat."""
        driver = self.drivers[number]
        if driver.active is None:
            self.look(driver)
        else:
            self.write_heartbeat(driver, driver.active)

    @rule(paused=st.sets(numbers, max_size=2), rounds=st.integers(1, 6))
    def all_but_paused_step(self, paused: set[int], rounds: int) -> None:
        for _ in range(rounds):
            self.time_passes(INTERVAL_S)
            for number in sorted({0, 1, 2} - paused):
                self.step(number)

    def look(self, driver: Driver) -> None:
        driver.active = driver.standby.look()
        if driver.standby.has_ended:
            self.replace(driver)
        if driver.active is None:
            return
        term = driver.active.term
        assert term not in self.world.terms
        former = self.world.terms.get(term - 1)
        if former is not None and not former.has_ended:
            assert self.world.now_s - former.shown_s >= SILENCE_S
        self.world.terms[term] = Term(self.world.now_s)

    def write_heartbeat(self, driver: Driver, active: ActiveDriver) -> None:
        is_replaced = active.term < max(self.world.terms)
        try:
            active.write_heartbeat()
        except CheckpointConflictError:
            assert is_replaced
            self.replace(driver)
        else:
            if is_replaced:  # at once after an end, so that its signs were not late
                assert self.world.terms[active.term].has_ended
            self.world.terms[active.term].shown_s = self.world.now_s

    @rule(number=numbers)
    def begin_batch(self, number: int) -> None:
        driver = self.drivers[number]
        if driver.active is None or driver.pending is not None:
            return
        if driver.run is None:
            driver.run = coordinator(
                self.directory, clock=driver.clock, cleaner=self.cleaner, parallelism=1
            )
        batch = self.world.ended_batches
        try:
            driver.pending = driver.run.begin(batch)
        except CheckpointConflictError:
            self.fail(driver)
            return
        if driver.pending is None:  # another driver has completed it
            self.world.ended_batches = batch + 1

    @rule(number=numbers)
    def complete_batch(self, number: int) -> None:
        driver = self.drivers[number]
        if driver.run is None or driver.pending is None:
            return
        pending, driver.pending = driver.pending, None
        state = state_before(pending) + b"%d " % pending.batch_id
        reports = acknowledge(pending, (0,), state_of=lambda _: state)
        try:
            driver.run.complete(pending, reports, progress(pending.batch_id))
        except CheckpointConflictError:
            driver.run.abort(pending)
            self.fail(driver)
        else:
            assert pending.batch_id == self.world.ended_batches
            self.world.ended_batches += 1

    @rule(number=numbers)
    def restart_query(self, number: int) -> None:
        """Let the query fail; `run` restarts it if no standby has taken over."""
        driver = self.drivers[number]
        if driver.active is None:
            return
        try:
            driver.active.check()
        except CheckpointConflictError:
            self.replace(driver)
        else:
            assert driver.active.term == max(self.world.terms)
            driver.run = driver.pending = None

    @rule(number=numbers)
    def fail_for_good(self, number: int) -> None:
        self.fail(self.drivers[number])

    @rule(number=numbers)
    def end_job(self, number: int) -> None:
        driver = self.drivers[number]
        if driver.active is not None and driver.pending is None:
            driver.active.end()
            self.world.terms[driver.active.term].has_ended = True
            self.replace(driver)

    @rule(number=numbers)
    def kill(self, number: int) -> None:
        self.replace(self.drivers[number])

    def fail(self, driver: Driver) -> None:
        if driver.active is not None:
            driver.active.release()
            self.world.terms[driver.active.term].has_ended = True
        self.replace(driver)

    def replace(self, driver: Driver) -> None:
        """Start a new process in place of one that has ended."""
        self.drivers[self.drivers.index(driver)] = self.new_driver(7)

    def teardown(self) -> None:
        if not self.drivers:
            return
        for driver in list(self.drivers):
            self.replace(driver)
        for _ in range(6):
            self.time_passes(INTERVAL_S)
            for number in range(3):
                if self.drivers[number].active is None:
                    self.look(self.drivers[number])
                else:
                    self.step(number)
        (number,) = [i for i, driver in enumerate(self.drivers) if driver.active is not None]
        batch = self.world.ended_batches
        while self.world.ended_batches == batch:
            self.begin_batch(number)
            self.complete_batch(number)
        self.begin_batch(number)
        pending = self.drivers[number].pending
        assert pending is not None
        ended = range(self.world.ended_batches)
        assert state_before(pending) == b"".join(b"%d " % batch for batch in ended)
        self.cleaner.wait()


def state_before(pending: PendingCheckpoint) -> bytes:
    """Return the state that the only subtask is restored from: the batches in it."""
    (subtask,) = pending.assigned["operator"].subtasks
    return b"".join(read(handle.stream) for handle in subtask.managed_operator)


TestStandbys = StandbyMachine.TestCase
