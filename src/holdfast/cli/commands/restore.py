"""`holdfast restore`: a query that resumes from a savepoint."""

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from holdfast.cli.options import (
    add_command,
    add_job,
    add_json,
    add_stores,
    configuration,
    require_spark,
)
from holdfast.cli.output import interrupt_hint, print_json, print_line, print_status
from holdfast.cli.properties_file import properties_line
from holdfast.errors import InvalidRequestError

if TYPE_CHECKING:
    from holdfast.cli.options import Commands


def add_to(commands: "Commands") -> None:
    """Add the command."""
    command = add_command(
        commands,
        "restore",
        restore_command,
        help="create a query from a savepoint",
        description=(
            "Create a checkpointLocation from a savepoint; a query started with it resumes from there.\n\n"
            "It is a separate query, a fork, and may run concurrently with the original. Prints the\n"
            "settings to start it with, as lines for spark-submit --properties-file. Run the command\n"
            "again to finish an interrupted restore; after a completed one it prints the same, until\n"
            "the query is started.\n\n"
            "To repartition Spark's own state, call restore_savepoint with shuffle_partitions in\n"
            "Python: it needs a Spark."
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
        help="URI of the new checkpointLocation; must not exist",
    )
    command.add_argument(
        "--keep-query-id",
        action="store_true",
        help="move the query instead: Spark regards it as the same query, and the old one must never run again",
    )
    command.add_argument(
        "--paths",
        nargs=2,
        action="append",
        default=[],
        metavar=("OLD", "NEW"),
        help="old and new prefix of the URIs of input files; may be repeated",
    )
    add_json(command, "one object")
    add_job(
        command,
        "default: spark.holdfast.checkpoint.dir of --conf, and a job with the name of the query",
    )
    add_stores(command)


def restore_command(options: argparse.Namespace) -> int:
    """Restore the savepoint, and print the settings that the query needs.

    Raises:
        InvalidRequestError: Two new prefixes were given for the same old one.
    """
    with require_spark():
        from holdfast.spark.savepoints import restore_savepoint  # noqa: PLC0415
    paths = {old: new for old, new in options.paths}  # noqa: C416  # pairs are lists
    if len(paths) < len(options.paths):
        raise InvalidRequestError("--paths has the same old prefix twice")
    hint = "run the command again to finish it; until then Spark can't start the query"
    with interrupt_hint(hint):
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
            print_line(properties_line(key, value))
    if restored.restored_before:
        print_status("this restore was done before; nothing was changed")
    if options.keep_query_id:
        print_status(
            f"does the sink have batches after {restored.batch_id} from the old query? They are repeated under the same "
            "ids, with other rows: a sink that appends has them twice, and one that skips known batch ids "
            "(Delta's txnAppId and txnVersion) loses rows unless it uses holdfast.application_id()"
        )
    print_status(
        f"query {restored.query_id} resumes after batch {restored.batch_id}; start it with "
        f"checkpointLocation {restored.checkpoint_location} and these settings"
    )
    return 0
