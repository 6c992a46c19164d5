"""Servers that tests start end with the run of the tests."""

import signal
from pathlib import Path

import pytest
from contracts.run_that_ends import check_that_nothing_outlives


# Without a worker, and other servers: the integration tests.
@pytest.mark.exhaustive  # each starts pytest, a worker and a server
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_no_server_outlives_a_run_of_tests(ending: signal.Signals, tmp_path: Path) -> None:
    servers = {"ministack": "from servers.s3 import ministack"}
    check_that_nothing_outlives(tmp_path, servers, ending, "-n", "1")
