"""State of Spark's own `transformWithState`, made that of an operator of ours.

    importing    the state of a stopped query becomes a savepoint
    spark_state  reads what Spark has stored, by Spark's own readers
    tables       what is read, in the columns of our keyed states

Start with `importing`.
"""

from holdfast.spark.moving.importing import SparkStateImport, import_spark_state

__all__ = ["SparkStateImport", "import_spark_state"]
