"""Starts Python workers that have imported what tasks need: set `spark.python.daemon.module` to this module.

Spark's own daemon forks a worker which then imports Holdfast, Arrow and pandas, for a second of a processor;
each worker does so, and a task that fails takes its worker with it. Here they are imported before the fork,
once on each executor, and the workers share the memory. Spark starts it as it starts its own:
`python -m holdfast.spark.worker_daemon pyspark.worker`.
"""

import gc

import pandas  # noqa: F401, ICN001  # for the workers, as all of these
import pyarrow  # noqa: F401, ICN001
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import holdfast.spark  # noqa: F401

if __name__ == "__main__":
    # Workers look for garbage after each task: what stays is left out, and so not copied either.
    gc.collect()
    gc.freeze()
    manager()
