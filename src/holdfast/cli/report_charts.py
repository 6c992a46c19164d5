"""Bar charts with captions: numbers that the template draws."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import mean, median
from typing import Any

from holdfast.cli.output import bytes_text, ms_text
from holdfast.cli.report_values import Job
from holdfast.spark_progress import SubtaskView

HEIGHT = 100
"""Height of a chart, so that the height of a bar is a percentage."""

_MAX_BARS = 96
_MIN_SLOTS = 16
_SLOT, _GAP = 10.0, 2.0
_MIN_HEIGHT = 1.5


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a chart.

    Attributes:
        parts: Sizes, stacked from the bottom up, or side by side.
        title: Tooltip with the values.
        is_marked: Whether to mark a failure; the bar has the full height then.
        is_restart: Whether another driver took over the job; a line before the bar shows it.
    """

    parts: tuple[float, ...]
    title: str
    is_marked: bool = False
    is_restart: bool = False


@dataclass(frozen=True, slots=True)
class Shape:
    """A rectangle; `kind` is the class of its colour."""

    x: float
    y: float
    width: float
    height: float
    kind: str


@dataclass(frozen=True, slots=True)
class Place:
    """The rectangles of a bar, and its tooltip."""

    x: float
    width: float
    title: str
    shapes: list[Shape]


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart, `width` by 100 units.

    Attributes:
        width: The chart's width.
        places: From left to right.
        level: Position of a line across the chart, from the top; None for no line.
        together: Number of neighbouring bars that one bar represents: the highest of them.
        is_full: Whether the last bar is at the right edge.
    """

    width: float
    places: list[Place]
    level: float | None
    together: int
    is_full: bool


def chart_of(
    bars: Sequence[Bar], *, side_by_side: bool = False, level: float | None = None
) -> Chart:
    """Draw bars from left to right, with heights relative to the highest.

    Args:
        bars: The bars; if there are too many, the highest of each few neighbours is shown.
        side_by_side: Whether to draw the parts of a bar next to each other.
        level: Size at which to draw a line.
    """
    whole = max if side_by_side else sum
    together = -(-len(bars) // _MAX_BARS) or 1
    chosen = []
    for first in range(0, len(bars), together):
        group = bars[first : first + together]
        highest_bar = max(group, key=lambda bar: (bar.is_marked, whole(bar.parts or (0,))))
        # A restart is shown even if its bar is not.
        restarts = [bar for bar in group if bar.is_restart and bar is not highest_bar]
        chosen.append(
            replace(
                highest_bar,
                title="; ".join(bar.title for bar in [highest_bar, *restarts]),
                is_restart=highest_bar.is_restart or bool(restarts),
            )
        )
    highest = max((whole(bar.parts or (0,)) for bar in chosen), default=0) or 1
    slots = max(len(chosen), _MIN_SLOTS)
    places = [
        _place(bar, index * _SLOT, highest, side_by_side=side_by_side)
        for index, bar in enumerate(chosen)
    ]
    line = None if level is None else HEIGHT * (1 - min(level / highest, 1))
    return Chart(slots * _SLOT, places, line, together, slots == len(chosen))


def _place(bar: Bar, x: float, highest: float, *, side_by_side: bool) -> Place:
    width = _SLOT - _GAP
    shapes = [Shape(x - _GAP, 0, _GAP, HEIGHT, "restart")] if bar.is_restart else []
    if bar.is_marked:
        return Place(x, width, bar.title, [*shapes, Shape(x, 0, width, HEIGHT, "bad")])
    bottom = float(HEIGHT)
    for index, part in enumerate(bar.parts):
        if not part:
            continue
        height = max(HEIGHT * part / highest, _MIN_HEIGHT)
        kind = f"part{index}"
        if side_by_side:
            half = width / len(bar.parts)
            shapes.append(Shape(x + index * half, HEIGHT - height, half, height, kind))
        else:
            bottom -= height
            shapes.append(Shape(x, max(bottom, 0), width, height, kind))
    return Place(x, width, bar.title, shapes)


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart with its caption.

    Attributes:
        name: The title of the figure.
        summary: The figure's values in words.
        label: Name and summary, for screen readers.
        chart: The bars.
        first: The label below the first bar.
        last: The label below the last bar.
        legend: Names of the parts of a bar, if there are several.
    """

    name: str
    summary: str
    label: str
    chart: Chart
    first: str
    last: str
    legend: tuple[str, ...] = ()


