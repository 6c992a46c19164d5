"""`holdfast savepoint`: a consistent copy of a query."""

import argparse
from typing import TYPE_CHECKING

from holdfast.cli.options import (
    add_command,
    add_job,
    add_json,
    add_no_operators,
    add_stores,
    configuration,
    require_spark,
)
from holdfast.cli.output import interrupt_hint, print_json, print_status
from holdfast.locations.storages import load_checkpoint, resolve_pointer

if TYPE_CHECKING:
    from holdfast.cli.options import Commands


def add_to(commands: "Commands") -> None:
    """Add the command."""
    command = add_command(
        commands,
        "savepoint",
        savepoint_command,
        help="take a savepoint of a query, running or stopped",
        description=(
            "Take a savepoint of a streaming query, running or stopped.\n\n"
            "It is a copy of everything that the query needs to resume: Spark's logs and state, and the\n"
            "state of its operators, if it has any. Only the URI of the savepoint is printed on standard\n"
            "output."
        ),
        examples="""
            holdfast savepoint file:///data/totals-spark file:///data/savepoints
            P=$(holdfast savepoint s3://bucket/totals-spark s3://bucket/savepoints --base "$OLD")
            holdfast savepoint s3://bucket/totals-spark s3://bucket/savepoints --format canonical
        """,
    )
    command.add_argument(
        "checkpoint_location",
        metavar="CHECKPOINT_LOCATION",
        help="URI of the query's checkpointLocation",
    )
    command.add_argument(
        "target",
        nargs="?",
        metavar="TARGET",
        help="URI of the directory for it; by default spark.holdfast.savepoint.dir of --conf",
    )
    command.add_argument(
        "--base",
        metavar="POINTER",
        help="an earlier savepoint of the query, whose unchanged files are referenced instead of copied; it must be "
        "kept as long",
    )
    command.add_argument(
        "--format",
        choices=("native", "canonical"),
        default="native",
        help="format of keyed state: native copies the files of its backend; canonical writes all current rows "
        "in a format that every backend can read",
    )
    add_no_operators(command)
    add_json(command, "one object")
    add_job(command, "default: as recorded in the checkpointLocation")
    add_stores(command)


def savepoint_command(options: argparse.Namespace) -> int:
    """Take a savepoint, and print its pointer."""
    with require_spark():
        from holdfast.spark.savepoints import take_savepoint  # noqa: PLC0415
        from holdfast.spark_progress import progress_of  # noqa: PLC0415
    hint = "if files are left, `holdfast clean --savepoint-dir` deletes them"
    with interrupt_hint(hint):
        pointer = take_savepoint(
            options.checkpoint_location,
            options.target,
            checkpoint_dir=options.checkpoint_dir,
            job_id=options.job_id,
            base=options.base,
            format=options.format,
            operators=options.operators,
            configuration=configuration(options),
        )
    metadata = load_checkpoint(resolve_pointer(pointer)).metadata
    progress = progress_of(metadata)
    if options.json:
        print_json(
            {
                "pointer": pointer,
                "query_id": progress.query_id,
                "batch": progress.batch_id,
                "job": metadata.job_id if metadata.operators else None,
                "operators": {
                    uid: operator.parallelism for uid, operator in metadata.operators.items()
                },
            }
        )
    else:
        print(pointer)
    print_status(f"took a savepoint of query {progress.query_id} after batch {progress.batch_id}")
    return 0
