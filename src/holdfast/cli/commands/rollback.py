"""`holdfast rollback`: a stopped query returns to an earlier batch, in place."""

import argparse
from typing import TYPE_CHECKING, Any

from holdfast.cli.options import (
    add_command,
    add_job,
    add_json,
    add_no_operators,
    add_stores,
    configuration,
    require_spark,
)
from holdfast.cli.output import interrupt_hint, print_json, print_line, print_status, print_table
from holdfast.errors import InvalidRequestError
from holdfast.spark_progress import iso_time

if TYPE_CHECKING:
    from holdfast.cli.options import Commands


def add_to(commands: "Commands") -> None:
    """Add the command."""
    command = add_command(
        commands,
        "rollback",
        rollback_command,
        help="roll a stopped query back to an earlier batch, in place",
        description=(
            "Roll a stopped query back to an earlier batch, in place.\n\n"
            "Spark's logs, its state, and the checkpoints of operators are deleted together for all later\n"
            "batches.\n\n"
            "  without --checkpoint and --batch   lists the possible targets\n"
            "  with one of them                   prints the files that would be deleted\n"
            "  with --yes too                     rolls back\n\n"
            "End the Spark application that ran the query first: its executors could still store state\n"
            "of the later batches, which this command can't detect. Run the command again to finish an\n"
            "interrupted rollback. The sink is not rolled back: it must replace repeated batches, or\n"
            "their rows must be deleted first."
        ),
        examples="""
            holdfast rollback file:///data/totals-spark
            holdfast rollback file:///data/totals-spark --checkpoint 41 --yes
        """,
    )
    command.add_argument(
        "checkpoint_location",
        metavar="CHECKPOINT_LOCATION",
        help="URI of the query's checkpointLocation",
    )
    target = command.add_mutually_exclusive_group()
    target.add_argument(
        "--checkpoint",
        type=_checkpoint,
        metavar="ID",
        help="for a query with operators: id of a retained checkpoint, or the URI of its directory",
    )
    target.add_argument(
        "--batch", type=int, metavar="N", help="for any other query: the last batch to keep"
    )
    add_no_operators(command)
    command.add_argument("--yes", action="store_true", help="roll back")
    add_json(command, "one object; a list of them without --checkpoint and --batch")
    add_job(command, "default: as recorded in the checkpointLocation")
    add_stores(command)


def rollback_command(options: argparse.Namespace) -> int:
    """List the possible targets, print the files that a rollback would delete, or roll back.

    Raises:
        InvalidRequestError: `--yes` was given without a target.
    """
    with require_spark():
        from holdfast.spark.savepoints import preview_rollback, roll_back, rollback_points  # noqa: PLC0415
    query: dict[str, Any] = {
        "checkpoint_dir": options.checkpoint_dir,
        "job_id": options.job_id,
        "operators": options.operators,
        "configuration": configuration(options),
    }
    location = options.checkpoint_location
    target = {"checkpoint": options.checkpoint, "batch_id": options.batch}
    if options.checkpoint is None and options.batch is None:
        if options.yes:
            raise InvalidRequestError("set the target with --checkpoint or --batch")
        return _print_points(
            [
                {
                    "checkpoint": point.checkpoint,
                    "batch": point.batch_id,
                    "begun": _time(point.started_ms),
                }
                for point in rollback_points(location, **query)
            ],
            as_json=options.json,
        )
    if not options.yes:
        preview = preview_rollback(location, **target, **query)
        if options.json:
            print_json(
                {
                    "dry_run": True,
                    "query_id": preview.query_id,
                    "batch": preview.batch_id,
                    "newest_batch": preview.newest_batch_id,
                    "checkpoints": preview.checkpoints,
                    "files": preview.files,
                }
            )
        else:
            for uri in [*preview.checkpoints, *preview.files]:
                print_line(uri)
        if preview.newest_batch_id > preview.batch_id:
            print_status(
                f"what does the sink do with batches {preview.batch_id + 1} to {preview.newest_batch_id}? It may "
                "have them, and gets them again with other rows. A sink that replaces them is correct. One that appends "
                "has them twice: delete their rows first. One that skips known batch ids (Delta's txnAppId and "
                "txnVersion) loses the new rows, unless it uses holdfast.application_id(); delete the old rows "
                "first in that case, too"
            )
        print_status(
            f"query {preview.query_id} would resume after batch {preview.batch_id}; end the Spark "
            "application that ran it, then use --yes"
        )
        return 0
    hint = "run the command again to finish it; until then Spark must not start the query"
    with interrupt_hint(hint):
        batch = roll_back(location, **target, **query)
    if options.json:
        print_json({"dry_run": False, "batch": batch})
    print_status(f"the query was rolled back to batch {batch}; it resumes with batch {batch + 1}")
    return 0


def _checkpoint(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdigit() else text


def _time(start_ms: int | None) -> str | None:
    return None if start_ms is None else iso_time(start_ms)


def _print_points(points: list[dict[str, Any]], *, as_json: bool) -> int:
    if as_json:
        print_json(points)
    else:
        print_table(
            [
                {key: "-" if value is None else str(value) for key, value in point.items()}
                for point in points
            ],
            right=("checkpoint", "batch"),
        )
    if not points:
        print_status("there is no checkpoint or batch to roll back to")
        return 1
    option = "--batch" if points[0]["checkpoint"] is None else "--checkpoint"
    print_status(f"{option} with one of these prints the files that a rollback would delete")
    return 0
