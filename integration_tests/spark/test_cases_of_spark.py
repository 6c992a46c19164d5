"""Spark's own test cases of `transformWithState`, run as they are, with Holdfast in the place of Spark's operator."""

import os
import unittest

import pytest
from cases_of_spark.by_holdfast import RunCase
from cases_of_spark.modules import module_of_cases
from cases_of_spark.table import ALL, Cases, Fails

EVERY = os.environ.get("CASES_OF_SPARK") == "all"
"""Whether every case is run in every flavour; else those that say most for the time that they take."""


def _all(*, fail: bool) -> list[object]:
    return [
        pytest.param(module, cases, name, *([fails] if fails else []), id=f"{name}-{flavour}")
        for each in ALL
        for flavour, module, cases, name, fails in each.run(every=EVERY)
        if (fails is not None) == fail
    ]


@pytest.mark.parametrize(("module", "cases", "name"), _all(fail=False))
def test_a_case_of_spark_passes(run_case: RunCase, module: str, cases: str, name: str) -> None:
    run_case(module, cases, name)


@pytest.mark.parametrize(("module", "cases", "name", "fails"), _all(fail=True))
def test_a_case_of_spark_asks_for_what_is_otherwise_here(
    run_case: RunCase, module: str, cases: str, name: str, fails: Fails
) -> None:
    with pytest.raises(Exception, match=fails.message):
        run_case(module, cases, name)


@pytest.mark.parametrize(
    ("module", "cases", "table"),
    [
        pytest.param(module, cases, table, id=cases)
        for table in ALL
        for module, cases in table.classes.values()
    ],
)
def test_each_case_of_spark_is_in_the_table(module: str, cases: str, table: Cases) -> None:
    known = unittest.defaultTestLoader.getTestCaseNames(getattr(module_of_cases(module), cases))
    assert set(known) == table.names()
