"""The rows of `holdfast list --history`: one for each checkpoint that is remembered, and for each failed attempt."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from holdfast.cli.output import bytes_text, print_line, print_lines, time_text
from holdfast.common import uripath
from holdfast.locations.coordination import is_savepoint
from holdfast.locations.storages import CompletedCheckpoint
from holdfast.spark_progress import CheckpointStatistics, FailedAttempt, Restart, history_of

_NUMBERS = ("batch", "took", "rows in", "rows out", "new", "referenced")


def checkpoints_by_job(
    checkpoints: Iterable[CompletedCheckpoint],
) -> list[list[CompletedCheckpoint]]:
    """The checkpoints of each job in its directory, oldest first, without savepoints."""
    jobs: dict[str, list[CompletedCheckpoint]] = {}
    for checkpoint in checkpoints:
        pointer = checkpoint.location.external_pointer
        if not is_savepoint(pointer):
            jobs.setdefault(uripath.parent(pointer), []).append(checkpoint)
    return [sorted(job, key=lambda each: each.checkpoint_id) for job in jobs.values()]


def history_rows(checkpoints: Sequence[CompletedCheckpoint]) -> list[dict[str, Any]]:
    """The checkpoints and failed attempts of a job that are remembered, oldest first.

    Raises:
        CheckpointCorruptedError: The history in its newest checkpoint can't be read.
    """
    past = history_of(checkpoints)
    newest = checkpoints[-1]
    of_job = {
        "job": newest.metadata.job_id,
        "directory": uripath.parent(newest.location.external_pointer),
    }
    restarts = {restart.checkpoint: restart for restart in past.restarts}
    retained = {checkpoint.checkpoint_id for checkpoint in checkpoints}
    rows: list[tuple[int, dict[str, Any]]] = [
        (attempt.failed_ms, of_job | _attempt_row(attempt)) for attempt in past.failed_attempts
    ]
    for checkpoint in past.checkpoints:
        row = _checkpoint_row(checkpoint, restarts.get(checkpoint.checkpoint))
        is_retained = {"is_retained": checkpoint.checkpoint in retained}
        rows.append((checkpoint.completed_ms, of_job | row | is_retained))
    return [row for _, row in sorted(rows, key=lambda timed: timed[0])]


def print_history(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print a table for each job."""
    tables: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        tables.setdefault(f"job {row['job']} in {row['directory']}", []).append(_text(row))
    for number, (title, table) in enumerate(tables.items()):
        if number:
            print_line()
        print_line(title)
        print_lines(table, right=_NUMBERS)


def _checkpoint_row(checkpoint: CheckpointStatistics, restart: Restart | None) -> dict[str, Any]:
    return {
        "kind": "checkpoint",
        **msgspec.structs.asdict(checkpoint),
        "completed": time_text(checkpoint.completed_ms),
        "operators": {
            uid: msgspec.structs.asdict(operator) for uid, operator in checkpoint.operators.items()
        },
        "restored_checkpoint": restart.restored_checkpoint if restart else None,
        "claims": restart.claims if restart else None,
    }


def _attempt_row(attempt: FailedAttempt) -> dict[str, Any]:
    return {
        "kind": "failed attempt",
        **msgspec.structs.asdict(attempt),
        "failed": time_text(attempt.failed_ms),
    }


def _text(row: Mapping[str, Any]) -> dict[str, str]:
    is_checkpoint = row["kind"] == "checkpoint"
    at = datetime.fromisoformat(row["completed" if is_checkpoint else "failed"])
    told = dict.fromkeys(("rows in", "rows out", "new", "referenced"), "-")
    notes = [f"failed: {row['reason']}"] if not is_checkpoint else []
    if is_checkpoint:
        told = {
            "rows in": f"{row['rows_in']:,}",
            "rows out": f"{row['rows_out']:,}",
            "new": bytes_text(row["new_bytes"]),
            "referenced": bytes_text(row["referenced_bytes"]),
        }
        if row["claims"]:
            notes.append(f"restarted from {row['restored_checkpoint']} in epoch {row['epoch']}")
        if row["is_retained"]:
            notes.append("retained")
    return {
        "completed": f"{at:%Y-%m-%d %H:%M:%S}",
        "checkpoint": str(row["checkpoint"]),
        "batch": "-" if row["batch"] is None else str(row["batch"]),
        "took": f"{row['duration_ms']:.0f} ms",
        **told,
        "what": ", ".join(notes) or "deleted",
    }
