"""Windows of a real Flink are read, and a real Flink continues with exported ones."""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest
from contracts.flink_windows import TIME_WINDOW, write_windows
from servers.flink import FlinkJob

from holdfast import flink

STORED, ALL = range(12), range(18)
SECOND_MS, GAP_MS = 1000, 4000
Window = tuple[str, int, int]
"""A key, and the start and end in milliseconds."""


def at_ms(number: int) -> int:
    return (number if number < 6 else number + 10) * SECOND_MS


def window_sums(numbers: Iterable[int], size_s: int) -> dict[Window, int]:
    """Return the sums in windows of a size that start every five seconds."""
    size, slide = size_s * SECOND_MS, 5 * SECOND_MS
    sums: dict[Window, int] = defaultdict(int)
    for number in numbers:
        last = at_ms(number) // slide * slide
        for start in range(last, last - size, -slide):
            sums[f"k{number % 3}", start, start + size] += number
    return dict(sums)


def session_sums(numbers: Iterable[int]) -> dict[Window, int]:
    """Return the sums in sessions, which end after four seconds without rows."""
    spans: dict[str, list[list[int]]] = defaultdict(list)
    for number in sorted(numbers):
        own, at = spans[f"k{number % 3}"], at_ms(number)
        if not own or own[-1][1] < at:
            own.append([at, at, 0])
        own[-1][1] = at + GAP_MS
        own[-1][2] += number
    return {(key, start, end): sum for key, own in spans.items() for start, end, sum in own}


def windows_of(numbers: Iterable[int]) -> dict[str, dict[Window, int]]:
    numbers = list(numbers)
    return {
        "tumbling": window_sums(numbers, 5),
        "sliding": window_sums(numbers, 10),
        "session": session_sums(numbers),
    }


def parse_sums(lines: list[list[str]]) -> dict[str, dict[Window, int]]:
    """Parse the sums that the job prints for windows that have ended."""
    sums: dict[str, dict[Window, int]] = defaultdict(dict)
    for uid, key, start, end, sum in lines:
        sums[uid][key, int(start), int(end)] = int(sum)
    assert len(lines) == sum_of_lengths(sums)
    return sums


def sum_of_lengths(sums: dict[str, dict[Window, int]]) -> int:
    return sum(map(len, sums.values()))


def stored_windows(savepoint: flink.FlinkSavepoint, uid: str) -> dict[Window, int]:
    """Return the sums in the state of an operator, by the windows that its sessions have become."""
    rows = savepoint.read_state(uid, "window-contents", check_keys=True).to_pylist()
    became = {}
    if uid == "session":
        for row in savepoint.read_state(uid, "merging-window-set").to_pylist():
            for pair in row["value"]:
                became[row["key"], *pair["f1"].values()] = tuple(pair["f0"].values())
    sums: dict[Window, int] = {}
    for row in rows:
        span = tuple(row["namespace"].values())
        start, end = became[row["key"], *span] if became else span
        sums[row["key"], start, end] = row["value"]
    return sums


@pytest.mark.parametrize("form", [("hashmap", "canonical"), ("rocksdb", "native")])
def test_windows_of_flink_are_read_with_their_timers(
    flink_job: FlinkJob, tmp_path: Path, form: tuple[str, str]
) -> None:
    [[_, written]] = flink_job("WindowJob", "write", *form, "2", f"file://{tmp_path}")
    savepoint = flink.open_savepoint(Path(written.removeprefix("file:")))
    for uid, sums in windows_of(STORED).items():
        assert stored_windows(savepoint, uid) == sums
        timers = savepoint.timers(uid, check_keys=True).to_pylist()
        ends = {(row["key"], *row["namespace"].values()): row["timestamp"] for row in timers}
        assert ends == {(key, start, end): end - 1 for key, start, end in sums}


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_flink_continues_exported_windows(
    flink_job: FlinkJob, tmp_path: Path, backend: str
) -> None:
    stored = windows_of(STORED)
    del stored["session"]
    rows = {uid: [(*window, sum) for window, sum in sums.items()] for uid, sums in stored.items()}
    ours = write_windows(tmp_path, TIME_WINDOW, rows)
    back = flink.export_savepoint(ours, f"file://{tmp_path}/back")
    sums = parse_sums(flink_job("WindowJob", "read", backend, "-", "3", back))
    expected = windows_of(ALL)
    assert sums["tumbling"] == expected["tumbling"]
    assert sums["sliding"] == expected["sliding"]
