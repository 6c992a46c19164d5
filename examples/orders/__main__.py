"""Send orders to Kafka, kill the job that reads them at five points, rescale it, and check every table and topic.

    python -m examples.orders [--dir DIR]

Ends with 0 if nothing was lost and nothing doubled, 1 if anything differs, 3 if a server or a jar can't be had here.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from confluent_kafka import Producer as KafkaProducer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console

from examples.demo.command import run_demonstration
from examples.demo.job_process import DriverProcess
from examples.demo.runs import JobFailedError
from examples.demo.servers import kafka_server, s3_server, table_jars
from examples.orders.check import count_of_late, differences
from examples.orders.job import ALERTS
from examples.orders.killed_job import POINTS
from examples.orders.messages import Producer

MESSAGES = 1_000
"""Messages for each run: two batches."""

PARALLELISMS = (2, 2, 3, 3, 1, 2)
"""The parallelism of each run; after a kill the job is rescaled."""

_FAULT_OF_THE_CONNECTOR = "KafkaMicroBatchStream.metrics"
"""SPARK-55271: a query on PySpark 4.1 ends with it if its first batch was completed before. The next start resumes."""

_SEND_S = 60.0
_RUN_S = 300.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the pipeline; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.orders",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--dir", type=Path, help="keep tables and logs here")
    options = parser.parse_args(arguments)
    return run_demonstration(parser, options.dir, demonstrate, kept="tables and logs")


def demonstrate(root: Path, console: Console) -> bool:
    """Run the pipeline, and print what it did; True if all is right."""
    began = time.monotonic()
    with ExitStack() as servers:
        checkpoints = servers.enter_context(s3_server())
        kafka = servers.enter_context(kafka_server())
        _create_topics(kafka.bootstrap)
        console.print(f"Kafka is at {kafka.bootstrap}, state goes to {checkpoints} on a MinIO")
        jars = ",".join(map(str, [*kafka.jars, *table_jars()]))
        producer = Producer()
        options = ["--bootstrap", kafka.bootstrap, "--checkpoints", checkpoints]
        options += ["--directory", str(root), "--jars", jars]
        for point, parallelism in zip([*POINTS, None], PARALLELISMS, strict=True):
            _send(kafka.bootstrap, producer)
            run = [*options, "--parallelism", str(parallelism)]
            started = time.monotonic()
            _run(root, run, point)
            ended = f"killed when {point}" if point else "read the rest, and ended"
            console.print(
                f"parallelism {parallelism}: {ended} ({time.monotonic() - started:.0f} s)"
            )
        wrong = list(differences(root, kafka.bootstrap, producer))
    for difference in wrong:
        console.print(f"WRONG: {difference}", style="bold red", markup=False)
    if not wrong:
        console.print(
            f"{len(producer.orders):,} orders, {count_of_late(root)} of them late, and {len(producer.malformed)} other "
            "messages: each is there once in Delta, Iceberg and Kafka",
            style="green",
        )
    console.print(f"all of it took {time.monotonic() - began:.0f} s")
    return not wrong


def _create_topics(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [NewTopic(name, num_partitions=2, replication_factor=1) for name in ("orders", ALERTS)]
    for created in admin.create_topics(topics).values():
        created.result(_SEND_S)


def _send(bootstrap: str, producer: Producer) -> None:
    kafka = KafkaProducer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    for number, message in enumerate(producer.messages(MESSAGES)):
        kafka.produce("orders", message, partition=number % 2)
    if kafka.flush(_SEND_S):
        raise JobFailedError(f"Kafka at {bootstrap} does not take the orders")


def _run(root: Path, options: list[str], point: str | None) -> None:
    """Run the job until it is killed at the point, or until it has read the topic."""
    module = "examples.orders.killed_job" if point else "examples.orders.job"
    command = [sys.executable, "-m", module, *options, *(["--point", point] if point else [])]
    files = root / "job"
    files.mkdir(exist_ok=True)
    log = files / "log"
    for _ in range(2):
        begin = log.stat().st_size if log.exists() else 0
        job = DriverProcess(command, scratch=files / "scratch", log=log)
        try:
            exit_code = job.wait(_RUN_S)
        except subprocess.TimeoutExpired as error:
            message = f"a run of the job has not ended after {_RUN_S:.0f} s"
            raise JobFailedError(message) from error
        finally:
            job.kill()
        if exit_code == (-9 if point else 0):
            return
        output = log.read_bytes()[begin:].decode(errors="replace")
        if _FAULT_OF_THE_CONNECTOR not in output:
            break
    raise JobFailedError(f"a run of the job failed with exit code {exit_code}:\n{output[-3000:]}")


if __name__ == "__main__":
    sys.exit(main())
