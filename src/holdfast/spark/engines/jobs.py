"""The Spark jobs of a query in a classic session, through Spark's JVM."""

from dataclasses import dataclass
from typing import Any, cast

from py4j.java_gateway import JavaClass
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from holdfast.common import Clock
from holdfast.errors import CheckpointDeclinedError
from holdfast.spark.subtask import name_in_plans

_ADAPTIVE_PLAN_NODES = ("AdaptiveSparkPlan", "Exchange")
"""Words in plans whose number of partitions is unknown, or would make Spark run a part of the plan."""

_BUS_TIMEOUT_S = 120.0
_POLL_S = 0.05
_JOB_GROUP = "spark.jobGroup.id"


@dataclass(frozen=True, slots=True)
class Jobs:
    """The jobs of a run of a query: those in the group that Spark makes for it, as its listeners report them."""

    session: SparkSession
    run_id: str
    clock: Clock

    def enter_group(self) -> None:
        """Put the thread's jobs into the group; an earlier batch may have left it."""
        self.session.sparkContext.setLocalProperty(_JOB_GROUP, self.run_id)

    def includes_new_jobs(self) -> bool:
        """Return whether jobs that this thread starts are still among them: the sink may have left the job group."""
        return self.session.sparkContext.getLocalProperty(_JOB_GROUP) == self.run_id

    def ids(self) -> frozenset[int]:
        """Return the ids of all jobs that Spark remembers."""
        tracker = cast("Any", self.session.sparkContext)._jsc.statusTracker()
        jobs = tracker.getJobIdsForGroup(self.run_id)
        # As text: Spark remembers a thousand jobs, and each number would be a call of the JVM.
        text = java_class(self.session, "java.util.Arrays").toString(jobs)
        return frozenset(map(int, text.strip("[]").split(", "))) if len(text) > 2 else frozenset()

    def depends_on(self, rows: DataFrame, uid: str) -> bool:
        """Return whether rows are computed from the output of that operator."""
        plan = cast("Any", rows)._jdf.queryExecution().analyzed().toString()
        return f"{name_in_plans(uid)}(" in plan

    def partitions(self, rows: DataFrame) -> int | None:
        """Return the number of partitions of rows; None if it isn't known before they are computed."""
        execution = cast("Any", rows)._jdf.queryExecution()
        plan = execution.executedPlan().toString()
        if any(word in plan for word in _ADAPTIVE_PLAN_NODES):
            return None
        return int(execution.toRdd().getNumPartitions())

    def failures(self, known: frozenset[int]) -> list[bool]:
        """Return for each job that is not `known` whether it failed, in the order of their starts.

        Waits until all of them have ended: Spark lets a job run that is no longer needed. Raises
        `CheckpointDeclinedError` if the listeners are too slow.
        """
        _wait_for_listener_bus(self.session, self.clock)
        while "RUNNING" in (statuses := self._statuses(known)):
            self.clock.sleep(_POLL_S)
        return [status == "FAILED" for status in statuses]

    def _statuses(self, known: frozenset[int]) -> list[str]:
        """Return the status of each job that is not `known`; empty for a job that Spark has forgotten."""
        tracker = cast("Any", self.session.sparkContext)._jsc.statusTracker()
        infos = [tracker.getJobInfo(job) for job in sorted(self.ids() - known)]
        return ["" if info is None else info.status().toString() for info in infos]


def _wait_for_listener_bus(session: SparkSession, clock: Clock) -> None:
    bus = cast("Any", session.sparkContext)._jsc.sc().listenerBus()
    deadline = clock.monotonic_s() + _BUS_TIMEOUT_S
    while True:
        try:
            bus.waitUntilEmpty()
        except Py4JJavaError as error:  # after ten seconds
            if clock.monotonic_s() > deadline:
                message = "Spark's listeners are too slow to report whether jobs of the sink failed"
                raise CheckpointDeclinedError(message) from error
        else:
            return


def java_class(session: SparkSession, name: str) -> Any:
    """Return a class of Java. Through `session._jvm` the JVM would look up each part of the name."""
    jvm = session._jvm
    if jvm is None:
        raise Py4JError("no connection to Spark's JVM")
    return JavaClass(name, jvm._gateway_client)
