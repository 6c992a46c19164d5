"""A query that runs for many batches, and records its resources: `python -m proof.endless_job DIR BATCHES NOTES`.

Each batch adds a line of JSON with the time since the previous one; every `LOOKS_EVERY` batches it has the sizes of
all processes and directories of the query.
"""

import gc
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import psutil
from jobs.job import LOCAL, connect
from jobs.session import jvm_classes, jvm_of
from pyspark.sql import DataFrame, SparkSession

from holdfast import stateful
from proof.kinds import BATCH_ROWS, ROWS, ListKeyedTotals, Sizes

SIZES = Sizes(keys=2_000, rounds=6)
UID = "endless"
JOB = "job"
OPERATORS = dict.fromkeys(("totals", "last", "recent", "places", "sample"), UID)
"""The operator of each state."""

LOOKS_EVERY = 25
_SETTINGS = {
    **LOCAL,
    "spark.driver.memory": "512m",
    "spark.holdfast.job.id": JOB,
    "spark.holdfast.checkpoint.num-retained": "3",
    # Spark's memory of its web pages and of past progress, which by default grows for a thousand batches.
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "200",
    "spark.sql.ui.retainedExecutions": "50",
    "spark.sql.streaming.ui.retainedProgressUpdates": "50",
}


def main(directory: Path, batches: int, notes: Path) -> None:
    """Run the query for a number of batches."""
    scratch = directory / "scratch"
    settings = _SETTINGS | {"spark.holdfast.checkpoint.dir": f"file://{directory}/checkpoints"}
    os.environ["SPARK_LOCAL_DIRS"] = str(scratch)
    spark = connect("local[2]", settings)
    done = threading.Event()
    with notes.open("a", buffering=1) as file:
        look = _Look(spark, directory, file)

        def sink(rows: DataFrame, batch_id: int) -> None:
            rows.collect()
            look.note(batch_id)
            if batch_id + 1 >= batches:
                done.set()

        rows = (
            spark.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", BATCH_ROWS)
            .option("numPartitions", 1)
            .load()
            .selectExpr("value", f"{SIZES.key_in_sql} as key")
        )
        function = ListKeyedTotals(SIZES)
        operator = stateful(function, sink=sink, uid=UID, parallelism=2, key="key", schema=ROWS)
        query = (
            rows.writeStream.foreachBatch(operator)
            .option("checkpointLocation", str(directory / "spark"))
            .trigger(processingTime="0 seconds")
            .start()
        )
        while not done.wait(1.0) and query.isActive:
            pass
        query.stop()
        if query.exception() is not None:
            raise SystemExit(f"the query has failed: {query.exception()}")
    spark.stop()


class _Look:
    """Measures the query in its sink, where no task runs and nothing is written.

    Args:
        spark: The session.
        directory: The job's directory.
        file: File for the notes.
    """

    def __init__(self, spark: SparkSession, directory: Path, file: IO[str]) -> None:
        self._spark = spark
        self._directory = directory
        self._file = file
        self._before = (time.monotonic(), _cpu_s())

    def note(self, batch_id: int) -> None:
        """Record the cost of a batch, and sometimes all sizes."""
        now = time.monotonic(), _cpu_s()
        took = [
            round(1000 * (after - before), 1)
            for before, after in zip(self._before, now, strict=True)
        ]
        line = {"batch": batch_id, "period_ms": took[0], "cpu_ms": took[1]}
        if batch_id % LOOKS_EVERY == LOOKS_EVERY - 1:
            line |= self._sizes(batch_id)
        self._file.write(json.dumps(line) + "\n")
        self._before = time.monotonic(), _cpu_s()

    def _sizes(self, batch_id: int) -> dict[str, Any]:
        gc.collect()
        runtime = jvm_classes(self._spark).java.lang.Runtime.getRuntime()
        runtime.gc()
        jvm = jvm_of(self._spark)
        processes = {"driver": [os.getpid()], "jvm": [jvm]}
        processes["workers"] = [child.pid for child in psutil.Process(jvm).children(recursive=True)]
        sizes: dict[str, Any] = {"jvm heap": runtime.totalMemory() - runtime.freeMemory()}
        for name, pids in processes.items():
            sizes |= _memory(name, pids)
        for name in ("checkpoints", "spark", "scratch"):
            lengths = list(_lengths(self._directory / name))
            sizes |= {f"{name} files": len(lengths), f"{name} bytes": sum(lengths)}
        last = self._directory / "checkpoints" / JOB / f"chk-{batch_id}" / "_metadata"
        sizes["metadata bytes"] = last.stat().st_size
        return sizes


def _memory(name: str, pids: list[int]) -> dict[str, int]:
    """Return the total resources of processes; USS is private memory, PSS includes a share of shared memory."""
    sizes = {"processes": 0, "rss": 0, "uss": 0, "pss": 0, "descriptors": 0, "threads": 0}
    for pid in pids:
        try:
            process = psutil.Process(pid)
            memory = process.memory_full_info()
            open_files, threads = process.num_fds(), process.num_threads()
        except psutil.NoSuchProcess:
            continue
        sizes["processes"] += 1
        for kind in ("rss", "uss", "pss"):
            sizes[kind] += getattr(memory, kind)
        sizes["descriptors"] += open_files
        sizes["threads"] += threads
    return {f"{name} {kind}": size for kind, size in sizes.items()}


def _lengths(directory: Path) -> Iterator[int]:
    """Yield the length of each file, except those that Spark and cleaners delete concurrently."""
    for parent, _, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError):
                yield os.stat(os.path.join(parent, name)).st_size


def _cpu_s() -> float:
    """Return the CPU time of this process and its descendants."""
    used_s = 0.0
    this = psutil.Process()
    for process in (this, *this.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        used_s += times.user + times.system + times.children_user + times.children_system
    return used_s


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
