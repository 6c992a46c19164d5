"""Errors of processors as Spark raises them: Spark's error class in brackets, then its words."""

from pyspark.errors import PySparkRuntimeError

from holdfast.errors import StateMigrationError


class StatefulProcessorError(PySparkRuntimeError):
    """A call of a processor that Spark refuses, too; the message has Spark's error class in brackets."""

    def __init__(self, message: str) -> None:
        super().__init__(message)

    def __reduce__(self) -> tuple[type["StatefulProcessorError"], tuple[str]]:
        return type(self), (str(self._message),)


def duplicate_variable(action: str, name: str, kind: str, before: str) -> StatefulProcessorError:
    """Return the error for a second variable of the same name."""
    if kind == before == "value":
        return StatefulProcessorError(f"Error {action}: Value state {name} already exists")
    return StatefulProcessorError(
        f"Error {action}: [STATEFUL_PROCESSOR_DUPLICATE_STATE_VARIABLE_DEFINED] State variable with name "
        f"{name} has already been defined in the StatefulProcessor."
    )


def invalid_name(action: str, name: str) -> StatefulProcessorError:
    """Return the error for a name that is not valid."""
    if name.startswith("$"):
        condition = "STATE_STORE_CANNOT_CREATE_COLUMN_FAMILY_WITH_RESERVED_CHARS"
        reason = "a state's name must not begin with '$'"
    else:
        condition = "STATE_STORE_CANNOT_USE_COLUMN_FAMILY_WITH_INVALID_NAME"
        reason = "a state's name must not be empty, begin or end with a blank, or be 'default'"
    return StatefulProcessorError(f"Error {action}: [{condition}] {reason}, got {name!r}.")


def invalid_ttl(action: str, name: str, ttl_ms: int) -> StatefulProcessorError:
    """Return the error for a negative time to live."""
    return StatefulProcessorError(
        f"Error {action}: [STATEFUL_PROCESSOR_TTL_DURATION_MUST_BE_POSITIVE] TTL duration must be greater than "
        f"zero for State store operation=get_state on state={name}, got {ttl_ms}."
    )


def ttl_in_wrong_mode(action: str, name: str, time_mode: str) -> StatefulProcessorError:
    """Return the error for a time to live in another time mode than processing time."""
    return StatefulProcessorError(
        f"Error {action}: [STATEFUL_PROCESSOR_INCORRECT_TIME_MODE_TO_ASSIGN_TTL] Cannot use TTL for "
        f"state={name} in timeMode={time_mode}, use TimeMode.ProcessingTime() instead."
    )


def invalid_schema(text: str, reason: object) -> StatefulProcessorError:
    """Return the error for a schema that can't be parsed."""
    return StatefulProcessorError(
        f"Error parsing string schema: {str(reason).strip()} (the schema is {text!r})"
    )


def not_a_struct(given: object) -> StatefulProcessorError:
    """Return the error for a type that is not a struct."""
    return StatefulProcessorError(
        f"[FAILED_PARSE_STRUCT_TYPE] a state's schema must be a struct, got {given!r}."
    )


def invalid_handle_state(action: str, operation: str, handle_state: str) -> StatefulProcessorError:
    """Return the error for an operation in the wrong phase."""
    return StatefulProcessorError(
        f"Error {action}: [STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE] Failed to "
        f"perform stateful processor operation={operation} with invalid handle state={handle_state}."
    )


def invalid_time_mode(action: str, operation: str) -> StatefulProcessorError:
    """Return the error for timers in a time mode without timers."""
    return StatefulProcessorError(
        f"Error {action}: [STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_TIME_MODE] Failed to "
        f"perform stateful processor operation={operation} with invalid timeMode=NoTime"
    )


def no_key(action: str, name: str) -> StatefulProcessorError:
    """Return the error for state without a current key."""
    return StatefulProcessorError(
        f"Error {action}: [INTERNAL_ERROR_TWS] Implicit key not found in state store for stateName={name}"
    )


def not_initialized(action: str, kind: str, name: str) -> StatefulProcessorError:
    """Return the error for a deleted variable."""
    return StatefulProcessorError(f"Error {action}: {kind} state {name} is not initialized.")


def empty_list(action: str, name: str) -> StatefulProcessorError:
    """Return the error for a list without elements."""
    return StatefulProcessorError(
        f"Error {action}: [ILLEGAL_STATE_STORE_VALUE.EMPTY_LIST_VALUE] Illegal value provided to the State "
        f"Store: Cannot write empty list values to State Store for StateName {name}."
    )


def no_evolution(reason: str, *, is_other_kind: bool) -> StateMigrationError:
    """Return the error for a variable whose stored values can't be converted."""
    if is_other_kind:
        return StateMigrationError(f"[STATE_STORE_INVALID_VARIABLE_TYPE_CHANGE] {reason}")
    return StateMigrationError(
        f"[STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION] Schema evolution is not possible: {reason}"
    )


def length_mismatch(action: str, required: int, given: int) -> StatefulProcessorError:
    """Return the error for a value with another number of fields than its schema."""
    return StatefulProcessorError(
        f"Error {action}: [STRUCT_ARRAY_LENGTH_MISMATCH] Input row doesn't have expected number of values "
        f"required by the schema. {required} fields are required while {given} values are provided."
    )
