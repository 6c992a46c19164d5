"""The query of `kinds_job` in processes of its own."""

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from examples.demo.job_process import DriverProcess
from proof.kinds_job import FAILED

LOCAL = "local[2,2]"

_TESTS = Path(__file__).parents[1] / "tests"
"""`kinds_job` imports from there."""

_LOOK_EVERY_S = 0.02
_HANGS_S = 600.0


class HangsError(Exception):
    """Nothing happens any more."""


class RunningQuery(DriverProcess):
    """A start of the query.

    Args:
        directory: Where it writes; those of all starts are the same.
        checkpoints: URI of its checkpoint directory.
        master: Spark's master.
        parallelism: Number of subtasks of each operator.
        again: Whether a query that fails is started again in the same Spark.
        conf: More settings of Spark.
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
        """How many batches Spark has noted as done, in all starts."""
        names = [path.name for path in (self._directory / "spark" / "commits").glob("*")]
        return max((int(name) + 1 for name in names if name.isdecimal()), default=0)

    @property
    def failed(self) -> int:
        """How many queries of it have failed and were to be started again."""
        file = self._directory / FAILED
        return file.read_text().split().count(f"{self._driver.pid}") if file.exists() else 0

    def wait_for_batches(self, count: int) -> None:
        """Wait until so many batches more are done, or it has ended.

        Raises:
            HangsError: Neither happens.
        """
        wanted = self.batches + count
        self._await(
            lambda: self.exit_code is not None or self.batches >= wanted, "the query stands still"
        )

    def wait_for_end(self, otherwise: str = "the query does not come to its end") -> None:
        """Wait until it has ended.

        Raises:
            HangsError: It doesn't, with these words.
        """
        self._await(lambda: self.exit_code is not None, otherwise)

    def said(self) -> str:
        """The end of its log, without lines of Java's stack."""
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join(line for line in lines if not line.startswith("\tat "))[-6000:]

    def _await(self, happens: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + _HANGS_S
        while not happens():
            if time.monotonic() > deadline:
                raise HangsError(f"{otherwise}: {self.said()}")
            time.sleep(_LOOK_EVERY_S)
