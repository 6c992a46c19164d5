"""Errors that processors get as Spark raises them: its class in brackets, then its words."""

from pyspark.errors import PySparkRuntimeError

from holdfast.errors import StateMigrationError


class StatefulProcessorError(PySparkRuntimeError):
    """What a processor did that Spark forbids, too; the text has Spark's error class in brackets."""

    def __init__(self, message: str) -> None:
        super().__init__(message)

    def __reduce__(self) -> tuple[type["StatefulProcessorError"], tuple[str]]:
        return type(self), (str(self._message),)


def duplicate_variable(doing: str, name: str, kind: str, before: str) -> StatefulProcessorError:
    """A second variable of a name."""
    if kind == before == "value":
        return StatefulProcessorError(f"Error {doing}: Value state {name} already exists")
    return StatefulProcessorError(
        f"Error {doing}: [STATEFUL_PROCESSOR_DUPLICATE_STATE_VARIABLE_DEFINED] State variable with name "
        f"{name} has already been defined in the StatefulProcessor."
    )


def invalid_name(doing: str, name: str) -> StatefulProcessorError:
    """A name that no variable can have."""
    if name.startswith("$"):
        condition = "STATE_STORE_CANNOT_CREATE_COLUMN_FAMILY_WITH_RESERVED_CHARS"
        reason = "a state's name must not begin with '$'"
    else:
        condition = "STATE_STORE_CANNOT_USE_COLUMN_FAMILY_WITH_INVALID_NAME"
        reason = "a state's name must not be empty, begin or end with a blank, or be 'default'"
    return StatefulProcessorError(f"Error {doing}: [{condition}] {reason}, and it is {name!r}.")


def invalid_ttl(doing: str, name: str, ttl_ms: int) -> StatefulProcessorError:
    """A negative time to live."""
    return StatefulProcessorError(
        f"Error {doing}: [STATEFUL_PROCESSOR_TTL_DURATION_MUST_BE_POSITIVE] TTL duration must be greater than "
        f"zero for State store operation=get_state on state={name}, and it is {ttl_ms}."
    )


def ttl_in_wrong_mode(doing: str, name: str, time_mode: str) -> StatefulProcessorError:
    """A time to live where times are not those of processing."""
    return StatefulProcessorError(
        f"Error {doing}: [STATEFUL_PROCESSOR_INCORRECT_TIME_MODE_TO_ASSIGN_TTL] Cannot use TTL for "
        f"state={name} in timeMode={time_mode}, use TimeMode.ProcessingTime() instead."
    )


def invalid_schema(text: str, reason: object) -> StatefulProcessorError:
    """A schema that is none of a struct."""
    return StatefulProcessorError(
        f"Error parsing string schema: {str(reason).strip()} (the schema is {text!r})"
    )


def not_a_struct(given: object) -> StatefulProcessorError:
    """A type that is no struct."""
    return StatefulProcessorError(
        f"[FAILED_PARSE_STRUCT_TYPE] a state's schema must be a struct, and {given!r} is none."
    )


def invalid_handle_state(doing: str, operation: str, handle_state: str) -> StatefulProcessorError:
    """An operation at a time when there can be none."""
    return StatefulProcessorError(
        f"Error {doing}: [STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE] Failed to "
        f"perform stateful processor operation={operation} with invalid handle state={handle_state}."
    )


def invalid_time_mode(doing: str, operation: str) -> StatefulProcessorError:
    """Timers where there are none."""
    return StatefulProcessorError(
        f"Error {doing}: [STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_TIME_MODE] Failed to "
        f"perform stateful processor operation={operation} with invalid timeMode=NoTime"
    )


def no_key(doing: str, name: str) -> StatefulProcessorError:
    """State of a key where no key is current."""
    return StatefulProcessorError(
        f"Error {doing}: [INTERNAL_ERROR_TWS] Implicit key not found in state store for stateName={name}"
    )


def not_initialized(doing: str, kind: str, name: str) -> StatefulProcessorError:
    """A variable that was deleted."""
    return StatefulProcessorError(f"Error {doing}: {kind} state {name} is not initialized.")


def empty_list(doing: str, name: str) -> StatefulProcessorError:
    """An empty list where there must be elements."""
    return StatefulProcessorError(
        f"Error {doing}: [ILLEGAL_STATE_STORE_VALUE.EMPTY_LIST_VALUE] Illegal value provided to the State "
        f"Store: Cannot write empty list values to State Store for StateName {name}."
    )


def no_evolution(reason: str, *, is_other_kind: bool) -> StateMigrationError:
    """A variable that is declared otherwise than it was, and whose values would be lost."""
    if is_other_kind:
        return StateMigrationError(f"[STATE_STORE_INVALID_VARIABLE_TYPE_CHANGE] {reason}")
    return StateMigrationError(
        f"[STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION] Schema evolution is not possible: {reason}"
    )


def length_mismatch(doing: str, required: int, given: int) -> StatefulProcessorError:
    """A value of more or fewer fields than its schema."""
    return StatefulProcessorError(
        f"Error {doing}: [STRUCT_ARRAY_LENGTH_MISMATCH] Input row doesn't have expected number of values "
        f"required by the schema. {required} fields are required while {given} values are provided."
    )
