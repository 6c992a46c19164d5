"""Servers that tests start end with the run of the tests."""

import signal
from pathlib import Path

import pytest
from contracts.run_that_ends import check_that_nothing_outlives


@pytest.mark.parametrize(
    ("ending", "workers"),
    [(signal.SIGINT, 0), (signal.SIGINT, 1), (signal.SIGTERM, 0), (signal.SIGKILL, 1)],
)
def test_no_server_outlives_a_run_that_is_ended(
    ending: signal.Signals, workers: int, tmp_path: Path
) -> None:
    imports = "from servers.s3 import ministack"
    check_that_nothing_outlives(tmp_path, "ministack", imports, ending, "-n", str(workers))
