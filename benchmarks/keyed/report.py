"""The tables: who is faster, and by how much."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from benchmarks.keyed.parts import RoundResult, Side, Sides
from benchmarks.keyed.sides import SIDES
from benchmarks.keyed.works import Work, short
from benchmarks.rounds import Cost

_TITLE_WIDTH = 36
_WIDTH = 20


class Summary:
    """Speed of the first side relative to each of the others, by measurement."""

    def __init__(self) -> None:
        self._rows: list[tuple[str, dict[str, float]]] = []
        self._first = ""

    def add(self, title: str, ratios: dict[str, float]) -> None:
        """The ratios of the others' costs to the first side's, by name."""
        if ratios:
            self._rows.append((title, ratios))

    def add_rounds(self, title: str, sides: Sides, cost: Callable[[RoundResult], float]) -> None:
        """Add a row with the medians of the rounds' ratios."""
        if sides:
            self._first = SIDES[next(iter(sides))].title
            self.add(title, {name: _ratio(sides, name, cost) for name in list(sides)[1:]})

    def print(self) -> None:
        """The last table."""
        names = [name for name in SIDES if any(name in ratios for _, ratios in self._rows)]
        if not names:
            return
        titles = [SIDES[name].title for name in names]
        print_header(f"{self._first} is faster than", titles)
        for title, ratios in self._rows:
            cells = [speed(ratios[name]) if name in ratios else "" for name in names]
            print_row(title, cells)
        print("\nCPU of one core, with threads in the background; below 1: slower.", flush=True)


def print_counted(work: Work, sides: Sides) -> None:
    """A work of counting."""
    rounds, batches = _shape(sides)
    print_header(
        f"\n{work.title}: batches of {short(work.rows)} rows, {rounds} rounds of {batches}",
        [],
    )
    names = list(sides)
    print_header("", [SIDES[name].title for name in names])

    def row(title: str, cell: Callable[[Side], str]) -> None:
        print_row(title, [cell(sides[name]) for name in names])

    row("events/s of a core", lambda side: short(work.rows / _mean(side, _cpu_of)))
    first = SIDES[names[0]].title
    print_row(
        f"  {first} is faster by",
        ["", *(speed(_ratio(sides, name, _cpu_of)) for name in names[1:])],
    )
    row("events/s, wall-clock", lambda side: short(work.rows / _mean(side, _wall_of)))
    row("CPU ms per batch, mean", lambda side: _ms(_mean(side, _cpu_of)))
    _print_steps(sides, row)
    row("wall-clock ms, mean", lambda side: _ms(_mean(side, _wall_of)))
    row("written per batch, MB", lambda side: f"{_written_bytes(side) / 1e6:.2f}")
    row("on disk, MB", lambda side: f"{side.disk_bytes / 1e6:.1f}")
    row("private memory, MB", lambda side: f"{side.own_bytes / 1e6:.0f}")
    row("mapped files in memory, MB", lambda side: f"{side.mapped_bytes / 1e6:.0f}")
    for action in ("open", "first look-up"):
        row(f"{action}, CPU ms", partial(_opening, action, _cpu))
        row(f"{action}, wall-clock ms", partial(_opening, action, _wall))


def print_worst(work: Work, sides: Sides) -> None:
    """The spread of batches."""
    sides = {name: side for name, side in sides.items() if not SIDES[name].stores_all}
    rounds, batches = _shape(sides)
    print_header(f"\n{work.title}: {rounds * batches} batches", [])
    print_header("", [SIDES[name].title for name in sides])
    for unit, cost in (("CPU ms", _cpu), ("wall-clock ms", _wall)):
        for title, choose in (
            ("median", statistics.median),
            ("1 of 100", _hundredth),
            ("worst", max),
        ):
            cells = [
                _ms(choose([cost(batch) for batch in side.batch_costs()]))
                for side in sides.values()
            ]
            print_row(f"{title} batch, {unit}", cells)
    print_row("mean batch, CPU ms", [_ms(_mean(side, _cpu_of)) for side in sides.values()])
    print_row(
        "written per batch, MB", [f"{_written_bytes(side) / 1e6:.2f}" for side in sides.values()]
    )


def print_accessed(work: Work, sides: Sides, keys: float) -> None:
    """Key by key."""
    print_header(f"\n{work.title}: {short(keys)} of them per batch, key by key", [])
    names = list(sides)
    print_header("", [SIDES[name].title for name in names])
    micro = 1e6 / keys

    def row(title: str, cell: Callable[[Side], str]) -> None:
        print_row(title, [cell(sides[name]) for name in names])

    row("CPU us per key, mean", lambda side: f"{_mean(side, _cpu_of) * micro:.3f}")
    print_row("  ratio", ["", *(speed(_ratio(sides, name, _cpu_of)) for name in names[1:])])
    _print_steps(sides, row, scale=micro, unit="us")
    row("wall-clock us, mean", lambda side: f"{_mean(side, _wall_of) * micro:.3f}")


