"""`holdfast rollback`: a stopped query goes back, in place."""

import argparse
from typing import TYPE_CHECKING, Any

from holdfast.cli.command import add_command, add_json
from holdfast.cli.output import (
    print_json,
    print_line,
    print_table,
    say,
    time_text,
    told_when_interrupted,
)
from holdfast.cli.spark import add_job, add_no_operators, spark_needed
from holdfast.cli.stores import add_stores, configuration
from holdfast.errors import InvalidRequestError

if TYPE_CHECKING:
    from holdfast.cli.command import Commands


def add_to(commands: "Commands") -> None:
    """Add the command."""
    command = add_command(
        commands,
        "rollback",
        rollback_command,
        help="take a stopped query back to an earlier batch, in place",
        description=(
            "Take a stopped query back to where it was, in place.\n\n"
            "Of all later batches Spark's logs, its state, and the checkpoints of operators are deleted\n"
            "together.\n\n"
            "  without --checkpoint and --batch   lists where it can go back to\n"
            "  with one of them                   prints what would be deleted\n"
            "  with --yes too                     does it\n\n"
            "End the Spark application that ran the query first: its executors could still store\n"
            "state of the batches that are taken back, and from here nobody sees them. A roll back\n"
            "that was interrupted is finished by the same command. The sink is not rolled back: it must\n"
            "replace the batches that come again, or have them deleted first."
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
        help="of a query with operators: id of a checkpoint that is kept, or the URI of its directory",
    )
    target.add_argument(
        "--batch", type=int, metavar="N", help="of any other query: the last batch that is to count"
    )
    add_no_operators(command)
    command.add_argument("--yes", action="store_true", help="do it")
    add_json(command, "one object; a list of them without --checkpoint and --batch")
    add_job(command, "without these, where the checkpointLocation says")
    add_stores(command)


def rollback_command(options: argparse.Namespace) -> int:
    """List where the query can go back to, print what that would delete, or do it.

    Raises:
        InvalidRequestError: The query is to go back, and nobody said to which checkpoint.
    """
    with spark_needed():
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
            raise InvalidRequestError("name where to go back to, with --checkpoint or --batch")
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
            say(
                f"what does the sink do with batches {preview.batch_id + 1} to {preview.newest_batch_id}? It may "
                "have them, and gets them again with other rows. One that replaces them is right. One that appends "
                "has them twice: delete their rows first. One that skips batch ids which it has seen (Delta's "
                "txnAppId and txnVersion) loses the new rows, unless the id that it is given is "
                "holdfast.spark.application_id(); delete the old rows first then, too"
            )
        say(
            f"query {preview.query_id} would go on behind batch {preview.batch_id}; end the Spark "
            "application that ran it, then --yes does it"
        )
        return 0
    way_out = "the same command again finishes it; until then Spark may not start the query"
    with told_when_interrupted(way_out):
        batch = roll_back(location, **target, **query)
    if options.json:
        print_json({"dry_run": False, "batch": batch})
    say(f"query is back behind batch {batch}; started again it goes on with batch {batch + 1}")
    return 0


def _checkpoint(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdigit() else text


def _time(begun_ms: int | None) -> str | None:
    return None if begun_ms is None else time_text(begun_ms)


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
        say("there is nothing that it could go back to")
        return 1
    option = "--batch" if points[0]["checkpoint"] is None else "--checkpoint"
    say(f"{option} with one of these prints what going back there would delete")
    return 0
