"""Savepoints are written without a run: with other states, and with operators that are new."""

from holdfast.spark.savepoints.write.new_operator import NewOperator
from holdfast.spark.savepoints.write.writing import write_savepoint

__all__ = ["NewOperator", "write_savepoint"]
