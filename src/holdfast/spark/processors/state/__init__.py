"""State of the current key: variables and timers as Spark's classes offer them, over states of the backend.

    value_variable, list_variable, map_variable   a variable each; `state_variable` is what they have in common
    processor_timers                              the timers
    reading_ahead                                 how many keys' lists and maps are read at once

Each looks up many keys of the batch at once, and writes back what has changed when all keys had their turn.
"""

from holdfast.spark.processors.state.list_variable import ListVariable
from holdfast.spark.processors.state.map_variable import MapVariable
from holdfast.spark.processors.state.processor_timers import ProcessorTimers
from holdfast.spark.processors.state.value_variable import ValueVariable

__all__ = [
    "ListVariable",
    "MapVariable",
    "ProcessorTimers",
    "ValueVariable",
]
