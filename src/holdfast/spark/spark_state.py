"""The state of a stopped query of Spark: of a processor, or of a function for `applyInPandasWithState`.

Spark's sources `state-metadata` and `statestore` read the state. Here it is converted to rows of Holdfast's states.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import ArrayType, StructType

from holdfast.backends.arrow import conform
from holdfast.backends.inspection import StateRows, empty_backend, shown_schema
from holdfast.backends.keyed import TableSpec, combine_chunks
from holdfast.common import json_decoder
from holdfast.errors import InvalidRequestError
from holdfast.spark.compat import read_arrow
from holdfast.spark.processors import (
    STATE,
    TIME_MODE_OF_TIMEOUT,
    TIME_MODES,
    TIMEOUT,
    Declaration,
    TimeMode,
    open_state,
    open_timers,
    parse_time_mode,
    struct_type,
)

_KINDS = {"ValueState": "value", "ListState": "list", "MapState": "map"}
_TIMERS = "TimerState"
_VALUES = {"value": "value", "list": "list_value", "map": "user_map_value"}
_PROCESSOR = "transformWithState"
_WITH_GROUP_STATE = ("applyInPandasWithState", "flatMapGroupsWithState")
_GROUP_STATE = "groupState"
_TIMEOUT = "timeoutTimestamp"
_TIME_MODES = {"NoTime": "None"}  # Spark stores another name than it accepts
_EXPIRY = "ttlExpirationMs"


class _Variable(msgspec.Struct):
    """Spark's description of a state variable."""

    stateName: str  # noqa: N815  # Spark's names
    stateVariableType: str  # noqa: N815  # Spark's
    ttlEnabled: bool = False  # noqa: N815  # Spark's


class _Properties(msgspec.Struct):
    """Spark's properties of an operator."""

    timeMode: str  # noqa: N815  # Spark's
    stateVariables: list[_Variable]  # noqa: N815  # Spark's


class SparkState(Protocol):
    """The state of the only stateful operator of a query, after a batch.

    Attributes:
        key: The key's columns.
        time_mode: The time mode of the operator.
    """

    @property
    def key(self) -> StructType: ...
    @property
    def time_mode(self) -> TimeMode: ...

    @property
    def kept(self) -> dict[str, str]:
        """Descriptions of the states, for people, by name."""
        ...

    def tables(self, max_parallelism: int) -> list[tuple[TableSpec, StateRows]]:
        """Read the states: the specification and the rows of each."""
        ...


def spark_state(
    session: SparkSession,
    location: str,
    batch_id: int,
    *,
    ttl_ms: Mapping[str, int],
    timeout: str | None,
) -> SparkState:
    """Read the descriptions of a query's state, but no rows.

    Spark doesn't store times to live and kinds of timeouts.

    Args:
        session: The session that reads.
        location: The query's checkpointLocation, as a URI for Spark.
        batch_id: The batch whose state is read.
        ttl_ms: Times to live by the variable's name, milliseconds.
        timeout: The `timeoutConf` of a function with timeouts.

    Raises:
        InvalidRequestError: The query has other state, or a time to live or the timeout is missing or unexpected.
    """
    name, properties = _operator(session, location)
    if name in _WITH_GROUP_STATE:
        if ttl_ms:
            message = f"states of {name} have no time to live; leave out {sorted(ttl_ms)}"
            raise InvalidRequestError(message, location)
        return GroupStates.of(session, location, batch_id, timeout)
    if timeout is not None:
        raise InvalidRequestError(f"{name} has no timeouts; leave out {timeout!r}", location)
    return ProcessorState.of(session, location, batch_id, ttl_ms, properties)


