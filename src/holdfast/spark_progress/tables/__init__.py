"""Checkpoints of queries as Arrow tables; needs Arrow, which the package above does without."""

from holdfast.spark_progress.tables.subtask_table import subtasks

__all__ = ["subtasks"]
