"""Operators with state in Structured Streaming, savepoints of queries, and their settings.

`import holdfast` has the names for users. Start with `query` for the path of a micro-batch, with `by_key` for streams by
key, and with `savepoints` for copies of whole queries.
"""

import holdfast.spark.pyspark_version  # noqa: F401  # first: with an old PySpark all other imports fail
