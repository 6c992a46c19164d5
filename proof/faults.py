"""Every fault: each call of a driver to its store goes wrong in each way that there is, and another driver goes on.

The driver has the state of three batches, and then starts, merges, commits, lets old checkpoints go, and sweeps. It may
fail, with an error of Holdfast; what it was told to be completed must be there. Then a driver starts that nothing
happens to, and everything must be as after a crash: see `crash_points.go_on`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from jobs.coordinator import coordinator
from jobs.segments import Change, run_batch, run_subtasks_with_lists

from holdfast.common import SYSTEM_CLOCK, Clock
from holdfast.errors import (
    CheckpointCorruptedError,
    CheckpointError,
    InvalidRequestError,
    OutcomeUnknownError,
    StorageFullError,
    StorageUnavailableError,
)
from holdfast.locations import sweep
from holdfast.locations.adapters import RetryPolicy, file_system_for
from holdfast.locations.coordination import CheckpointsCleaner, load_checkpoints
from holdfast.spark.query import CLEANER, CheckpointCoordinator
from holdfast.testing import ANY_CALL, Faults, ManualClock, faulty_file_system
from proof.crash_points import adds, go_on, merges

_BATCHES = 3
_RETAINED = 2
_NO_RETRIES = RetryPolicy(deadline_s=0)
_OF_STREAMS = frozenset({"write", "sync", "commit"})
"""Calls that nobody repeats by themselves: their task fails, and Spark repeats that."""

_AT_ONCE = RetryPolicy(first_wait_s=0.0001, max_wait_s=0.001)

Plan = Callable[[Faults, int, list[int]], object]
"""Makes something go wrong at a call, given by its number; notes what other drivers were told meanwhile."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A way in which a call goes wrong.

    Attributes:
        plan: Makes it so.
        retries: When the driver's calls are given up.
        is_hidden: Whether the driver must not notice, unless it is a stream of a task that fails.
        may_corrupt: Whether bytes can be gone that nobody has but the store: then an error must say so.
        clock: The driver's.
    """

    plan: Plan
    retries: RetryPolicy = _NO_RETRIES
    is_hidden: bool = False
    may_corrupt: bool = False
    clock: Clock = SYSTEM_CLOCK


def _raises(error: CheckpointError, *, is_done: bool = False) -> Plan:
    def plan(faults: Faults, number: int, _: list[int]) -> None:
        (faults.after if is_done else faults.before)(ANY_CALL, error, number)

    return plan


def _burst(faults: Faults, number: int, _: list[int]) -> None:
    for offset in range(3):
        faults.before(ANY_CALL, StorageUnavailableError("503, as planned"), number + offset)


def _throttled(faults: Faults, number: int, _: list[int]) -> None:
    """Every second call from then on is refused; the driver's own repetition is the next."""
    for offset in range(0, 400, 2):
        faults.before(ANY_CALL, StorageUnavailableError("slow down, as planned"), number + offset)


def _full(faults: Faults, number: int, _: list[int]) -> None:
    """There is room again when the next driver comes."""
    faults.before(ANY_CALL, lambda: faults.run_out_of_space(0), number)


def _no_more(faults: Faults, number: int, _: list[int]) -> None:
    """It lasts: whatever the driver does to clean up fails too."""
    for offset in range(400):
        faults.before(ANY_CALL, StorageUnavailableError("gone, as planned"), number + offset)


def _truncated(faults: Faults, number: int, _: list[int]) -> None:
    """The call is of a kind that has bytes, or nothing happens."""
    for call in ("write", "commit", "publish", "open"):
        faults.truncate(call, 7, number)


def _overtaken(*, is_done: bool) -> Plan:
    """The call takes so long that another driver starts, and lets all checkpoints go that it has found, before it ends."""

    def plan(faults: Faults, number: int, completed: list[int]) -> None:
        def go_on_meanwhile() -> None:
            cleaner = CheckpointsCleaner()
            cleaner.close()  # it deletes at once
            driver = coordinator(faults.directory, num_retained=_RETAINED, cleaner=cleaner)
            stored = load_checkpoints(driver.job.access)[-1].checkpoint_id
            for batch_id in range(stored, stored + _RETAINED + 1):
                _complete(driver, batch_id, adds(batch_id), completed)

        (faults.after if is_done else faults.before)(ANY_CALL, go_on_meanwhile, number)

    return plan


def _clock_that_is_off(hours: float) -> ManualClock:
    clock = ManualClock(tick_ms=1)
    clock.advance(3600 * hours)
    return clock


