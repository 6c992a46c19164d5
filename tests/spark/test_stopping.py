"""A query that is stopped in the middle of a batch, by a driver in a process of its own: what is seen of it."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from contracts.patience import RUN_HANGS_S
from jobs.stops import PLACES

pytestmark = pytest.mark.exhaustive  # a driver of its own


@dataclass(frozen=True)
class Stopped:
    """What was seen of a query that was stopped."""

    directory: Path
    error: str
    log: str


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Stopped]:
    """Each query of a driver, by where it was stopped."""
    directory = tmp_path_factory.mktemp("stopped")
    ran = subprocess.run(
        [sys.executable, "-m", "jobs.stops", str(directory)],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(["tests", *sys.path])},
        capture_output=True,
        text=True,
        timeout=RUN_HANGS_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    errors, log = json.loads(ran.stdout), ran.stderr
    logs = {}
    for way in reversed(PLACES):
        log, logs[way] = log.split(f"{way}\n")
    return {way: Stopped(directory / way, errors[way], logs[way]) for way in PLACES}


@pytest.mark.parametrize("way", ["in a job", "in the sink"])
def test_a_query_that_is_stopped_in_mid_batch_ends_quietly_and_commits_nothing(
    stopped: dict[str, Stopped], way: str
) -> None:
    assert stopped[way].error == "None"
    alarming = ("StackOverflowError", "Traceback", "ERROR", "WARNING:holdfast")
    assert [word for word in alarming if word in stopped[way].log] == [], stopped[way].log
    assert list(stopped[way].directory.glob("job/checkpoints/*/chk-*/*")) == []
    assert list(stopped[way].directory.glob("job/spark/commits/*")) == []


def test_a_sink_that_fails_while_its_query_is_stopped_shows_its_error(
    stopped: dict[str, Stopped],
) -> None:
    query = stopped["in a sink that fails"]
    assert "RuntimeError: as planned" in query.error
    assert 'raise RuntimeError("as planned")' in query.log
    assert "StackOverflowError" not in query.log
