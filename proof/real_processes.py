"""Real processes killed at random moments, and drivers that are stopped and resume after another has taken over.

A query with all types of state (`kinds_job`) is started repeatedly, each time with another parallelism, on a Spark
in one process or on a cluster of processes. If it fails because a part of it was killed, its driver restarts it, so
that a kill does not cost a start of Spark. Its output and its states at the end are compared with the expected ones
of its rows (`kinds`).
"""

import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyarrow.parquet as pq

from holdfast.errors import CheckpointError
from holdfast.locations import find_checkpoints
from proof.kinds import expected_output, wrong_states
from proof.kinds_job import MAX_SUBTASKS, OPERATORS, SIZES, STOP_FILE, output_file
from proof.running_query import LOCAL, HangsError, RunningQuery

_CLUSTER = "local-cluster[2,1,1024]"
_MAX_IN_A_RUN = 8
_LONGEST_WAIT_S = 1.0
_RETAINED = 3

KINDS = ("all", "driver", "JVM", "Python worker", "daemon", "executor", "zombie")
"""Targets of a kill: all processes of a query or some of them; zombies are stopped instead."""

_ENDS_THE_RUN = frozenset({"all", "driver", "JVM", "zombie"})


@dataclass(slots=True)
class DisturbanceOutcome:
    """The outcome of a query.

    Attributes:
        disturbances: Killed or stopped targets, in order.
        starts: Number of starts of its driver.
        restarts: Number of restarts of the query by its driver.
        batches: Number of completed batches.
        failures: Violations as texts.
    """

    disturbances: list[str] = field(default_factory=list)
    starts: int = 0
    restarts: int = 0
    batches: int = 0
    failures: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(self.disturbances).items())
        return f"{kinds}; {self.starts} starts, {self.restarts} restarts, {self.batches} batches"


def disturb(
    directory: Path,
    checkpoints: str,
    chance: random.Random,
    count: int,
    *,
    kinds: tuple[str, ...] = KINDS,
    note: Callable[[str], object] = print,
) -> DisturbanceOutcome:
    """Disturb a query several times, let it end, and check all its files.

    Args:
        directory: An empty directory for its files.
        checkpoints: URI of its checkpoint directory, also empty.
        chance: Chooses targets and times.
        count: Number of disturbances.
        kinds: Possible targets.
        note: Called after each disturbance with its description.
    """
    query = _Query(directory, checkpoints, chance, kinds, note)
    try:
        while len(query.outcome.disturbances) < count and not query.outcome.failures:
            query.run(count - len(query.outcome.disturbances))
        if not query.outcome.failures:  # otherwise it would fail again, endlessly
            query.run_to_the_end()
    except HangsError as error:
        query.outcome.failures.append(str(error))
    finally:
        query.kill_all()
    query.outcome.failures += _problems_after(directory, checkpoints, query.outcome)
    return query.outcome


