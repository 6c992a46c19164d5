"""Unmodified `StatefulProcessor` classes of PySpark, over our keyed state.

    processor_function  what runs as an operator: hands the batches of a subtask to `processor_run`
    processor_run       a processor in a batch: its calls in Spark's order
    processor_tester    the same for users' tests, without a stream
    handle              what `init` gets; `declarations` checks what it declares, on the driver and in subtasks
    modes, errors       time modes and output modes; errors as Spark raises them

    state/    what `handle` gives out: variables and timers of the current key
    turns/    which key is current, and which are next
    rows/     rows of Spark in and out;  frames/  frames of pandas in and out
    values/   what values of each type of Spark's are, in Python and in columns

Start with `processor_function`.
"""

from holdfast.spark.processors.declarations import Declaration, Declared, SchemaParser
from holdfast.spark.processors.errors import StatefulProcessorError
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
from holdfast.spark.processors.rows import InputSettings
from holdfast.spark.processors.values import struct_type

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
