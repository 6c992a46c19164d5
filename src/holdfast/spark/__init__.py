"""Operators with state in Structured Streaming, savepoints of queries, and their settings.

`import holdfast` has the names for users. Start with `query` for the path of a micro-batch, with `by_key` for streams by
key, and with `savepoints` for copies of whole queries.
"""

import re

import pyspark

MIN_PYSPARK = (3, 5)


def check_pyspark(version: str) -> None:
    """Refuse a version of PySpark that is too old, with which all other imports would fail. Raises ImportError."""
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < MIN_PYSPARK:
        oldest = ".".join(map(str, MIN_PYSPARK))
        raise ImportError(
            f"Holdfast needs PySpark {oldest} or later, and this is PySpark {version}: install another one "
            f"(pip install 'pyspark>={oldest}'), or use a platform that has one"
        )


check_pyspark(pyspark.__version__)
