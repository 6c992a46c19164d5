"""Directories that must not overlap."""

import pytest

from holdfast.errors import InvalidRequestError
from holdfast.spark.checkpoint_location import check_disjoint


@pytest.mark.parametrize(
    ("location", "directory"),
    [
        ("s3a://bucket/spark", "s3://bucket/spark/state"),
        ("s3://bucket/spark", "fsspec+s3a://bucket/spark"),
        ("s3a://bucket/spark/all", "s3://bucket/spark/all/state/_entropy_"),
        ("s3a://bucket/state/job/spark", "s3://bucket/state"),
        ("fsspec+sftp://host/spark", "sftp://host/spark/state"),
        ("file:/tmp/spark/", "file:///tmp/spark/state"),
    ],
)
def test_overlapping_directories_are_refused_in_any_spelling(location: str, directory: str) -> None:
    with pytest.raises(InvalidRequestError, match="outside of the checkpointLocation"):
        check_disjoint(location, directory, "job")


@pytest.mark.parametrize(
    ("location", "directory"),
    [
        ("s3a://bucket/spark", "s3://bucket/spark-state"),
        ("s3a://bucket/spark", "s3://other/spark/state"),
        ("s3a://bucket/spark", "gs://bucket/spark/state"),
        ("s3a://bucket/all/spark", "s3://bucket/all"),
        ("s3a://key:secret@bucket/spark", "s3://bucket/state"),
        ("s3a://bucket/spark", None),
    ],
)
def test_separate_directories_are_accepted(location: str, directory: str | None) -> None:
    check_disjoint(location, directory, "job")
