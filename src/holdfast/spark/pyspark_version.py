"""Refuses an unsupported version of PySpark. `holdfast.spark` imports it first: other imports would fail."""

import re

import pyspark

MIN_PYSPARK = (4, 1)


def check_pyspark(version: str) -> None:
    """Refuse an unsupported version of PySpark. Raises `ImportError`."""
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < MIN_PYSPARK:
        oldest = ".".join(map(str, MIN_PYSPARK))
        raise ImportError(
            f"Holdfast needs PySpark {oldest} or later, and this is PySpark {version}: install another one "
            f"(pip install 'pyspark>={oldest}'), or use a platform that has one"
        )


check_pyspark(pyspark.__version__)
