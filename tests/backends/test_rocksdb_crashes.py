"""SIGKILL and a full disk leave the last confirmed checkpoint of a RocksDB backend, and no garbage."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from contracts.patience import HANGS_S
from jobs.quick_disk import QUICK_DISK

ROOT = Path(__file__).parents[2]
STEPS = [7, pytest.param(1, marks=pytest.mark.exhaustive)]  # 15 s of processor time for each call


def run_to_success(command: list[str]) -> str:
    """Run a program and return its output."""
    ran = subprocess.run(
        command, cwd=ROOT / "tests", capture_output=True, text=True, timeout=HANGS_S, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


@pytest.mark.parametrize("step", STEPS)
def test_killed_process_leaves_only_the_last_checkpoint(step: int) -> None:
    directory = Path(QUICK_DISK) / f"lives-{step}"
    directory.mkdir()
    killed = run_to_success([sys.executable, "-m", "jobs.rocksdb_lives", str(directory), str(step)])
    assert int(killed) > 50 // step


def test_full_disk_is_named_and_loses_nothing(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "host").mkdir()
    if shutil.which("unshare") is None:
        pytest.skip("no unshare(1) here, so no disk can be made")
    mount = f"mount -t tmpfs -o size=4m tmpfs {tmp_path}/host"
    own = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*own, mount], capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine doesn't allow mounting a disk")
    job = f"{sys.executable} -m jobs.rocksdb_full_disk {tmp_path}/store {tmp_path}/host"
    assert run_to_success([*own, f"{mount} && exec {job}"]) == "done"
