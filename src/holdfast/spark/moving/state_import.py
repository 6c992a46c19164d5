"""The state of a stopped `transformWithState` query as a savepoint of a query with a Holdfast operator."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, cast

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from holdfast.backends.arrow import conform
from holdfast.backends.inspection import StateRows, shown_schema, write_keyed_tables, write_states
from holdfast.backends.keyed import HeapStateTables, KeyedStateBackend, TableSpec
from holdfast.backends.keys import KeyGroupRange
from holdfast.errors import InvalidRequestError
from holdfast.locations.metadata import StoredOperator, StoredSubtask
from holdfast.locations.storages import CheckpointStorageLocation
from holdfast.spark.checkpoint_location import spark_uri
from holdfast.spark.moving.spark_state import SparkState, describe
from holdfast.spark.processors import (
    NOTES,
    TIME_MODES,
    Declaration,
    notes_of,
    open_state,
    open_timers,
    struct_type,
)
from holdfast.spark.savepoints import NewOperator, StateRewrite

_log = logging.getLogger(__name__)

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
        configuration: Settings of Spark (`spark.holdfast.*`, `spark.hadoop.*`) for its stores; by
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
    """A planned import of Spark's state; nothing is written yet.

    Attributes:
        query: The query.
        state: The operator's state.
        uid: The operator.
        operator: The operator, without its state.
    """

    query: StateRewrite
    state: SparkState
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
        has_ticks = self.state.time_mode != "none"
        return self.query.write(target, self._operators, has_ticks=has_ticks)

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
        state, groups = self.state, self.operator.max_parallelism
        state_tables = HeapStateTables(KeyGroupRange(0, groups - 1))
        key = pa.schema(list(struct_type(state.key).arrow))
        backend = KeyedStateBackend(state_tables, key, groups)
        tables = []
        for variable in state.variables:
            open_state(backend, variable)
            spec = backend.specs()[variable.name]
            rows = rows_of_variable(spec, variable, state.rows(variable))
            tables.append((spec, StateRows(rows)))
        if state.has_timers:
            timers = open_timers(backend, cast("Any", state.time_mode))
            assert timers is not None
            spec = backend.specs()[timers.name]
            tables.append((spec, StateRows(rows_of_timers(spec, state.timers()))))
        return tables


def rows_of_variable(spec: TableSpec, declared: Declaration, rows: pa.Table) -> pa.Table:
    """Convert Spark's rows of a state variable to the columns of `shown_schema`.

    Args:
        spec: The columns and types of the Holdfast state.
        declared: The variable.
        rows: The rows from Spark's reader.
    """
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


def rows_of_timers(spec: TableSpec, rows: pa.Table) -> pa.Table:
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
