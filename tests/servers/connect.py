"""A Spark Connect server on loopback, with two cores.

It starts when the first test requests it and stops with the session, with all processes that it has started.
"""

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyspark
import pytest
from contracts.patience import wait_until
from pyspark.sql.connect.session import SparkSession
from servers.leash import leash

_TESTS = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class ConnectServer:
    """A server.

    Attributes:
        uri: `sc://127.0.0.1:port`.
        process: The server's JVM.
        log: Log of the server and of the processes of its queries.
    """

    uri: str
    process: psutil.Process
    log: Path

    def new_session(self) -> SparkSession:
        """Return a new session; this process may have a classic one at the same time."""
        return SparkSession.builder.remote(self.uri).create()

    def batch_processes(self) -> list[psutil.Process]:
        """Return the processes that run the batches of queries."""
        return [
            child
            for child in self.process.children(recursive=True)
            if any("foreach_batch_worker" in word for word in _command_of(child))
        ]


def _command_of(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        return process.cmdline()
    return []


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


@contextmanager
def connect_server(directory: Path) -> Iterator[ConnectServer]:
    """Run a server with its files in a directory."""
    port = _free_port()
    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(directory),
        "spark.python.daemon.module": "holdfast.worker_daemon",
        "spark.sql.session.timeZone": "Europe/Berlin",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
    }
    command = [
        str(home / "bin" / "spark-submit"),
        "--class",
        "org.apache.spark.sql.connect.service.SparkConnectServer",
        "--master",
        "local[2,2]",  # a failed task is tried once more
        *(word for pair in settings.items() for word in ("--conf", "=".join(pair))),
        "spark-internal",
    ]
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(_TESTS), *sys.path]),
    }
    log = directory / "server.log"
    with leash(command, directory=directory, log=log, environment=environment) as process:
        wait_until(
            lambda: _listens(port) or not process.is_running(),
            lambda: f"no answer: {log.read_text()}",
        )
        assert process.is_running(), log.read_text()
        yield ConnectServer(f"sc://127.0.0.1:{port}", process, log)


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
        return True
    return False


@pytest.fixture(scope="session")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    with connect_server(tmp_path_factory.mktemp("connect")) as server:
        yield server
