"""`holdfast import`: conversion of state of other engines to a savepoint."""

import argparse
from typing import TYPE_CHECKING

from holdfast.cli.options import add_command, add_json, add_stores, configuration, require_spark
from holdfast.cli.output import print_list, print_status, write_and_print
from holdfast.errors import InvalidRequestError

if TYPE_CHECKING:
    from holdfast.cli.options import Commands


def add_to(commands: "Commands") -> None:
    """Add the command."""
    whole = commands.add_parser("import", help="convert state of other engines to a savepoint")
    kinds = whole.add_subparsers(required=True, metavar="SOURCE", title="sources")
    command = add_command(
        kinds,
        "spark-state",
        import_command,
        help="state of a stopped query with Spark's transformWithState",
        description=(
            "Convert the state of a stopped query with Spark's own transformWithState, in Python, to a\n"
            "savepoint.\n\n"
            "`holdfast restore` creates a checkpointLocation from it, from which the same processor resumes\n"
            "with keyed(rows, key, uid=...).transformWithState(...): after the last committed batch, with\n"
            "values, lists, maps, times to live, timers and the watermark. The query itself is only read.\n"
            "Kept and lost state is reported before anything is written.\n\n"
            "A Spark in this process, with the settings of --conf, reads the state. Only the URI of the\n"
            "savepoint is printed on standard output."
        ),
        examples="""
            holdfast import spark-state file:///data/counts-spark --uid counts --parallelism 4 --dry-run
            P=$(holdfast import spark-state file:///data/counts-spark --uid counts --parallelism 4 \
--ttl seen=3600000 --to file:///data/savepoints)
            holdfast restore "$P" file:///data/counts-moved --checkpoint-dir file:///data/holdfast
        """,
    )
    command.add_argument(
        "checkpoint_location",
        metavar="CHECKPOINT_LOCATION",
        help="URI of the query's checkpointLocation",
    )
    command.add_argument("--uid", required=True, help="uid of the operator, as in keyed(..., uid=)")
    command.add_argument(
        "--parallelism",
        required=True,
        type=int,
        metavar="N",
        help="number of its subtasks; the query may use another number",
    )
    command.add_argument(
        "--max-parallelism",
        type=int,
        metavar="N",
        help="number of its key groups; it can't be changed later",
    )
    command.add_argument(
        "--to",
        metavar="TARGET",
        help="URI of the directory for the savepoint; by default spark.holdfast.savepoint.dir of --conf",
    )
    command.add_argument(
        "--ttl",
        action="append",
        default=[],
        metavar="STATE=MS",
        help="time to live of a state's values, as declared by the processor: Spark stores only their time of "
        "expiry; may be repeated",
    )
    command.add_argument(
        "--dry-run", action="store_true", help="report the result, but write nothing"
    )
    add_json(command, "one object")
    add_stores(command)


def import_command(options: argparse.Namespace) -> int:
    """Report kept and lost state, then write the savepoint, and print its pointer."""
    with require_spark():
        from pyspark.sql import SparkSession  # noqa: PLC0415

        from holdfast.spark.moving import SparkStateImport  # noqa: PLC0415
    settings = configuration(options)
    ttl_ms = _times_to_live(options.ttl)
    builder = SparkSession.builder.appName("holdfast import")
    if "spark.master" not in settings and SparkSession.getActiveSession() is None:
        builder = builder.master("local[*]").config("spark.ui.enabled", "false")
    builder.config(map=dict(settings)).getOrCreate()
    planned = SparkStateImport.of(
        options.checkpoint_location,
        uid=options.uid,
        parallelism=options.parallelism,
        max_parallelism=options.max_parallelism,
        ttl_ms=ttl_ms,
        configuration=settings,
    )
    batch_id = planned.query.batch.batch_id
    print_status(
        f"operator {options.uid} resumes after batch {batch_id}, by {planned.state.key.names}, with"
    )
    for name, kind in planned.kept.items():
        print_status(f"  {name}: {kind}")
    print_list("lost:", planned.lost)
    write_and_print(
        options,
        lambda: planned.write(options.to),
        {
            "query_id": planned.query.stored.query_id,
            "batch": batch_id,
            "key": planned.state.key.names,
            "kept": planned.kept,
            "lost": planned.lost,
        },
        hint="`holdfast clean` with --savepoint-dir deletes the incomplete savepoint",
        next_step="create a checkpointLocation from the savepoint with `holdfast restore`",
    )
    return 0


def _times_to_live(pairs: list[str]) -> dict[str, int]:
    """Parse milliseconds by the name of a state. Raises `InvalidRequestError`."""
    times = {}
    for pair in pairs:
        name, _, number = pair.rpartition("=")
        if not name or not number.isdecimal():
            message = f"--ttl takes STATE=MS, such as --ttl seen=3600000, got {pair!r}"
            raise InvalidRequestError(message)
        times[name] = int(number)
    return times
