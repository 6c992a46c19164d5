"""`stateful` and `stateful_query`: operators with state, as functions for `foreachBatch`."""

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from holdfast.common import SYSTEM_CLOCK, Clock
from holdfast.errors import CheckpointDeclinedError, CheckpointError, InvalidRequestError
from holdfast.spark import sessions
from holdfast.spark.engines import Engine, RunningQuery, engine_of, error_of_task
from holdfast.spark.event_time import IdleTicks
from holdfast.spark.operators import (
    Broadcast,
    CheckpointedSink,
    Operator,
    Sink,
    StatefulFunction,
    check_callable,
    check_sinks,
)
from holdfast.spark.query.batch_run import check_no_batch, current_batch
from holdfast.spark.query.query_run import QueryRun
from holdfast.spark.settings import check_settings

_log = logging.getLogger(__name__)


def stateful(
    function: StatefulFunction,
    *,
    uid: str,
    parallelism: int | None = None,
    sink: Sink | None = None,
    max_parallelism: int | None = None,
    key: str | Sequence[str] | None = None,
    broadcast: Broadcast | None = None,
    schema: StructType | str | None = None,
    persist: bool = False,
    forward: bool = False,
    event_time: str | None = None,
    idle_ticks: IdleTicks | None = None,
    side_outputs: Mapping[str, StructType | str] | None = None,
    late_rows: bool = False,
) -> "StatefulOperator":
    """Make an operator with state from a function; pass the result to `foreachBatch`.

    Every micro-batch is a checkpoint: the state after batch N and Spark's progress through
    batch N are stored together once the sink has written the batch. After a crash the query
    resumes from the last completed checkpoint. The sink may then get one batch again, with the
    same batch id: it must replace the output that it wrote for that id.

    For a query with several operators, pass a function that applies them to `stateful_query`.

    Args:
        function: The operator; it is pickled to the executors.
        uid: Identifies the operator's state in checkpoints; keep it for the life of the job.
        parallelism: Number of subtasks, 1 to `max_parallelism`; each has its own part of the
            state. Another number redistributes the state when the query is started again. None keeps the number
            of the checkpoint; a new operator gets Spark's default parallelism, at most `max_parallelism`.
        sink: Writes the output rows. It must read all of them in one action, and let errors
            through. Without a sink they are dropped. The sink and the function can also be
            `CheckpointListener`s, which are notified on the driver.
        max_parallelism: Number of key groups, `parallelism` to 32768; it can't be changed once
            there is a checkpoint. None keeps the number of the checkpoint; a new operator gets a
            power of two that leaves room to grow, at least 128.
        key: Columns that route rows to subtasks: rows with equal keys go to the same subtask, through
            key groups. Without a key rows are distributed evenly.
        broadcast: Returns rows for every subtask, which are processed before the rows of the batch; the
            function has to be a `BroadcastProcessFunction`.
        schema: Spark schema of the output rows, if it isn't the input's.
        persist: Keep the output rows in Spark's cache until the end of the batch, so that they can
            be read in several actions. With Spark Connect they are always kept.
        forward: Leave rows in their partitions, one for each subtask, instead of distributing them
            evenly, which needs a shuffle. If they have more partitions than subtasks, some are
            coalesced; with fewer, after a shuffle, or with Spark Connect rows are distributed anyway. A
            subtask whose partition has no rows can't yield any, and the sink must neither `coalesce` the
            rows nor put other rows before them: the batch would fail.
        event_time: The column that decides whether a row is late, a timestamp or a window, if the function's
            `time_mode` is `event`. By default the column that was passed to `withWatermark`; a column computed
            from it has to be named.
        idle_ticks: Requests batches when timers are due and no rows arrive; see `IdleTicks`.
        side_outputs: Spark schemas of further outputs by name, to which the function emits rows with
            `context.side_output(name)`. An operator with side outputs runs at once, and keeps all output rows in
            Spark's cache, as with `persist`.
        late_rows: Put the late rows into the side output "late" instead of only counting them, if the function's
            `time_mode` is `event`.

    Raises:
        InvalidRequestError: An argument or a setting of the active session is not valid. Settings that are
            set later are checked in the first micro-batch.
    """
    check_settings(sessions.configuration())
    return StatefulOperator(
        Operator(
            function=function,
            sink=sink,
            uid=uid,
            parallelism=parallelism,
            max_parallelism=max_parallelism,
            key=(key,) if isinstance(key, str) else tuple(key or ()),
            broadcast=broadcast,
            schema=schema,
            persist=persist,
            forward=forward,
            event_time=event_time,
            side_outputs=side_outputs or {},
            late_rows=late_rows,
        ),
        idle_ticks,
    )


