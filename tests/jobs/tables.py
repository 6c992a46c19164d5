"""A batch of a query without the query, for tests of sinks."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from unittest import mock


@contextmanager
def batch(application_id: str) -> Iterator[None]:
    """Run the block as a batch of a query with this application id."""
    running = SimpleNamespace(application_id=lambda: application_id, targets=set())
    with mock.patch("holdfast.spark.sinks.batches.current_batch", return_value=running):
        yield
