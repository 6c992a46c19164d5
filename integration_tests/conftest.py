"""The session, the jobs and the servers of the integration tests."""

from jobs.fixtures import job, spark
from servers.connect import connect
from servers.hdfs import hdfs, hdfs_directory
from servers.s3 import minio, minio_bucket, real_s3_bucket, versitygw, versitygw_bucket

__all__ = [
    "connect",
    "hdfs",
    "hdfs_directory",
    "job",
    "minio",
    "minio_bucket",
    "real_s3_bucket",
    "spark",
    "versitygw",
    "versitygw_bucket",
]
