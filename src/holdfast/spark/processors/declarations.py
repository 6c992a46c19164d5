"""The modes and state variables that a processor declares, checked as Spark does."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from pyspark.errors import (
    AnalysisException,
    IllegalArgumentException,
    PySparkException,
    PySparkRuntimeError,
)
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from holdfast.errors import InvalidRequestError
from holdfast.spark.compat import parse_data_type
from holdfast.spark.operators import is_collated

Kind = Literal["value", "list", "map"]
Schema = StructType | str

_INVALID_NAME = re.compile(r"\s.*|.*\s|default|", re.DOTALL)


class StatefulProcessorError(PySparkRuntimeError):
    """A call of a processor that Spark refuses, too; the message has Spark's error class in brackets."""

    def __init__(self, message: str) -> None:
        super().__init__(message)

    def __reduce__(self) -> tuple[type["StatefulProcessorError"], tuple[str]]:
        return type(self), (str(self),)


@dataclass(frozen=True)
class Declaration:
    """A declared state variable.

    Attributes:
        name: The variable's name.
        kind: The type of state.
        schema: The fields of its values.
        key_schema: The fields of a map's keys; None for values and lists.
        ttl_ms: The time to live of values, elements or entries, milliseconds; None without one.
    """

    name: str
    kind: Kind
    schema: StructType
    key_schema: StructType | None = None
    ttl_ms: int | None = None


@dataclass(frozen=True)
class DeclaredVariables:
    """The declarations of a processor.

    Attributes:
        variables: The variables of the processor.
        withdrawn: The variables that it declared, and then deleted.
        deleted: The names of all states that it deleted.
    """

    variables: tuple[Declaration, ...]
    withdrawn: tuple[Declaration, ...]
    deleted: tuple[str, ...] = ()


@dataclass
class DeclarationRecorder:
    """Checks and records the declarations of a processor."""

    time_mode: str
    parse: Callable[[str], StructType]
    _variables: dict[str, Declaration] = field(default_factory=dict)
    _withdrawn: list[Declaration] = field(default_factory=list)
    _deleted: list[str] = field(default_factory=list)

    def declare(
        self,
        kind: Kind,
        name: str,
        schema: Schema,
        ttl_ms: int | None,
        key_schema: Schema | None = None,
    ) -> Declaration:
        """Record a variable.

        Raises `StatefulProcessorError` if Spark refuses the declaration, too; `TypeError` for a name that is not a string,
        or a time to live that is not an integer; `InvalidRequestError` if the keys of a map have a collation.
        """
        action = f"initializing {kind} state"
        parsed_key = None if key_schema is None else self._parse_struct(key_schema)
        if parsed_key is not None and is_collated(parsed_key):
            raise InvalidRequestError(
                f"the keys of map state {name!r} have type {parsed_key.simpleString()}, but state compares the bytes of "
                "strings; declare the keys as string and normalize them, for example with upper(...)"
            )
        parsed = self._parse_struct(schema)
        if not isinstance(name, str):
            raise TypeError(f"the name of a state must be a string, got {name!r}")
        if name.startswith("$") or _INVALID_NAME.fullmatch(name):
            raise _invalid_name(action, name)
        before = self._variables.get(name)
        if before is not None and kind == before.kind == "value":
            raise StatefulProcessorError(f"Error {action}: Value state {name} already exists")
        if before is not None:
            raise StatefulProcessorError(
                f"Error {action}: [STATEFUL_PROCESSOR_DUPLICATE_STATE_VARIABLE_DEFINED] State variable with name "
                f"{name} has already been defined in the StatefulProcessor."
            )
        if ttl_ms is not None:
            self._check_ttl(action, name, ttl_ms)
        declaration = Declaration(name, kind, parsed, parsed_key, ttl_ms or None)
        self._variables[name] = declaration
        return declaration

    @property
    def result(self) -> DeclaredVariables:
        """The declarations so far."""
        return DeclaredVariables(
            tuple(self._variables.values()), tuple(self._withdrawn), tuple(self._deleted)
        )

    def delete(self, name: str) -> None:
        """Record that a state must be deleted before the batch's rows are processed."""
        declaration = self._variables.pop(name, None)
        if declaration is not None:
            self._withdrawn.append(declaration)
        if name not in self._deleted:
            self._deleted.append(name)

    def _check_ttl(self, action: str, name: str, ttl_ms: int) -> None:
        if isinstance(ttl_ms, bool) or not isinstance(ttl_ms, int):
            message = f"the time to live of state {name!r} must be an integer, got {ttl_ms!r}"
            raise TypeError(message)
        if ttl_ms < 0:
            raise StatefulProcessorError(
                f"Error {action}: [STATEFUL_PROCESSOR_TTL_DURATION_MUST_BE_POSITIVE] TTL duration must be greater than "
                f"zero for State store operation=get_state on state={name}, got {ttl_ms}."
            )
        if ttl_ms and self.time_mode != "processingtime":
            mode = {"none": "NoTime", "eventtime": "EventTime"}[self.time_mode]
            raise StatefulProcessorError(
                f"Error {action}: [STATEFUL_PROCESSOR_INCORRECT_TIME_MODE_TO_ASSIGN_TTL] Cannot use TTL for "
                f"state={name} in timeMode={mode}, use TimeMode.ProcessingTime() instead."
            )

    def _parse_struct(self, schema: Schema) -> StructType:
        return self.parse(schema) if isinstance(schema, str) else _check_struct(schema, schema)


