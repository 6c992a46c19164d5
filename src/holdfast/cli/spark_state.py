"""`holdfast import spark-state`: the state of a query with `transformWithState`, to a savepoint."""

import argparse

from holdfast.cli.options import (
    CHECKPOINT_LOCATION,
    SAVEPOINT_TARGET,
    STORES,
    CommandGroup,
    command,
    configuration,
    flag,
    json_option,
    list_option,
    option,
    require_spark,
)
from holdfast.cli.output import print_list, print_status, write_and_print
from holdfast.errors import InvalidRequestError


@command(
    "spark-state",
    help="convert the state of Spark's transformWithState to a savepoint",
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
        P=$(holdfast import spark-state file:///data/counts-spark file:///data/savepoints --uid counts \
--parallelism 4 --ttl seen=3600000)
        holdfast restore "$P" file:///data/counts-moved --checkpoint-dir file:///data/holdfast
    """,
    options=[
        CHECKPOINT_LOCATION,
        SAVEPOINT_TARGET,
        option(
            "--uid",
            required=True,
            metavar="UID",
            help="uid of the operator, as in keyed(..., uid=)",
        ),
        option(
            "--parallelism",
            required=True,
            type=int,
            metavar="N",
            help="number of its subtasks; the query may use another number",
        ),
        option(
            "--max-parallelism",
            type=int,
            metavar="N",
            help="number of its key groups; it can't be changed later",
        ),
        list_option(
            "--ttl",
            "STATE=MS",
            "time to live of a state's values, as declared by the processor: Spark stores only their time of "
            "expiry; may be repeated",
        ),
        flag("--dry-run", "report the result, but write nothing"),
        json_option("one object"),
        STORES,
    ],
)
def import_command(options: argparse.Namespace) -> int:
    """Report kept and lost state, then write the savepoint, and print its pointer."""
    with require_spark():
        from pyspark.sql import SparkSession  # noqa: PLC0415  # needs PySpark

        from holdfast.spark.state_import import SparkStateImport  # noqa: PLC0415  # needs PySpark
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
        lambda: planned.write(options.target),
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


IMPORT = CommandGroup(
    "import", "convert Spark state to a Holdfast savepoint", "source", [import_command]
)
