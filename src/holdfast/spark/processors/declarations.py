"""The modes and state variables that a processor declares, checked as Spark does."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pyspark.errors import AnalysisException, IllegalArgumentException, PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, StructType

from holdfast.errors import InvalidRequestError
from holdfast.spark.operators import is_collated
from holdfast.spark.processors import errors

Kind = Literal["value", "list", "map"]
Schema = StructType | str

_INVALID_NAME = re.compile(r"\s.*|.*\s|default|", re.DOTALL)


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


class DeclarationRecorder:
    """Checks and records the declarations of a processor.

    Args:
        time_mode: The query's time mode, in lower case.
        parse: Parses a schema.
    """

    def __init__(self, time_mode: str, parse: Callable[[str], StructType]) -> None:
        self._time_mode = time_mode
        self._parse = parse
        self._variables: dict[str, Declaration] = {}
        self._withdrawn: list[Declaration] = []
        self._deleted: list[str] = []

    def declare(
        self,
        kind: Kind,
        name: str,
        schema: Schema,
        ttl_ms: int | None,
        key_schema: Schema | None = None,
    ) -> Declaration:
        """Record a variable.

        Raises:
            StatefulProcessorError: Spark refuses the declaration, too.
            TypeError: The name is not a string, or the time to live is not an integer.
            InvalidRequestError: The keys of a map have a collation.
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
            raise errors.invalid_name(action, name)
        before = self._variables.get(name)
        if before is not None:
            raise errors.duplicate_variable(action, name, kind, before.kind)
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
            raise errors.invalid_ttl(action, name, ttl_ms)
        if ttl_ms and self._time_mode != "processingtime":
            mode = {"none": "NoTime", "eventtime": "EventTime"}[self._time_mode]
            raise errors.ttl_in_wrong_mode(action, name, mode)

    def _parse_struct(self, schema: Schema) -> StructType:
        parsed = self._parse(schema) if isinstance(schema, str) else schema
        if not isinstance(parsed, StructType):
            raise errors.not_a_struct(parsed)
        return parsed


class SchemaParser:
    """Parses schemas with Spark, and remembers them for subtasks, which have no session.

    Args:
        session: The session that parses, also one of Spark Connect; None for the classic session of this process.

    Attributes:
        schemas: The parsed schemas by their text.
    """

    def __init__(self, session: SparkSession | None = None) -> None:
        self._session = session
        self.schemas: dict[str, StructType] = {}

    def __call__(self, text: str) -> StructType:
        if text not in self.schemas:
            try:
                parsed = self._data_type(text)
            except PySparkException as error:
                raise errors.invalid_schema(text, error) from error
            if not isinstance(parsed, StructType):
                raise errors.not_a_struct(text)
            self.schemas[text] = parsed
        return self.schemas[text]

    def _data_type(self, text: str) -> DataType:
        if self._session is None:
            return DataType.fromDDL(text)
        # As Spark parses schemas of processors. The public function needs a classic session, unless the whole
        # process is a client of Spark Connect.
        return self._session._parse_ddl(text)  # noqa: SLF001


TimeMode = Literal["none", "processingtime", "eventtime"]

TIME_MODES: dict[TimeMode, Literal["none", "processing", "event"]] = {
    "none": "none",
    "processingtime": "processing",
    "eventtime": "event",
}
"""The time modes of Holdfast's functions, by those of Spark."""


def check_output_mode(mode: str) -> None:
    """Check an output mode as Spark does. Raises `AnalysisException`, `IllegalArgumentException`."""
    if mode.lower() == "complete":
        raise AnalysisException(
            "[STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION] Invalid streaming output mode: complete. This output "
            "mode is not supported for transformWithState."
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
