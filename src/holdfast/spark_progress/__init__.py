"""Spark's part of a checkpoint: the progress of the query and, in savepoints, Spark's files. Needs no PySpark.

The driver writes it; commands and savepoints read it. `progress` and `spark_files` are two formats;
`past_checkpoints` has what deleted checkpoints were like, in the format of `history_format`; `streams` adds Spark's
files to what a checkpoint leads to, wherever all of that is copied or verified; `tables` shows checkpoints of queries
as Arrow tables. Start with `progress`.
"""

from holdfast.spark_progress.history_format import (
    HISTORY,
    MOST_ATTEMPTS,
    MOST_REASON,
    GivenUpAttempt,
    PastCheckpoint,
    PastOperator,
)
from holdfast.spark_progress.past_checkpoints import (
    Past,
    Restart,
    carried_history,
    figures_of,
    past_of,
)
from holdfast.spark_progress.progress import (
    SPARK,
    SparkProgress,
    logged_times,
    plan_of,
    progress_of,
    sources_of,
)
from holdfast.spark_progress.spark_comparison import SparkFilesComparison, compare_spark_files
from holdfast.spark_progress.spark_files import SPARK_FILES, SparkFile, SparkFiles, spark_files_of
from holdfast.spark_progress.streams import (
    all_streams,
    copy_savepoint,
    directories_of,
    verify_checkpoints,
    with_copied_files,
)

__all__ = [
    "HISTORY",
    "MOST_ATTEMPTS",
    "MOST_REASON",
    "SPARK",
    "SPARK_FILES",
    "GivenUpAttempt",
    "Past",
    "PastCheckpoint",
    "PastOperator",
    "Restart",
    "SparkFile",
    "SparkFiles",
    "SparkFilesComparison",
    "SparkProgress",
    "all_streams",
    "carried_history",
    "compare_spark_files",
    "copy_savepoint",
    "directories_of",
    "figures_of",
    "logged_times",
    "past_of",
    "plan_of",
    "progress_of",
    "sources_of",
    "spark_files_of",
    "verify_checkpoints",
    "with_copied_files",
]
