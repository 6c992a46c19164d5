"""Cost of a micro-batch and of a row with Holdfast, with Spark's state, and without state.

    python -m benchmarks.spark [--rounds 5] [--batches 20] [--only batch|row]

In each round every query runs once over the same files in one Spark session, starting with a different one.
The figure is the median period of a micro-batch in a round (Spark's `triggerExecution`).
"""

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from pyspark.sql import SparkSession

from benchmarks.spark.queries import SCHEMA, Start, counting_queries, passing_queries

_WARM_UP = 4
_KEYS = 100


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds")
    parser.add_argument("--batches", type=int, default=20, help="counted batches per round")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of a large batch")
    parser.add_argument("--only", choices=["batch", "row"], help="one of the two tables")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="holdfast-benchmark-"))
    try:
        spark = session(directory)
        if options.only != "row":
            feed(directory / "small", files=options.batches + _WARM_UP, rows=1000)
            periods = measure(
                spark, directory, directory / "small", counting_queries, options.rounds
            )
            print_periods(periods, options.batches)
        if options.only != "batch":
            large = max(3, options.batches // 4)
            feed(directory / "large", files=large + _WARM_UP, rows=options.rows)
            periods = measure(
                spark, directory, directory / "large", passing_queries, options.rounds
            )
            print_rates(periods, options.rows, large)
        spark.stop()
    finally:
        shutil.rmtree(directory)


def session(directory: Path, **settings: str) -> SparkSession:
    """Return the session; `settings` are those of Spark, without the prefix."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # Tasks find the functions of this package.
    os.environ["PYTHONPATH"] = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
    rocks_db = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        # The CPU time of a compiler thread is lost when the thread ends.
        .config("spark.driver.extraJavaOptions", "-XX:-UseDynamicNumberOfCompilerThreads")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        # Spark does so for its stateful queries; to Spark ours are stateless. Its setting
        # for streams without state doesn't reach what runs in foreachBatch.
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.sql.streaming.numRecentProgressUpdates", "1000")
        .config("spark.sql.streaming.stateStore.providerClass", rocks_db)
        .config("spark.holdfast.checkpoint.dir", f"file://{directory}/checkpoints")
        .config(map={f"spark.{name}": value for name, value in settings.items()})
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session


def feed(source: Path, *, files: int, rows: int) -> None:
    """Write the source: one file a micro-batch."""
    source.mkdir(parents=True)
    random = np.random.default_rng(7)
    for number in range(files):
        table = pa.table({"key": random.integers(0, _KEYS, rows), "value": random.random(rows)})
        pa.parquet.write_table(table, source / f"{number:05}.parquet")


def measure(
    spark: SparkSession,
    directory: Path,
    source: Path,
    queries: Callable[[], dict[str, Start]],
    rounds: int,
    *,
    warm_up: int = _WARM_UP,
) -> dict[str, list[float]]:
    """Median period of each round by query, milliseconds, without the first batches; one that fails is left out."""
    periods: dict[str, list[float]] = {name: [] for name in queries()}
    for number in range(rounds):
        names = list(periods)
        new = queries()
        for name in names[number % len(names) :] + names[: number % len(names)]:
            # Workers are shared by tasks with the same variables, and those of Holdfast do less in each task.
            spark.sparkContext.environment["HOLDFAST_BENCHMARK"] = name
            try:
                periods[name].append(_median_period(spark, directory, source, new[name], warm_up))
            except Exception as error:  # noqa: BLE001  # the others continue
                print(f"{name} is left out: {str(error).strip().splitlines()[0]}")
                del periods[name]
    return periods


def _median_period(
    spark: SparkSession, directory: Path, source: Path, start: Start, warm_up: int
) -> float:
    checkpoint = directory / "spark"
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(source))
    try:
        query = start(stream, str(checkpoint))
        query.awaitTermination()
        batches = query.recentProgress[warm_up:]
        return statistics.median(
            float(progress["durationMs"]["triggerExecution"]) for progress in batches
        )
    finally:
        shutil.rmtree(checkpoint, ignore_errors=True)


def print_periods(periods: dict[str, list[float]], batches: int) -> None:
    """Periods, and how much longer they are than the first query's."""
    print(f"\nperiod of a micro-batch of 1,000 rows, ms: median of {batches} batches, by round")
    base = next(iter(periods.values()))
    for name, periods_ms in periods.items():
        more = statistics.median(a - b for a, b in zip(periods_ms, base, strict=True))
        ratio = statistics.median(a / b for a, b in zip(periods_ms, base, strict=True))
        rounds = "  ".join(f"{period_ms:5.0f}" for period_ms in periods_ms)
        print(f"{name:34}{rounds}   {more:+6.0f} ms   ratio {ratio:.2f}")


def print_rates(periods: dict[str, list[float]], rows: int, batches: int) -> None:
    """Rows per second, and their ratio to the first query's."""
    print(f"\nmillion rows a second, batches of {rows:,} rows: median of {batches}, by round")
    base = next(iter(periods.values()))
    for name, periods_ms in periods.items():
        ratio = statistics.median(b / a for a, b in zip(periods_ms, base, strict=True))
        rounds = "  ".join(f"{rows / period_ms / 1000:5.2f}" for period_ms in periods_ms)
        print(f"{name:34}{rounds}   ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
