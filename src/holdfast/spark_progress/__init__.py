"""Parts of a checkpoint that depend on Spark: the query's progress, the job's history, and in savepoints Spark's files.

The driver writes them; commands and savepoints read them, without PySpark. `progress`, `spark_files` and `history`
each have a format. `checkpoint_view` is the view of a checkpoint in commands, `history` has the statistics of deleted
checkpoints, and `spark_files` also lists, verifies and copies all files of a checkpoint. Start with `progress`.
"""

from holdfast.spark_progress.checkpoint_view import (
    CheckpointView,
    OperatorView,
    SubtaskView,
    add_known,
    iso_time,
    subtasks,
)
from holdfast.spark_progress.history import (
    HISTORY,
    MAX_ATTEMPTS,
    MAX_REASON_CHARACTERS,
    CheckpointStatistics,
    FailedAttempt,
    History,
    OperatorStatistics,
    batch_of,
    checkpoint_statistics,
    history_of,
    merge_history,
    next_history,
)
from holdfast.spark_progress.progress import (
    SPARK,
    SparkProgress,
    find_progress,
    logged_times,
    plan_of,
    progress_of,
    sources_of,
)
from holdfast.spark_progress.spark_files import (
    SPARK_FILES,
    SparkFile,
    SparkFiles,
    all_streams,
    compare_spark_files,
    copy_savepoint,
    directories_of,
    find_spark_files,
    spark_files_of,
    verify_checkpoints,
    with_copied_files,
)

__all__ = [
    "HISTORY",
    "MAX_ATTEMPTS",
    "MAX_REASON_CHARACTERS",
    "SPARK",
    "SPARK_FILES",
    "CheckpointStatistics",
    "CheckpointView",
    "FailedAttempt",
    "History",
    "OperatorStatistics",
    "OperatorView",
    "SparkFile",
    "SparkFiles",
    "SparkProgress",
    "SubtaskView",
    "add_known",
    "all_streams",
    "batch_of",
    "checkpoint_statistics",
    "compare_spark_files",
    "copy_savepoint",
    "directories_of",
    "find_progress",
    "find_spark_files",
    "history_of",
    "iso_time",
    "logged_times",
    "merge_history",
    "next_history",
    "plan_of",
    "progress_of",
    "sources_of",
    "spark_files_of",
    "subtasks",
    "verify_checkpoints",
    "with_copied_files",
]