class _Query:
    """All starts of a query."""

    def __init__(
        self,
        directory: Path,
        checkpoints: str,
        chance: random.Random,
        kinds: tuple[str, ...],
        note: Callable[[str], object],
    ) -> None:
        self.outcome = DisturbanceOutcome()
        self._directory = directory
        self._checkpoints = checkpoints
        self._chance = chance
        self._kinds = kinds
        self._note = note
        self._started: list[RunningQuery] = []
        self._zombie: RunningQuery | None = None

    def run(self, max_disturbances: int) -> None:
        """Start the query, and disturb it until it ends."""
        master = self._chance.choice((LOCAL, _CLUSTER)) if "executor" in self._kinds else LOCAL
        running = self._start(master)
        ends = [kind for kind in self._kinds if kind in _ENDS_THE_RUN]
        parts = [kind for kind in self._kinds if kind not in _ENDS_THE_RUN]
        has_lost_parts = False
        for left in reversed(range(self._chance.randint(1, min(max_disturbances, _MAX_IN_A_RUN)))):
            failed = running.failed
            running.wait_for_batches(1)
            time.sleep(self._chance.uniform(0, _LONGEST_WAIT_S))
            if running.exit_code is not None or (running.failed and not has_lost_parts):
                # If the rows of a batch pass an operator twice, the batch and the query fail.
                self.outcome.failures.append(f"query has failed by itself: {running.log_tail()}")
                break
            kind = self._disturb(running, parts if left and parts else ends, failed)
            if kind in _ENDS_THE_RUN:
                break
            has_lost_parts = has_lost_parts or kind is not None
        self.outcome.restarts += running.failed

    def run_to_the_end(self) -> None:
        """Start the query, and let it end."""
        running = self._start(LOCAL)
        (self._directory / STOP_FILE).touch()  # not earlier: a zombie would see it
        running.wait_for_end()
        if running.exit_code != 0:
            self.outcome.failures.append(f"query has failed: {running.log_tail()}")

    def kill_all(self) -> None:
        """Kill all processes."""
        for running in self._started:
            running.kill()

    def _start(self, master: str) -> RunningQuery:
        """Start the query again; if an earlier start is stopped, it resumes after this one has completed batches."""
        running = RunningQuery(
            self._directory,
            self._checkpoints,
            master=master,
            parallelism=self._chance.randint(1, MAX_SUBTASKS),
            again=True,
        )
        self._started.append(running)
        self.outcome.starts += 1
        zombie, self._zombie = self._zombie, None
        if zombie is not None:
            running.wait_for_batches(self._chance.randint(1, 3))
            zombie.resume()
            zombie.wait_for_end("a resumed zombie does not end")
            if zombie.exit_code == 0:
                problem = "a resumed zombie has ended without an error"
                self.outcome.failures.append(problem)
        return running

    def _disturb(self, running: RunningQuery, kinds: Sequence[str], failed: int) -> str | None:
        """Kill or stop a target of the kind with the min_count disturbances; returns the kind, or None without a target.

        Args:
            running: The start of the query.
            kinds: Possible targets.
            failed: Number of its queries that had failed before its last batch.
        """
        victims = _victims(running)
        possible = [kind for kind in kinds if victims.get(kind)]
        if not possible:
            return None
        counts = Counter(self.outcome.disturbances)
        min_count = min(counts[kind] for kind in possible)
        kind = self._chance.choice([kind for kind in possible if counts[kind] == min_count])
        if kind == "all":
            running.kill()
        elif kind == "zombie":
            running.stop()
            if running.failed == failed:
                self._zombie = running
            else:  # it may restart its query, and then the others would be zombies
                running.kill()
                kind = "all"
        else:
            with suppress(psutil.NoSuchProcess):
                self._chance.choice(victims[kind]).send_signal(signal.SIGKILL)
        self.outcome.disturbances.append(kind)
        self._note(f"{len(self.outcome.disturbances)} {kind} after batch {running.batches}")
        return kind


def _victims(running: RunningQuery) -> dict[str, list[psutil.Process]]:
    """Return the processes of a query by their kind."""
    victims: dict[str, list[psutil.Process]] = {}
    for pid in running.members():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            member = psutil.Process(pid)
            command = " ".join(member.cmdline())
            parent = member.parent()
            if "CoarseGrainedExecutorBackend" in command:
                victims.setdefault("executor", []).append(member)
            elif "org.apache.spark.deploy.SparkSubmit" in command:
                victims.setdefault("JVM", []).append(member)
            elif "daemon" in command and parent is not None:
                is_worker = "daemon" in " ".join(parent.cmdline())
                kind = "Python worker" if is_worker else "daemon"
                victims.setdefault(kind, []).append(member)
            elif "proof.kinds_job" in command:
                victims.setdefault("driver", []).append(member)
    if victims.get("driver"):
        victims |= {"all": victims["driver"], "zombie": victims["driver"]}
    return victims


def _problems_after(directory: Path, checkpoints: str, outcome: DisturbanceOutcome) -> list[str]:
    """Return violations in the files of the query."""
    problems = []
    retained = []
    for entry in find_checkpoints(checkpoints):
        if isinstance(entry.outcome, Exception):
            problems.append(f"checkpoint can't be read: {entry.outcome}")
        else:
            retained.append(entry.outcome)
    ids = sorted(checkpoint.checkpoint_id for checkpoint in retained)
    if not ids:
        return [*problems, "no checkpoint is left"]
    outcome.batches = ids[-1]
    if ids != list(range(ids[-1] - _RETAINED + 1, ids[-1] + 1)):
        problems.append(f"checkpoints {ids} are retained")
    for checkpoint in retained:
        pointer = checkpoint.location.external_pointer
        try:
            problems += wrong_states(pointer, checkpoint.checkpoint_id, SIZES, OPERATORS)
        except CheckpointError as error:
            problems.append(f"{pointer}: {error}")
    for batch in range(ids[-1]):
        file = output_file(directory, batch)
        rows = pq.read_table(file).to_pylist() if file.exists() else []
        if sorted(tuple(row.values()) for row in rows) != expected_output(batch, SIZES):
            problems.append(f"output of batch {batch} is wrong")
    return problems