FAULTS = {
    "fails before it has an effect": Fault(_raises(StorageUnavailableError("as planned"))),
    "has its effect, and fails": Fault(
        _raises(StorageUnavailableError("as planned"), is_done=True)
    ),
    "does not say whether it had an effect, and had none": Fault(
        _raises(OutcomeUnknownError("as planned"))
    ),
    "does not say whether it had an effect, and had it": Fault(
        _raises(OutcomeUnknownError("as planned"), is_done=True)
    ),
    "loses the permission": Fault(_raises(InvalidRequestError("access denied, as planned"))),
    "finds the disk full": Fault(_full),
    "finds the disk full, once": Fault(_raises(StorageFullError("no room, as planned"))),
    "loses what is behind the first bytes": Fault(_truncated, may_corrupt=True),
    "fails three times": Fault(_burst, retries=_AT_ONCE, is_hidden=True),
    "is throttled from then on": Fault(_throttled, retries=_AT_ONCE),
    "has its effect, loses its answer, and is repeated": Fault(
        _raises(OutcomeUnknownError("as planned"), is_done=True), retries=_AT_ONCE
    ),
    "is slower than another driver, which has taken over the job": Fault(_overtaken(is_done=False)),
    "has its effect, and answers when another driver has gone on": Fault(_overtaken(is_done=True)),
    "is the last that the store answers": Fault(_no_more),
    "fails where clocks go an hour ahead": Fault(
        _raises(StorageUnavailableError("as planned")), clock=_clock_that_is_off(1)
    ),
    "fails where clocks go an hour behind": Fault(
        _raises(StorageUnavailableError("as planned"), is_done=True), clock=_clock_that_is_off(-1)
    ),
}
"""Every way in which a call can go wrong, by what it does."""


@dataclass(slots=True)
class Faulted:
    """What became of a job whose calls went wrong.

    Attributes:
        calls: Number of calls that a driver makes.
        count: How many of them went wrong, in all the ways together.
        failures: What was wrong behind them, as texts.
        noticed: How often the driver failed.
    """

    calls: int = 0
    count: int = 0
    failures: list[str] = field(default_factory=list)
    noticed: int = 0


def every_fault(
    directory: str, *, every: int = 1, names: tuple[str, ...] = tuple(FAULTS)
) -> Faulted:
    """Let each call go wrong in each of the ways.

    Args:
        directory: URI of an empty directory of any store.
        every: Take each so many-th call, each time others, where all would take too long.
        names: The ways, keys of `FAULTS`.
    """
    faulted = Faulted(_calls(f"{directory}/calls"))
    for way, name in enumerate(names):
        for number in range(1 + way % every, faulted.calls + 1, every):
            faulted.count += 1
            try:
                faulted.noticed += _fails(f"{directory}/{way}-{number}", FAULTS[name], number)
            except Exception as error:  # noqa: BLE001  # whatever it is, it is wrong
                told = f"call {number} {name}: {type(error).__name__}: {error}"
                faulted.failures.append(told)
    return faulted


def _calls(directory: str) -> int:
    """How many calls the driver makes to which nothing happens."""
    with faulty_file_system(directory) as faults:
        _prepare(faults)
        _live(faults.directory, SYSTEM_CLOCK, [])
        return len(faults.calls) - faults.calls.count("abort")


def _fails(directory: str, fault: Fault, number: int) -> bool:
    """Run the driver with a fault, then one without; returns whether the first failed."""
    completed = [_BATCHES]
    failed = None
    with faulty_file_system(directory, retries=fault.retries) as faults:
        _prepare(faults)
        fault.plan(faults, number, completed)
        try:
            _live(faults.directory, fault.clock, completed)
        except CheckpointError as error:
            failed = error
        CLEANER.wait()
        calls = [call for call in faults.calls if call != "abort"][number - 1 : number + 2]
        faults.clear()
        try:
            go_on(faults.directory, max(completed))
            if len(set(completed)) < len(completed):
                raise AssertionError(f"two drivers completed one checkpoint: {completed}")
        except CheckpointCorruptedError:
            if not fault.may_corrupt:
                raise
    file_system_for(directory).delete_tree(directory)
    if fault.is_hidden and failed is not None and not _OF_STREAMS.intersection(calls):
        raise AssertionError(f"driver was told of what is to be repeated: {failed}")
    return failed is not None


def _prepare(faults: Faults) -> None:
    """A job of a few batches, whose driver is gone."""
    file_system_for(faults.directory).prepare_directory(faults.directory)
    driver = coordinator(faults.directory, num_retained=_RETAINED)
    for batch_id in range(_BATCHES):
        run_batch(driver, batch_id, adds(batch_id), report=run_subtasks_with_lists)
    CLEANER.wait()
    faults.calls.clear()


def _complete(
    driver: CheckpointCoordinator, batch_id: int, change: Change, completed: list[int]
) -> None:
    if run_batch(driver, batch_id, change, report=run_subtasks_with_lists):
        completed.append(batch_id + 1)


def _live(directory: str, clock: Clock, completed: list[int]) -> None:
    """What the driver does; it notes each checkpoint that it was told to be completed."""
    driver = coordinator(directory, num_retained=_RETAINED, clock=clock)
    for batch_id, change in ((_BATCHES, merges(_BATCHES)), (_BATCHES + 1, adds(_BATCHES + 1))):
        _complete(driver, batch_id, change, completed)
        CLEANER.wait()
    sweep(directory, "job", grace_s=0)
