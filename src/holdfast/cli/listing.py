"""`holdfast list`: the completed checkpoints and savepoints below a directory."""

import argparse
from typing import Any

import msgspec

from holdfast.cli.options import (
    STORES,
    claimant_values,
    command,
    configure_stores,
    flag,
    json_option,
    option,
)
from holdfast.cli.output import (
    bytes_text,
    minute_text,
    ms_text,
    print_json,
    print_line,
    print_status,
    print_table,
    second_text,
    span_text,
)
from holdfast.common import map_in_parallel, uripath
from holdfast.errors import CheckpointError
from holdfast.locations.coordination import FoundCheckpoint, find_checkpoints, is_savepoint
from holdfast.locations.storages import CompletedCheckpoint
from holdfast.spark_progress import CheckpointView, history_of

_UNREADABLE = 3

_NUMBERS = ("batch", "parallelism", "age", "new", "referenced", "total")
_HISTORY_NUMBERS = ("batch", "took", "rows in", "rows out", "new", "referenced")


@command(
    "list",
    help="list the completed checkpoints and savepoints below a directory",
    description="List the completed checkpoints and savepoints below a directory, oldest first in each\n"
    "job. New bytes are in the checkpoint's own directory; referenced bytes are elsewhere,\n"
    "and other checkpoints may need them too.",
    examples="""
        holdfast list file:///data/holdfast
        holdfast list s3://bucket/checkpoints --job totals
        holdfast list s3://bucket/savepoints --json
        holdfast list file:///data/holdfast --history
    """,
    options=[
        option(
            "directory",
            metavar="DIRECTORY",
            help="URI of a checkpoint directory, of a job's directory, or of one with savepoints, such as "
            "file:///data/holdfast",
        ),
        option("--job", metavar="JOB", help="only those of this job"),
        flag(
            "--history",
            "also checkpoints that retention has deleted, failed attempts, and restarts, as recorded "
            "in each job's newest checkpoint",
        ),
        json_option("one object a checkpoint"),
        STORES,
    ],
)
def list_command(options: argparse.Namespace) -> int:
    """Print a line for each completed checkpoint, oldest first in its job.

    The status is 3 if a checkpoint can't be read; the others are printed anyway.
    """
    configure_stores(options, options.directory)
    checkpoints: list[CompletedCheckpoint] = []
    failures: list[CheckpointError] = []
    for checkpoint in find_checkpoints(options.directory):
        if options.job is not None and not _may_belong_to(checkpoint, options.job):
            continue
        if isinstance(checkpoint.outcome, CheckpointError):
            failures.append(checkpoint.outcome)
        else:
            checkpoints.append(checkpoint.outcome)
    if options.history:
        rows = _history_rows(checkpoints, failures)
    else:
        results = map_in_parallel(_row, checkpoints)
        failures += [result for result in results if isinstance(result, CheckpointError)]
        rows = [result for result in results if isinstance(result, dict)]
    if options.json:
        print_json(rows)
    elif options.history:
        _print_tables(rows, _history_text, right=_HISTORY_NUMBERS)
    else:
        now_ms = options.clock.now_ms()
        _print_tables(rows, lambda row: _text(row, now_ms), right=_NUMBERS)
    for failure in failures:
        print_status(str(failure))
    if failures:
        return _UNREADABLE
    if not rows:
        job = "" if options.job is None else f" of job {options.job}"
        print_status(f"no completed checkpoint or savepoint{job} below {options.directory}")
    return 0 if rows else 1


def checkpoint_row(checkpoint: CompletedCheckpoint) -> dict[str, Any]:
    """Return a checkpoint as the JSON of `list` and `diff` shows it, without its subtasks.

    Raises:
        CheckpointCorruptedError: Spark's progress or files, or the claim, can't be decoded.
    """
    view = CheckpointView.of(checkpoint)
    values: dict[str, Any] = msgspec.to_builtins(view)
    return values | {
        "operators": {uid: operator.parallelism for uid, operator in view.operators.items()},
        "claimed_by": claimant_values(view.pointer),
    }


