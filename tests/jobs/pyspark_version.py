"""The version of PySpark that the tests run on, and marks of tests that need a newer one."""

import pyspark
import pytest

PYSPARK = tuple(map(int, pyspark.__version__.split(".")[:2]))


def needs_pyspark(major: int, minor: int, feature: str) -> pytest.MarkDecorator:
    """Skip a test on a PySpark that is older than the first one with the feature."""
    reason = f"PySpark {pyspark.__version__} lacks {feature}"
    return pytest.mark.skipif((major, minor) > PYSPARK, reason=reason)