def stateful_query(
    process: Sink,
    *operators: "StatefulOperator",
    sinks: Mapping[str, CheckpointedSink] | None = None,
    idle_ticks: IdleTicks | None = None,
) -> "StatefulQuery":
    """Make a query of several operators; pass the result to `foreachBatch`.

    One checkpoint holds the state of all of them.

    Args:
        process: Called with the rows of a batch and its id; applies each operator once
            (`StatefulOperator.apply`), and writes the output. The rows of an operator have to be
            read in one action; if they are read several times, the operator needs `persist=True`.
        operators: All operators that `process` applies. They have neither sinks nor idle ticks.
        sinks: The sinks with state that `process` calls, by name. The name identifies the sink's state in
            checkpoints; keep it for the life of the job. Sinks without state are not named here.
        idle_ticks: Requests batches when timers of an operator are due and no rows arrive. In a batch
            that was only run for timers, if no timer is due, the function isn't called.

    Raises:
        InvalidRequestError: There is no operator, two have the same uid, or an operator has a sink or
            idle ticks; or a sink has no state, or two names.
    """
    check_callable("function", process)
    check_sinks(process, sinks or {})
    by_uid: dict[str, Operator] = {}
    for given in operators:
        if not isinstance(given, StatefulOperator):
            name = type(given).__name__
            raise InvalidRequestError(f"{name} is not an operator; make one with stateful(...)")
        operator = given.operator
        if operator.uid in by_uid:
            message = f"two operators have the uid {operator.uid!r}; each needs its own uid"
            raise InvalidRequestError(message)
        if operator.sink is not None:
            message = f"operator {operator.uid!r} has a sink; here the function writes its rows"
            raise InvalidRequestError(message)
        if given.idle_ticks is not None:
            message = f"operator {operator.uid!r} has idle_ticks; pass them to stateful_query(...) instead"
            raise InvalidRequestError(message)
        by_uid[operator.uid] = operator
    if not by_uid:
        raise InvalidRequestError(
            "no operator was given; pass all operators that the function applies"
        )
    return StatefulQuery(process, by_uid, idle_ticks, sinks=sinks)


_Arguments = tuple[
    Sink | None, dict[str, Operator], IdleTicks | None, Clock, dict[str, CheckpointedSink]
]


class StatefulQuery:
    """A function for `foreachBatch` that makes a checkpoint of each batch.

    Spark calls it once a micro-batch, from the thread of the query. It may serve several queries,
    unless it has a sink with state, or idle ticks.
    """

    def __init__(
        self,
        process: Sink | None,
        operators: dict[str, Operator],
        idle_ticks: IdleTicks | None = None,
        clock: Clock = SYSTEM_CLOCK,
        sinks: Mapping[str, CheckpointedSink] | None = None,
    ) -> None:
        self._process = process
        self._operators = operators
        self._sinks = dict(sinks or {})
        self.idle_ticks = idle_ticks
        self._clock = clock
        self._lock = threading.Lock()
        self._runs: dict[str, QueryRun] = {}  # by query
        self._client_session: SparkSession | None = None
        self._last_engine: Engine | None = None
        self._last_query: RunningQuery | None = None

    def __getstate__(self) -> "_Arguments":
        return self._process, self._operators, self.idle_ticks, self._clock, self._sinks

    def __setstate__(self, state: "_Arguments") -> None:
        StatefulQuery.__init__(self, *state)
        # Spark Connect pickles it to the process that runs the batches. Only now the active session
        # is the client's session, which knows the query; later it is the query's copy.
        self._client_session = SparkSession.getActiveSession()

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        check_no_batch()
        engine = self._engine(batch.sparkSession)
        query = self._last_query = engine.running_query(self._last_query)
        try:
            self._run_batch(batch, batch_id, engine, query)
        except Exception as error:
            stop_error = engine.stop_error(query, error)
            if stop_error is not None:
                raise stop_error from None
            own = error if isinstance(error, CheckpointError) else error_of_task(error)
            if own is None:
                raise
            # Spark's log and Spark's error would show the traceback above the message.
            raise own.with_traceback(None) from (own.__cause__ if own is error else None)

    def _run_batch(
        self, batch: DataFrame, batch_id: int, engine: Engine, query: RunningQuery
    ) -> None:
        """Run a batch in the query's run, which its first batch starts.

        If rows of an operator were lost and computed again, the batch is repeated, as after a restart of the query.
        """
        call = _first_call(query, batch_id, self._operators)
        run = self._run_of(engine, query)
        try:
            for attempt in range(1, _MAX_REPETITIONS + 1):
                try:
                    run.run_batch(batch, batch_id, engine, query)
                except CheckpointDeclinedError as error:
                    if not error.is_repeatable:
                        raise
                    message = "batch %d is repeated (%d of at most %d times): %s"
                    _log.warning(message, batch_id, attempt, _MAX_REPETITIONS, error)
                    run.prepare_repetition(engine)
                else:
                    return
            run.run_batch(batch, batch_id, engine, query)
        except BaseException:
            call.has_failed = True
            with self._lock:  # the next run reads the outcome from storage
                if self._runs.get(query.query_id) is run:
                    del self._runs[query.query_id]
            raise

    def _run_of(self, engine: Engine, query: RunningQuery) -> QueryRun:
        """Return the run of the query; start one if the query has no run."""
        with self._lock:
            run = self._runs.get(query.query_id)
        if run is None or run.run_id != query.run_id:
            run = QueryRun.start(
                self._process,
                self._operators,
                self._sinks,
                engine,
                query,
                idle_ticks=self.idle_ticks,
                clock=self._clock,
            )
            with self._lock:
                self._check_single_query(run, query)
                self._runs.pop(query.query_id, None)
                self._runs[query.query_id] = run
                if len(self._runs) > _MAX_RUNS:  # most have ended, which Spark does not report here
                    del self._runs[next(iter(self._runs))]
        return run

    def _check_single_query(self, run: QueryRun, query: RunningQuery) -> None:
        """Refuse to serve another query with objects that belong to a single query."""
        if not self._runs.keys() - {query.query_id}:
            return
        if run.sinks:
            raise InvalidRequestError(
                "a sink with state serves one query, and this one has served another; make a sink, and "
                "the operators that use it, for each query"
            )
        if run.idle_ticks is not None:
            raise InvalidRequestError(
                "idle_ticks serve one query, and these have served another; make an IdleTicks(), and the "
                "operators that use it, for each query"
            )

    def _engine(self, session: SparkSession) -> Engine:
        """Return the engine of a session, cached: with Spark Connect it takes a while to find the query."""
        if self._last_engine is None or self._last_engine.session is not session:
            self._last_engine = engine_of(session, self._client_session, self._clock)
        return self._last_engine