def _may_belong_to(checkpoint: FoundCheckpoint, job: str) -> bool:
    if checkpoint.checkpoint is not None:
        return checkpoint.checkpoint.metadata.job_id == job
    # Only its metadata has the job of a savepoint.
    return checkpoint.is_savepoint or uripath.name(uripath.parent(checkpoint.pointer)) == job


def _row(checkpoint: CompletedCheckpoint) -> dict[str, Any] | CheckpointError:
    try:
        return checkpoint_row(checkpoint)
    except CheckpointError as error:
        return error


def _history_rows(
    checkpoints: list[CompletedCheckpoint], failures: list[CheckpointError]
) -> list[dict[str, Any]]:
    """Return the recorded checkpoints and failed attempts of each job, oldest first."""
    jobs: dict[str, list[CompletedCheckpoint]] = {}
    for checkpoint in checkpoints:
        pointer = checkpoint.location.external_pointer
        if not is_savepoint(pointer):
            jobs.setdefault(uripath.parent(pointer), []).append(checkpoint)
    rows: list[dict[str, Any]] = []
    for directory, job in jobs.items():
        job.sort(key=lambda checkpoint: checkpoint.checkpoint_id)
        try:
            history = history_of(job)
        except CheckpointError as error:
            failures.append(error)
            continue
        retained = {checkpoint.checkpoint_id for checkpoint in job}
        common = {"job": job[-1].metadata.job_id, "directory": directory}
        timed = [
            *(common | {"kind": "failed attempt"} | row for row in history.attempt_rows()),
            *(common | {"kind": "checkpoint"} | row for row in history.checkpoint_rows(retained)),
        ]
        rows += sorted(
            timed, key=lambda row: row["failed_ms" if "reason" in row else "completed_ms"]
        )
    return rows


def _print_tables(rows: list[dict[str, Any]], text: Any, *, right: tuple[str, ...]) -> None:
    """Print a table for each directory of each job."""
    tables: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        directory = row["directory"] if "directory" in row else uripath.parent(row["pointer"])
        tables.setdefault((row["job"], directory), []).append(row)
    for number, ((job, directory), table) in enumerate(tables.items()):
        if number:
            print_line()
        newest = table[-1]
        title = f"job {job}"
        if newest.get("query_name"):
            title += f" of query {newest['query_name']!r}"
        if newest.get("operators") and "pointer" in newest:
            title += f" ({', '.join(newest['operators'])})"
        print_line(f"{title} in {directory}")
        print_table(list(map(text, table)), right=right)


def _text(row: dict[str, Any], now_ms: int) -> dict[str, str]:
    claimant = row["claimed_by"]
    claimed = "" if claimant is None else f" (claimed by job {claimant['job']})"
    return {
        "completed": minute_text(row["completed"]),
        "age": span_text((now_ms - row["completed_ms"]) / 1000),
        "parallelism": ", ".join(map(str, sorted(set(row["operators"].values())))) or "-",
        "batch": "-" if row["batch"] is None else str(row["batch"]),
        "new": bytes_text(row["new_bytes"]),
        "referenced": bytes_text(row["referenced_bytes"]),
        "total": bytes_text(row["total_bytes"]),
        "name": uripath.name(row["pointer"]) + claimed,
    }


def _history_text(row: dict[str, Any]) -> dict[str, str]:
    is_checkpoint = row["kind"] == "checkpoint"
    counts = dict.fromkeys(("rows in", "rows out", "new", "referenced"), "-")
    notes = []
    if is_checkpoint:
        counts = {
            "rows in": f"{row['rows_in']:,}",
            "rows out": f"{row['rows_out']:,}",
            "new": bytes_text(row["new_bytes"]),
            "referenced": bytes_text(row["referenced_bytes"]),
        }
        if row["claims"]:
            notes.append(f"restarted from {row['restored_checkpoint']} in epoch {row['epoch']}")
        if row["is_retained"]:
            notes.append("retained")
    else:
        notes.append(f"failed: {row['reason']}")
    return {
        "completed": second_text(row["completed" if is_checkpoint else "failed"]),
        "checkpoint": str(row["checkpoint"]),
        "batch": "-" if row["batch"] is None else str(row["batch"]),
        "took": ms_text(row["duration_ms"]),
        **counts,
        "note": ", ".join(notes) or "deleted",
    }
