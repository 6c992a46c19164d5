"""Alert rules in a real Prometheus, which scrapes a job until the job is killed."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import pytest
from contracts.patience import wait_until
from servers import infra
from servers.leash import leash

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "infra" / "observability"


@pytest.fixture(scope="module")
def programs() -> Path:
    """The directory of Prometheus' programs."""
    built = infra.call("observability", "build")
    if built.returncode == infra.UNAVAILABLE:
        pytest.skip(built.stderr.strip().splitlines()[-1])
    assert built.returncode == 0, built.stderr
    return Path(built.stdout.strip())


@pytest.mark.parametrize(
    "arguments", [("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")]
)
def test_promtool_accepts_the_rules_and_their_cases(
    programs: Path, arguments: tuple[str, ...]
) -> None:
    command = [str(programs / "promtool"), *arguments]
    done = subprocess.run(command, cwd=FOLDER, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def ask(url: str, path: str) -> Any:
    """Return the data of an answer of Prometheus, at most twice a second."""
    time.sleep(0.5)
    with urlopen(f"{url}/api/v1/{path}") as answer:
        return json.load(answer)["data"]


def firing(url: str) -> set[str]:
    """Return the names of the alerts that fire."""
    alerts = ask(url, "alerts")["alerts"]
    return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}


def test_killed_driver_is_reported_by_the_stale_alert(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    query = quote('holdfast_checkpoints_completed_total{job_id="monitored"}')
    tests = os.pathsep.join([str(ROOT / "tests"), *filter(None, sys.path)])
    with infra.running("observability", f"127.0.0.1:{port}") as prometheus:
        url = prometheus["url"]

        def count_completed() -> float:
            series = ask(url, f"query?query={query}")["result"]
            return float(series[0]["value"][1]) if series else 0.0

        with leash(
            [sys.executable, "-m", "jobs.monitored", str(tmp_path), str(port)],
            directory=tmp_path,
            log=tmp_path / "log",
            environment=os.environ | {"PYTHONPATH": tests},
        ) as driver:
            wait_until(lambda: count_completed() >= 3, "no checkpoint is scraped")
            assert firing(url) == set()
            driver.kill()
        wait_until(lambda: "HoldfastCheckpointStale" in firing(url), "the alert does not fire")
