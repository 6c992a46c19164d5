"""Charts with their captions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import mean, median

from holdfast.cli.output import bytes_text
from holdfast.cli.report.charts import Bar, Chart, chart_of
from holdfast.cli.report.data import Job, RememberedCheckpoint, Subtask
from holdfast.cli.report.text import count_text, factor_text, ms_text


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart with its caption.

    Attributes:
        name: The title of the figure.
        summary: The figure's values in words.
        label: Name and summary, for readers who can't see the chart.
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
    """Charts over all checkpoints that a job is known to have completed; none if no checkpoint can be read."""
    if not job.history:
        return []
    durations = [past.duration_ms for past in job.history]
    sizes = [past.new_bytes + past.referenced_bytes for past in job.history]
    measures = [
        _figure(
            job,
            "Duration",
            f"median {ms_text(median(durations))}, longest {ms_text(max(durations))}",
            lambda past: Bar((past.duration_ms,), ms_text(past.duration_ms)),
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
    # Statistics that nobody has counted are remembered as zero.
    if any(checkpoint.rows_in is not None for checkpoint in job.checkpoints):
        rows_in = sum(past.rows_in for past in job.history)
        rows_out = sum(past.rows_out for past in job.history)
        summary = f"{count_text(rows_in)} in, {count_text(rows_out)} out"
        measures.append(
            _figure(job, "Rows", summary, _rows_bar, legend=("in", "out"), side_by_side=True)
        )
    return measures


def subtask_figures(subtasks: Sequence[Subtask]) -> list[Figure]:
    """How evenly an operator's subtasks share the work; none for a single one, or for no work."""
    measures = (
        _spread("State", subtasks, lambda subtask: subtask.stored_bytes, bytes_text),
        _spread("Rows in", subtasks, lambda subtask: subtask.rows_in, count_text),
        _spread("Process time", subtasks, lambda subtask: subtask.process_ms, ms_text),
    )
    return [measure for measure in measures if measure is not None]


def _figure(
    job: Job,
    name: str,
    summary: str,
    bar_of: Callable[[RememberedCheckpoint], Bar],
    *,
    legend: tuple[str, ...] = (),
    side_by_side: bool = False,
    level: float | None = None,
) -> Figure:
    bars = {past.checkpoint: bar_of(past) for past in job.history}
    for past in job.restarts:
        bar = bars[past.checkpoint]
        title = f"{bar.title}; restarted from #{past.restored_checkpoint} in epoch {past.epoch}"
        bars[past.checkpoint] = replace(bar, title=title, is_restart=True)
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


def _size_bar(checkpoint: RememberedCheckpoint) -> Bar:
    written, referenced = bytes_text(checkpoint.new_bytes), bytes_text(checkpoint.referenced_bytes)
    title = f"{written} newly written, {referenced} referenced"
    return Bar((checkpoint.new_bytes, checkpoint.referenced_bytes), title)


def _rows_bar(checkpoint: RememberedCheckpoint) -> Bar:
    rows_in, rows_out = checkpoint.rows_in, checkpoint.rows_out
    return Bar((rows_in, rows_out), f"{count_text(rows_in)} in, {count_text(rows_out)} out")


def _spread(
    name: str,
    subtasks: Sequence[Subtask],
    measure: Callable[[Subtask], float | None],
    text: Callable[..., str],
) -> Figure | None:
    values = [measure(subtask) or 0 for subtask in subtasks]
    if len(values) < 2 or not any(values):
        return None
    index = max(range(len(values)), key=values.__getitem__)
    factor = values[index] / mean(values)
    # Some subtask is always the largest; it is named where that may matter.
    uneven = f"subtask {subtasks[index].subtask}: {factor_text(factor)} the mean"
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
