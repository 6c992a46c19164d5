"""The parts of the benchmark: each runs the engines in order and collects their figures."""

import os
import shutil
import statistics
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.keyed.limits import forget_pages, memory_limit
from benchmarks.keyed.serving import Answer, Figures, Process
from benchmarks.keyed.sides import SIDES, run_processes
from benchmarks.keyed.works import Batches, Work, numbers_of
from benchmarks.rounds import Cost, LeftOutError, left_out_on_failure

OPENINGS = 3
ENTRIES = 10


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the command line.

    Attributes:
        sides: Names of the compared engines.
        rounds: Number of measured rounds.
        batches: Number of batches per round.
        directory: Directory for all files.
        jars: Directory of Flink's jars.
    """

    sides: list[str]
    rounds: int
    batches: int
    directory: Path
    jars: Path | None


@dataclass(frozen=True, slots=True)
class RoundResult:
    """Figures of one engine in one round.

    Attributes:
        steps: Answers by step, in the order of the batches.
        background_cpu_s: CPU time of its threads between commands since the previous round.
        written_bytes: Bytes written to files.
    """

    steps: dict[str, list[Answer]]
    background_cpu_s: float
    written_bytes: int

    @property
    def cpu_s(self) -> float:
        """CPU time of a batch: the sum of the mean of each step, plus the time between commands."""
        batches = max(len(answers) for answers in self.steps.values())
        steps = [
            statistics.fmean(answer.cost.cpu_s for answer in answers)
            for answers in self.steps.values()
        ]
        return sum(steps) + self.background_cpu_s / batches

    @property
    def wall_s(self) -> float:
        """Wall-clock time of a batch: the sum of the mean of each step."""
        return sum(
            statistics.fmean(answer.cost.wall_s for answer in answers)
            for answers in self.steps.values()
        )


@dataclass(slots=True)
class Side:
    """All figures of an engine in a part."""

    rounds: list[RoundResult] = field(default_factory=list)
    openings: dict[str, list[Cost]] = field(default_factory=dict)
    own_bytes: int = 0
    mapped_bytes: int = 0
    disk_bytes: int = 0

    def answers(self, step: str) -> list[Answer]:
        """Return all answers of a step."""
        return [answer for result in self.rounds for answer in result.steps.get(step, ())]

    @property
    def steps(self) -> list[str]:
        """The names of its steps."""
        return list(self.rounds[0].steps)

    @property
    def phases(self) -> list[str]:
        """Names of the figures that its steps report."""
        return list(
            dict.fromkeys(
                name
                for step in self.steps
                for answer in self.answers(step)
                for name in answer.figures
            )
        )

    def phase_s(self, name: str) -> float:
        """The median of a phase, CPU seconds."""
        figures = [answer.figures for step in self.steps for answer in self.answers(step)]
        return statistics.median(figure[name] for figure in figures if name in figure)

    def batch_costs(self) -> list[Cost]:
        """Each batch with all its steps, of sides that do all of them with each batch."""
        per_step = [self.answers(step) for step in self.steps]
        return [
            Cost(
                sum(answer.cost.wall_s for answer in answers),
                sum(answer.cost.cpu_s for answer in answers),
            )
            for answers in zip(*per_step, strict=True)
        ]


Sides = dict[str, Side]


def count_rows(work: Work, options: Options, part: str = "batches") -> Sides:
    """Measure counts and sums by key, with a snapshot after each batch; then reopen the state."""
    directory = _new_directory(options.directory)
    with run_processes(options.sides, part, directory, options.jars) as processes:
        batches = Batches(work, directory)
        expected = _Expected(work)
        _fill(processes, work, 1)
        sides: Sides = {name: Side() for name in processes}
        for number in range(options.rounds + 1):
            paths = [batches.write() for _ in range(options.batches)]
            for path in paths:
                expected.add(path)
            for name in _rotated_names(processes, number):
                with left_out_on_failure(processes[name].title, name, processes):
                    result = _measure_round(
                        processes[name], "count", paths, stores_all=SIDES[name].stores_all
                    )
                    if number:  # the first is to warm up
                        sides[name].rounds.append(result)
            for path in paths[:-1]:
                path.unlink()
        for name in list(processes):
            with left_out_on_failure(processes[name].title, name, processes):
                _inspect(processes[name], sides[name], directory / name)
                _check(processes[name], expected, paths[-1])
        if part == "batches":
            _measure_reopening(processes, sides, expected, paths[-1])
    shutil.rmtree(directory)
    return {name: sides[name] for name in processes}


def access_keys(work: Work, options: Options) -> tuple[Sides, float]:
    """Measure sums key by key, as computed by a Python function; return the mean number of keys per batch, too."""
    directory = _new_directory(options.directory)
    with run_processes(options.sides, "access", directory, options.jars) as processes:
        batches = Batches(work, directory)
        every = np.arange(work.keys)
        sums = every.copy()
        for name in list(processes):
            with left_out_on_failure(processes[name].title, name, processes):
                processes[name].call("begin", work.type)
                processes[name].call("fill", 1, 1)
                for at in range(0, work.keys, 10 * work.rows):
                    some = every[at : at + 10 * work.rows]
                    processes[name].call("load", batches.write_rows(some, some))
                    processes[name].call("access")
                processes[name].call("snapshot")
        sides: Sides = {name: Side() for name in processes}
        counts = []
        for number in range(options.rounds + 1):
            paths = [batches.write_distinct() for _ in range(options.batches)]
            for path in paths:
                keys, values = numbers_of(path)
                sums[keys] += values
                counts.append(len(keys))
            expected = {"sum": float(sums[keys].sum())}
            for name in _rotated_names(processes, number):
                with left_out_on_failure(processes[name].title, name, processes):
                    stores_all = SIDES[name].stores_all
                    result = _measure_round(processes[name], "access", paths, stores_all=stores_all)
                    _compare(processes[name].call("sums"), expected)
                    if number:
                        sides[name].rounds.append(result)
    shutil.rmtree(directory)
    return {name: sides[name] for name in processes}, statistics.fmean(counts)


def fire_timers(work: Work, options: Options) -> Sides:
    """Measure timers: one per key, registered batch by batch; then a tenth of them fires at once."""
    directory = _new_directory(options.directory)
    span_ms = 1_000_000_000
    with run_processes(options.sides, "timers", directory, options.jars) as processes:
        sides: Sides = {name: Side() for name in processes}
        batches = Batches(work, directory)
        random = np.random.default_rng(11)
        for name in list(processes):
            with left_out_on_failure(processes[name].title, name, processes):
                processes[name].call("begin", work.type)
                processes[name].call("fill", 1, 1)
        for number in range(options.rounds + 1):
            keys = random.permutation(work.keys)
            times = number * span_ms + random.integers(0, span_ms, work.keys)
            paths = [
                batches.write_rows(keys[at : at + work.rows], times[at : at + work.rows])
                for at in range(0, work.keys, work.rows)
            ]
            until = number * span_ms + span_ms // 10
            due = int((times <= until).sum())
            for name in _rotated_names(processes, number):
                process = processes[name]
                with left_out_on_failure(process.title, name, processes):
                    result = _measure_round(process, "register", paths, stores_all=True)
                    result.steps["fire"] = [_fire(process, until, due)]
                    result.steps["fire nothing"] = [_fire(process, until, 0)]
                    result.steps["fire all"] = [
                        _fire(process, (number + 1) * span_ms, work.keys - due)
                    ]
                    if number:
                        sides[name].rounds.append(result)
    shutil.rmtree(directory)
    return {name: sides[name] for name in processes}


def access_maps(work: Work, options: Options) -> Sides:
    """Measure maps of ten entries: put, get, and list entries key by key."""
    directory = _new_directory(options.directory)
    with run_processes(options.sides, "maps", directory, options.jars) as processes:
        sides: Sides = {name: Side() for name in processes}
        batches = Batches(work, directory)
        random = np.random.default_rng(13)
        every = random.permutation(work.keys)
        whole = [
            batches.write_rows(every[at : at + work.rows] // ENTRIES, every[at : at + work.rows])
            for at in range(0, work.keys, work.rows)
        ]
        for name in list(processes):
            with left_out_on_failure(processes[name].title, name, processes):
                processes[name].call("begin", work.type)
                processes[name].call("fill", 1, 1)
                _measure_round(processes[name], "put_entries", whole, stores_all=True)
        for number in range(options.rounds + 1):
            some = random.integers(0, work.keys, work.rows)
            rows = batches.write_rows(some // ENTRIES, some)
            keys = random.permutation(work.keys // ENTRIES)[: max(1, work.rows // ENTRIES)]
            lists = batches.write_rows(keys, keys)
            listed = float((keys * ENTRIES * ENTRIES + ENTRIES * (ENTRIES - 1) // 2).sum())
            for name in _rotated_names(processes, number):
                process = processes[name]
                with left_out_on_failure(process.title, name, processes):
                    result = _measure_round(process, "put_entries", [rows], stores_all=False)
                    result.steps["get_entries"] = [process.call("get_entries")]
                    process.call("load", lists)
                    result.steps["list_entries"] = [process.call("list_entries")]
                    _compare(result.steps["get_entries"][0], {"sum": float(some.sum())})
                    expected = {"entries": float(len(keys) * ENTRIES), "sum": listed}
                    _compare(result.steps["list_entries"][0], expected)
                    if number:
                        sides[name].rounds.append(result)
    shutil.rmtree(directory)
    return {name: sides[name] for name in processes}


def rescale(work: Work, options: Options) -> Sides:
    """Measure a restore of two subtasks as three: open the state and look up the first batch."""
    directory = _new_directory(options.directory)
    with run_processes(options.sides, "rescale", directory, options.jars) as processes:
        path = Batches(work, directory).write()
        expected = _Expected(work)
        _fill(processes, work, 2)
        sides: Sides = {name: Side() for name in processes}
        for number in range(options.rounds + 1):
            for name in _rotated_names(processes, number):
                process = processes[name]
                with left_out_on_failure(process.title, name, processes):
                    process.call("load", path)
                    process.background_cpu_s()
                    steps = {
                        "open three": [process.call("reopen", 3)],
                        "first look-up": [_check(process, expected, path)],
                    }
                    if number:
                        sides[name].rounds.append(RoundResult(steps, 0.0, 0))
                    process.call("snapshot")
                    process.call("reopen", 2)
                    process.call("snapshot")
    shutil.rmtree(directory)
    return {name: sides[name] for name in processes}


def count_in_limited_memory(
    work: Work, options: Options, limit_bytes: int
) -> tuple[Sides, dict[str, int]]:
    """Measure batches of a state larger than the memory limit; return the peak memory of each process, too.

    Processes without a limit create the state and end. Cached pages of its files are dropped, and
    other processes resume from the state, in control groups with the limit.
    """
    directory = _new_directory(options.directory)
    batches = Batches(work, directory)
    expected = _Expected(work)
    with run_processes(
        options.sides, "limit", directory, options.jars, memory_bytes=limit_bytes
    ) as processes:
        _fill(processes, work, 1)
        for process in processes.values():
            process.call("leave")
        names = list(processes)
    forget_pages(directory)
    with ExitStack() as stack:
        groups = {name: stack.enter_context(memory_limit(name, limit_bytes)) for name in names}
        processes = stack.enter_context(
            run_processes(
                names,
                "limit",
                directory,
                options.jars,
                memory_bytes=limit_bytes,
                wrapped=lambda name, command: groups[name].command(command),
            )
        )
        sides: Sides = {name: Side() for name in processes}
        for process in processes.values():
            process.call("begin", work.type)
            process.call("resume")
        for number in range(options.rounds + 1):
            paths = [batches.write() for _ in range(options.batches)]
            for path in paths:
                expected.add(path)
            for name in _rotated_names(processes, number):
                with left_out_on_failure(processes[name].title, name, processes):
                    result = _measure_round(processes[name], "count", paths, stores_all=False)
                    if number:
                        sides[name].rounds.append(result)
        for name in list(processes):
            with left_out_on_failure(processes[name].title, name, processes):
                _inspect(processes[name], sides[name], directory / name)
                _check(processes[name], expected, paths[-1])
        peak_bytes = {name: groups[name].peak_bytes() for name in processes}
    shutil.rmtree(directory)
    return {name: sides[name] for name in peak_bytes}, peak_bytes


def _measure_round(
    process: Process, command: str, paths: Iterable[Path], *, stores_all: bool
) -> RoundResult:
    background = process.background_cpu_s()
    written = process.written_bytes()
    steps: dict[str, list[Answer]] = {command: [], "snapshot": []}
    for path in paths:
        process.call("load", path)
        steps[command].append(process.call(command))
        if not stores_all:
            steps["snapshot"].append(process.call("snapshot"))
    if stores_all:
        steps["snapshot"].append(process.call("snapshot"))
    return RoundResult(steps, background, process.written_bytes() - written)


def _fire(process: Process, until_ms: int, due: int) -> Answer:
    answer = process.call("fire", until_ms)
    if answer.figures["fired"] != due:
        raise LeftOutError(f"{answer.figures['fired']:.0f} timers have fired, {due} were due")
    return answer


def _measure_reopening(
    processes: dict[str, Process], sides: Sides, expected: "_Expected", path: Path
) -> None:
    for number in range(OPENINGS):
        for name in _rotated_names(processes, number):
            try:
                opened = processes[name].call("reopen", 1)
                looked = _check(processes[name], expected, path)
            except LeftOutError as error:
                if number == 0:
                    print(f"{processes[name].title} cannot be reopened: {error}")
                continue
            sides[name].openings.setdefault("open", []).append(opened.cost)
            sides[name].openings.setdefault("first look-up", []).append(looked.cost)


def _fill(processes: dict[str, Process], work: Work, parallelism: int) -> None:
    for name in list(processes):
        with left_out_on_failure(processes[name].title, name, processes):
            processes[name].call("begin", work.type)
            processes[name].call("fill", work.keys, parallelism)
            processes[name].call("snapshot")


def _rotated_names(processes: dict[str, Process], number: int) -> list[str]:
    """Return the names, starting with another one in each round."""
    names = list(processes)
    first = number % max(1, len(names))
    return names[first:] + names[:first]


def _inspect(process: Process, side: Side, directory: Path) -> None:
    side.own_bytes, side.mapped_bytes = process.memory_bytes()
    files = [path for path in directory.rglob("*") if path.is_file() and "native" not in path.parts]
    inodes = {(status.st_ino, status.st_blocks << 9) for status in map(os.stat, files)}
    side.disk_bytes = sum(size for _, size in inodes)


class _Expected:
    """The expected totals."""

    def __init__(self, work: Work) -> None:
        self._counts = np.ones(work.keys, np.int64)
        self._sums = np.arange(work.keys, dtype=np.int64)

    def add(self, path: Path) -> None:
        keys, values = numbers_of(path)
        np.add.at(self._counts, keys, 1)
        np.add.at(self._sums, keys, values)

    def of(self, path: Path) -> Figures:
        keys, _ = numbers_of(path)
        return {"count": float(self._counts[keys].sum()), "sum": float(self._sums[keys].sum())}


def _check(process: Process, expected: _Expected, path: Path) -> Answer:
    process.call("load", path)
    answer = process.call("look")
    _compare(answer, expected.of(path))
    return answer


def _compare(answer: Answer, expected: Figures) -> None:
    actual = {name: answer.figures[name] for name in expected}
    if actual != expected:
        raise LeftOutError(f"it returned {actual}, expected {dict(expected)}")


def _new_directory(parent: Path) -> Path:
    directory = parent / "part"
    directory.mkdir()
    return directory
