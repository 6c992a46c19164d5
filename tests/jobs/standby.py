"""A driver of a job with standbys, `python -m jobs.standby DIR LOCAL_DIR TRIGGER`, and its process in a test."""

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import psutil
from contracts.patience import wait_until
from jobs.job import LOCAL, Job, connect
from jobs.operators import Groups
from jobs.processes import ROOT, Signals
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from servers.spark import kill_tree

import holdfast as hf

GROUP = 70
JOB = "with-standbys"
SILENCE = timedelta(seconds=10)


class StandbyProcess:
    """A driver, and the processes that it has started."""

    def __init__(self, process: psutil.Popen, log: Path) -> None:
        self.process = process
        self._log = log

    def log(self) -> str:
        return self._log.read_text()

    def wait_for(self, text: str) -> None:
        """Wait until the driver has logged a string."""
        wait_until(lambda: text in self.log(), lambda: f"no {text!r} in: {self.log()[-5000:]}")

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the driver and its JVM."""
        for process in (self.process, *self.process.children(recursive=True)):
            process.send_signal(number)

    def end(self) -> int:
        """Wait until the driver has ended by itself, and return its status."""
        wait_until(lambda: self.process.poll() is not None, lambda: self.log()[-5000:])
        return int(self.process.poll())


@contextmanager
def standby_process(
    directory: Path, local: Path, *, trigger: str = "continuous"
) -> Iterator[StandbyProcess]:
    """Run a driver of the job in a directory, with a directory for local copies, until the block ends."""
    log = local.with_suffix(f".{os.urandom(4).hex()}.log")
    log.parent.mkdir(parents=True, exist_ok=True)
    paths = os.pathsep.join([str(ROOT / "tests"), *sys.path])
    with log.open("wb") as output:
        process = psutil.Popen(
            [sys.executable, "-m", "jobs.standby", str(directory), str(local), trigger],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": paths},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        yield StandbyProcess(process, log)
    finally:
        if process.is_running():
            kill_tree(psutil.Process(process.pid))


def main(directory: Path, local: str, trigger: str) -> None:
    """Run the job until it ends; in a batch `N` with an event `block N`, the first driver waits for `go`."""
    logging.basicConfig(level=logging.INFO)
    settings = {
        "spark.holdfast.checkpoint.dir": f"file://{directory}/checkpoints",
        "spark.holdfast.checkpoint.num-retained": "2",
        "spark.holdfast.job.id": JOB,
        "spark.local.dir": local,
    }
    job = Job(connect("local[2,2]", LOCAL | settings), directory)
    signals = Signals(directory / "signals")

    def write(rows: DataFrame, batch_id: int) -> None:
        if signals.is_given(f"block {batch_id}") and signals.give("blocks"):
            signals.wait("go")
        job.write(rows, batch_id)

    def start() -> StreamingQuery:
        now = {"availableNow": True} if trigger == "now" else {"processingTime": "0 seconds"}
        return job.start(job.operator(Groups(GROUP), sink=write), **now)

    hf.run(start, standby_after=SILENCE)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
