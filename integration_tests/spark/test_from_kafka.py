"""Operators over topics of a real broker, with Spark's connector: the driver is killed, and the jobs resume."""

import json
from pathlib import Path

import pytest
from jobs.from_kafka import POINTS, ROWS_PER_BATCH
from jobs.killed import BATCH
from jobs.processes import run_until_done, run_until_killed
from jobs.two_phases import job_of
from pyspark.sql import SparkSession
from servers.kafka import KafkaServer, connector_jars

from holdfast import progress_of
from holdfast.spark_progress import sources_of

ROWS = 4 * ROWS_PER_BATCH


@pytest.fixture(scope="module")
def directory(
    spark: SparkSession, kafka: KafkaServer, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The directories of jobs that have read their topics, with a driver that was killed in between."""
    jars = connector_jars()
    directory = tmp_path_factory.mktemp("from-kafka")
    for topic in POINTS:
        kafka.create_topic(name=topic)
        kafka.produce(topic, ((f"key {number % 7}", str(number)) for number in range(ROWS)))
    arguments = ["-m", "jobs.from_kafka", str(directory), kafka.bootstrap, jars]
    run_until_killed(*arguments, "killed")
    for name, point in POINTS.items():
        committed = BATCH if point == "before the metadata" else BATCH + 1
        assert job_of(spark, directory, name).checkpoint_ids()[-1] == committed
    run_until_done(*arguments, "resumed")
    return directory


@pytest.mark.parametrize("name", POINTS, ids=POINTS.get)
def test_job_from_kafka_killed_at_a_checkpoint_counts_each_row_once(
    spark: SparkSession, directory: Path, name: str
) -> None:
    job = job_of(spark, directory, name)
    assert sorted([*job.ids_written(), *job.ids_held()]) == list(range(ROWS))
    [source] = sources_of(progress_of(job.latest().metadata).offsets)
    assert sum(json.loads(source)[name].values()) == ROWS
