"""`stateful` and `checkpointed`: operators with state, as functions for `foreachBatch`."""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from holdfast.common import SYSTEM_CLOCK, Clock
from holdfast.errors import CheckpointError, InvalidRequestError
from holdfast.spark import sessions
from holdfast.spark.engines import Engine, RunningQuery, engine_of, error_of_task
from holdfast.spark.event_time import IdleTicks
from holdfast.spark.operators import (
    Broadcast,
    Operator,
    Sink,
    StatefulFunction,
    check_can_be_called,
)
from holdfast.spark.query.batch_run import check_no_batch, current_batch
from holdfast.spark.query.query_run import QueryRun
from holdfast.spark.settings import check_settings


def stateful(
    function: StatefulFunction,
    *,
    uid: str,
    parallelism: int,
    sink: Sink | None = None,
    max_parallelism: int | None = None,
    key: str | Sequence[str] | None = None,
    broadcast: Broadcast | None = None,
    schema: StructType | str | None = None,
    persist: bool = False,
    forward: bool = False,
    event_time: str | None = None,
    idle_ticks: IdleTicks | None = None,
) -> "StatefulOperator":
    """Make an operator with state of a function; pass the result to `foreachBatch`.

    Every micro-batch is a checkpoint: the state after batch N and Spark's own progress through
    batch N are stored together once the sink has taken the batch. After a crash the query goes
    on from the last completed checkpoint. The sink then may see one batch again, under the same
    batch id and before the state moves on: it must replace what it wrote for that id.

    A query with several operators has a function of its own that applies them, made by
    `checkpointed`.

    Args:
        function: The operator; it is pickled to the executors.
        uid: Names the operator's state in checkpoints; keep it for the life of the job.
        parallelism: Number of subtasks, 1 to `max_parallelism`; each has its own part of the
            state. The number may change when the query is started again: the state is spread anew.
        sink: Writes the output rows. It must read them in one action over all of them, and let
            errors through. Without a sink they are dropped. Sink and function can also be a
            `CheckpointListener` each; both are told on the driver.
        max_parallelism: Number of key groups, `parallelism` to 32768; it can't be changed once
            there is a checkpoint. None goes on with what is stored there, and at first takes a
            power of two that leaves room to grow, at least 128.
        key: Columns by whose values rows are dealt to subtasks: equal keys come to the same subtask, by
            way of key groups. Without a key rows are dealt evenly.
        broadcast: Gives rows that every subtask is to see before the batch's own; the function is
            a `BroadcastProcessFunction` then.
        schema: Spark schema of the output rows, if it isn't the input's.
        persist: Keep the output rows in Spark's cache until the batch is done, so that they can
            be read in several actions. With Spark Connect they are always kept.
        forward: Leave rows in their partitions, a partition for each subtask, instead of dealing them
            evenly, which takes a shuffle. Where they have more partitions than there are
            subtasks, some are put together; with fewer, behind a shuffle, or with Spark Connect
            they are dealt. A subtask whose partition has no rows can't yield any, and the sink must
            not `coalesce` the rows then, nor put others in front of them: the batch fails.
        event_time: The column by which rows are late, a timestamp or a window, if the function's `time_mode`
            is `event`. By default the column that `withWatermark` was given, which a column computed from
            it no longer is.
        idle_ticks: Requests batches when timers are due and no rows arrive; see `IdleTicks`.

    Raises:
        InvalidRequestError: An argument can't be used, or a setting of the active session is not valid. What is
            set later is refused in the first micro-batch.
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
        ),
        idle_ticks,
    )


def checkpointed(
    process: Sink, *operators: "StatefulOperator", idle_ticks: IdleTicks | None = None
) -> "StatefulQuery":
    """Make a query of several operators; pass the result to `foreachBatch`.

    One checkpoint holds the state of all of them.

    Args:
        process: Called with the rows of a batch and its id; applies each operator once
            (`StatefulOperator.apply`), to rows as it likes, and writes what comes out. The rows of
            an operator are to be read in one action; if several things are made of them, the
            operator needs `persist=True`.
        operators: All operators that `process` applies. They have neither sinks nor idle ticks.
        idle_ticks: Requests batches when timers of an operator are due and no rows arrive. In a batch
            that was only run for timers, none of which is due, the function isn't called.

    Raises:
        InvalidRequestError: There is no operator, two have the same uid, or an operator has a sink or
            idle ticks.
    """
    check_can_be_called("function", process)
    by_uid: dict[str, Operator] = {}
    for given in operators:
        if not isinstance(given, StatefulOperator):
            name = type(given).__name__
            raise InvalidRequestError(f"{name} is no operator; make one by stateful(...)")
        operator = given._operator  # noqa: SLF001  # of this module
        if operator.uid in by_uid:
            message = f"two operators have the uid {operator.uid!r}; each needs one of its own"
            raise InvalidRequestError(message)
        if operator.sink is not None:
            message = f"operator {operator.uid!r} has a sink; here the function writes its rows"
            raise InvalidRequestError(message)
        if given._query.idle_ticks is not None:  # noqa: SLF001  # of this module
            message = (
                f"operator {operator.uid!r} has idle_ticks; give them to checkpointed(...) instead"
            )
            raise InvalidRequestError(message)
        by_uid[operator.uid] = operator
    if not by_uid:
        raise InvalidRequestError("no operator was given; name all that the function applies")
    return StatefulQuery(process, by_uid, idle_ticks)


class StatefulOperator:
    """An operator with state, made by `stateful`.

    Pass it to `foreachBatch` as it is, or `apply` it in a function made by `checkpointed`.
    """

    def __init__(self, operator: Operator, idle_ticks: IdleTicks | None = None) -> None:
        self._operator = operator
        self._query = StatefulQuery(self._run_alone, {operator.uid: operator}, idle_ticks)

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        self._query(batch, batch_id)

    def apply(self, rows: DataFrame, *, broadcast: DataFrame | None = None) -> DataFrame:
        """Run rows of the batch through the operator.

        Args:
            rows: The rows: the batch itself, or rows computed from it.
            broadcast: Few rows that every subtask is to see first.

        Returns:
            The operator's output. It is computed when it is read; with Spark Connect at once, and kept
            until the batch is done.

        Raises:
            InvalidRequestError: It is not called in a function made by `checkpointed`, or twice in
                a batch, or the rows don't suit the operator.
        """
        return current_batch().apply(self._operator, rows, broadcast)

    def _run_alone(self, batch: DataFrame, batch_id: int) -> None:
        rows = self.apply(batch)
        if self._operator.sink is not None:
            self._operator.sink(rows, batch_id)


class StatefulQuery:
    """A function for `foreachBatch` that makes a checkpoint of each batch.

    Spark calls it once a micro-batch, from the thread of the query. It may serve several queries,
    unless a sink has a state of its own, or there are idle ticks.
    """

    def __init__(
        self,
        process: Sink,
        operators: dict[str, Operator],
        idle_ticks: IdleTicks | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._process = process
        self._operators = operators
        self.idle_ticks = idle_ticks
        self._clock = clock
        self._lock = threading.Lock()
        self._runs: dict[str, QueryRun] = {}  # by query
        self._home: SparkSession | None = None
        self._kept_engine: Engine | None = None

    def __getstate__(self) -> tuple[Sink, dict[str, Operator], IdleTicks | None, Clock]:
        return self._process, self._operators, self.idle_ticks, self._clock

    def __setstate__(
        self, state: tuple[Sink, dict[str, Operator], IdleTicks | None, Clock]
    ) -> None:
        StatefulQuery.__init__(self, *state)
        # Spark Connect pickles it to the process that runs the batches. Only now the active session
        # is the client's own, which knows of the query; later it is the query's copy.
        self._home = SparkSession.getActiveSession()

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        check_no_batch()
        engine = self._engine(batch.sparkSession)
        query = engine.running_query()
        try:
            self._take(batch, batch_id, engine, query)
        except Exception as error:
            stopped = engine.stopped(query, error)
            if stopped is not None:
                raise stopped from None
            own = error if isinstance(error, CheckpointError) else error_of_task(error)
            if own is None:
                raise
            # Spark's log and Spark's own error would show the traceback above the message.
            raise own.with_traceback(None) from (own.__cause__ if own is error else None)

    def _take(self, batch: DataFrame, batch_id: int, engine: Engine, query: RunningQuery) -> None:
        """Run a batch, by the query's run, which its first batch begins."""
        call = _first_call(query, batch_id, self._operators)
        with self._lock:
            run = self._runs.get(query.query_id)
        if run is None or run.run_id != query.run_id:
            run = QueryRun.start(
                self._process,
                self._operators,
                engine,
                query,
                idle_ticks=self.idle_ticks,
                clock=self._clock,
            )
            with self._lock:
                self._check_alone(run, query)
                self._runs.pop(query.query_id, None)
                self._runs[query.query_id] = run
                if len(self._runs) > _MAX_RUNS:  # most have ended, of which Spark says nothing here
                    del self._runs[next(iter(self._runs))]
        try:
            run.take(batch, batch_id, engine, query)
        except BaseException:
            call.failed = True
            with self._lock:  # what storage holds now is for the next run to find out
                if self._runs.get(query.query_id) is run:
                    del self._runs[query.query_id]
            raise

    def _check_alone(self, run: QueryRun, query: RunningQuery) -> None:
        """Refuse to serve another query where what belongs to a single query is given."""
        if not self._runs.keys() - {query.query_id}:
            return
        if run.sinks:
            message = (
                "a sink with a state of its own serves one query, and this one has served another; "
                "make a sink, and what calls it, for each query"
            )
            raise InvalidRequestError(message)
        if run.idle_ticks is not None:
            message = (
                "idle_ticks serve one query, and these have served another; make IdleTicks() and the operators "
                "that use them for each query"
            )
            raise InvalidRequestError(message)

    def _engine(self, session: SparkSession) -> Engine:
        """The way to Spark, kept: with Spark Connect it takes a while to tell which query this is."""
        if self._kept_engine is None or self._kept_engine.session is not session:
            self._kept_engine = engine_of(session, self._home, self._clock)
        return self._kept_engine


