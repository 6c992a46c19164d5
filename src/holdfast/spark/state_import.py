"""The state of a stopped `transformWithState` query as a savepoint of a query with a Holdfast operator.

Spark's sources `state-metadata` and `statestore` read the state; `SparkStateImport` converts it and writes the savepoint.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, cast

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, StructType

from holdfast.backends.arrow import conform
from holdfast.backends.inspection import (
    StateRows,
    empty_backend,
    shown_schema,
    write_keyed_tables,
    write_states,
)
from holdfast.backends.keyed import TableSpec
from holdfast.common import json_decoder
from holdfast.errors import InvalidRequestError
from holdfast.locations.metadata import StoredOperator, StoredSubtask
from holdfast.locations.storages import CheckpointStorageLocation
from holdfast.spark.checkpoint_location import spark_uri
from holdfast.spark.compat import read_arrow, require_pyspark_4
from holdfast.spark.processors import (
    NOTES,
    TIME_MODES,
    Declaration,
    notes_of,
    open_state,
    open_timers,
    parse_time_mode,
    struct_type,
)
from holdfast.spark.savepoints import NewOperator, StateRewrite

_log = logging.getLogger(__name__)

_KINDS = {"ValueState": "value", "ListState": "list", "MapState": "map"}
_TIMERS = "TimerState"
_VALUES = {"value": "value", "list": "list_value", "map": "user_map_value"}
_OPERATOR = "transformWithState"
_TIME_MODES = {"NoTime": "None"}  # Spark stores another name than it accepts
_EXPIRY = "ttlExpirationMs"


def import_spark_state(
    checkpoint_location: str,
    target: str | None = None,
    *,
    uid: str,
    parallelism: int,
    max_parallelism: int | None = None,
    ttl_ms: Mapping[str, int] | None = None,
    configuration: Mapping[str, str] | None = None,
) -> str:
    """Make a savepoint of a stopped query with Spark's `transformWithState`, from which a query with `keyed(…)` resumes.

    `restore_savepoint` makes a checkpointLocation of it. The query that is started there with the same sources,
    `keyed(rows, key, uid=uid, …).transformWithState(…)` and the same processor resumes after the last completed
    batch, with its values, timers, times to live and watermark. Spark's files are not changed. Losses are logged
    as warnings before anything is written; `holdfast import spark-state --dry-run` only reports them.

    Args:
        checkpoint_location: URI of the query's checkpointLocation. Its sink is lost: Holdfast writes by foreachBatch.
        target: URI of the directory to make the savepoint in; by default `spark.holdfast.savepoint.dir`.
        uid: Names the operator, as in `keyed`.
        parallelism: Number of its subtasks; the query may start with another number.
        max_parallelism: Number of its key groups, as for `keyed`.
        ttl_ms: The time to live of each state that has one, in milliseconds, as the processor declares it.
        configuration: Spark settings (`spark.holdfast.*`, `spark.hadoop.*`) for its stores; by
            default those of the session.

    Returns:
        Pointer to the savepoint: the URI of its directory.

    Raises:
        InvalidRequestError: An argument can't be used, the query runs, or it has other state than that of a single
            `transformWithState` in Python.
        CheckpointNotFoundError: The query has not completed a batch yet, or a file of it is gone.
        StorageUnavailableError: Something could not be read or written; no savepoint was made.
    """
    planned = SparkStateImport.of(
        checkpoint_location,
        uid=uid,
        parallelism=parallelism,
        max_parallelism=max_parallelism,
        ttl_ms=ttl_ms or {},
        configuration=configuration,
    )
    for lost in planned.lost:
        _log.warning("import of Spark's state loses %s", lost)
    return planned.write(target)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkStateImport:
    """A planned import of Spark's state; nothing is written yet. `operator` is without its state."""

    query: StateRewrite
    state: "SparkState"
    uid: str
    operator: StoredOperator

    @classmethod
    def of(
        cls,
        checkpoint_location: str,
        *,
        uid: str,
        parallelism: int,
        max_parallelism: int | None = None,
        ttl_ms: Mapping[str, int],
        configuration: Mapping[str, str] | None = None,
    ) -> Self:
        """Plan an import. Arguments and errors of `import_spark_state`."""
        require_pyspark_4(
            "reading the state of transformWithState",
            "import it with a newer PySpark; a query on PySpark 3.5 can resume from the savepoint",
        )
        query = StateRewrite.at(checkpoint_location, configuration)
        session = SparkSession.getActiveSession()
        if session is None:
            raise InvalidRequestError("reading Spark's state needs an active Spark session")
        location = spark_uri(query.stored.checkpoint_location)
        state = SparkState.of(session, location, query.batch.batch_id, ttl_ms)
        operator = NewOperator(parallelism, max_parallelism, tuple(state.key.names))
        return cls(query=query, state=state, uid=uid, operator=operator.without_state())

    @property
    def kept(self) -> dict[str, str]:
        """Descriptions of the imported states, for people, by name."""
        kept = {each.name: describe(each) for each in self.state.variables}
        if self.state.has_timers:
            kept["timers"] = f"timers of {TIME_MODES[self.state.time_mode]} time"  # type: ignore[index]
        return kept

    @property
    def lost(self) -> list[str]:
        """Descriptions of losses, for people."""
        last = self.query.batch.batch_id
        lost = [
            "the sink, and its log of written files: the query writes by foreachBatch",
            f"state before batch {last}: the query can't be rolled back to an earlier batch",
            "metrics of Spark's state in lastProgress: see SubtaskStatistics",
        ]
        if self.query.uncommitted is not None:
            lost.append(
                f"the plan of batch {self.query.uncommitted}, which was begun but not committed: it is planned again, and "
                "the foreachBatch function has to replace its output"
            )
        return lost

    def write(self, target: str | None) -> str:
        """Write the savepoint and return its pointer. Errors of `import_spark_state`."""
        return self.query.write(target, self._operators, has_ticks=self.state.time_mode != "none")

    def _operators(self, location: CheckpointStorageLocation) -> dict[str, StoredOperator]:
        """Write the operator's state; return the operator with it."""
        operator = self.operator
        time_mode = cast("Any", self.state.time_mode)
        segments = write_keyed_tables(
            self._tables(),
            location,
            parallelism=operator.parallelism,
            max_parallelism=operator.max_parallelism,
        )
        subtasks = {
            index: StoredSubtask(managed_keyed=(tables,)) for index, tables in segments.items()
        }
        notes = notes_of(time_mode)
        rows = pa.table({"key": list(notes), "value": list(notes.values())})
        handles = write_states(
            {NOTES.name: StateRows(rows, NOTES)},
            location,
            parallelism=operator.parallelism,
            replaced={},
        )
        for index, handle in handles.items():
            subtasks[index] = msgspec.structs.replace(subtasks[index], managed_operator=(handle,))
        return {self.uid: msgspec.structs.replace(operator, subtasks=subtasks)}

    def _tables(self) -> list[tuple[TableSpec, StateRows]]:
        """Return the specifications of the processor's states, and their rows."""
        state = self.state
        key = pa.schema(list(struct_type(state.key).arrow))
        backend = empty_backend(key, self.operator.max_parallelism)
        tables = []
        for variable in state.variables:
            open_state(backend, variable)
            spec = backend.specs()[variable.name]
            rows = _rows_of_variable(spec, variable, state.read(variable.kind, variable.name))
            tables.append((spec, StateRows(rows)))
        if state.has_timers:
            timers = open_timers(backend, cast("Any", state.time_mode))
            assert timers is not None
            spec = backend.specs()[timers.name]
            tables.append((spec, StateRows(_rows_of_timers(spec, state.read("timers")))))
        return tables


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
    """The state of the only stateful operator of a query, after a batch, read by a session.

    `location` is the query's checkpointLocation, as a URI for Spark.
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
        """Read the descriptions of the state, but no rows.

        Spark doesn't store times to live: `ttl_ms` has them by the variable's name, in milliseconds.

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

    def read(self, kind: str, name: str | None = None) -> pa.Table:
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


def _rows_of_variable(spec: TableSpec, declared: Declaration, rows: pa.Table) -> pa.Table:
    """Convert Spark's rows of a state variable to the columns of `shown_schema`."""
    columns = _key(spec, rows)
    type = struct_type(declared.schema).arrow
    if declared.kind == "map":
        assert declared.key_schema is not None
        columns.append(
            conform(_whole(rows["user_map_key"]), struct_type(declared.key_schema).arrow)
        )
    if declared.kind == "list":
        columns += _lists(spec, _whole(rows["list_value"]), type)
    else:
        values = _whole(rows["value" if declared.kind == "value" else "user_map_value"])
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
    return _table(spec, [*_key(spec, rows), _whole(rows["expiration_timestamp_ms"])])


def _table(spec: TableSpec, columns: list[pa.Array]) -> pa.Table:
    return pa.table(columns, shown_schema(spec).names)


def _key(spec: TableSpec, rows: pa.Table) -> list[pa.Array]:
    columns = _whole(rows["key"]).flatten()
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


def _whole(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    return pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole
