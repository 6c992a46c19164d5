"""Engines in processes of their own: a command a line goes in, an answer a line comes out.

So nobody's background threads, garbage or caches are in another one's figures, and an engine in a JVM is
measured as one in Python is.

    begin TYPE               a state with keys of this type
    fill KEYS PARALLELISM    every key once: 1 row, the sum is its number; in so many subtasks
    load FILE                the batch that the commands below use
    count                    rows and the sum of values of each key, more by this batch
    access                   the sum of values alone, key by key, where no key comes twice
    sums                     what the batch's keys have of it, to be compared
    snapshot                 what was changed is on disk
    reopen PARALLELISM       the state anew, of the last snapshot
    leave                    what another process needs to go on from the last snapshot is on disk
    resume                   the state that such a process has left
    look                     the totals of the batch's rows, to be compared
    put_entries              an entry of its key's map for each row, whose key and value are the row's value
    get_entries              the sum of those entries
    list_entries             all entries of the maps of the batch's keys, which don't come twice
    register                 a timer for each row, at its value
    fire UNTIL_MS            all timers up to a time
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks.turns import Cost, LeftOutError, reason_of

Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command took, and what it says.

    Attributes:
        cost: By the engine's own clock; processor time of all threads of its process.
        figures: By name; what phases took is in CPU seconds.
    """

    cost: Cost
    figures: Figures


class Engine(Protocol):
    """Somebody who keeps state by key. There is a method for each command; what is missing, it can't."""

    def begin(self, type: str, /) -> Figures | None:
        """A state with keys of a type."""
        ...


class Process:
    """An engine in a process of its own.

    Args:
        title: What to call it.
        command: What starts it. It says `ready`, then answers commands.
    """

    def __init__(self, title: str, command: Sequence[str]) -> None:
        self.title = title
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._told_cpu_s = 0.0
        if not any(line == "ready\n" for line in self._process.stdout or ()):
            raise LeftOutError("its process has ended; the reason stands above")

    @property
    def pid(self) -> int:
        """The number of its process."""
        return self._process.pid

    def call(self, *words: object) -> Answer:
        """Let it do something.

        Raises:
            LeftOutError: It can't.
        """
        if self._process.stdin is None or self._process.stdout is None:
            raise ValueError("process has no pipes")
        before = self._cpu_s()
        print(*words, file=self._process.stdin, flush=True)
        for line in self._process.stdout:
            kind, _, rest = line.strip().partition(" ")
            if kind == "ok":  # anything else is a logger's
                spent = self._cpu_s() - before
                self._told_cpu_s += spent
                wall, *figures = rest.split()
                return Answer(
                    Cost(int(wall) / 1e9, spent),
                    {
                        name: float(value)
                        for name, _, value in (figure.partition("=") for figure in figures)
                    },
                )
            if kind == "failed":
                raise LeftOutError(f"{words[0]}: {rest}")
        raise LeftOutError(f"{words[0]}: its process has ended; the reason stands above")

    def untold_cpu_s(self) -> float:
        """What its threads have used between commands, since this was asked last: merging, collecting garbage."""
        told, self._told_cpu_s = self._told_cpu_s, self._cpu_s()
        return self._told_cpu_s - told

    def written_bytes(self) -> int:
        """What it has written to files until now."""
        return _number("wchar", f"/proc/{self.pid}/io")

    def memory_bytes(self) -> tuple[int, int]:
        """Memory of the process: its own, and mapped files, which the system can take away."""
        status = f"/proc/{self.pid}/status"
        return _number("RssAnon", status) << 10, _number("RssFile", status) << 10

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def _cpu_s(self) -> float:
        return time.clock_gettime((~self.pid << 3) | 2)  # as clock_getcpuclockid(3) makes it


class Phases:
    """CPU seconds by phase, from one `end` to the next."""

    def __init__(self) -> None:
        self.figures: dict[str, float] = {}
        self._since = time.process_time()

    def end(self, name: str) -> None:
        """A phase has ended here."""
        now = time.process_time()
        self.figures[name] = self.figures.get(name, 0.0) + now - self._since
        self._since = now


def serve(engine: Any) -> None:
    """Do what standard input says, until it ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        command, *words = line.split()
        arguments = [int(word) if word.isdigit() else word for word in words]
        begin = time.perf_counter_ns()
        try:
            figures = getattr(engine, command)(*arguments) or {}
        except Exception as error:  # noqa: BLE001  # whatever it is, it is told
            print("failed", reason_of(error), file=answers, flush=True)
            continue
        wall = time.perf_counter_ns() - begin
        named = [f"{name.replace(' ', '_')}={value!r}" for name, value in figures.items()]
        print("ok", wall, *named, file=answers, flush=True)


def _number(name: str, path: str) -> int:
    (number,) = re.findall(rf"^{name}:\s+(\d+)", Path(path).read_text(), re.MULTILINE)
    return int(number)
