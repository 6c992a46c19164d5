"""Which parts are compared, each with how its cases are drawn, run and reduced."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from pyspark.sql import SparkSession

from proof.values import (
    aggregates,
    calls,
    fields,
    histories,
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
    """A part that is compared.

    Attributes:
        draw: Draws a case.
        run: Runs a case.
        smaller: Yields cases that have a little less.
        seeds: Cases that come first: inputs that once gave wrong results.
        max_reductions: How many smaller cases are run for a failing one.
    """

    draw: Callable[[Random], Any]
    run: Callable[[Any], Comparisons]
    smaller: Callable[[Any], Iterator[Any]]
    seeds: Sequence[Any] = ()
    max_reductions: int = MAX_REDUCTIONS

    def tally(self) -> Tally[Any]:
        """Return a tally of no cases."""
        return Tally(self.run, self.smaller, self.max_reductions)


SUBJECTS: dict[str, Subject] = {
    "aggregates": Subject(
        aggregates.draw_case, aggregates.run_case, aggregates.smaller_cases, seeds.AGGREGATES
    ),
    "windows": Subject(windows.draw_case, windows.run_case, windows.smaller_cases, seeds.WINDOWS),
    "states": Subject(states.draw_case, states.run_case, states.smaller_cases, seeds.STATES),
    "functions": Subject(calls.draw_case, calls.run_case, calls.smaller_cases),
    "processors": Subject(processors.draw_case, processors.run_case, calls.smaller_cases),
    "operator state": Subject(
        operator_states.draw_case, operator_states.run_case, operator_states.smaller_cases
    ),
    "fields of structs": Subject(fields.draw_case, fields.run_case, fields.smaller_cases),
    "states from outside": Subject(
        stored.draw_case, stored.run_case, stored.smaller_cases, seeds.STATES_WITHOUT_TTL
    ),
    "histories of a job": Subject(
        histories.draw_case, histories.run_case, histories.smaller_cases, seeds.HISTORIES
    ),
}
"""Those that need no Spark, by name."""


SUBJECTS_ON_SPARK = ("aggregates", "windows")
"""The names of those that Spark takes part in."""


def subjects_on_spark(spark: SparkSession) -> dict[str, Subject]:
    """Return those that Spark takes part in, by name."""
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
        subject: What is compared.
        seed: The first seed.
        cases: How many cases; None for as many as there is time for.
        has_time: Whether another case may be begun.
    """
    tally = subject.tally()
    for number, case in enumerate(subject.seeds):
        tally.add(f"input {number}", case)
    numbers = itertools.count(seed) if cases is None else range(seed, seed + cases)
    for number in itertools.takewhile(lambda _: has_time(), numbers):
        tally.add(f"seed {number}", subject.draw(Random(number)))  # noqa: S311  # no secret
    return tally
