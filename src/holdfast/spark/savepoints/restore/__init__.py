"""Savepoints are restored: a checkpointLocation is made of them, and the first checkpoint of a new job."""

from holdfast.spark.savepoints.restore.restoring import RestoredQuery, restore_savepoint

__all__ = ["RestoredQuery", "restore_savepoint"]