def print_per_step(title: str, sides: Sides, steps: dict[str, tuple[float, str]]) -> None:
    """Print a row for each step, given by name with its factor for seconds and its unit."""
    print_header(f"\n{title}", [])
    names = list(sides)
    print_header("", [SIDES[name].title for name in names])
    for step, (scale, unit) in steps.items():
        for kind, cost in (("CPU ", _cpu), ("", _wall)):
            cells = []
            for name in names:
                costs = [cost(answer.cost) for answer in sides[name].answers(step)]
                cells.append(f"{statistics.median(costs) * scale:.3f}" if costs else "-")
            suffix = "" if kind else ", wall-clock"
            print_row(f"{step.replace('_', ' ')}, {kind}{unit}{suffix}", cells)


def step_cpu(step: str) -> Callable[[RoundResult], float]:
    """Return the cost function for the CPU time of one step."""
    return lambda result: statistics.fmean(answer.cost.cpu_s for answer in result.steps[step])


def speed(ratio: float) -> str:
    """Format a speed-up with three digits."""
    return f"{ratio:.3g} x"


def print_header(title: str, names: Iterable[str]) -> None:
    """The first line of a table."""
    print_row(title, names)


def print_row(title: str, cells: Iterable[str]) -> None:
    """Another line of it."""
    print(f"{title:{_TITLE_WIDTH}}" + "".join(f"{cell:>{_WIDTH}}" for cell in cells), flush=True)


def mean_cpu_s(side: Side) -> float:
    """Processor time of a batch."""
    return _mean(side, _cpu_of)


def cpu_of_batch(result: RoundResult) -> float:
    """Return the CPU seconds per batch of a round."""
    return result.cpu_s


_cpu_of = cpu_of_batch


def _wall_of(result: RoundResult) -> float:
    return result.wall_s


def _cpu(cost: Cost) -> float:
    return cost.cpu_s


def _wall(cost: Cost) -> float:
    return cost.wall_s


def _mean(side: Side, cost: Callable[[RoundResult], float]) -> float:
    return statistics.fmean(cost(result) for result in side.rounds)


def _ratio(sides: Sides, name: str, cost: Callable[[RoundResult], float]) -> float:
    first = next(iter(sides.values()))
    pairs = zip(first.rounds, sides[name].rounds, strict=True)
    return statistics.median(cost(other) / cost(own) for own, other in pairs)


def _print_steps(
    sides: Sides,
    row: Callable[[str, Callable[[Side], str]], None],
    *,
    scale: float = 1e3,
    unit: str = "ms",
) -> None:
    """The median of each step and phase, and what was done between batches."""
    steps = list(dict.fromkeys(step for side in sides.values() for step in side.steps))
    phases = list(dict.fromkeys(name for side in sides.values() for name in side.phases))
    for step in steps:
        row(f"  {step}, median CPU {unit}", partial(_median, step, scale))
    for phase in phases:
        row(f"    {phase.replace('_', ' ')}", partial(_phase, phase, scale))
    row("  between batches, mean", lambda side: f"{_between(side) * scale:.3f}")


def _median(step: str, scale: float, side: Side) -> str:
    costs = [answer.cost.cpu_s for answer in side.answers(step)]
    return f"{statistics.median(costs) * scale:.3f}" if costs else ""


def _phase(name: str, scale: float, side: Side) -> str:
    return f"{side.phase_s(name) * scale:.3f}" if name in side.phases else ""


def _between(side: Side) -> float:
    batches = sum(max(len(answers) for answers in result.steps.values()) for result in side.rounds)
    return sum(result.background_cpu_s for result in side.rounds) / batches


def _written_bytes(side: Side) -> float:
    batches = sum(max(len(answers) for answers in result.steps.values()) for result in side.rounds)
    return sum(result.written_bytes for result in side.rounds) / batches


def _opening(action: str, cost: Callable[[Cost], float], side: Side) -> str:
    costs = side.openings.get(action)
    return _ms(statistics.median(map(cost, costs))) if costs else ""


def _shape(sides: Sides) -> tuple[int, int]:
    first = next(iter(sides.values()))
    return len(first.rounds), max(len(answers) for answers in first.rounds[0].steps.values())


def _hundredth(values: Sequence[float]) -> float:
    return sorted(values)[-max(1, len(values) // 100)]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f}" if seconds < 0.1 else f"{seconds * 1e3:.0f}"
