"""Rows of `make proof` that need servers or whole queries: a sample of each."""

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from unittest import mock

import pytest
from servers.clouds import AzureServer, azurite
from servers.hdfs import HdfsDirectory
from servers.s3 import S3Bucket, settings_of

from holdfast.locations import use_s3
from holdfast.locations.adapters import unregister_file_system
from proof.crash_points import crash_everywhere
from proof.lost_requests import lose_each_request
from proof.real_processes import disturb
from proof.stores import FaultyStore

__all__ = ["azurite"]


@pytest.fixture(params=["minio", "hdfs"])
def store(request: pytest.FixtureRequest) -> Iterator[str]:
    """URI of an empty directory."""
    if request.param == "minio":
        bucket: S3Bucket = request.getfixturevalue("minio_bucket")
        use_s3(settings_of(bucket.server), bucket.name)
        yield f"s3://{bucket.name}/proof"
    else:
        directory: HdfsDirectory = request.getfixturevalue("hdfs_directory")
        settings = {"HADOOP_CONF_DIR": str(directory.server.conf_dir)}
        with mock.patch.dict(os.environ, settings):
            yield directory.uri


def test_job_killed_around_server_calls_resumes(store: str) -> None:
    crashes = crash_everywhere(store, every=70)
    assert crashes.failures == []
    assert crashes.restarts > 3


def test_request_to_azurite_is_lost_and_the_next_driver_resumes(azurite: AzureServer) -> None:
    with azurite.faults() as (faults, endpoint):
        store = FaultyStore(
            f"{azurite.new_bucket().uri}/proof",
            faults,
            lambda retries: azurite.use(retries, endpoint=endpoint),
        )
        lost = lose_each_request(store, every=40)
    unregister_file_system(azurite.scheme)
    assert lost.failures == []
    assert lost.count > 7


def test_processes_are_killed_and_a_driver_returns_too_late(tmp_path: Path) -> None:
    kinds = (
        "JVM",
        "Python worker",
        "zombie",
    )  # the seed begins with a worker, and the others end a start
    disturbed = disturb(tmp_path, f"file://{tmp_path}/checkpoints", Random(0), 3, kinds=kinds)
    assert disturbed.failures == []
    assert set(disturbed.disturbances) == set(kinds)
