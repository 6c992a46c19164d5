"""Moves state of Spark's own `transformWithState` to an operator of ours, and back.

    importing        the state of a stopped query becomes a savepoint
    spark_state      reads what Spark has stored, by Spark's own readers
    tables           Spark's state in the columns of our keyed states

    exporting        the state of an operator as initial state of a new query of Spark's
    processor_state  what a checkpoint has of it, compared with the processor
    state_rows       its rows as rows of initial state; in tasks
    moved_processor  puts these into the states that the processor declares; in Spark's own operator

Start with `importing`, or `exporting` for the way back.
"""

from holdfast.spark.moving.exporting import SparkInitialState, spark_initial_state
from holdfast.spark.moving.importing import SparkStateImport, import_spark_state

__all__ = ["SparkInitialState", "SparkStateImport", "import_spark_state", "spark_initial_state"]
