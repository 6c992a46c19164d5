"""The report as an HTML page."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from jinja2 import Environment, PackageLoader, StrictUndefined

from holdfast.cli.output import bytes_text, ms_text, second_text, span_text
from holdfast.cli.report.charts import Figure, job_figures, number_text, subtask_figures
from holdfast.cli.report.gathering import Job, Leftover, Report
from holdfast.spark_progress import CheckpointView, OperatorView, SubtaskView, add_known

_STATES = {
    "healthy": ("Healthy", "good"),
    "quiet": ("Quiet", "warn"),
    "attention": ("Attention", "warn"),
    "damaged": ("Damaged", "bad"),
    "empty": ("No checkpoint", "warn"),
}
"""Word and colour class of each job state."""

SHOWN_ROWS, MAX_ROWS = 8, 500

_COUNTS = ("rows_in", "rows_late", "rows_out", "restore_ms", "process_ms", "sync_ms", "async_ms")

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class FoldedRows(Generic[Row]):
    """Rows of a table.

    Attributes:
        shown: The first rows.
        folded: The next rows, shown when a reader unfolds them.
        left_out: Number of rows that are not on the page.
    """

    shown: list[Row]
    folded: list[Row]
    left_out: int


def fold_rows(rows: Sequence[Row]) -> FoldedRows[Row]:
    """Show the first rows, fold the next, and leave out the rest."""
    return FoldedRows(
        list(rows[:SHOWN_ROWS]), list(rows[SHOWN_ROWS:MAX_ROWS]), max(len(rows) - MAX_ROWS, 0)
    )


@dataclass(frozen=True, slots=True)
class OperatorSection:
    """The section of an operator, as it was in the newest readable checkpoint.

    Attributes:
        uid: The operator's uid.
        operator: The operator.
        checkpoints: Number of checkpoints whose rows and times are summed up.
        figures: Charts of the distribution of work over its subtasks.
        rows: The subtasks.
        is_by_size: Whether they are sorted by the size of their state, and not by index.
        maximum: Maximum of each column.
    """

    uid: str
    operator: OperatorView
    checkpoints: int
    figures: list[Figure]
    rows: FoldedRows[SubtaskView]
    is_by_size: bool
    maximum: dict[str, float]


def operator_section(
    uid: str, operator: OperatorView, checkpoints: Sequence[CheckpointView]
) -> OperatorSection:
    """Sum up the work of the subtasks over all checkpoints of the same parallelism.

    A single micro-batch shows little of the distribution of rows, and other parallelisms distribute them differently.
    """
    comparable = [
        checkpoint.operators[uid]
        for checkpoint in checkpoints
        if uid in checkpoint.operators
        and checkpoint.operators[uid].parallelism == operator.parallelism
    ]
    subtasks = _totals(operator, comparable)
    is_by_size = len(subtasks) > SHOWN_ROWS
    if is_by_size:
        subtasks_in_order = sorted(subtasks, key=lambda subtask: -subtask.stored_bytes)
    else:
        subtasks_in_order = subtasks
    columns = ("stored_bytes", "rows_in", "rows_late", "rows_out", "process_ms", "snapshot_ms")
    return OperatorSection(
        uid=uid,
        operator=operator,
        checkpoints=len(comparable),
        figures=subtask_figures(subtasks),
        rows=fold_rows(subtasks_in_order),
        is_by_size=is_by_size,
        maximum={
            column: max((getattr(subtask, column) or 0 for subtask in subtasks), default=0)
            for column in columns
        },
    )


def _totals(operator: OperatorView, comparable: Sequence[OperatorView]) -> list[SubtaskView]:
    """Return each subtask with its state in the newest checkpoint, and the sums of its rows and times."""
    newest = {subtask.subtask: subtask for subtask in operator.subtasks}
    by_index: dict[int, list[SubtaskView]] = defaultdict(list)
    for each in comparable:
        for subtask in each.subtasks:
            by_index[subtask.subtask].append(subtask)
    totals = []
    for index in range(operator.parallelism):
        state = newest.get(index, SubtaskView(subtask=index, stored_bytes=0))
        sums = {
            name: add_known(getattr(part, name) for part in by_index[index]) for name in _COUNTS
        }
        totals.append(
            SubtaskView(
                subtask=index,
                stored_bytes=state.stored_bytes,
                restored_from=state.restored_from,
                backend_metrics=state.backend_metrics,
                **sums,
            )
        )
    return totals


@dataclass(frozen=True, slots=True)
class JobSection:
    """The section of a job.

    Attributes:
        job: The job.
        anchor: Id of the section.
        state: Word for the job's state.
        kind: Class of the state's colour: `good`, `warn` or `bad`.
        headline: The job's condition in a few words.
        newest: The newest readable checkpoint.
        first_id: Id of the oldest readable checkpoint; 0 without one.
        figures: Charts over its checkpoints.
        checkpoints: Newest first.
        operators: The operators of the newest checkpoint.
        files: The files that a sweep would delete, largest first.
        savepoints: Newest first.
        restarts: First checkpoints of drivers that took over the job, newest first.
        failed_attempts: Newest first.
    """

    job: Job
    anchor: str
    state: str
    kind: str
    headline: str
    newest: CheckpointView | None
    first_id: int
    figures: list[Figure]
    checkpoints: FoldedRows[CheckpointView]
    operators: list[OperatorSection]
    files: FoldedRows[Leftover]
    savepoints: FoldedRows[CheckpointView]
    restarts: FoldedRows[dict[str, Any]]
    failed_attempts: FoldedRows[dict[str, Any]]


def render_page(report: Report) -> str:
    """Render the page. Texts from checkpoints are escaped."""
    environment = Environment(
        loader=PackageLoader("holdfast.cli.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "bytes": _if_known(bytes_text),
        "count": _if_known(number_text),
        "ms": _if_known(ms_text),
        "time": _if_known(second_text),
        "share": _share,
        "below": lambda uri, directory: uri.removeprefix(f"{directory}/"),
    }
    sections = [_section(job, f"job-{number}", report) for number, job in enumerate(report.jobs, 1)]
    rendered = environment.get_template("page.html.jinja").render(report=report, jobs=sections)
    return rendered.lstrip()  # macros are before the page


def _if_known(text: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda value: "-" if value is None else text(value)


def _share(part: float | None, maximum: float) -> float:
    """Return a part of the maximum in percent."""
    return round(100 * (part or 0) / maximum, 2) if maximum else 0


def _section(job: Job, anchor: str, report: Report) -> JobSection:
    state, kind = _STATES[job.state]
    newest = job.checkpoints[-1] if job.checkpoints else None
    files = job.sweep.files if job.sweep else []
    return JobSection(
        job=job,
        anchor=anchor,
        state=state,
        kind=kind,
        headline=_headline(job, newest, report.made_ms),
        newest=newest,
        first_id=job.checkpoints[0].checkpoint if job.checkpoints else 0,
        figures=job_figures(job),
        checkpoints=fold_rows(job.checkpoints[::-1]),
        operators=[
            operator_section(uid, operator, job.checkpoints)
            for uid, operator in newest.operators.items()
        ]
        if newest
        else [],
        files=fold_rows(sorted(files, key=lambda file: -(file.bytes or 0))),
        savepoints=fold_rows(job.savepoints[::-1]),
        restarts=fold_rows(job.restarts[::-1]),
        failed_attempts=fold_rows(job.failed_attempts[::-1]),
    )


def _headline(job: Job, newest: CheckpointView | None, made_ms: int) -> str:
    if newest is None:
        if job.state == "damaged":
            return "no checkpoint can be read"
        return "only savepoints" if job.sweep is None else "nothing was completed yet"
    age_ms = made_ms - newest.completed_ms
    ago = f"{span_text(age_ms / 1000)} ago" if age_ms >= 1_000 else "just now"
    last = f"last checkpoint {ago}, {ms_text(newest.duration_ms)}"
    if job.state == "damaged":
        return f"the newest checkpoint can't be read; the last readable one: {ago}"
    if job.state == "quiet" and job.median_interval_ms is not None:
        return f"{last}; before that, one every {ms_text(job.median_interval_ms)}"
    if job.state == "attention":
        unreadable = sum(failure.reason == "unreadable" for failure in job.failures)
        reason = (
            f"{unreadable} older can't be read"
            if unreadable
            else "a newer one was started and not completed"
        )
        return f"{last}; {reason}"
    return last
