"""Drivers that wait while another one sends heartbeats: silence, terms, ends, and faults of the store."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import product

import pytest
from contracts.errors import of_kind

from holdfast.errors import CheckpointConflictError, StorageUnavailableError
from holdfast.locations.adapters import file_system_for
from holdfast.locations.coordination import ActiveDriver, Standby
from holdfast.locations.storages import JobDirectory
from holdfast.testing import ANY_CALL, Faults, ManualClock, faulty_file_system

SILENCE_S = 8.0
INTERVAL_S = 2.0


def job_below(directory: str) -> JobDirectory:
    return JobDirectory.below(directory, "job", single_writer=False)


def standby_in(directory: str, clock: ManualClock | None = None) -> Standby:
    return Standby(job_below(directory), SILENCE_S, clock or ManualClock())


def activate(standby: Standby) -> ActiveDriver:
    """Return the active driver that a standby becomes at its next look."""
    active = standby.look()
    assert active is not None
    return active


def look_while_silent(standby: Standby, clock: ManualClock, looks: int) -> ActiveDriver | None:
    for _ in range(looks):
        if active := standby.look():
            return active
        clock.advance(INTERVAL_S)
    return None


def names(directory: str) -> set[str]:
    """Return the names of drivers' files."""
    listed = file_system_for(directory).list(f"{directory}/job/_epoch")
    return {entry.uri.rpartition("/")[2] for entry in listed}


def test_first_driver_is_active_at_once(memory_directory: str) -> None:
    assert activate(standby_in(memory_directory)).term == 1
    assert names(memory_directory) == {"_driver-1"}


def test_standby_waits_while_heartbeats_arrive(memory_directory: str) -> None:
    clock = ManualClock()
    active = activate(standby_in(memory_directory))
    standby = standby_in(memory_directory, clock)
    for _ in range(20):
        assert standby.look() is None
        clock.advance(INTERVAL_S)
        active.write_heartbeat()
    assert names(memory_directory) == {"_driver-1", "_driver-1-20"}


def test_standby_takes_over_after_the_time_of_silence(memory_directory: str) -> None:
    clock = ManualClock()
    former = activate(standby_in(memory_directory))
    former.write_heartbeat()
    standby = standby_in(memory_directory, clock)
    assert look_while_silent(standby, clock, looks=4) is None
    assert activate(standby).term == 2
    assert names(memory_directory) == {"_driver-2"}
    with pytest.raises(CheckpointConflictError, match="its term is 2, this driver's is 1"):
        former.check()


@pytest.mark.parametrize(("own_s", "looks"), [(SILENCE_S / 2, 5), (SILENCE_S * 2, 9)])
def test_standby_waits_for_the_longer_silence_of_both(
    memory_directory: str, own_s: float, looks: int
) -> None:
    clock = ManualClock()
    activate(standby_in(memory_directory))
    standby = Standby(job_below(memory_directory), own_s, clock)
    waited = 0
    while standby.look() is None:
        clock.advance(INTERVAL_S)
        waited += 1
    assert waited == looks - 1


def test_standby_ends_with_the_job_after_a_lost_race(memory_directory: str) -> None:
    with faulty_file_system(memory_directory) as faults:
        winner = standby_in(memory_directory)
        loser = standby_in(faults.directory)
        faults.before("publish", lambda: activate(winner).end())
        assert loser.look() is None
        assert loser.look() is None
        assert loser.has_ended


def test_pause_of_the_standby_is_not_silence_of_the_driver(memory_directory: str) -> None:
    clock = ManualClock()
    activate(standby_in(memory_directory))
    standby = standby_in(memory_directory, clock)
    assert standby.look() is None
    clock.advance(3600)
    assert standby.look() is None


def test_late_driver_finds_the_term_of_the_standby(memory_directory: str) -> None:
    clocks = ManualClock(), ManualClock()
    former = activate(standby_in(memory_directory, clocks[0]))
    standby = standby_in(memory_directory, clocks[1])
    assert look_while_silent(standby, clocks[1], looks=5) is not None
    clocks[0].advance(SILENCE_S)
    with pytest.raises(CheckpointConflictError, check=of_kind("taken-over")):
        former.write_heartbeat()


