"""`proof.values`: a sample of its cases, and whether it detects faults."""

from pathlib import Path

import pytest

from proof.values.planted import PLANTED, finds
from proof.values.subjects import SUBJECTS, compare

CASES = {"histories of a job": 6, "functions": 6, "processors": 6}
"""Number of cases of the quick test for slow subjects, instead of 20."""


@pytest.mark.parametrize("name", SUBJECTS)
def test_values_are_those_of_the_model(name: str) -> None:
    tally = compare(SUBJECTS[name], 0, cases=CASES.get(name, 20))
    assert tally.descriptions == {}
    assert tally.comparisons > 100


@pytest.mark.exhaustive  # the same for more cases
@pytest.mark.parametrize("name", SUBJECTS)
def test_values_of_many_cases_are_those_of_the_model(name: str) -> None:
    assert compare(SUBJECTS[name], 10_000, cases=50).descriptions == {}


def test_planted_faults_replace_text_of_the_source() -> None:
    root = Path(__file__).parents[2]
    counts = {
        name: (root / fault.file).read_text().count(fault.right) for name, fault in PLANTED.items()
    }
    assert counts == dict.fromkeys(PLANTED, 1)


@pytest.mark.exhaustive  # each copies the source and starts a process
@pytest.mark.parametrize(
    "fault",
    [
        "a window ends a millisecond late",
        "a count also counts nulls",
        "a timer that registers itself fires again",
        "a processor does not see what it has appended to a stored list",
        "each subtask keeps all of a union list that was not asked for",
    ],
)
def test_a_planted_fault_is_found(fault: str) -> None:
    assert fault in PLANTED
    assert finds(fault, 7)
