"""Flink's part, in a JVM."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.operator_state.works import Measured, Work
from benchmarks.rounds import Cost, LeftOutError

_SOURCE = Path(__file__).parents[1] / "flink" / "OperatorState.java"


class Flink:
    """An engine: `OperatorState.java`, which does each work whole and measures itself.

    Args:
        process: The JVM; it takes a command and gives an answer, a line each.
    """

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def measure(self, work: Work, target: str) -> Measured:
        if self._process.stdin is None or self._process.stdout is None:
            raise ValueError("process has no pipes")
        print(work.kind, work.count, target, file=self._process.stdin, flush=True)
        for line in self._process.stdout:
            kind, _, rest = line.strip().partition(" ")
            if kind == "ok":  # anything else is a logger's
                return _parse_answer(rest)
            if kind == "failed":
                raise LeftOutError(rest)
        raise LeftOutError("its JVM has ended; the reason is printed above")


@contextmanager
def flink(directory: Path, jars: Path) -> Iterator[Flink]:
    """Flink in a JVM, until the block is left.

    Args:
        directory: Where checkpoints on disk go.
        jars: The folder with Flink's jars.

    Raises:
        LeftOutError: There is no JDK, or the JVM doesn't start.
    """
    options = ["-Xms4g", "-Xmx4g", "-cp", f"{jars}/*"]
    with subprocess.Popen(
        [_java(), *options, str(_SOURCE), str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            if process.stdout is None or not any(line == "ready\n" for line in process.stdout):
                raise LeftOutError("its JVM has ended; the reason is printed above")
            yield Flink(process)
        finally:
            process.terminate()


def _parse_answer(answer: str) -> Measured:
    costs, sizes = {}, {}
    for word in answer.split():
        name, _, value = word.partition("=")
        wall, is_time, cpu = value.partition(":")
        if is_time:
            costs[name] = Cost(int(wall) / 1e9, int(cpu) / 1e9)
        else:
            sizes[name] = int(wall)
    return Measured(costs, sizes)


def _java() -> str:
    """The program `java` of a JDK: what is compiled is not kept."""
    home = os.environ.get("JAVA_HOME")
    programs = {
        name: shutil.which(name, path=f"{home}/bin" if home else None) for name in ("java", "javac")
    }
    if programs["java"] is None or programs["javac"] is None:
        raise LeftOutError("it needs a JDK of 17 or newer, and there is no javac")
    return programs["java"]
