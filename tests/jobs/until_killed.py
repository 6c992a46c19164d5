"""Programs that kill themselves with SIGKILL, and jobs that stand still until their driver does."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path

from contracts.patience import RUN_HANGS_S

ROOT = Path(__file__).parents[2]


def run_until_killed(*arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """Run Python with these arguments until it is killed; all that it said.

    It finds what this process can import.
    """
    paths = os.pathsep.join([str(ROOT / "tests"), *sys.path])
    with tempfile.TemporaryFile() as log:  # a pipe would stay open in workers that outlive it
        died = subprocess.run(
            [sys.executable, *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": paths, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            timeout=RUN_HANGS_S,
            check=False,
        )
        log.seek(0)
        said = log.read().decode(errors="replace")
    assert died.returncode == -signal.SIGKILL, said[-5000:]
    return said


def wait_until_all_stand(
    running: Mapping[str, Future[None]], stands: Callable[[str], bool]
) -> None:
    """Wait until each job is where it is to die; one that ends instead is an error.

    Args:
        running: The jobs, by name.
        stands: Whether the job of a name is there.
    """
    deadline = time.monotonic() + RUN_HANGS_S / 2
    while late := [name for name in running if not stands(name)]:
        for name in late:
            if running[name].done() and not stands(name):
                running[name].result()
                raise AssertionError(f"job {name} has ended")
        if time.monotonic() > deadline:
            raise TimeoutError(f"jobs don't get to where they are to die: {late}")
        time.sleep(0.05)
