"""The state of a stopped query of Spark as a savepoint of a query with a Holdfast operator.

`spark_state` reads and converts the state; `SparkStateImport` writes the savepoint.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession

from holdfast.backends.inspection import StateRows, write_keyed_tables, write_states
from holdfast.errors import InvalidRequestError
from holdfast.locations.metadata import StoredOperator, StoredSubtask
from holdfast.locations.storages import CheckpointStorageLocation
from holdfast.spark.checkpoint_location import spark_uri
from holdfast.spark.compat import require_pyspark_4
from holdfast.spark.processors import NOTES, notes_of
from holdfast.spark.savepoints import NewOperator, StateRewrite
from holdfast.spark.spark_state import SparkState, spark_state

_log = logging.getLogger(__name__)


def import_spark_state(
    checkpoint_location: str,
    target: str | None = None,
    *,
    uid: str,
    parallelism: int,
    max_parallelism: int | None = None,
    ttl_ms: Mapping[str, int] | None = None,
    timeout: str | None = None,
    configuration: Mapping[str, str] | None = None,
) -> str:
    """Make a savepoint of a stopped query of Spark, from which a query with `keyed(…)` resumes.

    The query has `transformWithState` or `applyInPandasWithState`. `restore_savepoint` makes a checkpointLocation of
    the savepoint. The query that is started there with the same sources, the same method of `keyed(rows, key, uid=uid, …)`
    and the same processor or function resumes after the last completed batch, with its values, timers, timeouts,
    times to live and watermark. Spark's files are not changed. Losses are logged as warnings before anything is
    written; `holdfast import spark-state --dry-run` only reports them.

    Args:
        checkpoint_location: URI of the query's checkpointLocation. Its sink is lost: Holdfast writes by foreachBatch.
        target: URI of the directory to make the savepoint in; by default `spark.holdfast.savepoint.dir`.
        uid: Names the operator, as in `keyed`.
        parallelism: Number of its subtasks; the query may start with another number.
        max_parallelism: Number of its key groups, as for `keyed`.
        ttl_ms: The time to live of each state that has one, in milliseconds, as the processor declares it.
        timeout: The `timeoutConf` of a query with `applyInPandasWithState` whose keys have timeouts.
        configuration: Spark settings (`spark.holdfast.*`, `spark.hadoop.*`) for its stores; by
            default those of the session.

    Returns:
        Pointer to the savepoint: the URI of its directory.

    Raises:
        InvalidRequestError: An argument can't be used, the query runs, or it has other state than that of a single
            `transformWithState` in Python or `applyInPandasWithState`.
        CheckpointNotFoundError: The query has not completed a batch yet, or a file of it is gone.
        StorageUnavailableError: Something could not be read or written; no savepoint was made.
    """
    planned = SparkStateImport.of(
        checkpoint_location,
        uid=uid,
        parallelism=parallelism,
        max_parallelism=max_parallelism,
        ttl_ms=ttl_ms or {},
        timeout=timeout,
        configuration=configuration,
    )
    for lost in planned.lost:
        _log.warning("import of Spark's state loses %s", lost)
    return planned.write(target)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkStateImport:
    """A planned import of Spark's state; nothing is written yet. `operator` is without its state."""

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
        timeout: str | None = None,
        configuration: Mapping[str, str] | None = None,
    ) -> Self:
        """Plan an import. Arguments and errors of `import_spark_state`."""
        require_pyspark_4(
            "reading Spark's state",
            "import it with a newer PySpark; a query on PySpark 3.5 can resume from the savepoint",
        )
        query = StateRewrite.at(checkpoint_location, configuration)
        session = SparkSession.getActiveSession()
        if session is None:
            raise InvalidRequestError("reading Spark's state needs an active Spark session")
        location = spark_uri(query.stored.checkpoint_location)
        state = spark_state(session, location, query.batch.batch_id, ttl_ms=ttl_ms, timeout=timeout)
        operator = NewOperator(parallelism, max_parallelism, tuple(state.key.names))
        return cls(query=query, state=state, uid=uid, operator=operator.without_state())

    @property
    def kept(self) -> dict[str, str]:
        """Descriptions of the imported states, for people, by name."""
        return self.state.kept

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
        segments = write_keyed_tables(
            self.state.tables(operator.max_parallelism),
            location,
            parallelism=operator.parallelism,
            max_parallelism=operator.max_parallelism,
        )
        subtasks = {
            index: StoredSubtask(managed_keyed=(tables,)) for index, tables in segments.items()
        }
        notes = notes_of(self.state.time_mode)
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
