"""All faults: each call of a driver to its store fails in each possible way, and another driver takes over.

The driver has the state of three batches, and then starts, merges, commits, releases old checkpoints, and sweeps. It may
fail with a Holdfast error; the checkpoints that it has completed must exist. Then a driver starts without faults,
and everything must be as after a crash: see `crash_points.resume_job`.
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
from proof.crash_points import add_rows, merge_rows, resume_job

BATCHES = 3
_RETAINED = 2
_NO_RETRIES = RetryPolicy(deadline_s=0)
_OF_STREAMS = frozenset({"write", "sync", "commit"})
"""Calls that are not retried: their task fails, and Spark repeats it."""

_AT_ONCE = RetryPolicy(first_wait_s=0.0001, max_wait_s=0.001)

Plan = Callable[[Faults, int, list[int]], object]
"""Plans a fault of a call, given by its number; adds the checkpoints that other drivers complete concurrently."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A way in which a call fails.

    Attributes:
        plan: Plans the fault.
        retries: Retries of the driver's calls.
        is_hidden: Whether the driver must not notice it, except in streams of tasks.
        may_corrupt: Whether bytes can be lost; then an error must report it.
        clock: The driver's clock.
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


def _throttle(faults: Faults, number: int, _: list[int]) -> None:
    """Refuse every second call from then on; the driver's retry is the next one."""
    for offset in range(0, 400, 2):
        faults.before(ANY_CALL, StorageUnavailableError("slow down, as planned"), number + offset)


def _full(faults: Faults, number: int, _: list[int]) -> None:
    """Fill the store until the next driver starts."""
    faults.before(ANY_CALL, lambda: faults.run_out_of_space(0), number)


def _no_more(faults: Faults, number: int, _: list[int]) -> None:
    """Fail permanently: the driver's cleanup fails too."""
    for offset in range(400):
        faults.before(ANY_CALL, StorageUnavailableError("gone, as planned"), number + offset)


def _truncate(faults: Faults, number: int, _: list[int]) -> None:
    """Truncate the data of the call, if it has any."""
    for call in ("write", "commit", "publish", "open"):
        faults.truncate(call, 7, number)


def _overtake(*, is_done: bool) -> Plan:
    """Delay the call until another driver has started and released all existing checkpoints."""

    def plan(faults: Faults, number: int, completed: list[int]) -> None:
        def take_over() -> None:
            cleaner = CheckpointsCleaner()
            cleaner.close()  # it deletes at once
            driver = coordinator(faults.directory, num_retained=_RETAINED, cleaner=cleaner)
            stored = load_checkpoints(driver.job.access)[-1].checkpoint_id
            for batch_id in range(stored, stored + _RETAINED + 1):
                _complete(driver, batch_id, add_rows(batch_id), completed)

        (faults.after if is_done else faults.before)(ANY_CALL, take_over, number)

    return plan


def _shifted_clock(hours: float) -> ManualClock:
    clock = ManualClock(tick_ms=1)
    clock.advance(3600 * hours)
    return clock


FAULTS = {
    "fails before it has an effect": Fault(_raises(StorageUnavailableError("as planned"))),
    "has its effect, and fails": Fault(
        _raises(StorageUnavailableError("as planned"), is_done=True)
    ),
    "has an unknown outcome, and had no effect": Fault(_raises(OutcomeUnknownError("as planned"))),
    "has an unknown outcome, and had its effect": Fault(
        _raises(OutcomeUnknownError("as planned"), is_done=True)
    ),
    "loses the permission": Fault(_raises(InvalidRequestError("access denied, as planned"))),
    "finds the disk full": Fault(_full),
    "finds the disk full, once": Fault(_raises(StorageFullError("no room, as planned"))),
    "loses all but the first bytes": Fault(_truncate, may_corrupt=True),
    "fails three times": Fault(_burst, retries=_AT_ONCE, is_hidden=True),
    "is throttled from then on": Fault(_throttle, retries=_AT_ONCE),
    "has its effect, loses its answer, and is repeated": Fault(
        _raises(OutcomeUnknownError("as planned"), is_done=True), retries=_AT_ONCE
    ),
    "is slower than another driver, which has taken over the job": Fault(_overtake(is_done=False)),
    "has its effect, and answers after another driver has taken over the job": Fault(
        _overtake(is_done=True)
    ),
    "is the last call before the store is gone": Fault(_no_more),
    "fails while the clock is an hour ahead": Fault(
        _raises(StorageUnavailableError("as planned")), clock=_shifted_clock(1)
    ),
    "fails while the clock is an hour late": Fault(
        _raises(StorageUnavailableError("as planned"), is_done=True), clock=_shifted_clock(-1)
    ),
}
"""All ways in which a call can fail, by their description."""


