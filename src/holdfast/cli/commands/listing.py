"""`holdfast list`: what completed checkpoints and savepoints there are."""

import argparse
from datetime import datetime
from typing import TYPE_CHECKING, Any

from holdfast.cli.command import add_command, add_json
from holdfast.cli.history import checkpoints_by_job, history_rows, print_history
from holdfast.cli.output import age_text, bytes_text, print_json, print_line, print_lines, say
from holdfast.cli.pointed_checkpoint import summary
from holdfast.cli.stores import add_stores, use_stores
from holdfast.common import map_in_parallel, uripath
from holdfast.errors import CheckpointError
from holdfast.locations.coordination import FoundCheckpoint, find_checkpoints
from holdfast.locations.storages import CompletedCheckpoint

if TYPE_CHECKING:
    from holdfast.cli.command import Commands

_UNREADABLE = 3

_NUMBERS = ("batch", "parallelism", "age", "new", "referenced", "total")


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
            holdfast list file:///data/holdfast --history
        """,
    )
    command.add_argument(
        "directory",
        help="URI of a checkpoint directory, a job's own, or one with savepoints, such as "
        "file:///data/holdfast",
    )
    command.add_argument("--job", metavar="ID", help="only those of this job")
    command.add_argument(
        "--history",
        action="store_true",
        help="also checkpoints that retention has deleted, attempts that were given up, and "
        "restarts: what each job's newest checkpoint remembers of those before it",
    )
    add_json(command, "one object a checkpoint")
    add_stores(command)


def list_command(options: argparse.Namespace) -> int:
    """Print one line for each completed checkpoint, oldest first within its job.

    The status is 3 if a checkpoint can't be read; the others are printed all the same.
    """
    use_stores(options, options.directory)
    checkpoints: list[CompletedCheckpoint] = []
    failures: list[CheckpointError] = []
    for checkpoint in find_checkpoints(options.directory):
        if options.job is not None and not _may_be_of(checkpoint, options.job):
            continue
        if isinstance(checkpoint.outcome, CheckpointError):
            failures.append(checkpoint.outcome)
        else:
            checkpoints.append(checkpoint.outcome)
    rows = _history(checkpoints, failures) if options.history else _rows(checkpoints, failures)
    if options.json:
        print_json(rows)
    elif options.history:
        print_history(rows)
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


def _rows(
    checkpoints: list[CompletedCheckpoint], failures: list[CheckpointError]
) -> list[dict[str, Any]]:
    """A row for each checkpoint; why there is none joins the failures."""
    rows = []
    for row in map_in_parallel(_row, checkpoints):
        if isinstance(row, CheckpointError):
            failures.append(row)
        else:
            rows.append(row)
    return rows


def _row(checkpoint: CompletedCheckpoint) -> dict[str, Any] | CheckpointError:
    try:
        return summary(checkpoint)
    except CheckpointError as error:
        return error


def _history(
    checkpoints: list[CompletedCheckpoint], failures: list[CheckpointError]
) -> list[dict[str, Any]]:
    """The rows of all checkpoints that are remembered."""
    rows = []
    for job in checkpoints_by_job(checkpoints):
        try:
            rows += history_rows(job)
        except CheckpointError as error:
            failures.append(error)
    return rows


def _print(rows: list[dict[str, Any]], *, now_s: float) -> None:
    """Print a table for each directory of each job."""
    tables: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        tables.setdefault((row["job"], uripath.parent(row["pointer"])), []).append(row)
    for number, ((job, directory), table) in enumerate(tables.items()):
        if number:
            print_line()
        newest = table[-1]
        name = f" of query {newest['query_name']!r}" if newest["query_name"] else ""
        operators = f" ({', '.join(newest['operators'])})" if newest["operators"] else ""
        print_line(f"job {job}{name}{operators} in {directory}")
        print_lines([_text(row, now_s) for row in table], right=_NUMBERS)


def _claimed(row: dict[str, Any]) -> str:
    holder = row["claimed_by"]
    return "" if holder is None else f" (claimed by job {holder['job']})"


def _text(row: dict[str, Any], now_s: float) -> dict[str, str]:
    completed = datetime.fromisoformat(row["completed"])
    return {
        "completed": f"{completed:%Y-%m-%d %H:%M}",
        "age": age_text(now_s - completed.timestamp()),
        "parallelism": ", ".join(map(str, sorted(set(row["operators"].values())))) or "-",
        "batch": "-" if row["batch"] is None else str(row["batch"]),
        "new": bytes_text(row["new_bytes"]),
        "referenced": bytes_text(row["referenced_bytes"]),
        "total": bytes_text(row["total_bytes"]),
        "name": uripath.name(row["pointer"]) + _claimed(row),
    }
