"""A driver in a separate process: a process has one JVM, and a driver may be killed."""

import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
from contracts.patience import RUN_HANGS_S
from jobs.job import Job, connect
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from servers.spark import kill_tree

from holdfast import StatefulFunction

SinkOfJob = Callable[[Job, DataFrame, int], None]


class Driver:
    """Runs jobs on a cluster, one at a time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def start(
        self,
        job: Job,
        function: StatefulFunction,
        sink: SinkOfJob = Job.write_by_spark,
        **options: object,
    ) -> None:
        """Run a job in the driver until it has read everything, with options of its operator."""
        self._connection.send((type(job), job.directory, job.settings, function, sink, options))

    def error(self) -> str:
        """Wait until the job has ended, and return the error of its query, or an empty text."""
        assert self._connection.poll(RUN_HANGS_S), "the driver does not end"
        return str(self._connection.recv())


@contextmanager
def driver(master: str, settings: Mapping[str, str]) -> Iterator[Driver]:
    """Run a driver for the block; then kill it with everything that it has started."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, master, dict(settings)))
    process.start()
    there.close()
    try:
        assert here.poll(RUN_HANGS_S), "the driver gets no session"
        here.recv()
        yield Driver(here)
    finally:
        assert process.pid is not None
        started = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.join()
        process.close()
        here.close()
        kill_tree(*started)


def _serve(connection: Connection, master: str, settings: dict[str, str]) -> None:
    spark = connect(master, settings)
    connection.send("ready")
    while True:
        kind, directory, settings, function, sink, options = connection.recv()
        job: Job = kind(spark, Path(directory))
        job.settings = settings
        sink_of_job: SinkOfJob = sink

        def write(
            rows: DataFrame, batch_id: int, sink: SinkOfJob = sink_of_job, job: Job = job
        ) -> None:
            sink(job, rows, batch_id)

        try:
            job.run(job.operator(function, sink=write, **options))
        except StreamingQueryException as error:
            connection.send(str(error))
        else:
            connection.send("")
