"""Faults of single requests: a driver's request is lost, or its answer, or the driver dies before or after it.

`faults` fails the calls to a store. Here its client takes part as well, with its retries, its batches, and its ways to
recognize an object whose answer was lost. The driver claims a job of three batches, merges segments, completes
checkpoints, releases old ones and sweeps. Then a driver starts without faults, and everything must be as
after a crash: see `crash_points.resume_job`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.common import SYSTEM_CLOCK
from holdfast.errors import CheckpointError
from holdfast.locations.adapters import RetryPolicy, file_system_for
from holdfast.spark.query import CLEANER
from holdfast.testing import HttpFaults
from proof.crash_points import resume_job
from proof.faults import BATCHES, FaultOutcome, prepare_job, run_next_driver
from proof.stores import FaultyStore

_RETRIES = RetryPolicy(first_wait_s=0.001, max_wait_s=0.01)
_NO_RETRIES = RetryPolicy(deadline_s=0)
_ALL_FURTHER = 1_000_000


@dataclass(frozen=True, slots=True)
class Loss:
    """A way in which a request is lost.

    Attributes:
        plan: Plans it for the request with a number.
        retries: Retries of the driver.
        is_hidden: Whether the driver must not notice it.
    """

    plan: Callable[[HttpFaults, int], None]
    retries: RetryPolicy
    is_hidden: bool


def _lose_request(faults: HttpFaults, number: int) -> None:
    faults.reset(nth=number)


def _lose_answer(faults: HttpFaults, number: int) -> None:
    faults.lose_answer(nth=number)


def _die_before(faults: HttpFaults, number: int) -> None:
    faults.reset(nth=number, times=_ALL_FURTHER)


def _die_after(faults: HttpFaults, number: int) -> None:
    faults.lose_answer(nth=number)
    faults.reset(nth=number + 1, times=_ALL_FURTHER)


LOSSES = {
    "is lost": Loss(_lose_request, _RETRIES, is_hidden=True),
    "loses its answer": Loss(_lose_answer, _RETRIES, is_hidden=True),
    "is not sent, and the driver dies": Loss(_die_before, _NO_RETRIES, is_hidden=False),
    "is performed, and the driver dies": Loss(_die_after, _NO_RETRIES, is_hidden=False),
}
"""All ways in which a request can be lost, by their description."""


def lose_each_request(store: FaultyStore, *, every: int = 1) -> FaultOutcome:
    """Lose each request of a driver in each way.

    Args:
        store: A store without files.
        every: Take only every n-th request, different ones for each way.
    """
    outcome = FaultOutcome(_requests(store))
    for way, (name, loss) in enumerate(LOSSES.items()):
        for number in range(1 + way % every, outcome.calls + 1, every):
            outcome.count += 1
            try:
                outcome.noticed += _fails(store, f"{way}-{number}", loss, number)
            except Exception as error:  # noqa: BLE001  # each error is a violation
                failure = f"request {number} {name}: {type(error).__name__}: {error}"
                outcome.failures.append(failure)
    return outcome


def _requests(store: FaultyStore) -> int:
    """Return the number of requests of a driver without faults."""
    directory = f"{store.directory}/requests"
    store.use(_RETRIES)
    prepare_job(directory)
    store.faults.requests.clear()
    run_next_driver(directory, SYSTEM_CLOCK, [])
    return len(store.faults.requests)


def _fails(store: FaultyStore, name: str, loss: Loss, number: int) -> bool:
    """Run the driver with a fault, then one without; returns whether the first failed."""
    directory = f"{store.directory}/{name}"
    completed = [BATCHES]
    failed = None
    store.use(_RETRIES)
    prepare_job(directory)
    store.use(loss.retries)
    loss.plan(store.faults, number)
    try:
        run_next_driver(directory, SYSTEM_CLOCK, completed)
    except CheckpointError as error:
        failed = error
    CLEANER.wait()
    store.faults.clear()
    store.use(_RETRIES)
    resume_job(directory, max(completed))
    file_system_for(directory).delete_tree(directory)
    if loss.is_hidden and failed is not None:
        raise AssertionError(f"driver has noticed a fault that retries hide: {failed}")
    return failed is not None