def job_figures(job: Job) -> list[Figure]:
    """Return charts over all recorded checkpoints of a job."""
    if not job.history:
        return []
    durations = [row["duration_ms"] for row in job.history]
    sizes = [row["new_bytes"] + row["referenced_bytes"] for row in job.history]
    measures = [
        _figure(
            job,
            "Duration",
            f"median {ms_text(median(durations))}, longest {ms_text(max(durations))}",
            lambda row: Bar((row["duration_ms"],), ms_text(row["duration_ms"])),
            level=median(durations),
        ),
        _figure(
            job,
            "Size",
            f"now {bytes_text(sizes[-1])}, largest {bytes_text(max(sizes))}",
            _size_bar,
            legend=("newly written", "referenced"),
        ),
    ]
    # Statistics that were not recorded are zero in the history.
    if any(checkpoint.rows_in is not None for checkpoint in job.checkpoints):
        rows_in = sum(row["rows_in"] for row in job.history)
        rows_out = sum(row["rows_out"] for row in job.history)
        summary = f"{number_text(rows_in)} in, {number_text(rows_out)} out"
        measures.append(
            _figure(job, "Rows", summary, _rows_bar, legend=("in", "out"), side_by_side=True)
        )
    return measures


def subtask_figures(subtasks: Sequence[SubtaskView]) -> list[Figure]:
    """Return charts of the distribution of work over an operator's subtasks; none for a single subtask, or without work."""
    measures = (
        _spread("State", subtasks, lambda subtask: subtask.stored_bytes, bytes_text),
        _spread("Rows in", subtasks, lambda subtask: subtask.rows_in, number_text),
        _spread("Process time", subtasks, lambda subtask: subtask.process_ms, ms_text),
    )
    return [measure for measure in measures if measure is not None]


def key_group_figure(rows: Sequence[int], sizes: Sequence[int]) -> Figure:
    """Return a chart of the size of each key group of a state."""
    text = f"{number_text(sum(rows))} rows, {bytes_text(sum(sizes))} in Arrow"
    bars = [
        Bar((size,), f"key group {group}: {number_text(count)} rows, {bytes_text(size)}")
        for group, (count, size) in enumerate(zip(rows, sizes, strict=True))
    ]
    return Figure(
        "Key groups",
        text,
        f"Size of {len(bars)} key groups: {text}",
        chart_of(bars, level=mean(sizes)),
        "key group 0",
        f"{len(bars) - 1}",
    )


def _figure(
    job: Job,
    name: str,
    summary: str,
    bar_of: Callable[[dict[str, Any]], Bar],
    *,
    legend: tuple[str, ...] = (),
    side_by_side: bool = False,
    level: float | None = None,
) -> Figure:
    bars = {row["checkpoint"]: bar_of(row) for row in job.history}
    for row in job.restarts:
        bar = bars[row["checkpoint"]]
        title = f"{bar.title}; restarted from #{row['restored_checkpoint']} in epoch {row['epoch']}"
        bars[row["checkpoint"]] = replace(bar, title=title, is_restart=True)
    unreadable = [failure.checkpoint for failure in job.failures if failure.reason == "unreadable"]
    for checkpoint in unreadable:
        if checkpoint is not None:
            bars[checkpoint] = Bar((), "can't be read", is_marked=True)
    if unreadable:
        summary = f"{summary}; hollow: can't be read"
    ids = sorted(bars)
    titled = [replace(bars[i], title=f"#{i}: {bars[i].title}") for i in ids]
    return Figure(
        name,
        summary,
        f"{name} of {len(bars)} checkpoints: {summary}",
        chart_of(titled, side_by_side=side_by_side, level=level),
        f"#{ids[0]}",
        f"#{ids[-1]}" if len(ids) > 1 else "",
        legend,
    )


def _size_bar(row: dict[str, Any]) -> Bar:
    written, referenced = bytes_text(row["new_bytes"]), bytes_text(row["referenced_bytes"])
    title = f"{written} newly written, {referenced} referenced"
    return Bar((row["new_bytes"], row["referenced_bytes"]), title)


def _rows_bar(row: dict[str, Any]) -> Bar:
    rows_in, rows_out = row["rows_in"], row["rows_out"]
    return Bar((rows_in, rows_out), f"{number_text(rows_in)} in, {number_text(rows_out)} out")


def _spread(
    name: str,
    subtasks: Sequence[SubtaskView],
    measure: Callable[[SubtaskView], float | None],
    text: Callable[..., str],
) -> Figure | None:
    values = [measure(subtask) or 0 for subtask in subtasks]
    if len(values) < 2 or not any(values):
        return None
    index = max(range(len(values)), key=values.__getitem__)
    factor = values[index] / mean(values)
    # Some subtask is always the largest; it matters only if it is much larger.
    uneven = f"subtask {subtasks[index].subtask}: {_factor_text(factor)} the mean"
    summary = uneven if factor >= 1.2 else "even"
    bars = [
        Bar((value,), f"subtask {subtask.subtask}: {text(value)}")
        for subtask, value in zip(subtasks, values, strict=True)
    ]
    return Figure(
        name,
        summary,
        f"{name} by subtask: {summary}",
        chart_of(bars, level=mean(values)),
        f"subtask {subtasks[0].subtask}",
        f"{subtasks[-1].subtask}",
    )


def number_text(count: int) -> str:
    """Format a count with separators of thousands."""
    return f"{count:,}"


def _factor_text(factor: float) -> str:
    return f"{factor:.1f} times" if factor < 100 else f"{factor:,.0f} times"
