"""Servers that tests start end with the run of the tests."""

import signal
from pathlib import Path

import pytest
from contracts.interrupted_runs import check_servers_end_with_run


# Without a worker, and other servers: the integration tests.
@pytest.mark.exhaustive  # each starts pytest, a worker and a server
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_no_server_outlives_a_run_of_tests(ending: signal.Signals, tmp_path: Path) -> None:
    servers = {"ministack": "from servers.s3 import ministack"}
    check_servers_end_with_run(tmp_path, servers, ending, "-n", "1")
