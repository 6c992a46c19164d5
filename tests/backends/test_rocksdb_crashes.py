"""What SIGKILL and a full disk leave of a backend on RocksDB: the last confirmed checkpoint, and no garbage."""

import subprocess
import sys
from pathlib import Path

import pytest
from contracts.patience import HANGS_S
from jobs.quick_disk import QUICK_DISK

ROOT = Path(__file__).parents[2]
STEPS = [7, pytest.param(1, marks=pytest.mark.exhaustive)]  # 15 s of processor time for each call


def said(command: list[str]) -> str:
    """What a program prints that is to succeed."""
    ran = subprocess.run(
        command, cwd=ROOT / "tests", capture_output=True, text=True, timeout=HANGS_S, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


@pytest.mark.parametrize("step", STEPS)
def test_who_is_killed_anywhere_leaves_the_last_checkpoint_and_nothing_else(step: int) -> None:
    directory = Path(QUICK_DISK) / f"lives-{step}"
    directory.mkdir()
    killed = said([sys.executable, "-m", "jobs.rocksdb_lives", str(directory), str(step)])
    assert int(killed) > 50 // step
