"""The report as an HTML page."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined

from holdfast.cli.output import bytes_text, ms_text, second_text
from holdfast.cli.report_charts import job_figures, number_text, subtask_figures
from holdfast.cli.report_values import Job, Report, headline
from holdfast.spark_progress import CheckpointView, OperatorView, SubtaskView, add_known

_STATES = {
    "healthy": ("Healthy", "good"),
    "quiet": ("Quiet", "warn"),
    "attention": ("Attention", "warn"),
    "damaged": ("Damaged", "bad"),
    "empty": ("No checkpoint", "warn"),
}
"""Word and colour class of each job state."""

_SHOWN_ROWS, _MAX_ROWS = 8, 500

_COUNTS = (
    *("rows_in", "rows_late", "rows_out", "fetched_bytes"),
    *("restore_ms", "process_ms", "sync_ms", "async_ms"),
)

_SHARED_COLUMNS = ("stored_bytes", "rows_in", "rows_late", "rows_out", "process_ms", "snapshot_ms")
"""Columns of subtasks that show each value's share of the maximum."""


def _fold_rows(rows: Sequence[Any]) -> dict[str, Any]:
    """Show the first rows, fold the next, which a reader can unfold, and leave out the rest."""
    return {
        "shown": rows[:_SHOWN_ROWS],
        "folded": rows[_SHOWN_ROWS:_MAX_ROWS],
        "left_out": max(len(rows) - _MAX_ROWS, 0),
    }


def _operator_section(
    uid: str, operator: OperatorView, checkpoints: Sequence[CheckpointView]
) -> dict[str, Any]:
    """Return an operator of the newest readable checkpoint, with the work of its subtasks in all checkpoints.

    A single micro-batch shows little of the distribution of rows, and other parallelisms distribute them differently.
    """
    comparable = [
        checkpoint.operators[uid]
        for checkpoint in checkpoints
        if uid in checkpoint.operators
        and checkpoint.operators[uid].parallelism == operator.parallelism
    ]
    subtasks = _totals(operator, comparable)
    is_by_size = len(subtasks) > _SHOWN_ROWS
    in_order = sorted(subtasks, key=lambda each: -each.stored_bytes) if is_by_size else subtasks
    return {
        "uid": uid,
        "operator": operator,
        "checkpoints": len(comparable),
        "figures": subtask_figures(subtasks),
        "rows": _fold_rows(in_order),
        "is_by_size": is_by_size,
        "maximum": {
            column: max((getattr(subtask, column) or 0 for subtask in subtasks), default=0)
            for column in _SHARED_COLUMNS
        },
    }


def _totals(operator: OperatorView, comparable: Sequence[OperatorView]) -> list[SubtaskView]:
    """Return each subtask with its state in the newest checkpoint, and the sums of its rows and times."""
    by_index: dict[int, list[SubtaskView]] = defaultdict(list)
    for each in comparable:
        for subtask in each.subtasks:
            by_index[subtask.subtask].append(subtask)
    newest = {subtask.subtask: subtask for subtask in operator.subtasks}
    return [
        msgspec.structs.replace(
            newest.get(index) or SubtaskView(subtask=index, stored_bytes=0),
            **{
                name: add_known(getattr(part, name) for part in by_index[index]) for name in _COUNTS
            },
        )
        for index in range(operator.parallelism)
    ]


def render_page(report: Report) -> str:
    """Render the page. Texts from checkpoints are escaped."""
    environment = Environment(
        loader=PackageLoader("holdfast.cli", "."),
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
    rendered = environment.get_template("report_page.html.jinja").render(
        report=report, jobs=sections
    )
    return rendered.lstrip()  # macros are before the page


def _if_known(text: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda value: "-" if value is None else text(value)


def _share(part: float | None, maximum: float) -> float:
    """Return a part of the maximum in percent."""
    return round(100 * (part or 0) / maximum, 2) if maximum else 0


def _section(job: Job, anchor: str, report: Report) -> dict[str, Any]:
    """Return the values of a job's section; all lists begin with the newest, or the largest file."""
    state, kind = _STATES[job.state]
    newest = job.checkpoints[-1] if job.checkpoints else None
    files = job.sweep.files if job.sweep else []
    return {
        "job": job,
        "anchor": anchor,
        "state": state,
        "kind": kind,
        "headline": headline(job, report.made_ms),
        "newest": newest,
        "first_id": job.checkpoints[0].checkpoint if job.checkpoints else 0,
        "figures": job_figures(job),
        "checkpoints": _fold_rows(job.checkpoints[::-1]),
        "operators": [
            _operator_section(uid, operator, job.checkpoints)
            for uid, operator in (newest.operators if newest else {}).items()
        ],
        "files": _fold_rows(sorted(files, key=lambda file: -(file.bytes or 0))),
        "savepoints": _fold_rows(job.savepoints[::-1]),
        "restarts": _fold_rows(job.restarts[::-1]),
        "failed_attempts": _fold_rows(job.failed_attempts[::-1]),
    }
