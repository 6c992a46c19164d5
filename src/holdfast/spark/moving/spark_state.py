"""The state of Spark's `transformWithState`, read with Spark's sources `state-metadata` and `statestore`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import msgspec
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, StructType

from holdfast.common import json_decoder
from holdfast.errors import InvalidRequestError
from holdfast.spark.processors import Declaration, parse_time_mode

_KINDS = {"ValueState": "value", "ListState": "list", "MapState": "map"}
_TIMERS = "TimerState"
_VALUES = {"value": "value", "list": "list_value", "map": "user_map_value"}
_OPERATOR = "transformWithState"
_TIME_MODES = {"NoTime": "None"}  # Spark stores another name than it accepts


class _Variable(msgspec.Struct):
    """Spark's description of a state variable."""

    stateName: str  # noqa: N815  # Spark's names
    stateVariableType: str  # noqa: N815
    ttlEnabled: bool = False  # noqa: N815


class _Properties(msgspec.Struct):
    """Spark's properties of an operator."""

    timeMode: str  # noqa: N815
    stateVariables: list[_Variable]  # noqa: N815


@dataclass(frozen=True)
class SparkState:
    """The state of the only stateful operator of a query, after a batch.

    Attributes:
        session: Reads the state.
        location: The query's checkpointLocation, as a URI for Spark.
        batch_id: The batch.
        time_mode: The operator's time mode.
        key: The key's columns.
        variables: The state variables.
        has_timers: Whether it has timers.
    """

    session: SparkSession
    location: str
    batch_id: int
    time_mode: str
    key: StructType
    variables: tuple[Declaration, ...]
    has_timers: bool

    @classmethod
    def of(
        cls, session: SparkSession, location: str, batch_id: int, ttl_ms: Mapping[str, int]
    ) -> Self:
        """Read the descriptions of the state; rows are read later.

        Args:
            session: Reads the state.
            location: The query's checkpointLocation.
            batch_id: The last completed batch.
            ttl_ms: Times to live by the variable's name, milliseconds, which Spark doesn't store.

        Raises:
            InvalidRequestError: The query has other state, or a time to live is missing or unexpected.
        """
        properties = _properties(session, location)
        kinds = {
            each.stateName: _KINDS[each.stateVariableType]
            for each in properties.stateVariables
            if each.stateVariableType in _KINDS
        }
        has_timers = any(each.stateVariableType == _TIMERS for each in properties.stateVariables)
        _check_ttls(properties, ttl_ms, location)
        schemas = {
            name: _reader(session, location, batch_id, kind, name).schema
            for name, kind in kinds.items()
        }
        if has_timers:
            timers = _reader(session, location, batch_id, "timers", None).schema
        if not (schemas or has_timers):
            raise InvalidRequestError("the query's processor has no state", location)
        first = next(iter(schemas.values())) if schemas else timers
        variables = (
            _declaration(name, kind, schemas[name], ttl_ms.get(name))
            for name, kind in kinds.items()
        )
        return cls(
            session=session,
            location=location,
            batch_id=batch_id,
            time_mode=parse_time_mode(_TIME_MODES.get(properties.timeMode, properties.timeMode)),
            key=_struct(first["key"].dataType, location),
            variables=tuple(variables),
            has_timers=has_timers,
        )

    def rows(self, variable: Declaration) -> pa.Table:
        """Read the rows of a variable."""
        return self._read(variable.kind, variable.name)

    def timers(self) -> pa.Table:
        """Read the timers."""
        return self._read("timers", None)

    def _read(self, kind: str, name: str | None) -> pa.Table:
        return _reader(self.session, self.location, self.batch_id, kind, name).toArrow()


def _reader(
    session: SparkSession, location: str, batch_id: int, kind: str, name: str | None
) -> DataFrame:
    reader = session.read.format("statestore").option("path", location).option("batchId", batch_id)
    if name is None:
        reader = reader.option("readRegisteredTimers", "true")
    else:
        reader = reader.option("stateVarName", name)
    # A list is one row, which keeps the order of its elements; a map has a row for each entry.
    return reader.option("flattenCollectionTypes", str(kind != "list").lower()).load()


def _properties(session: SparkSession, location: str) -> _Properties:
    try:
        operators: list[Any] = session.read.format("state-metadata").load(location).collect()
    except PySparkException as error:
        message = f"Spark can't read the metadata of the query's state ({_first_line(error)})"
        raise InvalidRequestError(message, location) from error
    names = sorted({row["operatorName"] for row in operators})
    if len({row["operatorId"] for row in operators}) != 1 or not names[0].startswith(_OPERATOR):
        message = (
            f"the query has state of operators {names}; only a single transformWithState without other stateful "
            "operators can be moved"
        )
        raise InvalidRequestError(message, location)
    try:
        return json_decoder(_Properties).decode(operators[0]["operatorProperties"])
    except msgspec.MsgspecError as error:
        message = f"this version can't read Spark's description of the operator's state ({error})"
        raise InvalidRequestError(message, location) from error


def _check_ttls(properties: _Properties, ttl_ms: Mapping[str, int], location: str) -> None:
    needed = {each.stateName for each in properties.stateVariables if each.ttlEnabled}
    if missing := sorted(needed - ttl_ms.keys()):
        message = (
            f"states {missing} have a time to live, which Spark does not store; pass it for each, in milliseconds, as in "
            "the processor: --ttl NAME=MS, ttl_ms={name: ms}"
        )
        raise InvalidRequestError(message, location)
    if unknown := sorted(ttl_ms.keys() - needed):
        message = f"states {unknown} have no time to live in the query; leave them out"
        raise InvalidRequestError(message, location)
    if wrong := sorted(name for name, ms in ttl_ms.items() if ms <= 0):
        raise InvalidRequestError(f"the times to live of {wrong} must be >= 1 ms", location)


def _declaration(name: str, kind: Any, schema: StructType, ttl_ms: int | None) -> Declaration:
    values = schema[_VALUES[kind]].dataType
    if isinstance(values, ArrayType):
        values = values.elementType
    if ttl_ms is not None:
        values = _struct(values, name)["value"].dataType
    key = _struct(schema["user_map_key"].dataType, name) if kind == "map" else None
    return Declaration(name, kind, _struct(values, name), key, ttl_ms)


def _struct(kind: Any, name: str) -> StructType:
    if not isinstance(kind, StructType):
        message = f"state {name!r} has type {kind.simpleString()}, not a struct; only state of processors in Python can be moved"
        raise InvalidRequestError(message)
    return kind


def _first_line(error: PySparkException) -> str:
    return (str(error).strip().splitlines() or [""])[0]


def describe(variable: Declaration) -> str:
    """Describe a state variable, for people."""
    key = f" by {variable.key_schema.simpleString()}" if variable.key_schema else ""
    ttl = f", lives {variable.ttl_ms} ms" if variable.ttl_ms else ""
    return f"{variable.kind} of {variable.schema.simpleString()}{key}{ttl}"