@dataclass(frozen=True)
class GroupStates:
    """The states of a function for `applyInPandasWithState`; those of the Scala and Java methods have the same form."""

    rows: DataFrame
    key: StructType
    state: StructType
    time_mode: TimeMode

    @classmethod
    def of(cls, session: SparkSession, location: str, batch_id: int, timeout: str | None) -> Self:
        """Read the description of the states. Raises `InvalidRequestError` as `spark_state`."""
        reader = session.read.format("statestore").option("batchId", batch_id)
        rows = reader.load(location)
        value = _struct(rows.schema["value"].dataType, location)
        time_mode = TIME_MODE_OF_TIMEOUT.get(timeout or GroupStateTimeout.NoTimeout)
        if time_mode is None or (time_mode != "none") != (_TIMEOUT in value.names):
            kinds = [kind for kind, mode in TIME_MODE_OF_TIMEOUT.items() if mode != "none"]
            needed = f"be one of {kinds}, as in the query: --timeout KIND, timeout=kind"
            if _TIMEOUT not in value.names:
                needed = "be left out, because the query has no timeouts"
            raise InvalidRequestError(f"the timeout must {needed}; got {timeout!r}", location)
        return cls(
            rows=rows,
            key=_struct(rows.schema["key"].dataType, location),
            state=_struct(value[_GROUP_STATE].dataType, location),
            time_mode=time_mode,
        )

    @property
    def kept(self) -> dict[str, str]:
        kept = {STATE: describe(self._declared)}
        if self.time_mode != "none":
            kept[TIMEOUT.name] = f"timeouts of {TIME_MODES[self.time_mode]} time"
        return kept

    def tables(self, max_parallelism: int) -> list[tuple[TableSpec, StateRows]]:
        backend = empty_backend(pa.schema(list(struct_type(self.key).arrow)), max_parallelism)
        open_state(backend, self._declared)
        table = read_arrow(self.rows)
        values = combine_chunks(table["value"])
        spec = backend.specs()[STATE]
        states = _part(values, _GROUP_STATE)
        kind = struct_type(self.state).arrow
        present = states.is_valid()  # a key can have a timeout and no state
        columns = [*_key(spec, table.filter(present)), conform(states.filter(present), kind)]
        tables = [(spec, StateRows(_table(spec, columns)))]
        timers = open_timers(backend, self.time_mode)
        if timers is not None:
            open_state(backend, TIMEOUT)
            at_ms = _part(values, _TIMEOUT)
            is_set = pc.not_equal(at_ms, GroupState.NO_TIMESTAMP)
            at_ms, keys = at_ms.filter(is_set), table.filter(is_set)
            timer_ms = pc.add(at_ms, 1)
            spec = backend.specs()[TIMEOUT.name]
            fields = list(struct_type(TIMEOUT.schema).arrow)
            values = pa.StructArray.from_arrays([at_ms, timer_ms], fields=fields)
            tables.append((spec, StateRows(_table(spec, [*_key(spec, keys), values]))))
            spec = backend.specs()[timers.name]
            tables.append((spec, StateRows(_table(spec, [*_key(spec, keys), timer_ms]))))
        return tables

    @property
    def _declared(self) -> Declaration:
        return Declaration(STATE, "value", self.state)


@dataclass(frozen=True)
class ProcessorState:
    """The state of a processor, read by a session. `location` is the query's checkpointLocation, as a URI for Spark."""

    session: SparkSession
    location: str
    batch_id: int
    time_mode: TimeMode
    key: StructType
    variables: tuple[Declaration, ...]
    has_timers: bool

    @classmethod
    def of(
        cls,
        session: SparkSession,
        location: str,
        batch_id: int,
        ttl_ms: Mapping[str, int],
        description: str,
    ) -> Self:
        """Read the descriptions of the state. Raises `InvalidRequestError` as `spark_state`."""
        try:
            properties = json_decoder(_Properties).decode(description)
        except msgspec.MsgspecError as error:
            message = (
                f"this version can't read Spark's description of the operator's state ({error})"
            )
            raise InvalidRequestError(message, location) from error
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
        if not (schemas or has_timers):
            raise InvalidRequestError("the query's processor has no state", location)
        first = next(iter(schemas.values()), None)
        if first is None:
            first = _reader(session, location, batch_id, "timers", None).schema
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

    @property
    def kept(self) -> dict[str, str]:
        kept = {each.name: describe(each) for each in self.variables}
        if self.has_timers:
            kept["timers"] = f"timers of {TIME_MODES[self.time_mode]} time"
        return kept

    def tables(self, max_parallelism: int) -> list[tuple[TableSpec, StateRows]]:
        key = pa.schema(list(struct_type(self.key).arrow))
        backend = empty_backend(key, max_parallelism)
        tables = []
        for variable in self.variables:
            open_state(backend, variable)
            spec = backend.specs()[variable.name]
            rows = _rows_of_variable(spec, variable, self._read(variable.kind, variable.name))
            tables.append((spec, StateRows(rows)))
        if self.has_timers:
            timers = open_timers(backend, self.time_mode)
            assert timers is not None
            spec = backend.specs()[timers.name]
            tables.append((spec, StateRows(_rows_of_timers(spec, self._read("timers")))))
        return tables

    def _read(self, kind: str, name: str | None = None) -> pa.Table:
        """Read the rows of a variable, or those of `timers`."""
        return read_arrow(_reader(self.session, self.location, self.batch_id, kind, name))


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


