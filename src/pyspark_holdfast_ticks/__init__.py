"""The data source `holdfast-ticks`, in a module where Spark finds it: it imports every module named `pyspark_…`.

The source has no rows. When a request is due (`tick_requests`) it reports a new offset, so Spark plans a batch;
`holdfast.spark.event_time` writes the requests. Nothing here imports the rest of Holdfast, which takes a while:
Spark reads the source in a separate process.
"""

from pyspark_holdfast_ticks.source import (
    BEGINNING,
    DIRECTORY,
    FORMAT,
    NAME,
    SUPPORTS_AVAILABLE_NOW,
    DefaultSource,
    is_tick_offset,
)
from pyspark_holdfast_ticks.tick_requests import cancel_request, request_batch, request_file

__all__ = [
    "BEGINNING",
    "DIRECTORY",
    "FORMAT",
    "NAME",
    "SUPPORTS_AVAILABLE_NOW",
    "DefaultSource",
    "cancel_request",
    "is_tick_offset",
    "request_batch",
    "request_file",
]
