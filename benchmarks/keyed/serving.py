"""Engines in separate processes: they read one command per line and write one answer per line.

So the figures of an engine exclude background threads, garbage and caches of the others, and an engine in a JVM is
measured like one in Python.

    begin TYPE               a state with keys of this type
    fill KEYS PARALLELISM    every key once: 1 row, the sum is its number; in PARALLELISM subtasks
    load FILE                the batch that the commands below use
    count                    rows and the sum of values of each key, more by this batch
    access                   only the sum of values, key by key; the keys are distinct
    sums                     the sum of values over the batch's keys, to be compared
    snapshot                 store the changes on disk
    reopen PARALLELISM       reopen the state of the last snapshot
    leave                    store everything on disk that another process needs to resume
    resume                   open the state that such a process has stored
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

from benchmarks.rounds import Cost, LeftOutError, reason_of

Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Answer:
    """Cost and result of a command.

    Attributes:
        cost: Wall-clock time measured by the engine; CPU time of all threads of its process.
        figures: By name; phases in CPU seconds.
    """

    cost: Cost
    figures: Figures


class Engine(Protocol):
    """A keyed state, with one method per command that it supports."""

    def begin(self, type: str, /) -> Figures | None:
        """A state with keys of a type."""
        ...


class Process:
    """An engine in a separate process.

    Args:
        title: Title of the engine.
        command: Command line of the process. It prints `ready`, then answers commands.
    """

    def __init__(self, title: str, command: Sequence[str]) -> None:
        self.title = title
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._reported_cpu_s = 0.0
        if not any(line == "ready\n" for line in self._process.stdout or ()):
            raise LeftOutError("its process has ended; the reason is printed above")

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
                self._reported_cpu_s += spent
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
        raise LeftOutError(f"{words[0]}: its process has ended; the reason is printed above")

    def background_cpu_s(self) -> float:
        """Return the CPU time of its threads between commands since the last call: merging, garbage collection."""
        reported, self._reported_cpu_s = self._reported_cpu_s, self._cpu_s()
        return self._reported_cpu_s - reported

    def written_bytes(self) -> int:
        """Return the bytes written to files so far."""
        return _number("wchar", f"/proc/{self.pid}/io")

    def memory_bytes(self) -> tuple[int, int]:
        """Return private memory and memory of mapped files, which the system can reclaim."""
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
    """Run the commands from standard input until it ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries must not mix with answers
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        command, *words = line.split()
        arguments = [int(word) if word.isdigit() else word for word in words]
        begin = time.perf_counter_ns()
        try:
            figures = getattr(engine, command)(*arguments) or {}
        except Exception as error:  # noqa: BLE001  # the parent reports every error
            print("failed", reason_of(error), file=answers, flush=True)
            continue
        wall = time.perf_counter_ns() - begin
        named = [f"{name.replace(' ', '_')}={value!r}" for name, value in figures.items()]
        print("ok", wall, *named, file=answers, flush=True)


def _number(name: str, path: str) -> int:
    (number,) = re.findall(rf"^{name}:\s+(\d+)", Path(path).read_text(), re.MULTILINE)
    return int(number)
