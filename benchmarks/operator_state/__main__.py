"""Speed of filling, storing and restoring operator state, compared with Flink's backend.

    python -m benchmarks.operator_state --flink-jars flink-libraries
    python -m benchmarks.operator_state --rounds 3 --works strings,broadcast --parts times
    python -m benchmarks.operator_state --works longs10 --parts times   # Flink takes minutes

Holdfast runs in this process, Flink's `DefaultOperatorStateBackend` in a JVM that stays up. Both run once
per round, starting with a different one, and each measures itself. Both are warmed up and compare the restored with
the stored state. Figures are medians of wall-clock time; `Flink / Holdfast` is the median of the rounds' ratios,
above 1 where Holdfast is faster. CPU is that of all threads of this process, and of Flink's one thread without its
garbage collector and compiler.

- `fill`: `add_all` of a list of Python objects, `put_all` of a dictionary. Flink keeps references to
  its objects, so it does almost no work; Holdfast converts them to columns, which shortens its
  snapshots. `fill from Arrow`: from an array, as in the batches of a stream.
- `sync`, `async`: both parts of a snapshot.
- `metadata`: written and loaded again; the restore uses the loaded handle.
- `restore`: until the state object exists; its elements are verified columns in memory.
  `… to objects`: a restore until each element is a Python object; Flink's restore ends with
  objects, so both are compared with the same figure.

On disk both sides use their defaults and sync each state file and the metadata. Holdfast also
syncs the checkpoint's directory, so that the names are durable, and verifies checksums
during a restore; Flink does neither. In memory both may use more than their default of 5 MiB.

Ten times the state is more than ten times the work where it is read or copied into new memory:
malloc reuses blocks of up to 32 MiB, but larger ones are new pages each time, whose
faults take longer than filling them.

Flink's jars are in a Python package, and a JDK 17 has to be on the path; `make bench-flink` downloads
the jars:

    pip install --no-deps --target flink-libraries apache-flink-libraries
"""

import argparse
import os
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from benchmarks.operator_state.flink import flink
from benchmarks.operator_state.holdfast import Holdfast, growth_bytes_of
from benchmarks.operator_state.report import (
    Compared,
    Linear,
    Report,
    in_target,
    print_compared,
    print_linear,
)
from benchmarks.operator_state.works import (
    LONGS,
    TARGETS,
    TEN_TIMES_LONGS,
    WORKS,
    Engine,
    Work,
)
from benchmarks.rounds import Cost, in_fresh_process, left_out_on_failure, measure_rounds, some_of
from benchmarks.state_files import flink_jars, flink_version, new_directory

PARTS = ("times", "linear", "memory")

TITLES = {"holdfast": "Holdfast", "flink": "Flink"}


def main() -> None:
    """Measure all rounds and print the tables."""
    options = _options()
    jars = flink_jars(options.flink_jars)
    scaled = {work.name: _scale(work, options.scale) for work in [*WORKS, TEN_TIMES_LONGS]}
    report = Report()
    with ExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(prefix="holdfast-benchmark-", dir=options.directory)
        directory = Path(stack.enter_context(temporary)).resolve()
        holdfast = Holdfast(new_directory(directory, "holdfast"))
        engines: dict[str, Engine] = {"holdfast": holdfast}
        with left_out_on_failure(TITLES["flink"], "flink", engines):
            if jars is None:
                print("no Flink here (see --help): only Holdfast is measured")
            else:
                print(f"Flink {flink_version(jars)}, ", end="")
                flink_directory = new_directory(directory, "flink")
                engines["flink"] = stack.enter_context(flink(flink_directory, jars))
        print(f"Python {sys.version.split()[0]}, {os.cpu_count()} processors")
        if "times" in options.parts:
            for work in options.works:
                report.add(_compare_engines(scaled[work.name], engines, options))
        if "linear" in options.parts:
            works = {name: scaled[name] for name in (LONGS.name, TEN_TIMES_LONGS.name)}
            report.add_linear(_growing(works, holdfast, options.rounds))
        if "memory" in options.parts:
            work = scaled[TEN_TIMES_LONGS.name]
            growth = in_fresh_process(growth_bytes_of, work, directory / "growth")
            report.add_growth(work, growth)
    report.print_goals()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.operator_state",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=5, help="counted rounds")
    parser.add_argument("--warm-up", type=int, default=3, help="rounds before them")
    works = {work.name: work for work in [*WORKS, TEN_TIMES_LONGS]}
    parser.add_argument("--works", type=some_of(works), default=WORKS, help=", ".join(works))
    parts = {name: name for name in PARTS}
    parser.add_argument("--parts", type=some_of(parts), default=PARTS, help=", ".join(parts))
    parser.add_argument("--scale", type=float, default=1.0, help="share of the elements; to try it")
    parser.add_argument(
        "--directory",
        type=Path,
        help="directory for files; default: the system's temporary directory",
    )
    parser.add_argument(
        "--flink-jars", type=Path, help="a folder with flink-dist-*.jar in or below it"
    )
    return parser.parse_args()


def _scale(work: Work, scale: float) -> Work:
    if scale == 1:
        return work
    return replace(work, title=f"{work.title} x {scale:g}", count=int(work.count * scale))


def _compare_engines(
    work: Work, engines: dict[str, Engine], options: argparse.Namespace
) -> Compared:
    """All engines' rounds of one work; those that fail are left out."""
    remaining = dict(engines)
    sizes: dict[str, dict[str, int]] = {}

    def costs_of(named: tuple[str, Engine]) -> dict[str, Cost]:
        name, engine = named
        costs = {}
        for target in TARGETS:
            measured = engine.measure(work, target)
            costs.update(in_target(target, measured.costs))
            sizes.setdefault(name, {}).update(in_target(target, measured.sizes))
        return costs

    named = {name: (name, engine) for name, engine in remaining.items()}
    measure_rounds(named, costs_of, options.warm_up, TITLES)
    rounds = measure_rounds(named, costs_of, options.rounds, TITLES)
    compared = Compared(work, rounds, sizes)
    print_compared(compared)
    return compared


def _growing(works: dict[str, Work], engine: Engine, rounds: int) -> Linear:
    """Rounds of works of different size, with one engine."""

    def costs_of(work: Work) -> dict[str, Cost]:
        costs = {}
        for target in TARGETS:
            costs.update(in_target(target, engine.measure(work, target).costs))
        return costs

    titles = {name: work.title for name, work in works.items()}
    measure_rounds(works, costs_of, 1, titles)
    linear = Linear(titles, measure_rounds(works, costs_of, rounds, titles))
    print_linear(linear)
    return linear


if __name__ == "__main__":
    main()
