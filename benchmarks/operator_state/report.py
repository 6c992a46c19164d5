"""The tables, and the check of the goals."""

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from benchmarks.operator_state.works import LONGS, TEN_TIMES_LONGS, Work
from benchmarks.rounds import Cost, Rounds

T = TypeVar("T")

MAX_SYNC_MS = 5.0
MIN_SNAPSHOT_RATIO = 20.0
MIN_RESTORE_RATIO = 50.0
MAX_STORED = 1.05
"""Times the raw size."""
MAX_METADATA_BYTES = 1 << 10
MAX_GROWTH = 11.0
"""For ten times the elements."""
MAX_COPIED = 0.25
"""The part of the state that a snapshot may add to memory: far from a second copy."""

_ROWS = {
    "memory fill": "fill",
    "memory fill_arrow": "fill from Arrow",
    "memory sync": "sync, memory",
    "memory async": "async, memory",
    "memory restore": "restore, memory",
    "memory objects": "… to objects",
    "disk sync": "sync, disk",
    "disk async": "async, disk",
    "disk commit": "metadata written",
    "disk load": "metadata loaded",
    "disk restore": "restore, disk",
    "disk objects": "… to objects",
}
"""Titles by action. Filling has nothing to do with the target: one of them counts."""

_SIZES = {
    "memory stored": "stored, memory",
    "disk stored": "stored, disk",
    "disk metadata": "metadata, disk",
}

_SAME_FOR_FLINK = {
    "memory fill_arrow": "memory fill",
    "memory objects": "memory restore",
    "disk objects": "disk restore",
}
"""Flink's action to compare with, where its name differs."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Rounds of a work, and what was stored: bytes by engine and name."""

    work: Work
    rounds: Rounds
    sizes: dict[str, dict[str, int]]

    @property
    def engines(self) -> list[str]:
        """Names of the engines that were left in."""
        return list(self.rounds[0])

    @property
    def actions(self) -> list[str]:
        """The measured actions, in the table's order."""
        return [action for action in _ROWS if action in self.rounds[0]["holdfast"]]

    def median_ms(self, engine: str, action: str, of: Callable[[Cost], float]) -> float:
        """Milliseconds of one engine."""
        return statistics.median(of(costs[engine][action]) for costs in self.rounds) * 1e3

    def ratio(self, *actions: str) -> float:
        """Flink's time for these actions to Holdfast's: the median of the rounds'."""
        ratios = []
        for costs in self.rounds:
            flink = sum(costs["flink"][_SAME_FOR_FLINK.get(name, name)].wall_s for name in actions)
            ratios.append(flink / sum(costs["holdfast"][name].wall_s for name in actions))
        return statistics.median(ratios)


@dataclass(frozen=True, slots=True)
class Linear:
    """Rounds of two works, the small one first, under their titles."""

    titles: dict[str, str]
    rounds: Rounds

    @property
    def actions(self) -> list[str]:
        """The measured actions, in the table's order."""
        return [action for action in _ROWS if action in next(iter(self.rounds[0].values()))]

    def median_ms(self, name: str, action: str) -> float:
        """Milliseconds of one of them."""
        return statistics.median(costs[name][action].wall_s for costs in self.rounds) * 1e3

    def growth(self, action: str) -> float:
        """The large one's time to the small one's: the median of the rounds'."""
        small, large = self.titles
        return statistics.median(
            costs[large][action].wall_s / costs[small][action].wall_s for costs in self.rounds
        )


@dataclass(slots=True)
class Report:
    """All measurements of one run."""

    compared: list[Compared] = field(default_factory=list)
    linear: Linear | None = None
    growth: dict[str, float] = field(default_factory=dict)

    def add(self, compared: Compared) -> None:
        """A work of all engines."""
        self.compared.append(compared)

    def add_linear(self, linear: Linear) -> None:
        """Works of different size."""
        self.linear = linear

    def add_growth(self, work: Work, growth_bytes: dict[str, int]) -> None:
        """The memory of a snapshot, by target."""
        print(f"\npeak growth in a fresh process, snapshot of {work.title}")
        for target, count in growth_bytes.items():
            share = self.growth[target] = count / work.raw_bytes
            print(f"{target:34}{count / 1e6:>14.1f} MB = {share:.2f} of the state's size")

    def print_goals(self) -> None:
        """Print each goal, and whether it is met."""
        print("\ngoals")
        for comparison in self.compared:
            if comparison.work.name == LONGS.name:
                _print_goals_of_longs(comparison)
        if self.compared:
            _print_goals_of_sizes(self.compared)
        if self.linear is not None:
            _print_goal_of_growth(self.linear)
        if self.growth:
            share = self.growth["disk"]
            text = f"a snapshot to disk adds at most {MAX_COPIED:g} of the state to memory"
            _print_goal(text, f"{share:.2f}", share <= MAX_COPIED)
        with_flink = [comparison for comparison in self.compared if "flink" in comparison.engines]
        if with_flink:
            _print_goal_of_cells(with_flink)


def in_target(target: str, values: Mapping[str, T]) -> dict[str, T]:
    """Actions or sizes, with the target in their names."""
    return {f"{target} {name}": value for name, value in values.items()}


