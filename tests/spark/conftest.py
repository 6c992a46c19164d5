"""The session and the jobs of the tests on Spark, stopped queries, and S3 servers."""

import pytest
from jobs.fixtures import job, spark
from jobs.stopped import as_without_spark, directory, stopped
from servers.s3 import ministack, ministack_bucket, moto, moto_bucket

__all__ = [
    "as_without_spark",
    "directory",
    "job",
    "ministack",
    "ministack_bucket",
    "moto",
    "moto_bucket",
    "spark",
    "stopped",
]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With `--dist loadgroup` all tests on Spark go to one worker, so that there is one JVM."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))
