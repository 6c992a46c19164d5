"""The compared parts, each with functions that draw, run and reduce its cases."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from pyspark.sql import SparkSession

from proof.values import (
    aggregates,
    call_cases,
    calls,
    fields,
    histories,
    history_cases,
    operator_states,
    processors,
    seeds,
    states,
    stored,
    windows,
)
from proof.values.checking import Comparisons, Tally

MAX_REDUCTIONS = 150
MAX_REDUCTIONS_WITH_SPARK = 20


@dataclass(frozen=True, slots=True)
class Subject:
    """A compared part.

    Attributes:
        draw: Draws a case.
        run: Runs a case.
        smaller: Yields cases with fewer parts.
        seeds: Cases that run first: inputs that once gave wrong results.
        max_reductions: Maximum number of smaller cases for a failing one.
    """

    draw: Callable[[Random], Any]
    run: Callable[[Any], Comparisons]
    smaller: Callable[[Any], Iterator[Any]]
    seeds: Sequence[Any] = ()
    max_reductions: int = MAX_REDUCTIONS

    def tally(self) -> Tally[Any]:
        """Return an empty tally."""
        return Tally(self.run, self.smaller, self.max_reductions)


SUBJECTS: dict[str, Subject] = {
    "aggregates": Subject(
        aggregates.draw_case, aggregates.run_case, aggregates.smaller_cases, seeds.AGGREGATES
    ),
    "windows": Subject(windows.draw_case, windows.run_case, windows.smaller_cases, seeds.WINDOWS),
    "states": Subject(states.draw_case, states.run_case, states.smaller_cases, seeds.STATES),
    "functions": Subject(
        call_cases.draw_case, calls.run_case, call_cases.smaller_cases, seeds.FUNCTIONS
    ),
    "processors": Subject(processors.draw_case, processors.run_case, call_cases.smaller_cases),
    "operator state": Subject(
        operator_states.draw_case, operator_states.run_case, operator_states.smaller_cases
    ),
    "fields of structs": Subject(fields.draw_case, fields.run_case, fields.smaller_cases),
    "states from outside": Subject(
        stored.draw_case, stored.run_case, stored.smaller_cases, seeds.STATES_WITHOUT_TTL
    ),
    "histories of a job": Subject(
        history_cases.draw_case, histories.run_case, history_cases.smaller_cases, seeds.HISTORIES
    ),
}
"""Subjects without Spark, by name."""


SUBJECTS_ON_SPARK = ("aggregates", "windows")
"""Names of subjects with Spark."""


def subjects_on_spark(spark: SparkSession) -> dict[str, Subject]:
    """Return the subjects with Spark, by name."""
    return {
        "aggregates": Subject(
            partial(aggregates.draw_case, with_spark=True),
            partial(aggregates.run_case, spark=spark),
            aggregates.smaller_cases,
            seeds.AGGREGATES_ON_SPARK,
            MAX_REDUCTIONS_WITH_SPARK,
        ),
        "windows": Subject(
            windows.draw_case_for_spark,
            partial(windows.run_case_on_spark, spark=spark),
            windows.smaller_cases,
            max_reductions=MAX_REDUCTIONS_WITH_SPARK,
        ),
    }


def compare(
    subject: Subject,
    seed: int,
    *,
    cases: int | None = None,
    has_time: Callable[[], bool] = lambda: True,
) -> Tally[Any]:
    """Run the inputs that once gave wrong results, then cases one seed after the other.

    Args:
        subject: The subject.
        seed: The first seed.
        cases: Number of cases; None to use all available time.
        has_time: Returns whether there is time for another case.
    """
    tally = subject.tally()
    for number, case in enumerate(subject.seeds):
        tally.add(f"input {number}", case)
    numbers = itertools.count(seed) if cases is None else range(seed, seed + cases)
    for number in itertools.takewhile(lambda _: has_time(), numbers):
        tally.add(f"seed {number}", subject.draw(Random(number)))  # noqa: S311  # not a secret
    return tally
