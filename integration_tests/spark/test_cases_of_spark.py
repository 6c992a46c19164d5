"""Spark's own test cases of `transformWithState`, unchanged, with Holdfast instead of Spark's operator."""

import os
import unittest

import pytest
from cases_of_spark.by_holdfast import RunCase
from cases_of_spark.modules import module_of_cases
from cases_of_spark.table import ALL, Cases, Fails

EVERY = os.environ.get("CASES_OF_SPARK") == "all"
"""True to run every case in every flavour; otherwise only those that are worth their time."""


def _all(*, fail: bool) -> list[object]:
    return [
        pytest.param(module, cases, name, *([fails] if fails else []), id=f"{name}-{flavour}")
        for each in ALL
        for flavour, module, cases, name, fails in each.run(every=EVERY)
        if (fails is not None) == fail
    ]


@pytest.mark.parametrize(("module", "cases", "name"), _all(fail=False))
def test_case_of_spark_passes(run_case: RunCase, module: str, cases: str, name: str) -> None:
    run_case(module, cases, name)


@pytest.mark.parametrize(("module", "cases", "name", "fails"), _all(fail=True))
def test_case_of_spark_fails_at_a_known_difference(
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
