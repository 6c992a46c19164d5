"""`holdfast savepoint`: a consistent copy of a query."""

import argparse
from typing import TYPE_CHECKING

from holdfast.cli.command import add_command, add_json
from holdfast.cli.output import print_json, say, told_when_interrupted
from holdfast.cli.spark import add_job, add_no_operators, spark_needed
from holdfast.cli.stores import add_stores, configuration
from holdfast.locations.storages import load_checkpoint, resolve_pointer

if TYPE_CHECKING:
    from holdfast.cli.command import Commands


def add_to(commands: "Commands") -> None:
    """Add the command."""
    command = add_command(
        commands,
        "savepoint",
        savepoint_command,
        help="take a savepoint of a query, running or stopped",
        description=(
            "Take a savepoint of a streaming query, running or stopped.\n\n"
            "It is a copy of all that the query needs to go on: Spark's logs and state, and the state\n"
            "of its operators, if it has any. Prints the URI of the savepoint, and nothing else on\n"
            "standard output."
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
        help="URI of the directory to make it in; otherwise spark.holdfast.savepoint.dir of --conf",
    )
    command.add_argument(
        "--base",
        metavar="POINTER",
        help="an earlier savepoint of the query: what has not changed since is not copied, but "
        "referred to there, so keep it as long",
    )
    command.add_argument(
        "--format",
        choices=("native", "canonical"),
        default="native",
        help="how keyed state is written: native copies the files of its backend; canonical writes all rows "
        "that count anew, in a form that every backend reads",
    )
    add_no_operators(command)
    add_json(command, "one object")
    add_job(command, "without these, where the checkpointLocation says")
    add_stores(command)


def savepoint_command(options: argparse.Namespace) -> int:
    """Take a savepoint, and print the pointer to it."""
    with spark_needed():
        from holdfast.spark.savepoints import take_savepoint  # noqa: PLC0415
        from holdfast.spark_progress import progress_of  # noqa: PLC0415
    way_out = "if files of an unfinished savepoint are left, `holdfast clean` deletes them"
    with told_when_interrupted(f"{way_out} with --savepoint-dir"):
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
    say(f"took a savepoint of query {progress.query_id} behind batch {progress.batch_id}")
    return 0
