"""The query of `kinds_job` in separate processes."""

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from examples.demo.job_process import DriverProcess
from proof.kinds_job import FAILED_FILE

LOCAL = "local[2,2]"

_TESTS = Path(__file__).parents[1] / "tests"
"""`kinds_job` imports modules from it."""

_LOOK_EVERY_S = 0.02
_HANGS_S = 600.0


class HangsError(Exception):
    """The query makes no progress."""


class RunningQuery(DriverProcess):
    """A start of the query.

    Args:
        directory: Its output directory, the same for all starts.
        checkpoints: URI of its checkpoint directory.
        master: Spark's master.
        parallelism: Number of subtasks of each operator.
        again: Whether a failed query is restarted in the same Spark.
        conf: Additional Spark settings.
    """

    def __init__(
        self,
        directory: Path,
        checkpoints: str,
        *,
        master: str = LOCAL,
        parallelism: int = 2,
        again: bool = False,
        conf: Mapping[str, str] | None = None,
    ) -> None:
        self._directory = directory
        self._log = directory / "log"
        command = [sys.executable, "-m", "proof.kinds_job", str(directory)]
        command += ["--checkpoints", checkpoints, "--master", master]
        command += ["--parallelism", str(parallelism)]
        command += ["--again"] if again else []
        for key, value in (conf or {}).items():
            command += ["--conf", f"{key}={value}"]
        path = os.pathsep.join(filter(None, [str(_TESTS), os.environ.get("PYTHONPATH")]))
        super().__init__(
            command,
            scratch=directory / "scratch",
            log=self._log,
            environment={"PYTHONPATH": path},
        )

    @property
    def batches(self) -> int:
        """Number of batches that Spark has recorded as done, in all starts."""
        names = [path.name for path in (self._directory / "spark" / "commits").glob("*")]
        return max((int(name) + 1 for name in names if name.isdecimal()), default=0)

    @property
    def failed(self) -> int:
        """Number of its failed queries that it restarts."""
        file = self._directory / FAILED_FILE
        return file.read_text().split().count(f"{self._driver.pid}") if file.exists() else 0

    def wait_for_batches(self, count: int) -> None:
        """Wait until a number of additional batches is done, or it has ended.

        Raises:
            HangsError: Neither happens in time.
        """
        wanted = self.batches + count
        self._await(
            lambda: self.exit_code is not None or self.batches >= wanted,
            "the query makes no progress",
        )

    def wait_for_end(self, otherwise: str = "the query does not end") -> None:
        """Wait until it has ended.

        Raises:
            HangsError: It does not; has this message.
        """
        self._await(lambda: self.exit_code is not None, otherwise)

    def log_tail(self) -> str:
        """Return the end of its log, without stack traces of Java."""
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join(line for line in lines if not line.startswith("\tat "))[-6000:]

    def _await(self, happens: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + _HANGS_S
        while not happens():
            if time.monotonic() > deadline:
                raise HangsError(f"{otherwise}: {self.log_tail()}")
            time.sleep(_LOOK_EVERY_S)
