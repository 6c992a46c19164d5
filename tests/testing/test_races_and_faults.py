"""A few races and faults of `make proof`, and whether they detect a missing owner."""

import pytest

from holdfast.locations.storages.job_directory import DirectoryOwnership
from proof.faults import every_fault
from proof.lost_requests import lose_each_request
from proof.races import race, random_races
from proof.stores import empty_directory, faulty_store


def test_race_of_drivers_sweep_savepoint_and_reader_loses_no_data() -> None:
    calls, failures = random_races(seed=7, count=6)
    assert failures == []
    assert calls > 600


def test_the_same_seed_gives_the_same_order() -> None:
    first, again, other = (race(f"memory:///race-{n}", seed) for n, seed in enumerate((5, 5, 6)))
    assert first.calls == again.calls != other.calls


def test_races_detect_missing_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DirectoryOwnership, "check", lambda _: None)
    # One order in two hundred shows it; the search begins a few before one that does.
    assert any(
        race(f"memory:///race-{seed}", seed).failures for seed in range(9_000_035, 9_000_160)
    )


def test_failing_calls_lose_no_data() -> None:
    faulted = every_fault("memory:///faults", every=40)
    assert faulted.failures == []
    assert faulted.noticed > 10


def test_lost_requests_to_google_cloud_storage_lose_no_data() -> None:
    with faulty_store("gcs-memory") as store:
        lost = lose_each_request(store, every=60)
    assert lost.failures == []
    assert lost.count > lost.noticed > 0


def test_slow_calls_detect_missing_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = ("is slower than another driver, which has taken over the job",)
    monkeypatch.setattr(DirectoryOwnership, "check", lambda _: None)
    # In a store without directories; others refuse a late commit, because its directory is gone.
    with empty_directory("s3-memory") as directory:
        faulted = every_fault(directory, every=20, names=slow)
    assert any("two drivers completed" in failure for failure in faulted.failures)
