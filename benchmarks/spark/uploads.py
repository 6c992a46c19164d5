"""The period of a micro-batch whose state is uploaded to a distant S3 server.

    python -m benchmarks.spark.uploads --delay-ms 0,15,50 --subtasks 2,16 [--against DIRECTORY] [--rounds 3]

A link delays each way by `--delay-ms`. `keyed().agg()` keeps a count and a sum of each key, and all state is in files
(`inline-threshold` 0). With `--against`, another checkout of Holdfast runs after this one in each round, over the same
files and server. Each run is a new process. The figure is the median period of a micro-batch (Spark's
`triggerExecution`), without the first ones; in parentheses is the part of it in which the sink's job runs.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from pyspark.sql import DataFrame

import holdfast as hf
from benchmarks.s3.server import run_link, run_server
from benchmarks.spark.__main__ import session
from benchmarks.spark.queries import SCHEMA
from holdfast import keyed

_WARM_UP = 4


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--server", default="minio")
    parser.add_argument("--delay-ms", default="0,15,50")
    parser.add_argument("--megabytes-a-second", type=float, default=125.0)
    parser.add_argument("--subtasks", default="2,16")
    parser.add_argument("--keys", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sink", choices=["noop", "parquet"], default="noop")
    parser.add_argument("--inline", default="0", help="inline-threshold")
    parser.add_argument("--against", help="another checkout")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        print(json.dumps(_run(json.loads(options.run))))
        return
    sides = [str(Path(__file__).parents[2]), *([options.against] if options.against else [])]
    with run_server(options.server) as server, server.new_bucket() as bucket:
        for delay_ms in map(float, options.delay_ms.split(",")):
            with run_link(bucket, delay_ms, options.megabytes_a_second) as link:
                for subtasks in map(int, options.subtasks.split(",")):
                    settings = {
                        **vars(options),
                        "subtasks": subtasks,
                        "directory": f"s3://{bucket.name}",
                        "endpoint": link.bucket.endpoint,
                        "access_key": server.access_key,
                        "secret_key": server.secret_key,
                    }
                    figures: dict[str, list[str]] = {side: [] for side in sides}
                    for number in range(options.rounds):
                        for side in sides[:: 1 - 2 * (number % 2)]:
                            run = _run_in_process(side, settings)
                            figures[side].append(f"{run['period']:.0f} ({run['sink']:.0f})")
                    load = os.getloadavg()[0]
                    for side in sides:
                        print(
                            f"+{2 * delay_ms:g} ms, {subtasks} subtasks, {side}: {', '.join(figures[side])}; "
                            f"load {load:.1f}",
                            flush=True,
                        )


def _run_in_process(checkout: str, settings: dict[str, Any]) -> dict[str, float]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([f"{checkout}/src", os.getcwd()])}
    command = [sys.executable, "-m", "benchmarks.spark.uploads", "--run", json.dumps(settings)]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _run(options: dict[str, Any]) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="holdfast-benchmark-") as name:
        directory = Path(name)
        _feed(directory / "source", options)
        spark = session(
            directory,
            **{
                "holdfast.checkpoint.dir": f"{options['directory']}/{time.time_ns()}",
                "holdfast.s3.endpoint": options["endpoint"],
                "holdfast.s3.region": "us-east-1",
                "holdfast.s3.path-style-access": "true",
                "holdfast.s3.access-key": options["access_key"],
                "holdfast.s3.secret-key": options["secret_key"],
                "holdfast.state.inline-threshold": options["inline"],
                "python.daemon.module": "holdfast.worker_daemon",
            },
        )
        durations: list[float] = []

        def write(rows: DataFrame, batch_id: int) -> None:
            begin_s = time.monotonic()
            if options["sink"] == "noop":
                rows.write.format("noop").mode("overwrite").save()
            else:
                rows.write.mode("overwrite").parquet(f"{directory}/output/{batch_id}")
            durations.append(1000 * (time.monotonic() - begin_s))

        stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        totals = keyed(
            stream.parquet(f"{directory}/source"),
            "key",
            uid="totals",
            parallelism=options["subtasks"],
        ).agg(n=hf.count(), total=hf.sum("value"))
        query = (
            totals.writeStream.outputMode("update")
            .foreachBatch(write)
            .option("checkpointLocation", f"{directory}/spark")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        periods = [each["durationMs"]["triggerExecution"] for each in query.recentProgress]
        spark.stop()
    return {
        "period": statistics.median(periods[_WARM_UP:]),
        "sink": statistics.median(durations[_WARM_UP:]),
    }


def _feed(source: Path, options: dict[str, Any]) -> None:
    """Write the source: one file a micro-batch, the first with each key once."""
    source.mkdir()
    random = np.random.default_rng(7)
    for number in range(_WARM_UP + options["batches"]):
        keys = random.integers(0, options["keys"], options["rows"])
        if number == 0:
            keys = random.permutation(options["keys"])
        table = pa.table({"key": keys, "value": random.random(len(keys))})
        pa.parquet.write_table(table, source / f"{number:05}.parquet")


if __name__ == "__main__":
    main()
