"""Cost of metrics and spans in a micro-batch.

    python -m benchmarks.spark.metrics [--rounds 5] [--batches 20]

In each round the same query runs without metrics, with a port for Prometheus, and with the port, OTLP metrics and spans,
over the same files in one Spark session, starting with a different one. The figure is the median period of a
micro-batch in a round (Spark's `triggerExecution`). The last line is the time that the thread of the query spends on
the report of a checkpoint, which is all that metrics add to the path of a batch.
"""

import argparse
import multiprocessing
import shutil
import statistics
import tempfile
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from benchmarks.spark.__main__ import feed, measure, print_periods, session
from benchmarks.spark.queries import PARALLELISM, RunningCount, Start
from holdfast import stateful
from holdfast.spark.metrics import CompletedBatch, JobMetrics
from infra.common import free_ports

_PREFIX = "spark.holdfast.metrics."
_WARM_UP = 4


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds")
    parser.add_argument("--batches", type=int, default=20, help="counted batches per round")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="holdfast-benchmark-"))
    ours, theirs = multiprocessing.Pipe()
    collector = multiprocessing.get_context("spawn").Process(
        target=_collect, args=(theirs,), daemon=True
    )
    collector.start()
    endpoint = f"http://127.0.0.1:{ours.recv()}"
    spent_s = _time_reports()
    try:
        spark = session(directory)
        feed(directory / "small", files=options.batches + _WARM_UP, rows=1000)
        port = {"prometheus.port": str(free_ports(1)[0])}
        otlp = {"otlp.endpoint": endpoint, "otlp.spans-endpoint": endpoint}
        sides = {
            "without metrics": {},
            "Prometheus": port,
            "Prometheus, OTLP and spans": port | otlp,
        }
        periods = measure(
            spark,
            directory,
            directory / "small",
            lambda: {name: _start_with(settings) for name, settings in sides.items()},
            options.rounds,
        )
        print_periods(periods, options.batches)
        spark.stop()
    finally:
        collector.terminate()
        shutil.rmtree(directory)
    median_ms = 1000 * statistics.median(spent_s)
    print(f"\nreport of a checkpoint in the thread of the query: {median_ms:.4f} ms (median)")
    print(f"longest of {len(spent_s)}: {1000 * max(spent_s):.4f} ms")


def _start_with(settings: Mapping[str, str]) -> Start:
    def start(stream: DataFrame, checkpoint: str) -> Any:
        conf = stream.sparkSession.conf
        for name, value in settings.items():
            conf.set(_PREFIX + name, value)
        operator = stateful(
            RunningCount(),
            sink=lambda rows, _: rows.collect() and None,
            uid="counts",
            parallelism=PARALLELISM,
            schema="key long, n long",
        )
        writer = stream.writeStream.foreachBatch(operator).option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        for name in settings:  # the query has its copy
            conf.unset(_PREFIX + name)
        return query

    return start


def _time_reports() -> list[float]:
    """Measure each report of a completed checkpoint from now on; seconds."""
    spent_s: list[float] = []
    report = JobMetrics.report_completed

    def report_timed(self: JobMetrics, batch: CompletedBatch) -> None:
        start_s = time.perf_counter()
        report(self, batch)
        spent_s.append(time.perf_counter() - start_s)

    JobMetrics.report_completed = report_timed  # type: ignore[method-assign]  # only measured
    return spent_s


class _Collector(BaseHTTPRequestHandler):
    def do_POST(self) -> None:  # the name that http.server calls
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def _collect(connection: Connection) -> None:
    """Receive OTLP until the process is ended."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Collector)
    connection.send(server.server_port)
    server.serve_forever()


if __name__ == "__main__":
    main()
