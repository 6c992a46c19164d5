"""What a processor declares in `init`: its state variables, checked as Spark does."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pyspark.errors import PySparkException
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
    """A state variable.

    Attributes:
        name: The variable's name.
        kind: Which kind of state it is.
        schema: The fields of its values.
        key_schema: The fields of a map's keys; None for other kinds.
        ttl_ms: How long values, elements or entries live, milliseconds; None for ever.
    """

    name: str
    kind: Kind
    schema: StructType
    key_schema: StructType | None = None
    ttl_ms: int | None = None


@dataclass(frozen=True)
class Declared:
    """What a processor declared, all in all.

    Attributes:
        variables: The variables of the processor.
        given_up: The variables that it declared, and then deleted.
        deleted: Names of all that it deleted.
    """

    variables: tuple[Declaration, ...]
    given_up: tuple[Declaration, ...]
    deleted: tuple[str, ...] = ()


class Declarations:
    """Takes down what a processor declares.

    Args:
        time_mode: The query's time mode, in lower case.
        parse: Makes a schema of a text.

    Attributes:
        variables: The variables by name.
        given_up: The variables that were declared and then deleted.
        deleted: Names of variables whose state is to be deleted before the batch's rows are processed.
    """

    def __init__(self, time_mode: str, parse: Callable[[str], StructType]) -> None:
        self._time_mode = time_mode
        self._parse = parse
        self.variables: dict[str, Declaration] = {}
        self.given_up: list[Declaration] = []
        self.deleted: list[str] = []

    def declare(
        self,
        kind: Kind,
        name: str,
        schema: Schema,
        ttl_ms: int | None,
        key_schema: Schema | None = None,
    ) -> Declaration:
        """Take down a variable.

        Raises:
            StatefulProcessorError: It can't be declared; Spark's class and words.
            TypeError: The time to live is no whole number.
            InvalidRequestError: The keys of a map have a collation.
        """
        doing = f"initializing {kind} state"
        parsed_key = None if key_schema is None else self._parsed(key_schema)
        if parsed_key is not None and is_collated(parsed_key):
            message = (
                f"the keys of map state {name!r} have type {parsed_key.simpleString()}, and state compares the bytes of "
                "strings; declare them as string, and give keys that are alike, such as upper(...) of them"
            )
            raise InvalidRequestError(message)
        parsed = self._parsed(schema)
        if not isinstance(name, str):
            message = f"the name of a state is {name!r}, and must be a string"
            raise TypeError(message)
        if name.startswith("$") or _INVALID_NAME.fullmatch(name):
            raise errors.invalid_name(doing, name)
        before = self.variables.get(name)
        if before is not None:
            raise errors.duplicate_variable(doing, name, kind, before.kind)
        if ttl_ms is not None:
            self._check_ttl(doing, name, ttl_ms)
        declaration = Declaration(name, kind, parsed, parsed_key, ttl_ms or None)
        self.variables[name] = declaration
        return declaration

    @property
    def result(self) -> Declared:
        """What was declared, all in all."""
        return Declared(tuple(self.variables.values()), tuple(self.given_up), tuple(self.deleted))

    def delete(self, name: str) -> None:
        """Take down that a variable's state is to be deleted."""
        declaration = self.variables.pop(name, None)
        if declaration is not None:
            self.given_up.append(declaration)
        if name not in self.deleted:
            self.deleted.append(name)

    def _check_ttl(self, doing: str, name: str, ttl_ms: int) -> None:
        if isinstance(ttl_ms, bool) or not isinstance(ttl_ms, int):
            message = (
                f"the time to live of state {name!r} is {ttl_ms!r}, and must be a whole number"
            )
            raise TypeError(message)
        if ttl_ms < 0:
            raise errors.invalid_ttl(doing, name, ttl_ms)
        if ttl_ms and self._time_mode != "processingtime":
            mode = {"none": "NoTime", "eventtime": "EventTime"}[self._time_mode]
            raise errors.ttl_in_wrong_mode(doing, name, mode)

    def _parsed(self, schema: Schema) -> StructType:
        parsed = self._parse(schema) if isinstance(schema, str) else schema
        if not isinstance(parsed, StructType):
            raise errors.not_a_struct(parsed)
        return parsed


class SchemaParser:
    """Parses schemas by Spark, and remembers them, so that they are known where there is no session.

    Args:
        session: Parses them, also one of Spark Connect; None for the classic session of this process.

    Attributes:
        parsed: What was parsed, by the text.
    """

    def __init__(self, session: SparkSession | None = None) -> None:
        self._session = session
        self.parsed: dict[str, StructType] = {}

    def __call__(self, text: str) -> StructType:
        if text not in self.parsed:
            try:
                parsed = self._data_type(text)
            except PySparkException as error:
                raise errors.invalid_schema(text, error) from error
            if not isinstance(parsed, StructType):
                raise errors.not_a_struct(text)
            self.parsed[text] = parsed
        return self.parsed[text]

    def _data_type(self, text: str) -> DataType:
        if self._session is None:
            return DataType.fromDDL(text)
        # Spark's own way with schemas of processors. The public one asks for a classic session, unless all of the
        # process is a client of Spark Connect.
        return self._session._parse_ddl(text)  # noqa: SLF001