def test_suspended_driver_finds_the_term_of_the_standby(memory_directory: str) -> None:
    class SuspendedClock(ManualClock):
        def monotonic_s(self) -> float:
            return 0.0  # it does not change while the machine is suspended

    clocks = SuspendedClock(), ManualClock()
    former = activate(standby_in(memory_directory, clocks[0]))
    assert look_while_silent(standby_in(memory_directory, clocks[1]), clocks[1], looks=5)
    clocks[0].advance(SILENCE_S)
    with pytest.raises(CheckpointConflictError, check=of_kind("taken-over")):
        former.write_heartbeat()


@pytest.mark.parametrize(
    "leave", [ActiveDriver.end, ActiveDriver.release], ids=["ended", "released"]
)
def test_next_call_is_active_at_once_after_an_end(
    memory_directory: str, leave: Callable[[ActiveDriver], None]
) -> None:
    active = activate(standby_in(memory_directory))
    active.write_heartbeat()
    leave(active)
    assert activate(standby_in(memory_directory)).term == 2
    assert names(memory_directory) == {"_driver-2"}


def test_waiting_standby_ends_with_the_job(memory_directory: str) -> None:
    active = activate(standby_in(memory_directory))
    standby = standby_in(memory_directory)
    assert standby.look() is None
    active.end()
    assert standby.look() is None
    assert standby.has_ended


def test_waiting_standby_continues_a_released_job(memory_directory: str) -> None:
    active = activate(standby_in(memory_directory))
    standby = standby_in(memory_directory)
    assert standby.look() is None
    active.release()
    assert activate(standby).term == 2
    assert not standby.has_ended


def test_end_of_a_replaced_driver_ends_no_standby(memory_directory: str) -> None:
    clock = ManualClock()
    former = activate(standby_in(memory_directory))
    assert look_while_silent(standby_in(memory_directory, clock), clock, looks=5)
    third = standby_in(memory_directory)
    assert third.look() is None
    former.end()
    assert third.look() is None
    assert not third.has_ended


def test_one_of_eight_standbys_takes_over(memory_directory: str) -> None:
    activate(standby_in(memory_directory)).release()
    standbys = [standby_in(memory_directory) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        terms = [active.term for active in pool.map(Standby.look, standbys) if active]
    assert terms == [2]


@pytest.mark.parametrize("plan", [Faults.before, Faults.after], ids=["before", "after"])
def test_standby_takes_over_whichever_call_to_the_store_fails(
    memory_directory: str, plan: Callable[[Faults, str, Exception, int], None]
) -> None:
    failing, is_reached = 0, True
    while is_reached:
        failing += 1
        clock = ManualClock()
        former = activate(standby_in(f"{memory_directory}/{failing}"))
        with faulty_file_system(f"{memory_directory}/{failing}") as faults:
            plan(faults, ANY_CALL, StorageUnavailableError("as planned"), failing)
            standby = standby_in(faults.directory, clock)
            active = None
            while active is None:
                clock.advance(INTERVAL_S)
                with suppress(StorageUnavailableError):
                    active = standby.look()
            is_reached = len(faults.calls) >= failing
            faults.clear()
            active.check()
        with pytest.raises(CheckpointConflictError, check=of_kind("taken-over")):
            former.check()
    assert failing > 10


def test_heartbeats_continue_after_faults_of_the_store(memory_directory: str) -> None:
    with faulty_file_system(memory_directory) as faults:
        active = activate(standby_in(faults.directory))
        for call, plan in product(["create", "commit", "delete"], [Faults.before, Faults.after]):
            plan(faults, call, StorageUnavailableError("as planned"), "next")
            with pytest.raises(StorageUnavailableError):
                active.write_heartbeat()
        active.write_heartbeat()
        assert names(memory_directory) == {"_driver-1", "_driver-1-7"}
        faults.before("create", StorageUnavailableError("as planned"))
        active.end()  # standbys wait for the time of silence
        assert names(memory_directory) == {"_driver-1", "_driver-1-7"}
