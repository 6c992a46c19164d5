"""Hadoop's own client, in a JVM with Spark's jars."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from benchmarks.hdfs.works import BLOCK_BYTES, CHUNK_BYTES, Work
from benchmarks.rounds import Cost, LeftOutError

_SOURCE = Path(__file__).parent / "HadoopClient.java"
_JARS = Path(pyspark.__file__).parent / "jars"


class Jvm:
    """An engine: files of `HadoopClient.java`, which does each work whole and measures itself.

    Args:
        process: The JVM; it takes a command and gives an answer, a line each.
        hsync: Whether all blocks of a file are on disk before it is closed, as Holdfast's are.
    """

    def __init__(self, process: "subprocess.Popen[str]", *, hsync: bool) -> None:
        self._process = process
        self._sync = "hsync" if hsync else "close"

    def run(self, action: str, work: Work, directory: str) -> Cost:
        sizes = (work.files, work.file_bytes, work.threads, CHUNK_BYTES, BLOCK_BYTES)
        if self._process.stdin is None or self._process.stdout is None:
            raise ValueError("process has no pipes")
        print(action, *sizes, self._sync, directory, file=self._process.stdin, flush=True)
        for line in self._process.stdout:
            kind, _, rest = line.strip().partition(" ")
            if kind == "ns":  # anything else is a logger's
                wall, cpu = rest.split()
                return Cost(int(wall) / 1e9, int(cpu) / 1e9)
            if kind == "failed":
                raise LeftOutError(rest)
        raise LeftOutError("its JVM has ended; the reason is printed above")


@contextmanager
def jvm(uri: str, conf_dir: Path, data: Path) -> Iterator["subprocess.Popen[str]"]:
    """A JVM that waits for commands, until the block is left.

    Raises:
        LeftOutError: There is no JDK, or its client doesn't start.
    """
    command = [
        _java(),
        "-Xmx512m",
        "-cp",
        f"{conf_dir}:{_JARS}/*",
        str(_SOURCE),
        uri,
        str(data),
    ]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            if process.stdout is None or not any(line == "ready\n" for line in process.stdout):
                raise LeftOutError("its JVM has ended; the reason is printed above")
            yield process
        finally:
            process.terminate()


def _java() -> str:
    """The program `java` of a JDK: what is compiled is not kept."""
    home = os.environ.get("JAVA_HOME")
    programs = {
        name: shutil.which(name, path=f"{home}/bin" if home else None) for name in ("java", "javac")
    }
    if programs["java"] is None or programs["javac"] is None:
        raise LeftOutError("it needs a JDK, and there is no javac")
    return programs["java"]
