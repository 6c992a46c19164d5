"""Settings of a session for the time of a block."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import cast

from pyspark.sql import SparkSession

from holdfast.backends.keyed import BackendName

STATE_BACKEND = cast("BackendName", os.environ.get("HOLDFAST_TESTS_BACKEND", "columnar"))
"""The backend of keyed state that tests have which don't say another: `make test-keyed BACKEND=rocksdb`."""

ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    )
}
"""What Spark's own `transformWithState` needs."""


@contextmanager
def session_with(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """The session with these settings; then as it was before.

    A query that is started meanwhile has its own copy of them.
    """
    before = {key: spark.conf.get(key, None) for key in settings}
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, earlier in before.items():
            if earlier is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, earlier)
