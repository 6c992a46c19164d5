"""Unmodified `StatefulProcessor` classes of PySpark, over our keyed state.

    processor_function  what runs as an operator: calls `processor_run` in a subtask
    processor_run       a processor in a batch: its calls in Spark's order
    handle              what its `init` gets; `declarations` checks what it declares, on the driver and in subtasks
    …_variable          states of the current key (`current_key`), read and written for all keys of the batch at once
    value_types         what values of each type of Spark's are, in and out of state
    input_of_keys, frames_of_keys, rows_out     rows and frames, in and out
    processor_tester    a harness for users' tests

Start with `processor_function`.
"""

from holdfast.spark.processors.declarations import Declaration, Declared, SchemaParser
from holdfast.spark.processors.errors import StatefulProcessorError
from holdfast.spark.processors.input_of_keys import InputSettings
from holdfast.spark.processors.modes import TIME_MODES, TimeMode, checked_time_mode
from holdfast.spark.processors.processor_function import (
    INITIAL_STATE,
    NOTES,
    Flavour,
    ProcessorFunction,
    notes_of,
    session_settings,
    time_mode_of,
)
from holdfast.spark.processors.processor_run import declared_by, state_of, timers_of
from holdfast.spark.processors.processor_tester import ProcessorTester
from holdfast.spark.processors.value_types import struct_type

__all__ = [
    "INITIAL_STATE",
    "NOTES",
    "TIME_MODES",
    "Declaration",
    "Declared",
    "Flavour",
    "InputSettings",
    "ProcessorFunction",
    "ProcessorTester",
    "SchemaParser",
    "StatefulProcessorError",
    "TimeMode",
    "checked_time_mode",
    "declared_by",
    "notes_of",
    "session_settings",
    "state_of",
    "struct_type",
    "time_mode_of",
    "timers_of",
]
