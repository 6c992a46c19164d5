"""`holdfast list`: what completed checkpoints and savepoints there are."""

import argparse
from datetime import datetime
from typing import TYPE_CHECKING, Any

from holdfast.cli.checkpoints import summary
from holdfast.cli.command import add_command, add_json
from holdfast.cli.output import age_text, bytes_text, print_json, print_line, print_lines, say
from holdfast.cli.stores import add_stores, use_stores
from holdfast.common import uripath
from holdfast.errors import CheckpointError
from holdfast.locations.coordination import FoundCheckpoint, find_checkpoints

if TYPE_CHECKING:
    from holdfast.cli.command import Commands

_UNREADABLE = 3

_NUMBERS = ("batch", "age", "new", "referenced", "total")


def add_to(commands: "Commands") -> None:
    """Add the command."""
    command = add_command(
        commands,
        "list",
        list_command,
        help="list the completed checkpoints and savepoints below a directory",
        description=(
            "List the completed checkpoints and savepoints below a directory, oldest first\n"
            "in each job. What is new is in the checkpoint's own directory; what is\n"
            "referenced is elsewhere, and others may need it too."
        ),
        examples="""
            holdfast list file:///data/holdfast
            holdfast list s3://bucket/checkpoints --job totals
            holdfast list s3://bucket/savepoints --json
        """,
    )
    command.add_argument(
        "directory",
        help="URI of a checkpoint directory, a job's own, or one with savepoints, such as "
        "file:///data/holdfast",
    )
    command.add_argument("--job", metavar="ID", help="only those of this job")
    add_json(command, "one object a checkpoint")
    add_stores(command)


def list_command(options: argparse.Namespace) -> int:
    """Print one line for each completed checkpoint, oldest first within its job.

    The status is 3 if a checkpoint can't be read; the others are printed all the same.
    """
    use_stores(options, options.directory)
    failures: list[CheckpointError] = []
    rows = []
    for checkpoint in find_checkpoints(options.directory):
        if options.job is not None and not _may_be_of(checkpoint, options.job):
            continue
        try:
            rows.append(_row(checkpoint))
        except CheckpointError as error:
            failures.append(error)
    if options.json:
        print_json(rows)
    else:
        _print(rows, now_s=options.clock.now_ms() / 1000)
    for failure in failures:
        say(str(failure))
    if failures:
        return _UNREADABLE  # whatever it is: the command was right
    if not rows:
        of_job = "" if options.job is None else f" of job {options.job}"
        say(f"no completed checkpoint or savepoint{of_job} below {options.directory}")
    return 0 if rows else 1


def _may_be_of(checkpoint: FoundCheckpoint, job: str) -> bool:
    if checkpoint.checkpoint is not None:
        return checkpoint.checkpoint.metadata.job_id == job
    # A savepoint's metadata alone says for sure.
    return checkpoint.is_savepoint or uripath.name(uripath.parent(checkpoint.pointer)) == job


def _row(checkpoint: FoundCheckpoint) -> dict[str, Any]:
    if isinstance(checkpoint.outcome, CheckpointError):
        raise checkpoint.outcome
    return summary(checkpoint.outcome)


def _print(rows: list[dict[str, Any]], *, now_s: float) -> None:
    """Print a table for each directory; above it stands what all its checkpoints have in common."""
    tables: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        tables.setdefault(_title(row), []).append(_text(row, now_s))
    for number, (title, table) in enumerate(tables.items()):
        if number:
            print_line()
        print_line(title)
        print_lines(table, right=_NUMBERS)


def _title(row: dict[str, Any]) -> str:
    operators = [f"{uid} x {parallelism}" for uid, parallelism in row["operators"].items()]
    of = f" ({', '.join(operators)})" if operators else ""
    return f"job {row['job']}{of} in {uripath.parent(row['pointer'])}"


def _text(row: dict[str, Any], now_s: float) -> dict[str, str]:
    completed = datetime.fromisoformat(row["completed"])
    return {
        "completed": f"{completed:%Y-%m-%d %H:%M}",
        "age": age_text(now_s - completed.timestamp()),
        "batch": "-" if row["batch"] is None else str(row["batch"]),
        "new": bytes_text(row["new_bytes"]),
        "referenced": bytes_text(row["referenced_bytes"]),
        "total": bytes_text(row["total_bytes"]),
        "name": uripath.name(row["pointer"]),
    }
