"""Keyed state on a cluster of several hosts: where each batch reads its state from, and the cost of a lost host.

    python -m benchmarks.spark.hosts [--hosts 2] [--server minio --delay-ms 40] [--lose 8]

A running aggregate with a value of 1 KiB for each key. The first batches bring all keys, all others 1,000 random ones. The
hosts are Spark workers on this machine with one core each, each with its own loopback address and local directories. For
each source of state the table has its share of the subtasks, of all counted batches. With `--lose` a host is killed
with its executor during that batch, and its seconds until the checkpoint are printed.
"""

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from pyspark.sql import DataFrame, SparkSession

from benchmarks.s3.server import run_link, run_server
from holdfast import keyed, subtasks
from holdfast import max as max_of
from infra.spark import server as cluster

_LOADS = 4
_VALUE_BYTES = 1024
_LOSS_S = 0.5
"""The time from the start of a batch's sink to the loss of a host; its tasks run then."""
_UID = "largest"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=2, help="Spark workers")
    parser.add_argument("--subtasks", type=int, default=4, help="parallelism of the operator")
    parser.add_argument("--keys", type=int, default=100_000, help="keys in state")
    parser.add_argument("--rows", type=int, default=1000, help="rows of a counted batch")
    parser.add_argument("--batches", type=int, default=20, help="counted batches")
    parser.add_argument("--server", choices=["minio"], help="S3, instead of a shared directory")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="delay of S3 each way")
    parser.add_argument("--lose", type=int, help="counted batch that loses a host")
    parser.add_argument("--set", nargs="*", default=[], help="further Spark settings")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="holdfast-benchmark-"))
    try:
        feed(directory / "source", options)
        with _store(directory, options) as store, _hosts(options.hosts) as known:
            measure(directory, store, known, options)
    finally:
        shutil.rmtree(directory)


def feed(source: Path, options: argparse.Namespace) -> None:
    """Write the source, a file for each batch."""
    source.mkdir()
    random = np.random.default_rng(7)
    loads = np.array_split(random.permutation(options.keys), _LOADS)
    counted = [random.integers(0, options.keys, options.rows) for _ in range(options.batches)]
    for number, keys in enumerate([*loads, *counted]):
        values = [random.bytes(_VALUE_BYTES // 2).hex() for _ in keys]
        file = source / f"{number:05}.parquet"
        pa.parquet.write_table(pa.table({"key": keys, "value": values}), file)
        os.utime(file, (1_700_000_000 + number,) * 2)  # Spark reads the oldest first


def measure(
    directory: Path, store: dict[str, str], known: dict[str, str], options: argparse.Namespace
) -> None:
    """Run the job and print its figures."""
    settings = dict(setting.split("=", 1) for setting in options.set)
    spark = session(directory, known["master"], store | settings)
    lost: list[float] = []

    def lose_host() -> None:
        cluster.kill_worker(Path(known["directory"]), options.hosts)
        lost.append(time.time())

    def sink(rows: DataFrame, batch_id: int) -> None:
        if options.lose is not None and batch_id == _LOADS + options.lose:
            threading.Timer(_LOSS_S, lose_host).start()
        rows.write.format("noop").mode("overwrite").save()

    stream = spark.readStream.schema("key long, value string").option("maxFilesPerTrigger", 1)
    rows = stream.parquet(str(directory / "source"))
    largest = keyed(rows, "key", uid=_UID, parallelism=options.subtasks).agg(value=max_of("value"))
    writer = largest.writeStream.foreachBatch(sink).trigger(availableNow=True)
    query = writer.option("checkpointLocation", f"file://{directory}/spark").start()
    try:
        query.awaitTermination()
        periods = [progress["durationMs"]["triggerExecution"] for progress in query.recentProgress]
    finally:
        tables = _statistics(store["spark.holdfast.checkpoint.dir"], options)
        spark.stop()
    report(tables, periods[_LOADS:], lost)


def report(tables: list[pa.Table], periods: list[int], lost: list[float]) -> None:
    """Print the shares of the sources, the bytes that were fetched, and the periods."""
    rows = [row for table in tables for row in table.to_pylist()]
    restored = [row for row in rows if row["restored_from"]]
    stored_bytes = sum(row["stored_bytes"] for row in restored)
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for row in restored:
        counts[row["restored_from"]] += 1
        sizes[row["restored_from"]] += row["stored_bytes"]
    print("| state from | subtasks | bytes of state |\n|---|---|---|")
    for source in ("worker", "local", "storage"):
        share, size = counts[source] / len(restored), sizes[source] / stored_bytes
        print(f"| {source} | {share:.0%} | {size:.0%} |")
    fetched = [sum(row["fetched_bytes"] or 0 for row in table.to_pylist()) for table in tables]
    print(f"MB fetched by batch: {', '.join(f'{size / 1e6:.1f}' for size in fetched)}")
    print(f"ms by batch: {', '.join(map(str, periods))}; median {statistics.median(periods):.0f}")
    if lost:
        completed = [table["completed"][0].as_py().timestamp() for table in tables]
        (first, *_) = [moment for moment in completed if moment > lost[0]]
        print(f"seconds from the loss to the next checkpoint: {first - lost[0]:.1f}")


def session(directory: Path, master: str, settings: dict[str, str]) -> SparkSession:
    """Return a session on the cluster."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
    session = (
        SparkSession.builder.master(master)
        .config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"])
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", str(directory / "driver"))
        .config("spark.python.daemon.module", "holdfast.worker_daemon")
        .config("spark.scheduler.minRegisteredResourcesRatio", "1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.streaming.numRecentProgressUpdates", "1000")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.holdfast.job.id", _UID)
        .config("spark.holdfast.checkpoint.num-retained", "1000")
        .config("spark.holdfast.state.inline-threshold", "0")
        .config("spark.holdfast.state.local-recovery", "true")
        .config(map={**settings})
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    return session


def _statistics(root: str, options: argparse.Namespace) -> list[pa.Table]:
    """Return the subtasks' statistics of each counted batch."""
    return [
        subtasks(f"{root}/{_UID}/chk-{number}")
        for number in range(_LOADS + 1, _LOADS + options.batches + 1)
    ]


@contextmanager
def _hosts(count: int) -> Iterator[dict[str, str]]:
    known = cluster.start(count)
    try:
        yield known
    finally:
        cluster.stop(Path(known["directory"]))


@contextmanager
def _store(directory: Path, options: argparse.Namespace) -> Iterator[dict[str, str]]:
    """Yield the settings of the checkpoint store."""
    if options.server is None:
        yield {"spark.holdfast.checkpoint.dir": f"file://{directory}/checkpoints"}
        return
    with run_server(options.server) as server, server.new_bucket() as bucket:
        linked: Any = nullcontext()
        if options.delay_ms:
            linked = run_link(bucket, options.delay_ms, 125e6)
        with linked as link:
            yield {
                "spark.holdfast.checkpoint.dir": f"s3://{bucket.name}/state",
                "spark.holdfast.s3.endpoint": (link.bucket if link else bucket).endpoint,
                "spark.holdfast.s3.region": server.region,
                "spark.holdfast.s3.path-style-access": "true",
                "spark.holdfast.s3.access-key": server.access_key,
                "spark.holdfast.s3.secret-key": server.secret_key,
            }


if __name__ == "__main__":
    main()
