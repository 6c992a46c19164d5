"""`holdfast import`: state that others have kept becomes that of an operator."""

import argparse
from typing import TYPE_CHECKING

from holdfast.cli.command import add_command, add_json
from holdfast.cli.moves import say_all, write_and_print
from holdfast.cli.output import say
from holdfast.cli.spark import spark_needed
from holdfast.cli.stores import add_stores, configuration
from holdfast.errors import InvalidRequestError

if TYPE_CHECKING:
    from holdfast.cli.command import Commands


def add_to(commands: "Commands") -> None:
    """Add the command."""
    whole = commands.add_parser("import", help="make a savepoint of state that others have kept")
    kinds = whole.add_subparsers(required=True, metavar="WHAT", title="what is imported")
    command = add_command(
        kinds,
        "spark-state",
        import_command,
        help="the state of a stopped query with Spark's transformWithState",
        description=(
            "Make a savepoint of a stopped query with Spark's own transformWithState, in Python.\n\n"
            "`holdfast restore` makes a checkpointLocation of it, from which the same processor goes on\n"
            "with keyed(rows, key, uid=...).transformWithState(...): behind the last batch that was done,\n"
            "with values, lists, maps, times to live, timers and the watermark. The query itself is only\n"
            "read. What is kept, and what is lost, is said before anything is written.\n\n"
            "Spark's state is read by a Spark in this process, with the settings of --conf. Prints the URI\n"
            "of the savepoint, and nothing else on standard output."
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
    command.add_argument("--uid", required=True, help="names the operator, as in keyed(..., uid=)")
    command.add_argument(
        "--parallelism",
        required=True,
        type=int,
        metavar="N",
        help="number of its subtasks; the query may begin with another",
    )
    command.add_argument(
        "--max-parallelism", type=int, metavar="N", help="number of its key groups, for ever"
    )
    command.add_argument(
        "--to",
        metavar="TARGET",
        help="URI of the directory to make the savepoint in; otherwise spark.holdfast.savepoint.dir "
        "of --conf",
    )
    command.add_argument(
        "--ttl",
        action="append",
        default=[],
        metavar="STATE=MS",
        help="how long values of a state with a time to live live, as the processor declares it: "
        "Spark stores only when they expire; may be repeated",
    )
    command.add_argument("--dry-run", action="store_true", help="only say what would be done")
    add_json(command, "one object")
    add_stores(command)


def import_command(options: argparse.Namespace) -> int:
    """Say what is kept and lost, then write the savepoint, and print the pointer to it."""
    with spark_needed():
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
    say(
        f"operator {options.uid} goes on behind batch {batch_id}, by {planned.state.key.names}, with"
    )
    for name, kind in planned.kept.items():
        say(f"  {name}: {kind}")
    say_all("what is lost:", planned.lost)
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
        if_interrupted="`holdfast clean` with --savepoint-dir deletes what was written so far",
        next_step="`holdfast restore` makes a checkpointLocation of the savepoint",
    )
    return 0


def _times_to_live(pairs: list[str]) -> dict[str, int]:
    """Milliseconds by the name of a state. Raises `InvalidRequestError`."""
    times = {}
    for pair in pairs:
        name, _, number = pair.rpartition("=")
        if not name or not number.isdecimal():
            message = f"--ttl takes STATE=MS, such as --ttl seen=3600000, and not {pair!r}"
            raise InvalidRequestError(message)
        times[name] = int(number)
    return times
