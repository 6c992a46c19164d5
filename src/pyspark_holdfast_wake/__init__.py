"""Where Spark looks for the data source `holdfast-wake`: it imports every module named `pyspark_…`.

The source has no rows. Spark plans a batch when it says that there is something new, which it does when it was
asked to by way of `asking`. `holdfast.spark.event_time` asks. Nothing here needs the rest of Holdfast, which
takes a while to import: Spark reads the source in a process of its own.
"""

from pyspark_holdfast_wake.asking import ask, file_of, forget
from pyspark_holdfast_wake.source import (
    BEGINNING,
    DIRECTORY,
    FORMAT,
    NAME,
    SUPPORTS_AVAILABLE_NOW,
    DefaultSource,
    is_of_wake_ups,
)

__all__ = [
    "BEGINNING",
    "DIRECTORY",
    "FORMAT",
    "NAME",
    "SUPPORTS_AVAILABLE_NOW",
    "DefaultSource",
    "ask",
    "file_of",
    "forget",
    "is_of_wake_ups",
]
