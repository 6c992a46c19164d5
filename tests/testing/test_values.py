"""`proof.values`: a sample of its cases, and whether it sees faults."""

import pytest

from proof.values.planted import PLANTED, finds
from proof.values.subjects import SUBJECTS, compare


@pytest.mark.parametrize("name", SUBJECTS)
def test_values_are_those_of_the_model(name: str) -> None:
    cases = 4 if name == "histories of a job" else 20  # each has many checkpoints
    tally = compare(SUBJECTS[name], 0, cases=cases)
    assert tally.found == {}
    assert tally.comparisons > 100


@pytest.mark.exhaustive  # the same for more cases
@pytest.mark.parametrize("name", SUBJECTS)
def test_values_of_many_cases_are_those_of_the_model(name: str) -> None:
    assert compare(SUBJECTS[name], 10_000, cases=150).found == {}


@pytest.mark.exhaustive  # each copies the source and starts a process
@pytest.mark.parametrize("fault", ["a window ends a millisecond late", "a count also counts nulls"])
def test_a_planted_fault_is_found(fault: str) -> None:
    assert fault in PLANTED
    assert finds(fault, 7)