def _operator(session: SparkSession, location: str) -> tuple[str, str]:
    """Return the name of a query's only stateful operator, and Spark's properties of it."""
    try:
        operators: list[Any] = session.read.format("state-metadata").load(location).collect()
    except PySparkException as error:
        message = f"Spark can't read the metadata of the query's state ({_first_line(error)})"
        raise InvalidRequestError(message, location) from error
    names = sorted({row["operatorName"] for row in operators})
    is_known = bool(names) and names[0].startswith((_PROCESSOR, *_WITH_GROUP_STATE))
    if len({row["operatorId"] for row in operators}) != 1 or not is_known:
        message = (
            f"the query has state of operators {names}; only a single transformWithState or applyInPandasWithState "
            "without other stateful operators can be moved"
        )
        raise InvalidRequestError(message, location)
    return names[0], operators[0]["operatorProperties"]


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


def _rows_of_variable(spec: TableSpec, declared: Declaration, rows: pa.Table) -> pa.Table:
    """Convert Spark's rows of a state variable to the columns of `shown_schema`."""
    columns = _key(spec, rows)
    type = struct_type(declared.schema).arrow
    if declared.kind == "map":
        assert declared.key_schema is not None
        columns.append(
            conform(combine_chunks(rows["user_map_key"]), struct_type(declared.key_schema).arrow)
        )
    if declared.kind == "list":
        columns += _lists(spec, combine_chunks(rows["list_value"]), type)
    else:
        values = combine_chunks(rows["value" if declared.kind == "value" else "user_map_value"])
        if spec.ttl_ms is None:
            columns.append(conform(values, type))
        else:
            columns += [
                conform(_part(values, "value"), type),
                _instants(pc.subtract(_part(values, _EXPIRY), spec.ttl_ms)),
            ]
    return _table(spec, columns)


def _rows_of_timers(spec: TableSpec, rows: pa.Table) -> pa.Table:
    """Convert Spark's rows of timers."""
    return _table(spec, [*_key(spec, rows), combine_chunks(rows["expiration_timestamp_ms"])])


def _table(spec: TableSpec, columns: list[pa.Array]) -> pa.Table:
    return pa.table(columns, shown_schema(spec).names)


def _key(spec: TableSpec, rows: pa.Table) -> list[pa.Array]:
    columns = combine_chunks(rows["key"]).flatten()
    return [conform(column, type) for column, type in zip(columns, spec.key.types, strict=True)]


def _lists(spec: TableSpec, lists: pa.ListArray, type: pa.DataType) -> list[pa.Array]:
    """Return the column of lists and, with a time to live, the last change of each."""
    stored = spec.values.field(0).type
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    bounds = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    elements, changed = lists.flatten(), []
    if spec.ttl_ms is None:
        elements = conform(elements, type)
    else:
        times = pc.subtract(_part(elements, _EXPIRY), spec.ttl_ms)
        added = conform(_part(elements, "value"), type)
        fields = list(stored.value_type)
        elements = pa.StructArray.from_arrays([times, added], fields=fields)
        times_ms = times.to_numpy(zero_copy_only=False)
        newest = np.maximum.reduceat(times_ms, bounds[:-1]) if len(lengths) else times_ms
        changed = [_instants(pa.array(newest, pa.int64()))]
    return [pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), elements, type=stored), *changed]


def _instants(milliseconds: pa.Array) -> pa.Array:
    return milliseconds.cast(pa.timestamp("ms", "UTC"))


def _part(values: pa.StructArray, name: str) -> pa.Array:
    return values.flatten()[values.type.get_field_index(name)]