class StatefulOperator(StatefulQuery):
    """An operator with state, made by `stateful`.

    Pass it to `foreachBatch`, or `apply` it in a function that is passed to `stateful_query`.
    """

    def __init__(self, operator: Operator, idle_ticks: IdleTicks | None = None) -> None:
        super().__init__(None, {operator.uid: operator}, idle_ticks)

    @property
    def operator(self) -> Operator:
        """The arguments of `stateful`."""
        (operator,) = self._operators.values()
        return operator

    def apply(self, rows: DataFrame, *, broadcast: DataFrame | None = None) -> DataFrame:
        """Run rows of the batch through the operator.

        Args:
            rows: The rows: the batch itself, or rows computed from it.
            broadcast: Few rows for every subtask, which are processed first.

        Returns:
            The operator's output. It is computed when it is read; with Spark Connect immediately, and kept
            until the end of the batch.

        Raises:
            InvalidRequestError: It is not called in a function of `stateful_query`, or twice in
                a batch, or the rows are not suitable for the operator.
        """
        return current_batch().apply(self.operator, rows, broadcast)

    def side_output(self, name: str) -> DataFrame:
        """Return the rows of a side output, from the same pass as the main output.

        Call it in the function of `stateful_query` after `apply`, or in the operator's sink.

        Args:
            name: A name of `side_outputs`; "late" for the late rows, if the operator has `late_rows=True`.

        Raises:
            InvalidRequestError: The operator has no such side output, or was not applied in the batch yet.
        """
        return current_batch().side_output(self.operator, name)


@dataclass(slots=True)
class _Call:
    """A call by `foreachBatch`."""

    run_id: str
    batch_id: int
    has_failed: bool = False


_last_calls: dict[str, _Call] = {}
"""The last call for each query, by its id, for all functions; the least recently called query first."""

_MAX_REPETITIONS = 2
"""Repetitions of a batch in one call, after which the query fails."""

_MAX_RUNS = 100
"""Runs that one function keeps. If an active one was removed, its next batch starts it again."""

_MAX_QUERIES = 1000
"""Queries of one driver whose last call is kept; most of them have ended."""


def _first_call(query: RunningQuery, batch_id: int, operators: Iterable[str]) -> _Call:
    """Record a call, and refuse a second one in a batch: the first one completes it with its rows."""
    last = _last_calls.get(query.query_id)
    if last and (last.run_id, last.batch_id) == (query.run_id, batch_id):
        if last.has_failed:
            raise InvalidRequestError(
                f"operators {sorted(operators)} are called in batch {batch_id} again after a call "
                "that has failed. Let its error through: the batch is repeated when the query is "
                "started again"
            )
        raise InvalidRequestError(
            f"operators {sorted(operators)} are called in batch {batch_id} after another call, which "
            "has completed the batch without their rows; when the query is started again the batch "
            "is skipped. Call stateful(...) once a batch: pass several operators, or an operator for "
            "several streams, to stateful_query(...). To process these rows, roll the query back to the "
            "checkpoint before",
            kind="batch-split",
        )
    _last_calls.pop(query.query_id, None)
    call = _last_calls[query.query_id] = _Call(query.run_id, batch_id)
    if len(_last_calls) > _MAX_QUERIES:
        del _last_calls[next(iter(_last_calls))]
    return call
