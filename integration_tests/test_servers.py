"""Servers of all kinds end with the run of the tests that has started them."""

import signal
from pathlib import Path

import pytest
from contracts.interrupted_runs import check_servers_end_with_run

_FAULTS = """
import pytest
from servers import infra

@pytest.fixture
def faults():
    with infra.started("faults", "http://127.0.0.1:9") as known:
        yield known
"""

SERVERS = {
    "cluster": "from servers.spark import cluster",
    "connect": "from servers.connect import connect",
    "faults": _FAULTS,
    "hdfs": "from servers.hdfs import hdfs",
    "minio": "from servers.s3 import minio",
    "postgres": "from servers.postgres import postgres",
    "versitygw": "from servers.s3 import versitygw",
}


# An interrupt ends each server's own fixture. What is killed can't end anything, which whoever holds the
# server notices: so a server of each way to hold them, and of several processes. To pytest, which does not
# handle it, SIGTERM is as SIGKILL.
ENDINGS = {
    signal.SIGINT: SERVERS.keys(),
    signal.SIGKILL: {"cluster", "hdfs", "minio", "postgres"},
    signal.SIGTERM: {"minio", "postgres"},
}


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.name)
def test_no_server_outlives_a_run_that_is_ended(ending: signal.Signals, tmp_path: Path) -> None:
    servers = {name: SERVERS[name] for name in sorted(ENDINGS[ending])}
    check_servers_end_with_run(tmp_path, servers, ending)
