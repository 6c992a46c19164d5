"""The servers to measure on, and what lies on their disks."""

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
"""What `infra/hdfs/start` exits with where there can be no servers."""

_LONGEST_S = 10.0


@dataclass(frozen=True, slots=True)
class Server:
    """What `infra/hdfs/start` has printed."""

    uri: str
    conf_dir: Path
    directory: Path

    def wait_until_empty(self) -> None:
        """Wait until the DataNodes have removed all blocks: they do so seconds after a delete.

        Not for ever: one of a file that was deleted at once may stay until the next full report.
        """
        deadline = time.monotonic() + _LONGEST_S
        while any(self.directory.glob("data*/current/**/blk_*")) and time.monotonic() < deadline:
            time.sleep(0.1)


@contextmanager
def started() -> Iterator[Server]:
    """A NameNode and two DataNodes that run until the block is left, whatever ends it.

    Ctrl-C is for this process alone: they are in sessions of their own, as is what stops them.
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
            start.send_signal(signal.SIGINT)  # it stops what it has started
            start.wait()
            raise
    if start.returncode == _UNAVAILABLE:
        sys.exit("HDFS can't be had here; the reason stands above")
    if start.returncode:
        sys.exit("HDFS did not start; the reason stands above")
    return printed


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHON": sys.executable}
