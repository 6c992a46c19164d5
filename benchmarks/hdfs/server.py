"""The HDFS servers under test, and the files on their disks."""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_INFRA = Path(__file__).parents[2] / "infra" / "hdfs"

_UNAVAILABLE = 3
"""Exit code of `infra/hdfs/start` on machines where the servers cannot run."""

_LONGEST_S = 10.0


@dataclass(frozen=True, slots=True)
class Server:
    """Connection data printed by `infra/hdfs/start`."""

    uri: str
    conf_dir: Path
    directory: Path

    def wait_until_empty(self) -> None:
        """Wait until the DataNodes have removed all blocks: they do so seconds after a delete.

        The wait has a limit: a block of a file deleted right after its creation may stay until the next full report.
        """
        deadline = time.monotonic() + _LONGEST_S
        while any(self.directory.glob("data*/current/**/blk_*")) and time.monotonic() < deadline:
            time.sleep(0.1)


@contextmanager
def run_servers() -> Iterator[Server]:
    """Run a NameNode and two DataNodes until the block is left, for whatever reason.

    Ctrl-C reaches only this process: the servers and the script that stops them run in separate sessions.
    """
    known = dict(word.split("=", 1) for word in shlex.split(_start()))
    try:
        os.environ["HADOOP_CONF_DIR"] = known["conf_dir"]  # where Holdfast's client looks
        yield Server(known["uri"], Path(known["conf_dir"]), Path(known["directory"]))
    finally:
        subprocess.run(
            [_INFRA / "stop", known["directory"]],
            check=True,
            env=_environment(),
            start_new_session=True,
        )


def _start() -> str:
    with subprocess.Popen(
        [_INFRA / "start"],
        stdout=subprocess.PIPE,
        text=True,
        env=_environment(),
        start_new_session=True,
    ) as start:
        try:
            printed, _ = start.communicate()
        except BaseException:
            start.send_signal(signal.SIGINT)  # it stops the servers that it has started
            start.wait()
            raise
    if start.returncode == _UNAVAILABLE:
        sys.exit("HDFS is not available here; the reason is printed above")
    if start.returncode:
        sys.exit("HDFS did not start; the reason is printed above")
    return printed


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHON": sys.executable}
