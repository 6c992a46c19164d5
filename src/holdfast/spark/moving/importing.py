"""The state of a stopped `transformWithState` query as a savepoint of a query with an operator of ours."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, cast

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession

from holdfast.backends.inspection import StateRows, write_keyed_tables, write_states
from holdfast.backends.keyed import HeapStateTables, KeyedStateBackend, TableSpec
from holdfast.backends.keys import KeyGroupRange
from holdfast.common import SYSTEM_CLOCK
from holdfast.errors import InvalidRequestError
from holdfast.locations.metadata import StoredOperator, StoredSubtask
from holdfast.locations.storages import CheckpointStorageLocation
from holdfast.spark.checkpoint_location import for_spark
from holdfast.spark.moving.descriptions import description
from holdfast.spark.moving.spark_state import SparkState
from holdfast.spark.moving.tables import rows_of_timers, rows_of_variable
from holdfast.spark.processors import (
    NOTES,
    TIME_MODES,
    notes_of,
    open_state,
    open_timers,
    struct_type,
)
from holdfast.spark.savepoints import NewOperator, QueryToExchange

_log = logging.getLogger(__name__)


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
    """Make a savepoint of a stopped query with Spark's `transformWithState`, for one with `keyed(…)` to go on from.

    `restore_savepoint` makes a checkpointLocation of it. The query that is started there over the same sources,
    with `keyed(rows, key, uid=uid, …).transformWithState(…)` and the same processor, goes on behind the last batch
    that was done, with the values, timers, times to live and the watermark of then. What it reads is left as it is.
    What is lost is logged as warnings before anything is written; `holdfast import spark-state --dry-run` only says it.

    Args:
        checkpoint_location: URI of the query's checkpointLocation. Its sink is lost: Holdfast writes by foreachBatch.
        target: URI of the directory to make the savepoint in; by default `spark.holdfast.savepoint.dir`.
        uid: Names the operator, as in `keyed`.
        parallelism: Number of its subtasks; the query may begin with another.
        max_parallelism: Number of its key groups, as for `keyed`.
        ttl_ms: For each state with a time to live how long that is, in milliseconds, as the processor declares it.
        configuration: Settings of Spark (`spark.holdfast.*`, `spark.hadoop.*`) that say how stores are reached; by
            default those of the session.

    Returns:
        Pointer to the savepoint: the URI of its directory.

    Raises:
        InvalidRequestError: An argument can't be used, the query runs, or it has other state than that of a single
            `transformWithState` in Python.
        CheckpointNotFoundError: The query has done no batch yet, or a file of it is gone.
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
        _log.warning("import of Spark's state: lost is %s", lost)
    return planned.write(target)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkStateImport:
    """State of Spark that is to become that of an operator; nothing is written yet.

    Attributes:
        query: The query.
        state: The operator's state.
        uid: The operator.
        operator: The operator, without its state.
    """

    query: QueryToExchange
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
        """Look at the query. Arguments and errors are those of `import_spark_state`."""
        query = QueryToExchange.at(checkpoint_location, configuration)
        session = SparkSession.getActiveSession()
        if session is None:
            raise InvalidRequestError("Spark's state is read by Spark; there is no session here")
        location = for_spark(query.stored.checkpoint_location)
        state = SparkState.of(session, location, query.batch.batch_id, ttl_ms)
        operator = NewOperator(parallelism, max_parallelism, tuple(state.key.names))
        return cls(query=query, state=state, uid=uid, operator=operator.without_state())

    @property
    def kept(self) -> dict[str, str]:
        """A description of what each state becomes, for people, by its name."""
        kept = {each.name: description(each) for each in self.state.variables}
        if self.state.has_timers:
            kept["timers"] = f"timers of {TIME_MODES[self.state.time_mode]} time"  # type: ignore[index]
        return kept

    @property
    def lost(self) -> list[str]:
        """What is not moved, for people."""
        done = self.query.batch.batch_id
        lost = [
            "the sink, and its log of written files: the query goes on with foreachBatch",
            f"state before batch {done}: there is no way back to an earlier batch",
            "numbers of Spark's state in lastProgress: see SubtaskStatistics",
        ]
        if self.query.begun is not None:
            lost.append(
                f"the plan of batch {self.query.begun}, which was begun and is not done: it is planned anew, and "
                "the function of foreachBatch has to replace what was written of it"
            )
        return lost

    def write(self, target: str | None) -> str:
        """Write the savepoint; gives the pointer to it. Errors are those of `import_spark_state`."""
        wakes = self.state.time_mode != "none"
        return self.query.write(target, self._operators, wakes=wakes, clock=SYSTEM_CLOCK)

    def _operators(self, location: CheckpointStorageLocation) -> dict[str, StoredOperator]:
        """The operator with its state, which is written."""
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
        """The specifications of a processor's states, and the rows that they get."""
        state, groups = self.state, self.operator.max_parallelism
        holders = HeapStateTables(KeyGroupRange(0, groups - 1))
        key = pa.schema(list(struct_type(state.key).arrow))
        backend = KeyedStateBackend(holders, key, groups)
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
