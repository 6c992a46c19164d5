"""Savepoints are taken: what a query needs is copied, then the metadata that leads to it is published."""

from holdfast.spark.savepoints.take.base import Base, Copier
from holdfast.spark.savepoints.take.query_copy import copy_query, progress_alone
from holdfast.spark.savepoints.take.taking import stop_with_savepoint, take_savepoint

__all__ = [
    "Base",
    "Copier",
    "copy_query",
    "progress_alone",
    "stop_with_savepoint",
    "take_savepoint",
]
