"""Starts Python workers that have imported already what tasks need: `python -m jobs.worker_daemon`.

Spark's own daemon lets each worker import it anew, and each worker looks through all of it for garbage
after each task, which is most of what a small task costs; and a task that fails takes its worker with it.
"""

import gc

import pandas as pd
import pyarrow as pa
from pyspark import worker
from pyspark.daemon import manager

import holdfast.spark

IMPORTED = (holdfast.spark, pa, pd, worker)

if __name__ == "__main__":
    gc.collect()
    gc.freeze()
    manager()
