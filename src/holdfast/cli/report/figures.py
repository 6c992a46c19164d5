"""Charts with their captions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, median

from holdfast.cli.output import bytes_text
from holdfast.cli.report.charts import Bar, Chart, chart_of
from holdfast.cli.report.data import Checkpoint, Job, Subtask
from holdfast.cli.report.text import count_text, factor_text, ms_text


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart with its caption.

    Attributes:
        name: What it shows.
        summary: The same in numbers.
        label: Both, for who can't see it.
        chart: The bars.
        first: What stands below its first bar.
        last: What stands below its last bar.
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
    """What can be seen over the checkpoints of a job; none if none can be read."""
    if not job.checkpoints:
        return []
    durations = [one.duration_ms for one in job.checkpoints]
    sizes = [one.total_bytes for one in job.checkpoints]
    found = [
        _figure(
            job,
            "Duration",
            f"median {ms_text(median(durations))}, longest {ms_text(max(durations))}",
            lambda one: Bar((one.duration_ms,), ms_text(one.duration_ms)),
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
    counted = [one for one in job.checkpoints if one.rows_in is not None]
    if counted:
        rows_in = sum(one.rows_in or 0 for one in counted)
        rows_out = sum(one.rows_out or 0 for one in counted)
        summary = f"{count_text(rows_in)} in, {count_text(rows_out)} out"
        found.append(
            _figure(job, "Rows", summary, _rows_bar, legend=("in", "out"), side_by_side=True)
        )
    return found


def subtask_figures(subtasks: Sequence[Subtask]) -> list[Figure]:
    """How evenly an operator's subtasks share the work; none for a single one, or for no work."""
    measures = (
        _spread("State", subtasks, lambda one: one.state_bytes, bytes_text),
        _spread("Rows in", subtasks, lambda one: one.rows_in, count_text),
        _spread("Process time", subtasks, lambda one: one.process_ms, ms_text),
    )
    return [one for one in measures if one is not None]


def _figure(
    job: Job,
    name: str,
    summary: str,
    bar_of: Callable[[Checkpoint], Bar],
    *,
    legend: tuple[str, ...] = (),
    side_by_side: bool = False,
    level: float | None = None,
) -> Figure:
    bars = {one.checkpoint: bar_of(one) for one in job.checkpoints}
    unreadable = [one.checkpoint for one in job.failures if one.reason == "unreadable"]
    for checkpoint in unreadable:
        if checkpoint is not None:
            bars[checkpoint] = Bar((), "can't be read", is_marked=True)
    if unreadable:
        summary = f"{summary}; hollow: can't be read"
    ids = sorted(bars)
    titled = [Bar(bars[i].parts, f"#{i}: {bars[i].title}", bars[i].is_marked) for i in ids]
    return Figure(
        name,
        summary,
        f"{name} of {len(bars)} checkpoints: {summary}",
        chart_of(titled, side_by_side=side_by_side, level=level),
        f"#{ids[0]}",
        f"#{ids[-1]}" if len(ids) > 1 else "",
        legend,
    )


def _size_bar(one: Checkpoint) -> Bar:
    written, referenced = bytes_text(one.new_bytes), bytes_text(one.referenced_bytes)
    title = f"{written} newly written, {referenced} referenced"
    return Bar((one.new_bytes, one.referenced_bytes), title)


def _rows_bar(one: Checkpoint) -> Bar:
    rows_in, rows_out = one.rows_in or 0, one.rows_out or 0
    return Bar((rows_in, rows_out), f"{count_text(rows_in)} in, {count_text(rows_out)} out")


def _spread(
    name: str,
    subtasks: Sequence[Subtask],
    measure: Callable[[Subtask], float | None],
    text: Callable[..., str],
) -> Figure | None:
    values = [measure(one) or 0 for one in subtasks]
    if len(values) < 2 or not any(values):
        return None
    index = max(range(len(values)), key=values.__getitem__)
    factor = values[index] / mean(values)
    # Some subtask is always the largest; it is named where that may matter.
    uneven = f"subtask {subtasks[index].subtask}: {factor_text(factor)} the mean"
    summary = uneven if factor >= 1.2 else "even"
    bars = [
        Bar((value,), f"subtask {one.subtask}: {text(value)}")
        for one, value in zip(subtasks, values, strict=True)
    ]
    return Figure(
        name,
        summary,
        f"{name} by subtask: {summary}",
        chart_of(bars, level=mean(values)),
        f"subtask {subtasks[0].subtask}",
        f"{subtasks[-1].subtask}",
    )
