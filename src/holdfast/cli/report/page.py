"""The page: what the report knows, in HTML."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from holdfast.cli.output import bytes_text
from holdfast.cli.report.data import (
    Checkpoint,
    GivenUp,
    Job,
    Leftover,
    RememberedCheckpoint,
    Report,
)
from holdfast.cli.report.figures import Figure, job_figures
from holdfast.cli.report.folded_rows import Rows, rows_of
from holdfast.cli.report.operator_view import OperatorView, operator_view
from holdfast.cli.report.text import count_text, ms_text, span_text, time_text

_STATES = {
    "healthy": ("Healthy", "good"),
    "quiet": ("Quiet", "warn"),
    "attention": ("Attention", "warn"),
    "damaged": ("Damaged", "bad"),
    "empty": ("No checkpoint", "warn"),
}
"""By a job's state: the word for it, and the class of its colour."""


@dataclass(frozen=True, slots=True)
class JobView:
    """A job, and what the page shows of it.

    Attributes:
        job: The job.
        anchor: Where it is on the page.
        state: The word for its state.
        kind: The class of the state's colour: `good`, `warn` or `bad`.
        headline: The job's condition, in a few words.
        newest: The newest checkpoint that can be read.
        first_id: The oldest that can be read; 0 if there is none.
        figures: Charts over its checkpoints.
        checkpoints: Newest first.
        operators: The operators of the newest checkpoint.
        files: The files that a sweep would delete, largest first.
        savepoints: Newest first.
        restarts: First checkpoints of drivers that took the job over, newest first.
        given_up: Newest first.
    """

    job: Job
    anchor: str
    state: str
    kind: str
    headline: str
    newest: Checkpoint | None
    first_id: int
    figures: list[Figure]
    checkpoints: Rows[Checkpoint]
    operators: list[OperatorView]
    files: Rows[Leftover]
    savepoints: Rows[Checkpoint]
    restarts: Rows[RememberedCheckpoint]
    given_up: Rows[GivenUp]


def page(report: Report) -> str:
    """The whole page. All that comes from outside is escaped."""
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
        "count": _if_known(count_text),
        "ms": _if_known(ms_text),
        "span": span_text,
        "time": _if_known(time_text),
        "share": _share,
        "below": lambda uri, directory: uri.removeprefix(f"{directory}/"),
    }
    views = [_view(job, f"job-{number}", report) for number, job in enumerate(report.jobs, 1)]
    rendered = environment.get_template("page.html.jinja").render(report=report, jobs=views)
    return rendered.lstrip()  # macros stand before the page


def _if_known(text: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda value: "-" if value is None else text(value)


def _share(part: float | None, most: float) -> float:
    """How much of the most something is, in percent."""
    return round(100 * (part or 0) / most, 2) if most else 0


def _view(job: Job, anchor: str, report: Report) -> JobView:
    state, kind = _STATES[job.state]
    newest = job.checkpoints[-1] if job.checkpoints else None
    files = job.sweep.files if job.sweep else []
    return JobView(
        job=job,
        anchor=anchor,
        state=state,
        kind=kind,
        headline=_headline(job, newest, report.made_ms),
        newest=newest,
        first_id=job.checkpoints[0].checkpoint if job.checkpoints else 0,
        figures=job_figures(job),
        checkpoints=rows_of(job.checkpoints[::-1]),
        operators=[operator_view(operator, job.checkpoints) for operator in newest.operators]
        if newest
        else [],
        files=rows_of(sorted(files, key=lambda file: -(file.bytes or 0))),
        savepoints=rows_of(job.savepoints[::-1]),
        restarts=rows_of(job.restarts[::-1]),
        given_up=rows_of(job.given_up[::-1]),
    )


def _headline(job: Job, newest: Checkpoint | None, made_ms: int) -> str:
    if newest is None:
        if job.state == "damaged":
            return "no checkpoint can be read"
        return "only savepoints" if job.sweep is None else "nothing was completed yet"
    age_ms = made_ms - newest.completed_ms
    ago = f"{span_text(age_ms)} ago" if age_ms >= 1_000 else "just now"
    last = f"last checkpoint {ago}, {ms_text(newest.duration_ms)}"
    if job.state == "damaged":
        return f"the newest checkpoint can't be read; the last that can: {ago}"
    if job.state == "quiet" and job.usual_distance_ms is not None:
        return f"{last}; before that, one every {ms_text(job.usual_distance_ms)}"
    if job.state == "attention":
        bad = sum(failure.reason == "unreadable" for failure in job.failures)
        why = f"{bad} older can't be read" if bad else "a newer one was begun and not completed"
        return f"{last}; {why}"
    return last
