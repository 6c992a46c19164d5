"""Queries that are stopped in the middle of a batch, in a separate driver: their errors and logs."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from contracts.patience import RUN_HANGS_S
from jobs.stops import PLACES

pytestmark = pytest.mark.exhaustive  # it starts a driver


@dataclass(frozen=True)
class StoppedQuery:
    """The error and the log of a query that was stopped."""

    directory: Path
    error: str
    log: str


@pytest.fixture(scope="module")
def queries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, StoppedQuery]:
    """Return the queries of a driver by the place where they were stopped."""
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
    for place in reversed(PLACES):
        log, logs[place] = log.split(f"{place}\n")
    return {place: StoppedQuery(directory / place, errors[place], logs[place]) for place in PLACES}


@pytest.mark.parametrize("place", ["in a job", "in the sink"])
def test_query_stopped_in_mid_batch_ends_quietly(
    queries: dict[str, StoppedQuery], place: str
) -> None:
    assert queries[place].error == "None"
    alarming = ("StackOverflowError", "Traceback", "ERROR", "WARNING:holdfast")
    assert [word for word in alarming if word in queries[place].log] == [], queries[place].log
    assert list(queries[place].directory.glob("job/checkpoints/*/chk-*/*")) == []
    assert list(queries[place].directory.glob("job/spark/commits/*")) == []


def test_error_of_a_sink_in_a_stopped_query_is_shown(queries: dict[str, StoppedQuery]) -> None:
    query = queries["in a sink that fails"]
    assert "RuntimeError: as planned" in query.error
    assert 'raise RuntimeError("as planned")' in query.log
    assert "StackOverflowError" not in query.log
