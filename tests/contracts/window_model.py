"""Windows row by row in plain Python, for comparison with the operators."""

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

import holdfast as hf
from holdfast.spark.windows import CountWindows, Early, FixedWindows, SessionWindows, WindowAssigner

KEY = pa.schema([("k", pa.int64())])
TIME = pa.timestamp("us", "UTC")
AGGREGATES = {
    "rows": hf.count(),
    "values": hf.count("v"),
    "total": hf.sum("v"),
    "least": hf.min("v"),
    "most": hf.max("v"),
    "mean": hf.avg("v"),
    "latest": hf.last("v", by="ts"),
    "all": hf.collect("v"),
}
Row = tuple[int | None, int, int | None]
"""A key, a time in milliseconds, and a value."""


def ms(number: float) -> timedelta:
    return timedelta(milliseconds=number)


def at(time_ms: float) -> datetime:
    return datetime.fromtimestamp(0, UTC) + ms(time_ms)


def table(rows: list[Row]) -> pa.Table:
    return pa.table(
        {
            "k": pa.array([key for key, _, _ in rows], pa.int64()),
            "ts": pa.array([1000 * time_ms for _, time_ms, _ in rows], pa.int64()).cast(TIME),
            "v": pa.array([value for _, _, value in rows], pa.int64()),
            "gap": pa.array([gap_of(row) for row in rows], pa.duration("us")),
        }
    )


def gap_of(row: Row) -> timedelta | None:
    """Return the gap of a session in a column: it depends on the value, and is missing without one."""
    return None if row[2] is None else ms(1 + 2 * abs(row[2]))


def result(rows: list[Row]) -> dict[str, Any]:
    values = [value for _, _, value in rows if value is not None]
    _, _, latest = max(rows, key=lambda row: (row[1], row[2] is not None, row[2] or 0))
    return {
        "rows": len(rows),
        "values": len(values),
        "total": sum(values) if values else None,
        "least": min(values, default=None),
        "most": max(values, default=None),
        "mean": sum(values) / len(values) if values else None,
        "latest": latest,
        "all": sorted(values),
    }


@dataclass
class ModelWindow:
    """A window of the model."""

    start: int
    end: int
    rows: list[Row] = field(default_factory=list)
    is_touched: bool = False
    is_new: bool = True
    new_rows: int = 0


@dataclass
class Model:
    """Takes rows one by one, and computes the output of a batch."""

    windows: WindowAssigner
    lateness: int
    emit: str
    early: Early | None = None
    held: dict[int | None, list[ModelWindow]] = field(default_factory=lambda: defaultdict(list))
    counts: dict[int | None, int] = field(default_factory=lambda: defaultdict(int))
    late: int = 0

    def batch(self, rows: list[Row], late: int, watermark: int) -> list[tuple[Any, ...]]:
        self.late = 0
        if isinstance(self.windows, CountWindows):
            return self.count_batch(rows, self.windows)
        for row in rows:
            if isinstance(self.windows, FixedWindows):
                self.add_to_fixed(row, self.windows, late)
            else:
                self.add_to_sessions(row, self.windows)
        out = []
        for key, windows in self.held.items():
            for window in [*windows]:
                last = window.end - 1
                if window.is_new and last + self.lateness <= late:
                    windows.remove(window)
                    self.late += len(window.rows)
                    continue
                is_fired = late < last <= watermark or (window.is_touched and last <= late)
                is_fired |= last > late and self.is_early(window, late, watermark)
                if is_fired if self.emit == "append" else window.is_touched:
                    out.append((key, window.start, window.end, result(window.rows)))
                    window.new_rows = 0
                window.is_touched = window.is_new = False
                if last + self.lateness <= watermark:
                    windows.remove(window)
        return out

    def is_early(self, window: ModelWindow, late: int, watermark: int) -> bool:
        if isinstance(self.early, timedelta):
            interval = self.early // ms(1)
            return window.new_rows > 0 and watermark // interval > late // interval
        return self.early is not None and window.new_rows >= self.early

    def count_batch(self, rows: list[Row], windows: CountWindows) -> list[tuple[Any, ...]]:
        for row in sorted(rows, key=lambda row: (row[1], row[2] is not None, row[2] or 0)):
            number = self.counts[row[0]]
            self.counts[row[0]] += 1
            held = self.held[row[0]]
            end = windows.slide * (number // windows.slide + 1)
            while end - windows.size <= number:
                same = [window for window in held if window.end == end]
                window = same[0] if same else ModelWindow(max(end - windows.size, 0), end)
                if not same:
                    held.append(window)
                window.rows.append(row)
                window.is_touched = True
                end += windows.slide
        out = []
        for key, held in self.held.items():
            for window in [*held]:
                is_complete = self.counts[key] >= window.end
                if is_complete or (self.emit == "update" and window.is_touched):
                    out.append((key, window.start, window.end, result(window.rows)))
                window.is_touched = False
                if is_complete:
                    held.remove(window)
        return out

    def add_to_fixed(self, row: Row, windows: FixedWindows, late: int) -> None:
        _, time, _ = row
        last = time - (time - windows.offset_ms) % windows.slide_ms
        starts = range(last, time - windows.size_ms, -windows.slide_ms)
        is_held = False
        for start in starts:
            end = start + windows.size_ms
            if end - 1 + self.lateness > late:
                is_held = True
                same = [held for held in self.held[row[0]] if held.start == start]
                window = same[0] if same else ModelWindow(start, end)
                if not same:
                    self.held[row[0]].append(window)
                window.rows.append(row)
                window.new_rows += 1
                window.is_touched = True
        self.late += not is_held and time + self.lateness <= late

    def add_to_sessions(self, row: Row, windows: SessionWindows) -> None:
        gap = gap_of(row) if isinstance(windows.gap, str) else windows.gap
        if gap is None:
            return
        window = ModelWindow(row[1], row[1] + gap // ms(1), [row], new_rows=1)
        for other in [*self.held[row[0]]]:
            if other.start <= window.end and window.start <= other.end:
                self.held[row[0]].remove(other)
                window.start = min(window.start, other.start)
                window.end = max(window.end, other.end)
                window.rows += other.rows
                window.is_new &= other.is_new
                window.new_rows += other.new_rows
        window.is_touched = True
        self.held[row[0]].append(window)


def to_model(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Convert output rows to those of the model."""
    return in_order(
        [
            (
                row.pop("k"),
                bound(row.pop("window_start")),
                bound(row.pop("window_end")),
                row | {"all": sorted(row["all"])},
            )
            for row in rows
        ]
    )


def bound(value: datetime | int) -> int:
    return value if isinstance(value, int) else (value - at(0)) // ms(1)


def in_order(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=repr)
