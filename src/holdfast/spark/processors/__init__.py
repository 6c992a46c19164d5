"""Unmodified `StatefulProcessor` classes and functions for `applyInPandasWithState` of PySpark, over our keyed state.

    processor_function  the operator, and the run of a processor in a batch: its calls in Spark's order
    group_state         the operator of `applyInPandasWithState`
    processor_tester    the same for users' tests, without a stream
    handle              the argument of `init`, with state variables and timers over those of `backends.keyed`
    declarations        checks and records what the processor declares; errors as Spark raises them
    rows, frames        input and output as rows of Spark, or frames of pandas
    value_types, scalar_types   values of Spark's types in Python and in columns

Start with `processor_function`.
"""

from holdfast.spark.processors.declarations import (
    TIME_MODES,
    Declaration,
    DeclaredVariables,
    SchemaParser,
    StatefulProcessorError,
    TimeMode,
    parse_time_mode,
)
from holdfast.spark.processors.group_state import GroupStateFunction, GroupStateUserFunction
from holdfast.spark.processors.processor_function import (
    INITIAL_STATE,
    NOTES,
    Flavour,
    ProcessorFunction,
    notes_of,
    open_state,
    open_timers,
    record_declarations,
    session_settings,
    time_mode_of,
)
from holdfast.spark.processors.processor_tester import ProcessorTester
from holdfast.spark.processors.rows import InputSettings
from holdfast.spark.processors.value_types import struct_type

__all__ = [
    "INITIAL_STATE",
    "NOTES",
    "TIME_MODES",
    "Declaration",
    "DeclaredVariables",
    "Flavour",
    "GroupStateFunction",
    "GroupStateUserFunction",
    "InputSettings",
    "ProcessorFunction",
    "ProcessorTester",
    "SchemaParser",
    "StatefulProcessorError",
    "TimeMode",
    "notes_of",
    "open_state",
    "open_timers",
    "parse_time_mode",
    "record_declarations",
    "session_settings",
    "struct_type",
    "time_mode_of",
]
