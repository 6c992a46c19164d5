"""`holdfast restore`: a query that goes on from a savepoint."""

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from holdfast.cli.command import add_command, add_json
from holdfast.cli.output import print_json, print_line, say, told_when_interrupted
from holdfast.cli.properties_file import line_of
from holdfast.cli.spark import add_job, spark_needed
from holdfast.cli.stores import add_stores, configuration
from holdfast.errors import InvalidRequestError

if TYPE_CHECKING:
    from holdfast.cli.command import Commands


def add_to(commands: "Commands") -> None:
    """Add the command."""
    command = add_command(
        commands,
        "restore",
        restore_command,
        help="make a query of a savepoint",
        description=(
            "Make a checkpointLocation of a savepoint; a query started with it goes on from there.\n\n"
            "It is a query of its own, a fork, and may run beside the original. Prints the settings\n"
            "to start it with, as lines for spark-submit --properties-file. A restore that was\n"
            "interrupted is finished by the same command; one that is done prints the same again,\n"
            "until the query goes on.\n\n"
            "To spread Spark's own state over other partitions a Spark is needed: call\n"
            "restore_savepoint with shuffle_partitions in Python."
        ),
        examples="""
            holdfast restore "$P" file:///data/fork-spark --checkpoint-dir file:///data/fork >fork.conf
            holdfast restore "$P" s3://new/spark --checkpoint-dir s3://new/state --keep-query-id
        """,
    )
    command.add_argument("pointer", metavar="POINTER", help="the savepoint: URI of its directory")
    command.add_argument(
        "checkpoint_location",
        metavar="CHECKPOINT_LOCATION",
        help="URI of the new checkpointLocation; nothing may be there",
    )
    command.add_argument(
        "--keep-query-id",
        action="store_true",
        help="move the query instead: Spark takes it for the same, and the old one must never run again",
    )
    command.add_argument(
        "--paths",
        nargs=2,
        action="append",
        default=[],
        metavar=("OLD", "NEW"),
        help="what the URIs of input files began with, and what they begin with now; may be repeated",
    )
    add_json(command, "one object")
    add_job(
        command,
        "without these, spark.holdfast.checkpoint.dir of --conf, and a job named like the query",
    )
    add_stores(command)


def restore_command(options: argparse.Namespace) -> int:
    """Restore the savepoint, and print the settings that the query needs.

    Raises:
        InvalidRequestError: Input files have moved to two places.
    """
    with spark_needed():
        from holdfast.spark.savepoints import restore_savepoint  # noqa: PLC0415
    paths = {old: new for old, new in options.paths}  # noqa: C416  # pairs are lists
    if len(paths) < len(options.paths):
        raise InvalidRequestError("--paths names the same beginning twice; name each once")
    way_out = "the same command again finishes it, and until then Spark can't start the query"
    with told_when_interrupted(way_out):
        restored = restore_savepoint(
            options.pointer,
            options.checkpoint_location,
            checkpoint_dir=options.checkpoint_dir,
            job_id=options.job_id,
            keep_query_id=options.keep_query_id,
            paths=paths,
            configuration=configuration(options),
        )
    if options.json:
        fields = asdict(restored)
        print_json(
            {
                "query_id": fields.pop("query_id"),
                "batch": fields.pop("batch_id"),
                "job": fields.pop("job_id"),
                **fields,
            }
        )
    else:
        for key, value in sorted(restored.settings.items()):
            print_line(line_of(key, value))
    if restored.restored_before:
        say("this restore was done before; nothing was changed")
    if options.keep_query_id:
        say(
            f"has the sink batches after {restored.batch_id} from the old query? They come again under the same "
            "ids, with other rows: a sink that appends has them twice, and one that skips batch ids which it has "
            "seen (Delta's txnAppId and txnVersion) loses rows unless it uses holdfast.application_id()"
        )
    say(
        f"query {restored.query_id} goes on behind batch {restored.batch_id}; start it with "
        f"checkpointLocation {restored.checkpoint_location} and these settings"
    )
    return 0
