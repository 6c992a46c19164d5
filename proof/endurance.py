"""Endurance: sizes and times after thousands of batches are those after the first hundreds.

    python -m proof.endurance DIR                       run the batches, check their notes, and draw them
    python -m proof.endurance DIR --picture FILE.svg    check existing notes in `DIR/notes`, and draw them

Notes are written after each batch, so an interrupted run has notes too.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.locations import latest_checkpoint
from proof.endless_job import OPERATORS, SIZES
from proof.endurance_picture import Curve, Panel, draw
from proof.kinds import wrong_states

BATCHES = 5_000
NOTES = "notes"

_ROOT = Path(__file__).parents[1]
PICTURE = _ROOT / "docs" / "images" / "endurance.svg"
_HUNDRED = 100
_MIN_BATCHES = 1_000
_MIB = 1 << 20

Note = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Measure:
    """A measure that must not grow.

    Attributes:
        name: The name in the notes.
        of: Combines the values of several notes.
        factor: Maximum relative growth from the second fifth of the run to the last.
        more: Additional absolute growth.
    """

    name: str
    of: Callable[[Sequence[float]], float]
    factor: float
    more: float


def _memory(name: str) -> Measure:
    return Measure(name, statistics.median, 0.1, 8 * _MIB)


def _count(name: str) -> Measure:
    # The maximum, because garbage collections and merges let these go up and down.
    return Measure(name, max, 0.25, 5)


MEASURES = (
    *map(_memory, ("driver uss", "jvm heap", "workers uss")),
    *map(_count, ("driver descriptors", "jvm descriptors", "workers descriptors")),
    *map(_count, ("driver threads", "workers threads", "workers processes")),
    *map(_count, ("checkpoints files", "spark files")),
    # They include Spark's shuffle files, which it deletes some time after its garbage collection.
    Measure("scratch files", max, 0.25, 100),
    Measure("checkpoints bytes", max, 0.25, 0),
    Measure("metadata bytes", max, 0.25, 0),
    Measure("cpu_ms", statistics.median, 0.25, 0),
)
"""All measures. The JVM fills its heap with garbage up to its limit, so only live objects count. The threads of the JVM's
pools are left out, because their number depends on the load of the machine."""


def endure(directory: Path, batches: int = BATCHES) -> list[str]:
    """Run a number of batches; returns violations after them.

    Args:
        directory: An empty directory.
        batches: Number of batches.
    """
    command = [sys.executable, "-m", "proof.endless_job", str(directory), str(batches)]
    command.append(str(directory / NOTES))
    with (directory / "log").open("wb") as log:
        ran = subprocess.run(
            command, cwd=_ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False
        )
    problems = []
    if ran.returncode:
        tail = (directory / "log").read_text(errors="replace")[-1000:]
        problems.append(f"the query ended with status {ran.returncode}: {tail}")
    return problems + check_run(directory)


def check_run(directory: Path) -> list[str]:
    """Return violations in the notes of a run and in its last checkpoint."""
    problems = find_growth(read_notes(directory / NOTES))
    latest = latest_checkpoint(f"file://{directory}/checkpoints")
    if latest is None:
        return [*problems, "no checkpoint is left"]
    pointer = latest.location.external_pointer
    return problems + wrong_states(pointer, latest.checkpoint_id, SIZES, OPERATORS)


def read_notes(file: Path) -> list[Note]:
    """Read the notes of a run, which may be in progress."""
    lines = file.read_text().splitlines()
    return [json.loads(line) for line in lines if line.endswith("}")]


def find_growth(notes: list[Note]) -> list[str]:
    """Return the measures that are larger in the last fifth than in the second."""
    if len(notes) < _MIN_BATCHES:
        return [f"{len(notes)} batches are too few to see what grows"]
    fifth = len(notes) // 5
    early, late = notes[fifth : 2 * fifth], notes[-fifth:]
    problems = []
    for measure in MEASURES:
        before, after = (
            measure.of([note[measure.name] for note in part if measure.name in note])
            for part in (early, late)
        )
        if after > before * (1 + measure.factor) + measure.more:
            problems.append(f"{measure.name} has grown from {before:,.0f} to {after:,.0f}")
    return problems


def summary(notes: list[Note]) -> str:
    """Return figures of the second hundred of batches, and of the last."""
    parts = (notes[_HUNDRED : 2 * _HUNDRED], notes[-_HUNDRED:])
    figures = [f"{len(notes):,} batches, batches 101 to 200 against the last hundred"]
    for name, unit, size in (
        ("period_ms", "ms", 1),
        ("cpu_ms", "ms", 1),
        ("driver uss", "MiB", _MIB),
        ("jvm heap", "MiB", _MIB),
        ("jvm uss", "MiB", _MIB),
        ("workers uss", "MiB", _MIB),
        ("checkpoints files", "", 1),
        ("spark files", "", 1),
        ("metadata bytes", "KiB", 1024),
    ):
        medians = [
            statistics.median(note[name] for note in part if name in note) / size for part in parts
        ]
        figures.append(f"{name} {medians[0]:,.0f} and {medians[1]:,.0f} {unit}".strip())
    return "; ".join(figures)


def draw_run(path: Path, notes: list[Note]) -> None:
    """Draw the notes of a run."""

    def sizes(name: str, unit: float) -> list[tuple[float, float]]:
        return [(note["batch"] + 1, note[name] / unit) for note in notes if name in note]

    def medians(name: str) -> list[tuple[float, float]]:
        hundreds = range(0, len(notes) - _HUNDRED + 1, _HUNDRED)
        return [
            (
                begin + _HUNDRED,
                statistics.median(note[name] for note in notes[begin : begin + _HUNDRED]),
            )
            for begin in hundreds
        ]

    draw(
        path,
        f"{len(notes):,} batches, one after the other",
        [
            Panel(
                "Private memory of processes, MiB",
                [
                    Curve("JVM, at most 512 of heap", sizes("jvm uss", _MIB)),
                    Curve("JVM's heap after a collection", sizes("jvm heap", _MIB)),
                    Curve("Python workers", sizes("workers uss", _MIB)),
                    Curve("driver", sizes("driver uss", _MIB)),
                ],
            ),
            Panel(
                "Files",
                [
                    Curve("Spark's own checkpoint", sizes("spark files", 1)),
                    Curve("local copies and Spark's scratch", sizes("scratch files", 1)),
                    Curve("Holdfast's checkpoints", sizes("checkpoints files", 1)),
                ],
            ),
            Panel(
                "Milliseconds of a batch, median of a hundred",
                [
                    Curve("period", medians("period_ms")),
                    Curve("CPU of all processes", medians("cpu_ms")),
                ],
            ),
            Panel("Size of `_metadata`, KiB", [Curve("_metadata", sizes("metadata bytes", 1024))]),
        ],
    )


def main() -> int:
    """Run the batches or check a run; returns 1 if something has grown."""
    parser = argparse.ArgumentParser(
        prog="python -m proof.endurance",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--batches", type=int, default=BATCHES)
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    is_there = (options.directory / NOTES).exists()
    problems = (
        check_run(options.directory) if is_there else endure(options.directory, options.batches)
    )
    notes = read_notes(options.directory / NOTES)
    if options.picture:
        draw_run(options.picture, notes)
    print(summary(notes))
    print("\n".join(problems) or "nothing has grown, and the states are the expected ones")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
