"""Faults planted in a copy of Holdfast, to show that the comparisons find faults."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from proof.values.subjects import SUBJECTS, compare

_ROOT = Path(__file__).parents[2]
_PARTS = ("src", "backends", "locations", "proof", "tests", "examples")
_MAX_CASES = 1_500
_DIFFERS = 3
"""The status of a process that has found a difference; Python itself ends with 1 or 2 on errors."""


@dataclass(frozen=True, slots=True)
class Planted:
    """A fault.

    Attributes:
        file: The file to change.
        right: The text that is replaced.
        wrong: Its replacement.
        subject: The comparison that must find it.
    """

    file: str
    right: str
    wrong: str
    subject: str


PLANTED: Mapping[str, Planted] = {
    "a sum of 64 bits wraps": Planted(
        "backends/keyed/folding.py",
        "sums = np.add.reduceat(numbers.astype(object), starts)",
        "sums = np.add.reduceat(numbers, starts)",
        "aggregates",
    ),
    "NaN is the least of floats": Planted(
        "backends/keyed/folding.py",
        'np.fmin if numbers.dtype.kind == "f"',
        'np.minimum if numbers.dtype.kind == "f"',
        "aggregates",
    ),
    "a count also counts nulls": Planted(
        "src/holdfast/spark/aggregates/aggregation.py",
        "    return column.is_valid().cast(pa.int64())",
        "    return pa.array(np.ones(len(column), np.int64))",
        "aggregates",
    ),
    "the last value of a time that is null counts": Planted(
        "src/holdfast/spark/aggregates/aggregation.py",
        "mask = by.is_null() if by.null_count else None",
        "mask = None",
        "aggregates",
    ),
    "keys in RocksDB have bytes of their neighbours": Planted(
        "backends/keyed/columns.py",
        "return pa.binary(type.byte_width)",
        "return None",
        "aggregates",
    ),
    "a renamed aggregate begins again": Planted(
        "src/holdfast/spark/aggregates/changes.py",
        'return {"renamed": renamed, "dropped": lost}',
        'return {"renamed": {}, "dropped": [*lost, *renamed.values()]}',
        "aggregates",
    ),
    "a renamed field of a struct takes the value of its neighbour": Planted(
        "backends/serializers/arrow_migration.py",
        "        index = stored.get_field_index(sources[each.name])",
        "        index = stored.get_field_index(sources[each.name])\n"
        "        if sources[each.name] != each.name and stored.field(index - 1).type == each.type:\n"
        "            index = (index or len(stored)) - 1",
        "fields of structs",
    ),
    "a window ends a millisecond late": Planted(
        "src/holdfast/spark/windows/triggers.py",
        "        last_ms = spans.ends - 1\n        expiry_ms",
        "        last_ms = spans.ends\n        expiry_ms",
        "windows",
    ),
    "sessions that touch are not merged": Planted(
        "src/holdfast/spark/windows/sessions.py",
        "(starts[1:] > furthest[:-1])",
        "(starts[1:] >= furthest[:-1])",
        "windows",
    ),
    "a timer that registers itself fires again": Planted(
        "backends/keyed/states/timers.py",
        "if call >= self._ended_calls",
        "if call > self._ended_calls",
        "functions",
    ),
    "a processor does not see what it has appended to a stored list": Planted(
        "backends/keyed/states/list_state.py",
        "return stored + added if added else stored",
        "return stored or added or []",
        "processors",
    ),
    "each subtask keeps all of a union list that was not asked for": Planted(
        "backends/assignment.py",
        "is_copy=before % parallelism != subtask",
        "is_copy=False",
        "operator state",
    ),
    "a list that was read does not show what is appended": Planted(
        "backends/keyed/states/list_state.py",
        "added = self._added.get(index, [])",
        "added: list[Any] = []",
        "functions",
    ),
    "state never expires": Planted(
        "backends/keyed/backend.py",
        "        self._tables.advance_time(now_ms)\n",
        "",
        "states",
    ),
    "a rollback keeps the application id": Planted(
        "src/holdfast/spark/savepoints/stored_query.py",
        "    if APPLICATION_FILE not in names_in(location):",
        "    if True:",
        "histories of a job",
    ),
    "state lives again when the clock goes back": Planted(
        "src/holdfast/spark/event_time.py",
        "        max(batch_time, batch_time_before),",
        "        batch_time,",
        "histories of a job",
    ),
    "other windows under the same uid are not noticed": Planted(
        "src/holdfast/spark/windows/windowed.py",
        "            if (windows, kept) != (now[0], self.kept):",
        "            if False:",
        "histories of a job",
    ),
}
"""Faults by their description."""


def misses(seed: int) -> list[str]:
    """Return the faults that the comparisons do not find."""
    return [name for name in PLANTED if not finds(name, seed)]


def finds(name: str, seed: int) -> bool:
    """Check whether the comparison finds a fault, and finds nothing in the same cases without it.

    Raises:
        ValueError: The file does not have this text exactly once.
    """
    planted = PLANTED[name]
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory)
        for part in _PARTS:
            shutil.copytree(_ROOT / part, copy / part, symlinks=True)
        file = copy / planted.file
        text = file.read_text()
        if text.count(planted.right) != 1:
            message = f"{planted.file} has {text.count(planted.right)} times {planted.right!r}"
            raise ValueError(message)
        file.write_text(text.replace(planted.right, planted.wrong))
        cases = _cases_until_difference(copy, planted.subject, seed, _MAX_CASES)
        if cases is None:
            return False
        # Without this control, a difference that is always there would count as the fault.
        file.write_text(text)
        return _cases_until_difference(copy, planted.subject, seed, cases) is None


def _cases_until_difference(copy: Path, subject: str, seed: int, max_cases: int) -> int | None:
    """Run cases with a copy of Holdfast. Return the number of cases up to the first that differs.

    Raises:
        RuntimeError: The process failed, so nothing is known.
    """
    path = os.pathsep.join(str(copy / part) for part in ("src", "tests", ""))
    command = [sys.executable, "-m", "proof.values.planted", subject, str(seed), str(max_cases)]
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(
        command, cwd=copy, env=environment, check=False, stdout=subprocess.PIPE, text=True
    )
    print(ran.stdout)
    if ran.returncode not in {0, _DIFFERS}:
        raise RuntimeError(f"{' '.join(command)} ended with status {ran.returncode}")
    return int(ran.stdout.split(maxsplit=1)[0]) if ran.returncode else None


def main() -> int:
    """Run cases until one has a problem. Print how many were run, and the problem."""
    name, seed, max_cases = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    subject = replace(SUBJECTS[name], max_reductions=0)
    for number in range(seed, seed + max_cases):
        tally = compare(subject, number, cases=1)
        if tally.descriptions:
            print(number - seed + 1, next(iter(tally.descriptions.values())))
            return _DIFFERS
        subject = replace(subject, seeds=())  # they have run
    return 0


if __name__ == "__main__":
    sys.exit(main())
