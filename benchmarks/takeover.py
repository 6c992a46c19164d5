"""Seconds from SIGKILL of the active driver to the next checkpoint, which its standby commits.

    python benchmarks/takeover.py --runs 5 --silence 10

Each run kills the driver that is active, with its JVM, and then starts another standby. The job keeps totals of 1000
keys over 1000 rows a second. With `--cold` no driver finds local copies of state.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import psutil
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf

WAITS = "this one waits as a standby"


def drive(directory: Path, local: str, silence_s: float) -> None:
    """Run a driver of the job."""
    import logging  # noqa: PLC0415

    logging.basicConfig(level=logging.INFO)
    settings: dict[str, bool | float | int | str | None] = {
        "spark.holdfast.checkpoint.dir": f"file://{directory}/checkpoints",
        "spark.holdfast.checkpoint.num-retained": "3",
        "spark.holdfast.job.id": "totals",
        "spark.local.dir": local,
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
    }
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    rows = spark.readStream.format("rate").option("rowsPerSecond", 1000).load()
    totals = hf.keyed(rows.selectExpr("value % 1000 as key"), "key", uid="totals", parallelism=2)

    def write(changed: DataFrame, _: int) -> None:
        changed.write.format("noop").mode("overwrite").save()

    writer = totals.agg(rows=hf.count()).writeStream.foreachBatch(write)
    writer = writer.option("checkpointLocation", f"{directory}/spark")
    hf.run(writer.start, standby_after=timedelta(seconds=silence_s))


def newest(directory: Path) -> int:
    """Return the id of the newest checkpoint."""
    files = (directory / "checkpoints").glob("totals/chk-*/_metadata")
    return max((int(file.parent.name.removeprefix("chk-")) for file in files), default=0)


def wait_until(happened: Callable[[], bool]) -> None:
    while not happened():
        time.sleep(0.02)


def start(
    directory: Path, number: int, silence_s: float, *, is_cold: bool
) -> tuple[psutil.Process, Path]:
    """Start a driver, and return its process and its log."""
    log = directory / f"{number}.log"
    local = directory / (f"local-{number}" if is_cold else "local")
    with log.open("wb") as output:
        arguments = ["--driver", str(directory), "--local", str(local), "--silence", str(silence_s)]
        started = subprocess.Popen(
            [sys.executable, __file__, *arguments], stdout=output, stderr=output
        )
    return psutil.Process(started.pid), log


def kill(driver: psutil.Process) -> None:
    for process in (driver, *driver.children(recursive=True)):
        process.send_signal(signal.SIGKILL)


def measure(runs: int, silence_s: float, *, is_cold: bool) -> list[float]:
    """Return the seconds of each run."""
    seconds = []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        active, _ = start(directory, 0, silence_s, is_cold=is_cold)
        started = [active]
        try:
            for number in range(1, runs + 1):
                before = newest(directory)
                wait_until(lambda: newest(directory) > before + 5)  # noqa: B023  # called at once
                standby, log = start(directory, number, silence_s, is_cold=is_cold)
                started.append(standby)
                wait_until(lambda: WAITS in log.read_text())  # noqa: B023
                kill(active)
                killed_s, last = time.monotonic(), newest(directory)
                active = standby
                wait_until(lambda: newest(directory) > last)  # noqa: B023
                seconds.append(time.monotonic() - killed_s)
        finally:
            for driver in started:
                if driver.is_running():
                    kill(driver)
    return seconds


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--silence", type=float, default=10)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--driver", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--local", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.driver is not None:
        drive(given.driver, given.local, given.silence)
    else:
        measured = measure(given.runs, given.silence, is_cold=given.cold)
        print("seconds:", *(f"{each:.1f}" for each in measured))
        print(f"median: {statistics.median(measured):.1f}, load: {os.getloadavg()[0]:.1f}")
