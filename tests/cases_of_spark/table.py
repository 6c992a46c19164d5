"""The expected result of each of Spark's own test cases of `transformWithState` on Holdfast.

A case that is not named here fails `test_each_case_of_spark_is_in_the_table`, so that cases of a new PySpark are reviewed.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Fails:
    """A case that is expected to fail.

    Attributes:
        reason: The difference from Spark that it fails for; the pages for users describe it.
        message: A regular expression that matches its error.
    """

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Cases:
    """The cases of a file, which Spark runs in a class for each flavour.

    Attributes:
        classes: The module and the class of each flavour.
        passing: Cases that pass.
        passing_in_pandas: Cases that pass, and do nothing in the other flavour.
        failing: Cases that fail.
        with_frames: Cases in which frames of pandas matter.
        slow: Cases that test little more than others and take long; only run with all cases.
        skipped: Cases that are not run, each with its reason.
    """

    classes: dict[str, tuple[str, str]]
    passing: tuple[str, ...]
    passing_in_pandas: tuple[str, ...] = ()
    failing: dict[str, Fails] = field(default_factory=dict)
    with_frames: tuple[str, ...] = ()
    slow: tuple[str, ...] = ()
    skipped: dict[str, str] = field(default_factory=dict)

    def names(self) -> set[str]:
        """Return the names of all cases."""
        return {*self.passing, *self.passing_in_pandas, *self.failing, *self.skipped}

    def run(self, *, every: bool) -> Iterator[tuple[str, str, str, str, Fails | None]]:
        """Iterate over the cases to run: the flavour, the module, the class, the name, and how the case fails.

        Args:
            every: Whether every case is run in every flavour.
        """
        for flavour, (module, cases) in self.classes.items():
            ends: dict[str, Fails | None] = dict.fromkeys(self.passing)
            if flavour == "pandas":
                ends |= dict.fromkeys(self.passing_in_pandas)
            for name, fails in (ends | self.failing).items():
                chosen = name not in self.slow and (flavour != "pandas" or name in self.with_frames)
                if every or chosen:
                    yield flavour, module, cases, name, fails


OWN_STATE = Fails(
    "Spark's sources of state can't read it; `read_state` can",
    r"'state-metadata'|requirement failed|STDS|metadata",
)
TESTER_HAS_NO_HANDLE = Fails("a `ProcessorTester` has no handle", "has no attribute 'handle'")
NOT_OF_PROCESSORS = "it tests nothing of processors"
PARTITIONS = "it repeats other cases in one of Spark's partitions, which Holdfast doesn't have"

TRANSFORM_WITH_STATE = Cases(
    classes={
        "row": ("test_transform_with_state", "TransformWithStateInPySparkTests"),
        "pandas": ("test_pandas_transform_with_state", "TransformWithStateInPandasTests"),
    },
    passing=(
        "test_composite_output_schema",
        "test_not_nullable_fails",
        "test_schema_evolution_fails",
        "test_schema_evolution_scenarios",
        "test_transform_with_state_basic",
        "test_transform_with_state_batch_query",
        "test_transform_with_state_batch_query_initial_state",
        "test_transform_with_state_event_time",
        "test_transform_with_state_large_values",
        "test_transform_with_state_non_contiguous_grouping_cols",
        "test_transform_with_state_non_contiguous_grouping_cols_with_init_state",
        "test_transform_with_state_proc_timer",
        "test_transform_with_state_with_wmark_and_non_event_time",
    ),
    passing_in_pandas=(
        "test_transform_with_state_int_to_decimal_coercion",
        "test_transform_with_state_with_bytes_limit",
        "test_transform_with_state_with_records_limit",
    ),
    with_frames=(
        "test_composite_output_schema",
        "test_transform_with_state_event_time",
        "test_transform_with_state_int_to_decimal_coercion",
        "test_transform_with_state_non_contiguous_grouping_cols_with_init_state",
        "test_transform_with_state_with_bytes_limit",
    ),
    failing={
        "test_transform_with_state_chaining_ops": Fails(
            "no operator of Spark can follow a processor", "eventTimeColumnName"
        ),
        "test_transform_with_state_in_pandas_composite_type": Fails(
            "a string is not a tuple; the string of the case has one character, which Spark would store",
            "got '[01]' of type str; Spark would store its parts",
        ),
        "test_transform_with_state_query_restarts": Fails(
            "streams are written by foreachBatch", "needs foreachBatch"
        ),
    },
    skipped={
        "test_assert_classic_mode": NOT_OF_PROCESSORS,
        "test_transform_with_state_with_timers_single_partition": PARTITIONS,
    },
)

STATE_VARIABLES = Cases(
    classes={
        "row": (
            "test_transform_with_state_state_variable",
            "TransformWithStateInPySparkStateVariableTests",
        ),
        "pandas": (
            "test_pandas_transform_with_state_state_variable",
            "TransformWithStateInPandasStateVariableTests",
        ),
    },
    passing=(
        "test_transform_with_state_init_state",
        "test_transform_with_state_init_state_with_extra_transformation",
        "test_transform_with_state_init_state_with_timers",
        "test_transform_with_state_list_state",
        "test_transform_with_state_list_state_large_list",
        "test_transform_with_state_list_state_large_ttl",
        "test_transform_with_state_map_state",
        "test_transform_with_state_map_state_large_ttl",
        "test_transform_with_state_non_exist_value_state",
        "test_value_state_ttl_basic",
        "test_transform_with_map_state_metadata",
        "test_transform_with_map_state_metadata_with_init_state",
    ),
    with_frames=(
        "test_transform_with_state_init_state_with_timers",
        "test_transform_with_state_list_state",
        "test_transform_with_state_map_state_large_ttl",
    ),
    slow=(
        "test_transform_with_list_state_metadata",
        "test_transform_with_map_state_metadata_with_init_state",
        "test_transform_with_value_state_metadata",
    ),
    failing={
        "test_transform_with_list_state_metadata": OWN_STATE,
        "test_transform_with_state_restart_with_multiple_rows_init_state": OWN_STATE,
        "test_transform_with_value_state_metadata": OWN_STATE,
    },
    skipped={
        "test_assert_classic_mode": NOT_OF_PROCESSORS,
        "test_transform_with_state_basic": "the same case is in the other file",
        "test_transform_with_state_with_timers_single_partition": PARTITIONS,
        "test_value_state_ttl_expiration": "Spark's developers skip it, because it depends on its own run time",
    },
)

TESTER = Cases(
    classes={"tester": ("test_tws_tester", "TwsTesterTests")},
    passing=(
        "test_all_methods_processor",
        "test_both_initial_states_specified",
        "test_delete_list_state",
        "test_delete_map_state",
        "test_delete_nonexistent_state_raises_error",
        "test_delete_value_state",
        "test_direct_access_to_list_state",
        "test_direct_access_to_map_state",
        "test_direct_access_to_value_state",
        "test_empty_initial_state_pandas",
        "test_empty_initial_state_row",
        "test_empty_input_pandas",
        "test_empty_input_row",
        "test_event_time_timers_manual_watermark",
        "test_eventtime_mode_requires_extractor",
        "test_initial_state_pandas",
        "test_initial_state_row",
        "test_late_event_filtering",
        "test_none_values_in_input",
        "test_null_key_value_pandas",
        "test_null_key_value_row",
        "test_numeric_key",
        "test_pandas_dtype_preservation",
        "test_pandas_with_multiple_rows",
        "test_peek_nonexistent_state",
        "test_peek_state_before_initialization",
        "test_processing_time_must_move_forward",
        "test_processing_time_timers",
        "test_processing_time_timers_pandas",
        "test_registers_on_time_events",
        "test_row_by_row",
        "test_running_count_processor",
        "test_running_count_processor_pandas",
        "test_set_processing_time_in_wrong_mode_raises_error",
        "test_set_watermark_in_wrong_mode_raises_error",
        "test_single_row_input",
        "test_special_characters_in_key",
        "test_step_function",
        "test_topk_processor",
        "test_topk_processor_pandas",
        "test_update_nonexistent_state",
        "test_watermark_must_move_forward",
        "test_word_frequency_processor",
        "test_word_frequency_processor_pandas",
    ),
    failing={
        "test_clear_nonexistent_list_state": TESTER_HAS_NO_HANDLE,
        "test_clear_nonexistent_map_state": TESTER_HAS_NO_HANDLE,
        "test_clear_nonexistent_value_state": TESTER_HAS_NO_HANDLE,
        "test_delete_if_exists_nonexistent": TESTER_HAS_NO_HANDLE,
        "test_delete_timer_raises_error_in_none_mode": TESTER_HAS_NO_HANDLE,
        "test_list_timers_raises_error_in_none_mode": TESTER_HAS_NO_HANDLE,
        "test_timer_cannot_be_registered_in_past": TESTER_HAS_NO_HANDLE,
        "test_timer_registration_in_none_mode_raises_error": TESTER_HAS_NO_HANDLE,
        "test_timer_registration_raises_error_in_none_mode": TESTER_HAS_NO_HANDLE,
        "test_processor_init_called_once": Fails(
            "schemas are checked, and each call has a copy of the processor",
            "FAILED_PARSE_STRUCT_TYPE",
        ),
        "test_tuple_key": Fails("a tuple is a key of several columns", "Lists differ"),
    },
    skipped={"test_assert_classic_mode": NOT_OF_PROCESSORS},
)

AGAINST_TESTER = Cases(
    classes={"against Spark's tester": ("test_tws_tester", "TwsTesterFuzzTests")},
    passing=("test_fuzz_running_count", "test_fuzz_topk", "test_fuzz_word_frequency"),
    slow=("test_fuzz_running_count", "test_fuzz_topk"),
    skipped={"test_assert_classic_mode": NOT_OF_PROCESSORS},
)

ALL = (TRANSFORM_WITH_STATE, STATE_VARIABLES, TESTER, AGAINST_TESTER)
