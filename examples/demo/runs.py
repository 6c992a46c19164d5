"""All runs of a job, from the first start over the kills to its end."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from examples.demo.flights import release_held_back
from examples.demo.job_process import JobProcess
from examples.demo.kills import KILL_POINTS, Kill, KillPoint, Progress, watch
from examples.demo.places import Job, Places

_RESTORED = re.compile(r"job \S+ resumes from checkpoint (\d+) at ")
_SKIPPED = re.compile(r"batch (\d+) was completed before; it is skipped")
_COMPLETED = re.compile(
    r"completed checkpoint (\d+) of job \S+ \(batch \d+\) in (\d+) ms: \d+ rows in, \d+ rows out, "
    r"(\d+) bytes of state, (\d+) bytes of metadata"
)


class JobFailedError(Exception):
    """A run has failed by itself."""


@dataclass(frozen=True, slots=True)
class Completed:
    """A checkpoint that the job has completed.

    Attributes:
        checkpoint: The checkpoint's number.
        duration_ms: From its beginning to its completion, milliseconds.
        state_bytes: Bytes of state.
        metadata_bytes: Bytes of `_metadata`.
    """

    checkpoint: int
    duration_ms: int
    state_bytes: int
    metadata_bytes: int


@dataclass(frozen=True, slots=True)
class RunLog:
    """One run.

    Attributes:
        restored: The checkpoint that it resumed from, or None.
        skipped: The batches that it found completed.
        completed: The checkpoints that it completed, without one whose line a kill prevented.
    """

    restored: int | None
    skipped: tuple[int, ...]
    completed: tuple[Completed, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the job.

    Attributes:
        kill: The kill that ended it; None if it ended by itself.
        log: Its log.
        seconds: How long it took, start of the JVM included.
    """

    kill: Kill | None
    log: RunLog
    seconds: float


def run_to_the_end(
    places: Places, on_batch: Callable[[int], None], on_run: Callable[[Run], None]
) -> list[Run]:
    """Start the job again and again until it has taken the stream; drain it if a part was held back.

    Args:
        places: Where the stream is, and everything else goes to.
        on_batch: Called with the number of finished batches each time it grows.
        on_run: Called with each run when it has ended.

    Raises:
        JobFailedError: A run has failed without having been killed.
    """
    runs: list[Run] = []
    while not runs or runs[-1].kill:
        runs.append(_run(places, _points_left(places.job, runs), on_batch, drain=False))
        on_run(runs[-1])
    if places.held_back.exists():
        release_held_back(places)
        runs.append(_run(places, (), on_batch, drain=True))
        on_run(runs[-1])
    return runs


def _points_left(job: Job, runs: list[Run]) -> tuple[KillPoint, ...]:
    """The kill points for the next run: only where no batch was hit before."""
    hit = max((run.kill.batch for run in runs if run.kill), default=-1)
    return tuple(point for point in KILL_POINTS[job] if point.first_batch > hit)


def _run(
    places: Places, points: tuple[KillPoint, ...], on_batch: Callable[[int], None], *, drain: bool
) -> Run:
    places.job_log.touch()
    logged = places.job_log.stat().st_size
    started = time.monotonic()
    job = JobProcess(places, drain=drain)
    try:
        kill = watch(job, Progress(places), points, on_batch)
    finally:
        job.kill()  # also remaining processes of a run that ended by itself, or that Ctrl-C interrupts
    if kill is None and job.exit_code != 0:
        tail = places.spark_log.read_text(errors="replace")[-3000:]
        message = f"a run of the job failed with exit code {job.exit_code}; its output:\n{tail}"
        raise JobFailedError(message)
    with places.job_log.open("rb") as log:
        log.seek(logged)
        text = log.read().decode(errors="replace")
    return Run(kill, _read_log(text), time.monotonic() - started)


def _read_log(text: str) -> RunLog:
    """Read the log lines of one run; others are passed over."""
    restored = _RESTORED.search(text)
    return RunLog(
        restored=int(restored[1]) if restored else None,
        skipped=tuple(int(match[1]) for match in _SKIPPED.finditer(text)),
        completed=tuple(
            Completed(*map(int, match.groups())) for match in _COMPLETED.finditer(text)
        ),
    )