@dataclass(slots=True)
class _Call:
    """A call by `foreachBatch`: the run, the batch, and whether it has failed."""

    run_id: str
    batch_id: int
    failed: bool = False


_last_calls: dict[str, _Call] = {}
"""The last call for each query, by its id, whichever function was called; the query called longest ago first."""

_MAX_RUNS = 100
"""Runs that one function keeps. One that was forgotten and still goes on is begun anew by its next batch."""

_MAX_QUERIES = 1000
"""Queries of one driver, most of them ended long ago, whose last call is known."""


def _first_call(query: RunningQuery, batch_id: int, operators: Iterable[str]) -> _Call:
    """Refuse to be called twice in a batch: the first call completes it, with its rows alone.

    Raises:
        InvalidRequestError: There was a call already.
    """
    last = _last_calls.get(query.query_id)
    if last and (last.run_id, last.batch_id) == (query.run_id, batch_id):
        if last.failed:
            message = (
                f"operators {sorted(operators)} are called in batch {batch_id} again after a call "
                "that has failed. Let its error through: the batch is repeated when the query is "
                "started again"
            )
            raise InvalidRequestError(message)
        message = (
            f"operators {sorted(operators)} are called in batch {batch_id} after another call, which "
            "has completed the batch without their rows; when the query is started again the batch "
            "is skipped. Call stateful(...) once a batch: several operators, or several streams of "
            "rows, go through checkpointed(...). To have these rows too, roll the query back to the "
            "checkpoint before"
        )
        raise InvalidRequestError(message)
    _last_calls.pop(query.query_id, None)
    call = _last_calls[query.query_id] = _Call(query.run_id, batch_id)
    if len(_last_calls) > _MAX_QUERIES:
        del _last_calls[next(iter(_last_calls))]
    return call
