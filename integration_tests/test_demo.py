"""The command of the first screen of the README: `make demo`."""

import os
import subprocess
from pathlib import Path

import pytest
from contracts.patience import RUN_HANGS_S

ROOT = Path(__file__).parents[1]


@pytest.mark.timeout(2 * RUN_HANGS_S)
def test_jobs_that_are_killed_come_to_what_a_plain_query_says() -> None:
    unset = {"MAKEFLAGS", "MAKELEVEL", "SPARK_SUBMIT_OPTS"}  # of the `make` that runs the tests
    ran = subprocess.run(
        ["make", "demo"],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name not in unset},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=2 * RUN_HANGS_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "every figure, session and report is what a plain query says" in ran.stdout