@dataclass(slots=True)
class FaultOutcome:
    """The outcome of a job with faults.

    Attributes:
        calls: Number of calls of a driver.
        count: Number of faults of all kinds.
        failures: Violations after them, as texts.
        noticed: Number of failures of the driver.
    """

    calls: int = 0
    count: int = 0
    failures: list[str] = field(default_factory=list)
    noticed: int = 0


def every_fault(
    directory: str, *, every: int = 1, names: tuple[str, ...] = tuple(FAULTS)
) -> FaultOutcome:
    """Let each call fail in each way.

    Args:
        directory: URI of an empty directory of any store.
        every: Take only every n-th call, different ones for each fault.
        names: The faults, keys of `FAULTS`.
    """
    faulted = FaultOutcome(_calls(f"{directory}/calls"))
    for way, name in enumerate(names):
        for number in range(1 + way % every, faulted.calls + 1, every):
            faulted.count += 1
            try:
                faulted.noticed += _fails(f"{directory}/{way}-{number}", FAULTS[name], number)
            except Exception as error:  # noqa: BLE001  # each error is a violation
                failure = f"call {number} {name}: {type(error).__name__}: {error}"
                faulted.failures.append(failure)
    return faulted


def _calls(directory: str) -> int:
    """Return the number of calls of a driver without faults."""
    with faulty_file_system(directory) as faults:
        prepare_job(faults.directory)
        faults.calls.clear()
        run_next_driver(faults.directory, SYSTEM_CLOCK, [])
        return len(faults.calls) - faults.calls.count("abort")


def _fails(directory: str, fault: Fault, number: int) -> bool:
    """Run the driver with a fault, then one without; returns whether the first failed."""
    completed = [BATCHES]
    failed = None
    with faulty_file_system(directory, retries=fault.retries) as faults:
        prepare_job(faults.directory)
        faults.calls.clear()
        fault.plan(faults, number, completed)
        try:
            run_next_driver(faults.directory, fault.clock, completed)
        except CheckpointError as error:
            failed = error
        CLEANER.wait()
        calls = [call for call in faults.calls if call != "abort"][number - 1 : number + 2]
        faults.clear()
        try:
            resume_job(faults.directory, max(completed))
            if len(set(completed)) < len(completed):
                raise AssertionError(f"two drivers completed one checkpoint: {completed}")
        except CheckpointCorruptedError:
            if not fault.may_corrupt:
                raise
    file_system_for(directory).delete_tree(directory)
    if fault.is_hidden and failed is not None and not _OF_STREAMS.intersection(calls):
        raise AssertionError(f"driver has noticed a fault that retries hide: {failed}")
    return failed is not None


def prepare_job(directory: str) -> None:
    """Write a job of a few batches, whose driver has ended."""
    file_system_for(directory).prepare_directory(directory)
    driver = coordinator(directory, num_retained=_RETAINED)
    for batch_id in range(BATCHES):
        run_batch(driver, batch_id, add_rows(batch_id), report=run_subtasks_with_lists)
    CLEANER.wait()


def _complete(
    driver: CheckpointCoordinator, batch_id: int, change: Change, completed: list[int]
) -> None:
    if run_batch(driver, batch_id, change, report=run_subtasks_with_lists):
        completed.append(batch_id + 1)


def run_next_driver(directory: str, clock: Clock, completed: list[int]) -> None:
    """Run the next driver of the job to its end; adds each checkpoint that it has completed."""
    driver = coordinator(directory, num_retained=_RETAINED, clock=clock)
    for batch_id, change in (
        (BATCHES, merge_rows(BATCHES)),
        (BATCHES + 1, add_rows(BATCHES + 1)),
    ):
        _complete(driver, batch_id, change, completed)
        CLEANER.wait()
    sweep(directory, "job", grace_s=0)
