"""How each of Spark's own cases of `transformWithState` ends on Holdfast.

A case that isn't named here fails `test_each_case_of_spark_is_in_the_table`, so that a new PySpark's are looked at.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Fails:
    """A case that fails here, as it should.

    Attributes:
        because: Why what it asks for is otherwise here; users read it in the pages.
        says: What its error says, a regular expression.
    """

    because: str
    says: str


@dataclass(frozen=True, slots=True)
class Cases:
    """The cases of a file, which Spark runs in a class for each flavour.

    Attributes:
        classes: The module and the class of each flavour.
        pass_: Cases that pass.
        pass_in_pandas: Cases that pass, and do nothing in the other flavour.
        fail: Cases that fail.
        with_frames: Cases in which frames of pandas matter.
        seldom: Cases that say little beside the others for the time that they take.
        left_out: Cases that aren't run, and why.
    """

    classes: dict[str, tuple[str, str]]
    pass_: tuple[str, ...]
    pass_in_pandas: tuple[str, ...] = ()
    fail: dict[str, Fails] = field(default_factory=dict)
    with_frames: tuple[str, ...] = ()
    seldom: tuple[str, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)

    def names(self) -> set[str]:
        """All cases."""
        return {*self.pass_, *self.pass_in_pandas, *self.fail, *self.left_out}

    def run(self, *, every: bool) -> Iterator[tuple[str, str, str, str, Fails | None]]:
        """Cases to run: the flavour, the module, the class, the name, and how the case fails.

        Args:
            every: Whether it is every case in every flavour.
        """
        for flavour, (module, cases) in self.classes.items():
            ends: dict[str, Fails | None] = dict.fromkeys(self.pass_)
            if flavour == "pandas":
                ends |= dict.fromkeys(self.pass_in_pandas)
            for name, fails in (ends | self.fail).items():
                chosen = name not in self.seldom and (
                    flavour != "pandas" or name in self.with_frames
                )
                if every or chosen:
                    yield flavour, module, cases, name, fails


OWN_STATE = Fails(
    "Spark's sources of state know nothing of it; `read_state` does",
    r"'state-metadata'|requirement failed|STDS|metadata",
)
TESTER_HAS_NO_HANDLE = Fails("a `ProcessorTester` has no handle", "has no attribute 'handle'")
NOT_OF_PROCESSORS = "it says nothing of processors"
PARTITIONS = "other cases once more, in one of Spark's partitions, which are not ours"

TRANSFORM_WITH_STATE = Cases(
    classes={
        "row": ("test_transform_with_state", "TransformWithStateInPySparkTests"),
        "pandas": ("test_pandas_transform_with_state", "TransformWithStateInPandasTests"),
    },
    pass_=(
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
    pass_in_pandas=(
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
    fail={
        "test_transform_with_state_chaining_ops": Fails(
            "no operator of Spark's stands behind a processor", "eventTimeColumnName"
        ),
        "test_transform_with_state_in_pandas_composite_type": Fails(
            "a text is no tuple; the case's has the one character that Spark would take",
            "got '[01]' of type str; Spark would store its parts",
        ),
        "test_transform_with_state_query_restarts": Fails(
            "streams are written by foreachBatch", "needs foreachBatch"
        ),
    },
    left_out={
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
    pass_=(
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
    seldom=(
        "test_transform_with_list_state_metadata",
        "test_transform_with_map_state_metadata_with_init_state",
        "test_transform_with_value_state_metadata",
    ),
    fail={
        "test_transform_with_list_state_metadata": OWN_STATE,
        "test_transform_with_state_restart_with_multiple_rows_init_state": OWN_STATE,
        "test_transform_with_value_state_metadata": OWN_STATE,
    },
    left_out={
        "test_assert_classic_mode": NOT_OF_PROCESSORS,
        "test_transform_with_state_basic": "the same case is in the other file",
        "test_transform_with_state_with_timers_single_partition": PARTITIONS,
        "test_value_state_ttl_expiration": "Spark's developers skip it, since it depends on the time that it takes",
    },
)

TESTER = Cases(
    classes={"tester": ("test_tws_tester", "TwsTesterTests")},
    pass_=(
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
    fail={
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
            "schemas count, and each call has a copy of the processor", "FAILED_PARSE_STRUCT_TYPE"
        ),
        "test_tuple_key": Fails("a tuple is a key of several columns", "Lists differ"),
    },
    left_out={"test_assert_classic_mode": NOT_OF_PROCESSORS},
)

AGAINST_TESTER = Cases(
    classes={"against Spark's tester": ("test_tws_tester", "TwsTesterFuzzTests")},
    pass_=("test_fuzz_running_count", "test_fuzz_topk", "test_fuzz_word_frequency"),
    seldom=("test_fuzz_running_count", "test_fuzz_topk"),
    left_out={"test_assert_classic_mode": NOT_OF_PROCESSORS},
)

ALL = (TRANSFORM_WITH_STATE, STATE_VARIABLES, TESTER, AGAINST_TESTER)
