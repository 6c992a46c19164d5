"""Speed of keyed state, compared with RocksDB, a Python dictionary and Flink's backends.

    make bench-keyed
    python -m benchmarks.keyed --flink-jars flink-libraries
    python -m benchmarks.keyed --only batches --keys 1k,100k --types integers --rounds 3
    python -m benchmarks.keyed --only batches --types integers --spreads uniform --picture picture.svg

Each engine runs in a separate process. In each round every engine processes the same batches, read from the same
files, starting with a different engine; all totals are checked. The main figure is CPU time, since the machine is
noisy: of all threads of the process, including the work between batches, such as merging and garbage collection.
Wall-clock time is printed as well.

- `batches`: count and sum of values by key, batches of 100 k rows, a snapshot to disk after each. Engines whose
  snapshots store the whole state (Flink's heap, Holdfast's heap) take one per round, and it
  counts as if there was one after each batch; their step `count` is the cost without snapshots. Then bytes
  written, memory, and the time to reopen the state.
- `worst`: the slowest of 300 batches at 1 M keys.
- `access`: the same key by key, from a function: `value()`, `update()`; the keys of a batch are distinct.
- `maps`: ten entries each; put, get, list.
- `timers`: registered in batches; a tenth of them fires, then nothing, then the rest.
- `rescale`: two subtasks become three: opened, and the first batch looked up.
- `limit`: a state four times as large as the memory limit of the process, which includes its mapped files.

`holdfast-reopened` reopens its state for each batch, as a Spark task does in a worker that has run one before; the
others keep theirs open.

RocksDB is rocksdict with the fastest settings for this workload: sorted keys, whole batches, no log, no compression,
filters, a cache of 512 MiB. Its snapshot is a flush without copies, so only the step `count` is the same work as
Holdfast's. `rocksdb-checkpointed` takes checkpoints, new files are copied and synced, so the whole batch is the same
work; `rocksdb-shuffled` also gets its keys in random order. Keys of `rocksdb-hashed` also start with key group and hash,
which a backend needs for rescaling. A dictionary stores nothing: it is the minimum cost of a function in Python. Flink
gets keys as Java objects, and 512 MiB of managed memory for RocksDB; its snapshots are incremental there. No figure
includes the work of a driver, which deletes files that no checkpoint needs. Columnar tables are opened with their
segments still on the machine.

Flink's jars are in a Python package, and a JDK 17 has to be on the path; `make bench-keyed` downloads the jars.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from benchmarks.keyed import parts, report
from benchmarks.keyed.picture import draw
from benchmarks.keyed.sides import HOLDFAST, SIDES
from benchmarks.keyed.works import KEY_TYPES, SPREADS, Work, short
from benchmarks.rounds import LeftOutError, some_of
from benchmarks.state_files import flink_jars, flink_version

PARTS = ("batches", "worst", "access", "maps", "timers", "rescale", "limit")
ROW_BYTES = 32
"""A row of a state of two integers by an integer: its sort key, its key, and the values."""
_UNITS = {"k": 1_000, "M": 1_000_000}


def main() -> None:
    """Measure all rounds and print the tables."""
    arguments = _arguments()
    jars = flink_jars(arguments.flink_jars)
    version = f", Flink {flink_version(jars)}" if jars else ""
    print(f"Python {sys.version.split()[0]}, {os.cpu_count()} processors{version}")
    summary = report.Summary()
    with tempfile.TemporaryDirectory(
        prefix="holdfast-benchmark-", dir=arguments.directory
    ) as directory:
        options = parts.Options(
            sides=arguments.sides,
            rounds=arguments.rounds,
            batches=arguments.batches,
            directory=Path(directory).resolve(),
            jars=jars,
        )
        for part in arguments.only:
            try:
                _PARTS[part](arguments, options, summary)
            except LeftOutError as error:
                print(f"{part} is left out: {error}")
    summary.print()


def _batches(
    arguments: argparse.Namespace, options: parts.Options, summary: report.Summary
) -> None:
    points: dict[str, dict[int, float]] = {}
    for spread in arguments.spreads:
        for type in arguments.types:
            for keys in arguments.keys:
                work = Work(keys, type, spread, arguments.rows)
                sides = parts.count_rows(work, options)
                report.print_counted(work, sides)
                summary.add_rounds(work.title, sides, report.cpu_of_batch)
                summary.add_rounds("  count only", sides, report.step_cpu("count"))
                if (spread, type) == (arguments.spreads[0], arguments.types[0]):
                    for name, side in sides.items():
                        points.setdefault(name, {})[keys] = report.mean_cpu_s(side) * 1e3
    if arguments.picture:
        titles = {name: SIDES[name].title for name in points}
        kind = f"{arguments.types[0]}, {arguments.spreads[0]}"
        note = f"Count and sum by key ({kind}), {short(arguments.rows)} rows per batch, a snapshot after each."
        draw(arguments.picture, points, titles, note)


def _worst(arguments: argparse.Namespace, options: parts.Options, summary: report.Summary) -> None:
    work = _middle(arguments)
    total = arguments.worst_batches
    batches = min(30, total)
    many = replace(options, rounds=max(1, total // batches), batches=batches)
    sides = parts.count_rows(work, many, "worst")
    report.print_worst(work, sides)
    summary.add_rounds(f"{total} batches, {work.title}", sides, report.cpu_of_batch)


def _access(arguments: argparse.Namespace, options: parts.Options, summary: report.Summary) -> None:
    work = _middle(arguments)
    sides, keys = parts.access_keys(work, options)
    report.print_accessed(work, sides, keys)
    summary.add_rounds(f"key by key, {short(work.keys)} keys", sides, report.cpu_of_batch)


def _timers(arguments: argparse.Namespace, options: parts.Options, summary: report.Summary) -> None:
    work = _middle(arguments)
    sides = parts.fire_timers(work, options)
    per_row, per_due = 1e9 / min(work.rows, work.keys), 1e9 / (work.keys / 10)
    report.print_per_step(
        f"{short(work.keys)} timers, {work.type}: per timer; `fire nothing` and `snapshot` per action",
        sides,
        {"register": (per_row, "ns"), "fire": (per_due, "ns"), "fire all": (per_due / 9, "ns")}
        | {"fire nothing": (1e3, "ms"), "snapshot": (1e3, "ms")},
    )
    for step in ("register", "fire"):
        summary.add_rounds(f"{step} timers", sides, report.step_cpu(step))


def _maps(arguments: argparse.Namespace, options: parts.Options, summary: report.Summary) -> None:
    work = _middle(arguments)
    sides = parts.access_maps(work, options)
    per_row = 1e9 / work.rows
    title = f"{short(work.keys)} entries of {short(work.keys / parts.ENTRIES)} keys, {work.type}"
    steps = dict.fromkeys(("put_entries", "get_entries"), (per_row, "ns per entry"))
    listed = 1e9 / (max(1, work.rows // parts.ENTRIES) * parts.ENTRIES)
    steps |= {"list_entries": (listed, "ns per entry"), "snapshot": (1e3, "ms")}
    report.print_per_step(title, sides, steps)
    for step in ("put_entries", "get_entries", "list_entries"):
        summary.add_rounds(step.replace("_", " "), sides, report.step_cpu(step))


def _rescale(
    arguments: argparse.Namespace, options: parts.Options, summary: report.Summary
) -> None:
    work = _middle(arguments)
    sides = parts.rescale(work, options)
    title = f"{work.title}: two subtasks become three"
    steps = {"open three": (1e3, "ms"), "first look-up": (1e3, "ms")}
    report.print_per_step(title, sides, steps)
    summary.add_rounds("rescale 2 to 3", sides, report.cpu_of_batch)


def _limit(arguments: argparse.Namespace, options: parts.Options, summary: report.Summary) -> None:
    limit_bytes = arguments.limit_mib << 20
    work = Work(4 * limit_bytes // ROW_BYTES, "integers", "uniform", arguments.rows)
    sides, peak_bytes = parts.count_in_limited_memory(work, options, limit_bytes)
    print(f"\nmemory is limited to {arguments.limit_mib} MiB; the state is 4 times that")
    report.print_counted(work, sides)
    report.print_row("peak memory, MB", [f"{count / 1e6:.0f}" for count in peak_bytes.values()])
    summary.add_rounds("4 times the memory", sides, report.cpu_of_batch)


_PARTS: dict[str, Callable[[argparse.Namespace, parts.Options, report.Summary], None]] = {
    "batches": _batches,
    "worst": _worst,
    "access": _access,
    "maps": _maps,
    "timers": _timers,
    "rescale": _rescale,
    "limit": _limit,
}


def _middle(arguments: argparse.Namespace) -> Work:
    """Return the workload of parts with a single size: 1 M keys, or the largest requested size if less."""
    keys = min(1_000_000, max(arguments.keys))
    return Work(keys, arguments.types[0], arguments.spreads[0], min(arguments.rows, keys))


def _sizes(text: str) -> list[int]:
    try:
        return [_size(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: not numbers such as 1k,100k,1M") from None


def _size(text: str) -> int:
    unit = _UNITS.get(text[-1:], 1)
    return int(float(text[:-1]) * unit) if unit > 1 else int(text)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.keyed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )

    def names(option: str, known: tuple[str, ...], help: str) -> None:
        choices = {name: name for name in known}
        parser.add_argument(option, type=some_of(choices), default=list(known), help=help)

    names("--only", PARTS, ", ".join(PARTS))
    names("--types", tuple(KEY_TYPES), ", ".join(KEY_TYPES))
    names("--spreads", SPREADS, ", ".join(SPREADS))
    names(
        "--sides",
        tuple(SIDES),
        f"{', '.join(SIDES)}; compared with the first, by default {HOLDFAST}",
    )
    parser.add_argument(
        "--keys",
        type=_sizes,
        default=[1_000, 100_000, 1_000_000, 10_000_000],
        help="1k,100k,1M,10M",
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="measured rounds, after one to warm up"
    )
    parser.add_argument("--batches", type=int, default=8, help="batches per round")
    parser.add_argument("--rows", type=int, default=100_000, help="rows per batch")
    parser.add_argument("--worst-batches", type=int, default=300, help="batches in `worst`")
    parser.add_argument("--limit-mib", type=int, default=320, help="memory limit in `limit`")
    parser.add_argument(
        "--picture", type=Path, help="SVG file for a chart of the cost per batch by number of keys"
    )
    parser.add_argument(
        "--directory",
        type=Path,
        help="directory for files; default: the system's temporary directory",
    )
    parser.add_argument(
        "--flink-jars", type=Path, help="a folder with flink-dist-*.jar in or below it"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
