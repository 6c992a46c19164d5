"""Keyed state on a cluster of two hosts with separate local disks: the segments that each fetches from storage."""

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from jobs.cluster import SETTINGS
from jobs.driver import driver
from jobs.job import Job
from jobs.operators import Totals
from pyspark.sql import SparkSession
from servers.spark import SparkCluster

from holdfast import subtasks

HOSTS = (1, 2)
BATCHES = 3
MAX_BATCHES = 8
"""Enough batches that Spark uses both hosts in one of them."""
ROWS = 10_000
NO_MEMORY = {"spark.python.worker.reuse": "false", "spark.locality.wait": "0s"}
"""Each task is a new process, which has only the disk of its host, and does not wait for a host."""

LOCALITY = {
    "spark.holdfast.state.task-locality": "true",
    "spark.locality.wait": "120s",
    "spark.shuffle.reduceLocality.enabled": "false",
}
"""Tasks wait for the executors that they prefer, and Spark prefers no others."""

_SEGMENT = re.compile(r"[0-9a-f]{32}")


@pytest.fixture
def job_on_other_disk(spark: SparkSession, tmp_path: Path) -> Iterator[Job]:
    """A job whose checkpoints are on another disk than that of the hosts, so that a hard link can't be a copy."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        if os.stat(other).st_dev == os.stat(tmp_path).st_dev:
            pytest.skip("the machine has only one file system")
        job = Job(spark, Path(other))
        job.settings["spark.holdfast.state.inline-threshold"] = "0"
        job.feed(files=BATCHES, rows=ROWS)
        yield job


class Hosts:
    """The local disks of a cluster's hosts, and the segments of checkpoints."""

    def __init__(self, cluster: SparkCluster, job: Job) -> None:
        self.cluster = cluster
        self.job = job

    def files(self, host: int) -> list[Path]:
        local = self.cluster.directory / f"worker{host}" / "local"
        return [path for path in local.rglob("holdfast/*/*") if path.is_file()]

    def copies(self, host: int) -> dict[str, int]:
        """Return the inode of each segment on a host, by its name."""
        return {
            path.name: path.stat().st_ino
            for path in self.files(host)
            if _SEGMENT.fullmatch(path.name)
        }

    def forget(self, host: int) -> None:
        """Delete everything that a host has."""
        for path in self.files(host):
            path.unlink()

    def subtasks(self, host: int, checkpoint_id: int) -> list[int]:
        """Return the subtasks that a host ran for a checkpoint."""
        names = [path.name.split(".") for path in self.files(host)]
        return [int(name[0]) for name in names if name[1:] == [str(checkpoint_id)]]

    def needed(self) -> tuple[int, dict[int, set[str]]]:
        """Return the newest checkpoint, and the segments that contain the state of each subtask."""
        metadata = self.job.latest().metadata
        subtasks = metadata.operators["operator"].subtasks
        return metadata.checkpoint_id, {
            index: set(state.shared_streams()) for index, state in subtasks.items()
        }


def test_host_fetches_only_missing_segments(cluster: SparkCluster, job_on_other_disk: Job) -> None:
    job = job_on_other_disk
    hosts = Hosts(cluster, job)
    schema = "key long, rows long, ids long"
    with driver(cluster.master, SETTINGS | NO_MEMORY) as on_cluster:
        on_cluster.start(job, Totals(), key="id", schema=schema)
        assert on_cluster.error() == ""
        for _ in range(MAX_BATCHES):
            _, needed = hosts.needed()
            hosts.forget(1)
            before = {host: hosts.copies(host) for host in HOSTS}
            job.feed(files=1, rows=ROWS)
            on_cluster.start(job, Totals(), key="id", schema=schema)
            assert on_cluster.error() == ""
            made, _ = hosts.needed()
            ran = {host: hosts.subtasks(host, made) for host in HOSTS}
            if ran[1]:  # Spark may let the other host do both
                break
        assert ran[1]
        assert sorted(ran[1] + ran[2]) == [0, 1]
        assert sorted(needed) == [0, 1]
        assert all(needed.values())
        assert not needed[0] & needed[1]
        old = needed[0] | needed[1]
        after = {host: hosts.copies(host) for host in HOSTS}
        fetched = {host: (after[host].keys() & old) - before[host].keys() for host in HOSTS}
        lacked = {
            host: {name for subtask in ran[host] for name in needed[subtask]} - before[host].keys()
            for host in HOSTS
        }
        assert fetched == lacked
        assert fetched[1]
        assert not fetched[1] & fetched[2]
        for host in HOSTS:  # an existing segment is the same file, and was not fetched again
            kept = after[host].keys() & before[host].keys()
            assert {name: after[host][name] for name in kept} == {
                name: before[host][name] for name in kept
            }


def test_subtasks_stay_on_their_executors_with_task_locality(
    cluster: SparkCluster, job_on_other_disk: Job
) -> None:
    job = job_on_other_disk
    job.feed(files=MAX_BATCHES - BATCHES, rows=ROWS)
    job.settings["spark.holdfast.checkpoint.num-retained"] = str(MAX_BATCHES)
    with driver(cluster.master, SETTINGS | LOCALITY) as on_cluster:
        on_cluster.start(job, Totals(), key="id", schema="key long, rows long, ids long")
        assert on_cluster.error() == ""
    pointers = [job.job_directory / f"chk-{number}" for number in job.checkpoint_ids()[1:]]
    assert len(pointers) == MAX_BATCHES - 1
    sources = {row["restored_from"] for chk in pointers for row in subtasks(chk).to_pylist()}
    assert sources <= {"worker", "local"}
