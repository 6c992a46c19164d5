"""Moves state between Spark's own `transformWithState` and a Holdfast operator.

state_import     makes a savepoint of the state of a stopped query
spark_state      reads Spark's state with Spark's own readers

state_export     makes the initial state of a new Spark query of the state of an operator
state_rows       converts its rows to rows of initial state, in tasks
moved_processor  puts these into the states that the processor declares, in Spark's operator
"""

from holdfast.spark.moving.state_export import SparkInitialState, spark_initial_state
from holdfast.spark.moving.state_import import SparkStateImport, import_spark_state

__all__ = ["SparkInitialState", "SparkStateImport", "import_spark_state", "spark_initial_state"]
