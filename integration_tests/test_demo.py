"""The command of the first screen of the README: `make demo`."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from contracts.patience import RUN_HANGS_S

from examples.demo.flights_demo import N_FILES
from holdfast.cli.command_line import main

ROOT = Path(__file__).parents[1]


@pytest.mark.timeout(2 * RUN_HANGS_S)
def test_killed_jobs_reach_the_results_of_plain_queries(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unset = {"MAKEFLAGS", "MAKELEVEL", "SPARK_SUBMIT_OPTS"}  # of the `make` that runs the tests
    ran = subprocess.run(
        ["make", "demo", f"DIR={tmp_path / 'demo'}"],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name not in unset},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=2 * RUN_HANGS_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "every figure, session and report equals the result of a plain query" in ran.stdout
    assert main(["list", f"file://{tmp_path}/demo/flights/checkpoints", "--history", "--json"]) == 0
    history = json.loads(capsys.readouterr().out)
    assert [row["batch"] for row in history] == list(range(N_FILES))
    # After three kills, and for the rest of the stream.
    assert sum(row["claims"] is not None for row in history) == 4
