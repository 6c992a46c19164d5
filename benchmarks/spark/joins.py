"""Interval joins of two streams: Holdfast against Spark's stream-stream join with state in RocksDB.

    python -m benchmarks.spark.joins [--keys 1000 100000 1000000] [--rows 100000] [--rounds 3]

In each round every query runs once over the same files in one Spark session. A file is a micro-batch and ten seconds of event
time, with half of the rows for each stream. Both streams have a watermark of ten seconds. The interval is as wide
as a row has about one match, and at most as wide as the watermark's delay. The figure is the median period of a micro-batch in
a round, without the first ones.
"""

import argparse
import shutil
import statistics
import tempfile
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.spark.__main__ import measure, session
from benchmarks.spark.queries import PARALLELISM, Start
from holdfast import keyed

_WARM_UP = 4
_BATCH_S = 10
_DELAY = f"{_BATCH_S} seconds"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keys", type=int, nargs="+", default=[1000, 100_000, 1_000_000])
    parser.add_argument("--rows", type=int, default=100_000, help="rows of a micro-batch")
    parser.add_argument("--batches", type=int, default=6, help="counted batches per round")
    parser.add_argument("--rounds", type=int, default=3, help="rounds")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="holdfast-benchmark-"))
    spark = session(directory)
    try:
        for keys in options.keys:
            source = directory / f"source-{keys}"
            feed(source, keys, options.rows, _WARM_UP + options.batches)
            width_s = min(_BATCH_S, _BATCH_S * keys / options.rows)
            periods = measure(
                spark,
                directory,
                source,
                partial(_queries, width_s),
                options.rounds,
                warm_up=_WARM_UP,
            )
            print(f"\n{keys:,} keys, batches of {options.rows:,} rows: ms by round")
            base, *_ = periods.values()
            for name, periods_ms in periods.items():
                ratio = statistics.median(a / b for a, b in zip(base, periods_ms, strict=True))
                rounds = "  ".join(f"{ms:6.0f}" for ms in periods_ms)
                print(f"{name:32}{rounds}   ratio {ratio:.2f}", flush=True)
            shutil.rmtree(source)
    finally:
        spark.stop()
        shutil.rmtree(directory)


def feed(source: Path, keys: int, rows: int, files: int) -> None:
    """Write the source. A value is a time in seconds; negative ones belong to the second stream."""
    source.mkdir(parents=True)
    random = np.random.default_rng(7)
    for number in range(files):
        times_s = 1 + _BATCH_S * (number + random.random(rows))
        table = pa.table(
            {
                "key": random.integers(0, keys, rows),
                "value": times_s * np.where(np.arange(rows) % 2, 1, -1),
            }
        )
        pa.parquet.write_table(table, source / f"{number:05}.parquet")


def _queries(width_s: float) -> dict[str, Start]:
    width = timedelta(seconds=width_s)
    micros = width // timedelta(microseconds=1)

    def native(stream: DataFrame, checkpoint: str) -> Any:
        first, second = _streams(stream)
        condition = (
            (F.col("key") == F.col("other"))
            & (F.col("paid") >= F.col("at"))
            & (F.col("paid") <= F.col("at") + F.expr(f"make_dt_interval(0, 0, 0, {micros / 1e6})"))
        )
        return _start(first.join(second, condition), checkpoint, "append")

    def ours(stream: DataFrame, checkpoint: str) -> Any:
        first, second = _streams(stream)
        joined = keyed(first, "key", uid="join", parallelism=PARALLELISM).connect(second, "other")
        output = joined.interval_join(time="at", other_time="paid", lower=timedelta(0), upper=width)
        return _start(output, checkpoint, "update")

    return {"Spark: join": native, "Holdfast: interval_join": ours}


def _streams(stream: DataFrame) -> tuple[DataFrame, DataFrame]:
    time = "timestamp_micros(cast(abs(value) * 1000000 as bigint))"
    first = stream.where("value > 0").selectExpr("key", f"{time} as at", "value as amount")
    second = stream.where("value < 0").selectExpr("key as other", f"{time} as paid", "value as fee")
    return first.withWatermark("at", _DELAY), second.withWatermark("paid", _DELAY)


def _start(output: Any, checkpoint: str, mode: str) -> Any:
    writer = output.writeStream.outputMode(mode).foreachBatch(_drop)
    return writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()


def _drop(rows: DataFrame, _batch_id: int) -> None:
    rows.write.format("noop").mode("overwrite").save()


if __name__ == "__main__":
    main()
