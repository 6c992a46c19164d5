"""Joins of two streams by key and time.

`matching` finds the pairs of rows, `join` keeps the rows of both streams in state, `interval` and `asof` are the joins.
"""

from holdfast.spark.joins.asof import AsofJoin
from holdfast.spark.joins.interval import IntervalJoin
from holdfast.spark.joins.join import JoinKind, joined_schema

__all__ = ["AsofJoin", "IntervalJoin", "JoinKind", "joined_schema"]