def _invalid_name(action: str, name: str) -> StatefulProcessorError:
    if name.startswith("$"):
        condition = "STATE_STORE_CANNOT_CREATE_COLUMN_FAMILY_WITH_RESERVED_CHARS"
        reason = "a state's name must not begin with '$'"
    else:
        condition = "STATE_STORE_CANNOT_USE_COLUMN_FAMILY_WITH_INVALID_NAME"
        reason = "a state's name must not be empty, begin or end with a blank, or be 'default'"
    return StatefulProcessorError(f"Error {action}: [{condition}] {reason}, got {name!r}.")


def _check_struct(parsed: object, given: object) -> StructType:
    """Check that a schema is a struct. Raises `StatefulProcessorError`, which shows the schema as it was given."""
    if isinstance(parsed, StructType):
        return parsed
    raise StatefulProcessorError(
        f"[FAILED_PARSE_STRUCT_TYPE] a state's schema must be a struct, got {given!r}."
    )


@dataclass
class SchemaParser:
    """Parses schemas with Spark, and remembers them for subtasks, which have no session.

    Attributes:
        session: The session that parses, also one of Spark Connect; None for the classic session of this process.
        schemas: The parsed schemas by their text.
    """

    session: SparkSession | None = None
    schemas: dict[str, StructType] = field(default_factory=dict)

    def __call__(self, text: str) -> StructType:
        if text not in self.schemas:
            try:
                parsed = parse_data_type(self.session, text)
            except PySparkException as error:
                raise StatefulProcessorError(
                    f"Error parsing string schema: {str(error).strip()} (the schema is {text!r})"
                ) from error
            self.schemas[text] = _check_struct(parsed, text)
        return self.schemas[text]

    def struct(self, given: StructType | str, name: str) -> StructType:
        """Return an argument of this name as a struct. Raises `InvalidRequestError`, `StatefulProcessorError`."""
        schema = self(given) if isinstance(given, str) else given
        if not isinstance(schema, StructType):
            raise InvalidRequestError(f"the {name} must be a struct, got {schema!r}")
        return schema


TimeMode = Literal["none", "processingtime", "eventtime"]

TIME_MODES: dict[TimeMode, Literal["none", "processing", "event"]] = {
    "none": "none",
    "processingtime": "processing",
    "eventtime": "event",
}
"""The time modes of Holdfast's functions, by those of Spark."""


def check_output_mode(mode: str, method: str = "transformWithState") -> None:
    """Check an output mode as Spark does. Raises `AnalysisException`, `IllegalArgumentException`."""
    if mode.lower() == "complete":
        raise AnalysisException(
            "[STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION] Invalid streaming output mode: complete. This output "
            f"mode is not supported for {method}."
        )
    if mode.lower() not in ("append", "update"):
        message = f"[STREAMING_OUTPUT_MODE.INVALID] Invalid streaming output mode: {mode}."
        raise IllegalArgumentException(message)


def parse_time_mode(mode: str) -> TimeMode:
    """Parse a time mode, in any case. Raises `IllegalArgumentException`."""
    for known in TIME_MODES:
        if mode.lower() == known:
            return known
    raise IllegalArgumentException(
        f"[STATEFUL_PROCESSOR_UNKNOWN_TIME_MODE] Unknown time mode {mode}. Accepted timeMode modes are 'none', "
        "'processingTime', 'eventTime'"
    )
