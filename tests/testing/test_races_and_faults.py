"""Races and faults of `make proof`: a few of them, and each finds what it is for."""

import pytest

from holdfast.locations.storages.job_directory import DirectoryOwnership
from proof.faults import every_fault
from proof.races import race, random_races
from proof.stores import empty_directory


def test_drivers_sweep_savepoint_and_reader_race_without_losing_anything() -> None:
    turns, failures = random_races(seed=7, count=6)
    assert failures == []
    assert turns > 600


def test_the_same_seed_gives_the_same_order() -> None:
    first, again, other = (race(f"memory:///race-{n}", seed) for n, seed in enumerate((5, 5, 6)))
    assert first.turns == again.turns != other.turns


def test_races_detect_missing_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DirectoryOwnership, "check", lambda _: None)
    # One order in fifty shows it; the search begins a few before one that does.
    assert any(
        race(f"memory:///race-{seed}", seed).failures for seed in range(7_000_020, 7_000_300)
    )


def test_failing_calls_lose_no_data() -> None:
    faulted = every_fault("memory:///faults", every=40)
    assert faulted.failures == []
    assert faulted.noticed > 10


def test_slow_calls_detect_missing_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = ("is so slow that another driver has gone on before",)
    monkeypatch.setattr(DirectoryOwnership, "check", lambda _: None)
    # Where there are no directories: a store that has some refuses a late commit for lack of its own.
    with empty_directory("s3-memory") as directory:
        faulted = every_fault(directory, every=20, names=slow)
    assert any("two drivers were told" in failure for failure in faulted.failures)
