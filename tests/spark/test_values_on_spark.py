"""`proof.values` with Spark: a sample of its cases."""

import pytest
from pyspark.sql import SparkSession

from proof.values.subjects import SUBJECTS_ON_SPARK, compare, subjects_on_spark


@pytest.mark.exhaustive  # each case is several jobs of Spark
@pytest.mark.parametrize("name", SUBJECTS_ON_SPARK)
def test_values_are_those_of_spark(spark: SparkSession, name: str) -> None:
    tally = compare(subjects_on_spark(spark)[name], 0, cases=3)
    assert tally.descriptions == {}
    assert tally.comparisons > 50
