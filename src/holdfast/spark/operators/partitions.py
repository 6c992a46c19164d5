"""Numbers that Spark hashes to the partitions of rows."""

from collections.abc import Sequence
from functools import cache

import numpy as np
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F

from holdfast.backends.keys import key_hash

PARTITION = "__holdfast_partition"
"""The column of these numbers."""


def number_at(numbers: Sequence[int], index: Column) -> Column:
    """Return the int at an index, a bigint."""
    # One text instead of a literal for each number, which would be as many calls of the JVM. Spark makes it a constant.
    text = F.lit(",".join(map(str, numbers)))
    return F.split(text, ",").cast("array<int>")[index.cast("int")]


@cache
def partition_numbers(parallelism: int) -> tuple[int, ...]:
    """Return for each partition the least int that Spark hashes to it: `repartition` moves a row with this int there.

    `repartitionById` would take the partition itself, but Spark has it only from 4.1 on. Both take the same time.
    """
    count = 16 * parallelism  # enough for up to 2000 partitions
    while True:
        hashes = key_hash([pa.array(np.arange(count, dtype=np.int32))]).to_numpy()
        partitions, numbers = np.unique(hashes % parallelism, return_index=True)
        if len(partitions) == parallelism:
            return tuple(numbers.tolist())
        count *= 2
