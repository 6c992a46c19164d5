"""Spark's side of checkpoints and savepoints, as it stands in `_metadata`; needs no PySpark."""

from holdfast.spark_side._comparison import SparkFilesComparison, compare_spark_files
from holdfast.spark_side._content import SPARK_FILES, SparkFile, SparkFiles, spark_files_of
from holdfast.spark_side._progress import SPARK, SparkProgress, plan_of, progress_of
from holdfast.spark_side._streams import (
    all_streams,
    copy_savepoint,
    directories_of,
    verify_checkpoints,
    with_copied_files,
)

__all__ = [
    "SPARK",
    "SPARK_FILES",
    "SparkFile",
    "SparkFiles",
    "SparkFilesComparison",
    "SparkProgress",
    "all_streams",
    "compare_spark_files",
    "copy_savepoint",
    "directories_of",
    "plan_of",
    "progress_of",
    "spark_files_of",
    "verify_checkpoints",
    "with_copied_files",
]
