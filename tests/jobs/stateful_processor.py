"""PySpark's classes for processors; with PySpark 3.5 those of Holdfast. Spark's workers import nothing of Holdfast here."""

try:
    from pyspark.sql.streaming.stateful_processor import (
        ListState,
        MapState,
        StatefulProcessor,
        StatefulProcessorHandle,
        ValueState,
    )
except ImportError:
    from holdfast.spark.compat import (
        ListState,
        MapState,
        StatefulProcessor,
        StatefulProcessorHandle,
        ValueState,
    )

__all__ = ["ListState", "MapState", "StatefulProcessor", "StatefulProcessorHandle", "ValueState"]
