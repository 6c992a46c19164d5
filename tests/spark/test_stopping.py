"""A query that is stopped in the middle of a batch, by a driver in a process of its own: what is seen of it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from contracts.patience import RUN_HANGS_S


def run(directory: Path, how: str) -> tuple[str, str]:
    """What the driver has printed of the query's error, and all that it has logged."""
    ran = subprocess.run(
        [sys.executable, "-m", "jobs.stops", str(directory), how],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(["tests", *sys.path])},
        capture_output=True,
        text=True,
        timeout=RUN_HANGS_S,
        check=True,
    )
    return ran.stdout, ran.stderr


@pytest.mark.exhaustive  # drivers of their own
@pytest.mark.parametrize("how", ["in a job", "in the sink"])
def test_a_query_that_is_stopped_in_mid_batch_ends_quietly_and_commits_nothing(
    tmp_path: Path, how: str
) -> None:
    error, log = run(tmp_path, how)
    assert error == "None\n"
    alarming = ("StackOverflowError", "Traceback", "ERROR", "WARNING:holdfast")
    assert [word for word in alarming if word in log] == [], log
    assert list(tmp_path.glob("job/checkpoints/*/chk-*/*")) == []
    assert list(tmp_path.glob("job/spark/commits/*")) == []


@pytest.mark.exhaustive  # a driver of its own
def test_a_sink_that_fails_while_its_query_is_stopped_shows_its_error(tmp_path: Path) -> None:
    error, log = run(tmp_path, "in a sink that fails")
    assert "RuntimeError: as planned" in error
    assert 'raise RuntimeError("as planned")' in log
    assert "StackOverflowError" not in log
