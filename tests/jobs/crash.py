"""Kills a real driver, restarts the job, and looks for lost and doubled rows."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from contracts.patience import RUN_HANGS_S
from jobs.job import Job
from jobs.killed import BATCH, GROUP
from jobs.operators import Groups
from pyspark.sql import DataFrame

FILES = 4
ROWS = 100


def check_nothing_is_lost_or_doubled(job: Job, point: str) -> None:
    """Let a driver die at that point in its second batch; then the job goes on here."""
    job.settings["spark.holdfast.checkpoint.num-retained"] = str(FILES)
    job.feed(files=FILES, rows=ROWS)
    died = subprocess.run(
        [sys.executable, "-m", "jobs.killed", str(job.directory), point],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        timeout=RUN_HANGS_S,
        check=False,
    )
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()
    survived = point == "after the metadata"
    assert job.completed()[-1] == (BATCH + 1 if survived else BATCH)

    sunk: list[int] = []

    def sink(rows: DataFrame, batch_id: int) -> None:
        sunk.append(batch_id)
        job.write(rows, batch_id)

    job.run(job.operator(Groups(GROUP), sink=sink))

    assert sunk == list(range(BATCH + 1 if survived else BATCH, FILES))
    assert job.completed() == list(range(1, FILES + 1))
    written = job.ids_written()
    assert len(set(written)) == len(written)
    whole_groups = FILES * ROWS // 2 // GROUP
    assert len(written) == 2 * whole_groups * GROUP