def print_compared(compared: Compared) -> None:
    """The table of one work."""
    titles = ["Holdfast, ms"]
    if "flink" in compared.engines:
        titles += ["Flink, ms", "Flink / Holdfast", "Holdfast, CPU ms", "Flink, CPU ms"]
    print(f"\n{compared.work.title}: {compared.work.raw_bytes / 1e6:.1f} MB raw")
    _print_row(f"median of {len(compared.rounds)} rounds", titles)
    for action in compared.actions:
        _print_row(_ROWS[action], _cells(compared, action))
    for name, title in _SIZES.items():
        cells = [f"{compared.sizes[engine][name]:,} B" for engine in compared.engines]
        if name.endswith("stored"):
            raw = compared.work.raw_bytes
            shares = [compared.sizes[engine][name] / raw for engine in compared.engines]
            cells.append(" / ".join(f"{share:.3f}" for share in shares) + " raw")
        _print_row(title, cells)


def print_linear(linear: Linear) -> None:
    """The table of works of different size."""
    print()
    _print_row("Holdfast, ms", [*linear.titles.values(), "growth"])
    for action in linear.actions:
        cells = [f"{linear.median_ms(name, action):.3f}" for name in linear.titles]
        _print_row(_ROWS[action], [*cells, f"{linear.growth(action):.1f}"])


def _cells(compared: Compared, action: str) -> list[str]:
    cells = [f"{compared.median_ms('holdfast', action, _wall):.3f}"]
    if "flink" in compared.engines:
        same = _SAME_FOR_FLINK.get(action, action)
        cells.append(f"{compared.median_ms('flink', same, _wall):.3f}")
        cells.append(f"{compared.ratio(action):.2f}")
        cells.append(f"{compared.median_ms('holdfast', action, _cpu):.3f}")
        cells.append(f"{compared.median_ms('flink', same, _cpu):.3f}")
    return cells


def _print_goals_of_longs(comparison: Compared) -> None:
    for target in ("memory", "disk"):
        ours_ms = comparison.median_ms("holdfast", f"{target} sync", _wall)
        text = f"sync part of {comparison.work.title} at most {MAX_SYNC_MS:g} ms, {target}"
        _print_goal(text, f"{ours_ms:.3f} ms", ours_ms <= MAX_SYNC_MS)
    if "flink" not in comparison.engines:
        return
    ratio = comparison.ratio("disk sync", "disk async")
    text = f"its snapshot to disk at least {MIN_SNAPSHOT_RATIO:g} x as fast as Flink's"
    _print_goal(text, f"{ratio:.1f} x", ratio >= MIN_SNAPSHOT_RATIO)
    for action in ("disk restore", "disk objects"):
        ratio = comparison.ratio(action)
        text = f"its {_full_title(action)} at least {MIN_RESTORE_RATIO:g} x"
        _print_goal(text, f"{ratio:.1f} x", ratio >= MIN_RESTORE_RATIO)


def _print_goals_of_sizes(compared: Iterable[Compared]) -> None:
    for comparison in compared:
        share = comparison.sizes["holdfast"]["disk stored"] / comparison.work.raw_bytes
        text = f"stored size at most {MAX_STORED:g} of raw, {comparison.work.title}"
        _print_goal(text, f"{share:.3f}", share <= MAX_STORED)
    metadata_bytes = max(comparison.sizes["holdfast"]["disk metadata"] for comparison in compared)
    text = f"metadata smaller than {MAX_METADATA_BYTES} B"
    _print_goal(text, f"{metadata_bytes} B", metadata_bytes < MAX_METADATA_BYTES)


def _print_goal_of_growth(linear: Linear) -> None:
    growth = {_full_title(action): linear.growth(action) for action in linear.actions}
    steep = {title: ratio for title, ratio in growth.items() if ratio > MAX_GROWTH}
    text = f"{TEN_TIMES_LONGS.title} at most {MAX_GROWTH:g} x {LONGS.title}"
    _print_goal(text, f"{len(growth) - len(steep)} of {len(growth)}", not steep)
    for title, growth_of_size in steep.items():
        print(f"        {title}: {growth_of_size:.1f} x")


def _print_goal_of_cells(compared: Iterable[Compared]) -> None:
    slower = [
        (comparison.work.name, _full_title(action), comparison.ratio(action))
        for comparison in compared
        for action in comparison.actions
        if comparison.ratio(action) <= 1
    ]
    total = sum(len(comparison.actions) for comparison in compared)
    text = "every cell faster than Flink"
    _print_goal(text, f"{total - len(slower)} of {total}", not slower)
    for name, title, ratio in slower:
        print(f"        {name}, {title}: {ratio:.2f}")


def _print_goal(text: str, figure: str, met: object) -> None:
    print(f"{'met' if met else 'missed':8}{text}: {figure}", flush=True)


def _full_title(action: str) -> str:
    target, _, name = action.partition(" ")
    return f"restore to objects, {target}" if name == "objects" else _ROWS[action]


def _print_row(title: str, cells: Iterable[str]) -> None:
    print(f"{title:24}" + "".join(f"{cell:>20}" for cell in cells), flush=True)


def _wall(cost: Cost) -> float:
    return cost.wall_s


def _cpu(cost: Cost) -> float:
    return cost.cpu_s
