"""Attempts to refute Holdfast's promises, with their results in a table.

    make proof                       all rows, without a time limit
    make proof ARGS=--short          in about a minute of CPU time
    make proof ARGS='--seed 7 --only crash'

The page is docs/proof.md, written by the long form, or by --page FILE.
"""

import argparse
import dataclasses
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from proof.rows import ROWS, Outcome, Row, combine

_ROOT = Path(__file__).parents[1]
_PAGE = _ROOT / "docs" / "proof.md"
_BEGIN, _END = "<!-- table: made by `make proof` -->", "<!-- end of table -->"


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """A run of a row.

    Attributes:
        name: Name of the row.
        seed: The seed.
        is_short: Whether it was the short form.
        outcome: Its outcome.
    """

    name: str
    seed: int
    is_short: bool
    outcome: Outcome

    @classmethod
    def of(cls, fields: dict[str, Any]) -> "Result":
        """Return the result stored in these fields."""
        return cls(**{**fields, "outcome": Outcome(**fields["outcome"])})


def main(arguments: list[str] | None = None) -> int:
    """Run the rows; returns 1 if any has failed."""
    parser = argparse.ArgumentParser(
        prog="python -m proof",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--short", action="store_true", help="a sample of each row, except of the longest ones"
    )
    parser.add_argument("--seed", type=int, help="of an earlier run, to repeat it")
    parser.add_argument("--only", default="", help="rows with this in their names")
    parser.add_argument("--page", type=Path, help="write the table into this page")
    parser.add_argument("--row", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--outcome", type=Path, help=argparse.SUPPRESS)
    parser.add_argument(
        "--results",
        type=Path,
        help="a file for the outcomes; rows that it has already are not run again",
    )
    options = parser.parse_args(arguments)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    if options.row is not None:
        try:
            outcome = ROWS[options.row].run(options.short, seed)
        except pytest.skip.Exception:
            outcome = Outcome(0, skipped=1)
        options.outcome.write_text(json.dumps(dataclasses.asdict(outcome)))
        return 0
    print(f"seed {seed}", flush=True)
    results = _read(options.results)
    failed = 0
    for number, row in enumerate(ROWS):
        if options.only not in row.name or (options.short and row.is_long):
            continue
        before = _cpu_s()
        runs = results.setdefault(row.name, [])
        while _lacks(row, runs):
            # The same seed would only repeat the run.
            next_seed = runs[-1].seed + 1 if runs else seed
            run = _outcome(number, next_seed, short=options.short)
            result = Result(row.name, next_seed, options.short, run)
            runs.append(result)
            _add(options.results, result)
        outcome = combine(result.outcome for result in runs)
        failed += len(outcome.failures)
        print(f"{_line(row, outcome)} {_cpu_s() - before:.1f} s of CPU", flush=True)
        for failure in outcome.failures[:10]:
            print(f"    FAILED {failure}", flush=True)
    page = options.page or (None if options.short or options.only else _PAGE)
    if page is not None:
        _write(page, results)
    print(f"{failed} failed, {_cpu_s():.0f} s of CPU time")
    return 1 if failed else 0


def _lacks(row: Row, runs: list[Result]) -> bool:
    """Return whether a row needs a run, or another one; not if the last one had no cases."""
    if not runs:
        return True
    outcome = combine(result.outcome for result in runs)
    return outcome.count < row.wanted and not outcome.failures and runs[-1].outcome.count > 0


def _read(file: Path | None) -> dict[str, list[Result]]:
    """Read the runs by the name of their row."""
    runs: dict[str, list[Result]] = {}
    if file is not None and file.exists():
        for line in file.read_text().splitlines():
            result = Result.of(json.loads(line))
            runs.setdefault(result.name, []).append(result)
    return runs


def _add(file: Path | None, result: Result) -> None:
    if file is not None:
        with file.open("a") as stream:
            stream.write(json.dumps(dataclasses.asdict(result)) + "\n")


def _outcome(number: int, seed: int, *, short: bool) -> Outcome:
    with tempfile.TemporaryDirectory() as directory:
        file, log = Path(directory) / "outcome", Path(directory) / "log"
        command = [sys.executable, "-m", "proof", "--row", f"{number}", "--seed", f"{seed}"]
        command += ["--outcome", str(file), *(["--short"] if short else [])]
        path = os.pathsep.join([str(_ROOT), str(_ROOT / "tests")])
        with log.open("wb") as output:
            ran = subprocess.run(
                command,
                cwd=_ROOT,
                env={**os.environ, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                check=False,
            )
        if not file.exists():
            tail = log.read_text(errors="replace")[-1000:]
            return Outcome(0, [f"its process ended with status {ran.returncode}: {tail}"])
        return Outcome(**json.loads(file.read_text()))


def _line(row: Row, outcome: Outcome) -> str:
    cases = f"{outcome.count:,} {row.unit}"
    if outcome.skipped:
        cases += f", {outcome.skipped:,} skipped"
    return f"| {row.name} | {cases} | {row.holds} | {len(outcome.failures)} |"


def _write(page: Path, results: dict[str, list[Result]]) -> None:
    """Write the table of all completed rows into the page."""
    run = [row for row in ROWS if row.name in results]
    lines = ["| what is done | cases | what must hold | failed |", "|---|---|---|---|"]
    lines += [_line(row, combine(each.outcome for each in results[row.name])) for row in run]
    runs = [each for row in run for each in results[row.name]]
    forms = [
        _form(name, seeds)
        for name, seeds in (
            ("Short form", {each.seed for each in runs if each.is_short}),
            ("Long form", {each.seed for each in runs if not each.is_short}),
        )
        if seeds
    ]
    head, _, rest = page.read_text().partition(_BEGIN)
    _, end, tail = rest.partition(_END)
    if not end:
        raise SystemExit(f"{page} has no place for a table: {_BEGIN} and {_END}")
    page.write_text("\n".join([f"{head}{_BEGIN}", *lines, "", " ".join(forms), f"{_END}{tail}"]))


def _form(name: str, seeds: set[int]) -> str:
    return f"{name}, seeds {', '.join(map(str, sorted(seeds)))}."


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
