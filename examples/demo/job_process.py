"""The job in separate processes, which can be stopped and killed together."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

import psutil

from examples.demo.places import Places

_REPOSITORY = Path(__file__).parents[2]
_GONE_WITHIN_S = 10.0


class DriverProcess:
    """A driver and its child processes: its JVM, Python workers, executors of a local cluster.

    They form a separate session, and are found by its id. Their process group would not
    do: PySpark's daemon makes one for itself.

    Args:
        command: The driver's command line.
        scratch: Directory for temporary files.
        log: File that their output is appended to.
        environment: Variables that the processes have besides those of this process.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        scratch: Path,
        log: Path,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        scratch.mkdir(exist_ok=True)
        with log.open("ab") as output:
            self._driver = subprocess.Popen(
                command,
                cwd=_REPOSITORY,
                env={**_environment(scratch), **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._known = [self._driver.pid]

    @property
    def exit_code(self) -> int | None:
        """Exit code of the driver; negative for a signal, None while it runs."""
        return self._driver.poll()

    def wait(self, timeout_s: float) -> int:
        """Wait for the end of the driver, and return its exit code. Raises `subprocess.TimeoutExpired`."""
        return self._driver.wait(timeout_s)

    def look_around(self) -> None:
        """Learn the job's processes, so that `stop` need not search for them first."""
        self._known = self.members()

    def stop(self) -> None:
        """Hold the processes where they are, the driver first."""
        _signal(self._known, signal.SIGSTOP)
        _signal(self.members(), signal.SIGSTOP)

    def resume(self) -> None:
        """Undo `stop`."""
        _signal(self.members(), signal.SIGCONT)

    def kill(self) -> None:
        """Kill all processes with SIGKILL; on return they are gone."""
        deadline = time.monotonic() + _GONE_WITHIN_S
        while members := self.members():
            if time.monotonic() > deadline:
                raise TimeoutError(f"processes {members} of the job don't go away")
            _signal(members, signal.SIGKILL)
            self._driver.poll()  # reaps it
            time.sleep(0.001)
        self._driver.wait()

    def members(self) -> list[int]:
        """Ids of the processes that are alive, the driver first."""
        session = self._driver.pid
        return sorted(
            (pid for pid in psutil.pids() if _session_of(pid) == session and _is_alive(pid)),
            key=lambda pid: (pid != session, pid),
        )


class JobProcess(DriverProcess):
    """One run of a job of the demo.

    Args:
        places: Where it reads from and writes to.
        drain: Whether it writes the rest of the rows too; not all jobs know that.
        master: Spark's master, if not the job's own choice.
    """

    def __init__(self, places: Places, *, drain: bool, master: str | None = None) -> None:
        command = [sys.executable, "-m", f"{places.job.package}.{places.job.name}_job"]
        command += ["--source", str(places.source), "--dir", str(places.root)]
        command += ["--checkpoints", places.checkpoints]
        command += ["--drain"] if drain else []
        command += ["--master", master] if master else []
        super().__init__(command, scratch=places.scratch, log=places.spark_log)


def _environment(scratch: Path) -> dict[str, str]:
    # A killed process does not delete its temporary files, so they are all in one place.
    # The demo starts Spark nine times; without the optimizing compiler that takes half the CPU.
    java = f'"-Djava.io.tmpdir={scratch}" -XX:-UsePerfData -XX:TieredStopAtLevel=1 -XX:+UseSerialGC'
    return os.environ | {
        "PYSPARK_PYTHON": sys.executable,
        "TMPDIR": str(scratch),
        "SPARK_LOCAL_DIRS": str(scratch),
        "JDK_JAVA_OPTIONS": java,
    }


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return None


def _is_alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
