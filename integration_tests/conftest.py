"""The session, the jobs and the servers of the integration tests."""

from cases_of_spark.by_holdfast import run_case
from jobs.cluster import fed_job, reference, signals
from jobs.fixtures import job, spark, state_backend
from servers.browser import browser
from servers.connect import connect
from servers.flink import flink_job, flink_savepoints
from servers.hdfs import hdfs, hdfs_directory
from servers.kafka import kafka
from servers.postgres import postgres
from servers.s3 import (
    minio,
    minio_bucket,
    moto,
    moto_bucket,
    real_s3_bucket,
    versitygw,
    versitygw_bucket,
)
from servers.spark import cluster
from servers.tables import table_jars
from servers.yarn import yarn
from xdist_scheduler import (
    pytest_collection,
    pytest_collection_finish,
    pytest_configure,
    pytest_xdist_auto_num_workers,
    pytest_xdist_make_scheduler,
)

__all__ = [
    "browser",
    "cluster",
    "connect",
    "fed_job",
    "flink_job",
    "flink_savepoints",
    "hdfs",
    "hdfs_directory",
    "job",
    "kafka",
    "minio",
    "minio_bucket",
    "moto",
    "moto_bucket",
    "postgres",
    "pytest_collection",
    "pytest_collection_finish",
    "pytest_configure",
    "pytest_xdist_auto_num_workers",
    "pytest_xdist_make_scheduler",
    "real_s3_bucket",
    "reference",
    "run_case",
    "signals",
    "spark",
    "state_backend",
    "table_jars",
    "versitygw",
    "versitygw_bucket",
    "yarn",
]
