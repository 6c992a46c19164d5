"""Servers end with the run of the tests that has started them."""

import signal
from pathlib import Path

import pytest
from contracts.interrupted_runs import check_servers_end_with_run

_FAULTS = """
import pytest
from servers import infra

@pytest.fixture
def faults():
    with infra.running("faults", "http://127.0.0.1:9") as known:
        yield known
"""

_GCS = """
import pytest
from servers import infra

@pytest.fixture
def gcs():
    with infra.running("gcs") as known:
        yield known
"""

SERVERS = {
    "cluster": "from servers.spark import cluster",
    "connect": "from servers.connect import connect",
    "faults": _FAULTS,
    "gcs": _GCS,
    "hdfs": "from servers.hdfs import hdfs",
    "kafka": "from servers.kafka import kafka",
    "minio": "from servers.s3 import minio",
    "postgres": "from servers.postgres import postgres",
    "versitygw": "from servers.s3 import versitygw",
}


# A server of infra/ ends when the standard input of its holder ends: the fixture closes it after an interrupt, the system if
# the run is killed. So each has one ending, except for one server of each way to hold it.
# Pytest does not handle SIGTERM, so it is like SIGKILL.
ENDINGS = {
    signal.SIGINT: SERVERS.keys() - {"cluster", "hdfs"},
    signal.SIGKILL: {"cluster", "hdfs", "minio", "postgres"},
    signal.SIGTERM: {"minio", "postgres"},
}


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.name)
def test_no_server_outlives_an_interrupted_run(ending: signal.Signals, tmp_path: Path) -> None:
    servers = {name: SERVERS[name] for name in sorted(ENDINGS[ending])}
    check_servers_end_with_run(tmp_path, servers, ending)
