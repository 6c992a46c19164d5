"""The complete pipeline of the docs: `make demo PIPELINE=orders`."""

import subprocess
import sys
from pathlib import Path

import pytest
from contracts.patience import RUN_HANGS_S

ROOT = Path(__file__).parents[1]
_UNAVAILABLE = 3


@pytest.mark.timeout(3 * RUN_HANGS_S)
def test_killed_pipeline_has_each_row_once_in_all_outputs(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "examples.orders", "--dir", tmp_path / "orders"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=3 * RUN_HANGS_S,
        check=False,
    )
    if ran.returncode == _UNAVAILABLE:
        pytest.skip(ran.stdout + ran.stderr)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count("killed when") == 5
    assert "each is there once in Delta, Iceberg and Kafka" in ran.stdout
