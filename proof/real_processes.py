"""Real processes killed at random moments, and drivers that stand still and come back when another has gone on.

A query with every kind of state (`kinds_job`) is started again and again, each time with another parallelism, on a Spark
in one process or on a cluster of processes. If it fails because a part of it was killed, its driver starts it again by
itself, so that a kill does not cost a start of Spark. What it has put out and what is in its states at the end is compared with
what its rows come to (`kinds`).
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
from proof.kinds_job import ENOUGH, MOST_SUBTASKS, OPERATORS, SIZES, output_file
from proof.running_query import LOCAL, HangsError, RunningQuery

_CLUSTER = "local-cluster[2,1,1024]"
_MOST_IN_A_RUN = 8
_LONGEST_WAIT_S = 1.0
_RETAINED = 3

KINDS = ("all", "driver", "JVM", "Python worker", "daemon", "executor", "zombie")
"""What is killed: all processes of a query, some of them; or none, which stand still instead."""

_ENDS_THE_RUN = frozenset({"all", "driver", "JVM", "zombie"})


@dataclass(slots=True)
class Disturbed:
    """What became of a query.

    Attributes:
        disturbances: What was killed or stopped, in order.
        starts: How often its driver was started.
        restarts: How often a driver has started it again by itself.
        batches: How many batches it has completed.
        failures: What is wrong, as texts.
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
) -> Disturbed:
    """Disturb a query so often, let it come to its end, and look at all that it has left.

    Args:
        directory: An empty directory for what it writes.
        checkpoints: URI of its checkpoint directory, empty too.
        chance: Chooses what happens when.
        count: How often something is killed or stopped.
        kinds: What may be.
        note: Told each disturbance when it has happened.
    """
    query = _Query(directory, checkpoints, chance, kinds, note)
    try:
        while len(query.outcome.disturbances) < count and not query.outcome.failures:
            query.run(count - len(query.outcome.disturbances))
        if not query.outcome.failures:  # else it would fail again, at once and without an end
            query.run_to_the_end()
    except HangsError as error:
        query.outcome.failures.append(str(error))
    finally:
        query.kill_all()
    query.outcome.failures += _wrong(directory, checkpoints, query.outcome)
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
        self.outcome = Disturbed()
        self._directory = directory
        self._checkpoints = checkpoints
        self._chance = chance
        self._kinds = kinds
        self._note = note
        self._started: list[RunningQuery] = []
        self._zombie: RunningQuery | None = None

    def run(self, most: int) -> None:
        """Start the query, and disturb it until it ends; `most` times at most."""
        master = self._chance.choice((LOCAL, _CLUSTER)) if "executor" in self._kinds else LOCAL
        running = self._start(master)
        ends = [kind for kind in self._kinds if kind in _ENDS_THE_RUN]
        parts = [kind for kind in self._kinds if kind not in _ENDS_THE_RUN]
        has_lost_parts = False
        for left in reversed(range(self._chance.randint(1, min(most, _MOST_IN_A_RUN)))):
            failed = running.failed
            running.wait_for_batches(1)
            time.sleep(self._chance.uniform(0, _LONGEST_WAIT_S))
            if running.exit_code is not None or (running.failed and not has_lost_parts):
                # A batch whose rows went through an operator twice is given up, and so is the query.
                self.outcome.failures.append(f"query has failed by itself: {running.said()}")
                break
            kind = self._disturbed(running, parts if left and parts else ends, failed)
            if kind in _ENDS_THE_RUN:
                break
            has_lost_parts = has_lost_parts or kind is not None
        self.outcome.restarts += running.failed

    def run_to_the_end(self) -> None:
        """Start the query, and let it end."""
        running = self._start(LOCAL)
        (self._directory / ENOUGH).touch()  # not before: a driver that comes back would see it
        running.wait_for_end()
        if running.exit_code != 0:
            self.outcome.failures.append(f"query has failed: {running.said()}")

    def kill_all(self) -> None:
        """Leave no process."""
        for running in self._started:
            running.kill()

    def _start(self, master: str) -> RunningQuery:
        """A new start of the query; if an earlier one stands still, it is woken when this one has gone on."""
        running = RunningQuery(
            self._directory,
            self._checkpoints,
            master=master,
            parallelism=self._chance.randint(1, MOST_SUBTASKS),
            again=True,
        )
        self._started.append(running)
        self.outcome.starts += 1
        zombie, self._zombie = self._zombie, None
        if zombie is not None:
            running.wait_for_batches(self._chance.randint(1, 3))
            zombie.resume()
            zombie.wait_for_end("a driver that came back does not give up")
            if zombie.exit_code == 0:
                problem = "a driver that came back has ended as if nothing had happened"
                self.outcome.failures.append(problem)
        return running

    def _disturbed(self, running: RunningQuery, kinds: Sequence[str], failed: int) -> str | None:
        """Kill or stop something of these kinds, of which there was least; what it was, or None if there is nothing.

        Args:
            running: The start of the query.
            kinds: What may be.
            failed: How many of its queries had failed before its last batch.
        """
        victims = _victims(running)
        possible = [kind for kind in kinds if victims.get(kind)]
        if not possible:
            return None
        counts = Counter(self.outcome.disturbances)
        fewest = min(counts[kind] for kind in possible)
        kind = self._chance.choice([kind for kind in possible if counts[kind] == fewest])
        if kind == "all":
            running.kill()
        elif kind == "zombie":
            running.stop()
            if running.failed == failed:
                self._zombie = running
            else:  # about to start its query again, by right, and then the others would be the zombies
                running.kill()
                kind = "all"
        else:
            with suppress(psutil.NoSuchProcess):
                self._chance.choice(victims[kind]).send_signal(signal.SIGKILL)
        self.outcome.disturbances.append(kind)
        self._note(f"{len(self.outcome.disturbances)} {kind} behind batch {running.batches}")
        return kind


def _victims(running: RunningQuery) -> dict[str, list[psutil.Process]]:
    """The processes of a query, by what they are."""
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


def _wrong(directory: Path, checkpoints: str, outcome: Disturbed) -> list[str]:
    """What the query has left that it must not, or has not left."""
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
            problems.append(f"output of batch {batch} is not what it must be")
    return problems
