"""Commands for queries of Spark: `holdfast savepoint`, `restore`, `rollback` and `import`."""

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from holdfast.cli.options import (
    CHECKPOINT_LOCATION,
    NO_OPERATORS,
    SAVEPOINT_TARGET,
    STORES,
    command,
    configuration,
    delete_options,
    flag,
    job_options,
    json_option,
    option,
    require_spark,
)
from holdfast.cli.output import (
    bytes_text,
    interrupt_hint,
    print_json,
    print_line,
    print_status,
    print_table,
)
from holdfast.cli.properties_file import properties_line
from holdfast.errors import InvalidRequestError
from holdfast.locations.storages import load_checkpoint, resolve_pointer
from holdfast.spark_progress import iso_time

if TYPE_CHECKING:
    from holdfast.spark.savepoints import RollbackPoint, SavepointRequest


@command(
    "savepoint",
    help="take a savepoint of a query, running or stopped",
    description="Take a savepoint of a streaming query, running or stopped.\n\n"
    "It is a copy of everything that the query needs to resume: Spark's logs and state, and the\n"
    "state of its operators, if it has any. Only the URI of the savepoint is printed on standard\n"
    "output.",
    examples="""
        holdfast savepoint file:///data/totals-spark file:///data/savepoints
        P=$(holdfast savepoint s3://bucket/totals-spark s3://bucket/savepoints --base "$OLD")
        holdfast savepoint s3://bucket/totals-spark s3://bucket/savepoints --format canonical
    """,
    options=[
        CHECKPOINT_LOCATION,
        SAVEPOINT_TARGET,
        option(
            "--base",
            metavar="POINTER",
            help="an earlier savepoint of the query, whose unchanged files are referenced instead of copied; it must be "
            "kept as long",
        ),
        option(
            "--format",
            choices=("native", "canonical"),
            default="native",
            help="format of keyed state: native copies the files of its backend; canonical writes all current rows "
            "in a format that every backend can read",
        ),
        NO_OPERATORS,
        flag("--dry-run", "check whether the savepoint can be taken, but write nothing"),
        json_option("one object"),
        job_options("by default as recorded in the checkpointLocation"),
        STORES,
    ],
)
def savepoint_command(options: argparse.Namespace) -> int:
    """Take a savepoint, and print its pointer."""
    with require_spark():
        from holdfast.spark.savepoints import QueryAddress, SavepointRequest  # noqa: PLC0415  # needs PySpark
        from holdfast.spark_progress import progress_of  # noqa: PLC0415  # needs PySpark
    address = QueryAddress(
        options.checkpoint_location,
        options.checkpoint_dir,
        options.job,
        options.operators,
        configuration(options),
    )
    request = SavepointRequest(address, options.target, options.base, options.format)
    if options.dry_run:
        return _preview_savepoint(request, as_json=options.json)
    hint = "if files are left, `holdfast clean --savepoint-dir` deletes them"
    with interrupt_hint(hint):
        pointer = request.take()
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


def _preview_savepoint(request: "SavepointRequest", *, as_json: bool) -> int:
    preview = request.preview()
    if as_json:
        print_json(
            {
                "pointer": None,
                "query_id": preview.query_id,
                "batch": preview.batch_id,
                "job": preview.job_id,
                "operators": preview.parallelism,
                "bytes": preview.size_bytes,
            }
        )
    print_status(
        f"a savepoint of query {preview.query_id} after batch {preview.batch_id} needs "
        f"{bytes_text(preview.size_bytes)} of files"
    )
    print_status("nothing was written")
    return 0


@command(
    "restore",
    help="create a checkpointLocation from a savepoint, to fork or move a query",
    description="Create a checkpointLocation from a savepoint; a query started with it resumes from there.\n\n"
    "It is a separate query, a fork, and may run concurrently with the original. Prints the\n"
    "settings to start it with, as lines for spark-submit --properties-file. Run the command\n"
    "again to finish an interrupted restore; after a completed one it prints the same, until\n"
    "the query is started.\n\n"
    "To repartition Spark's own state, call restore_savepoint with shuffle_partitions in\n"
    "Python: it needs a Spark.",
    examples="""
        holdfast restore "$P" file:///data/fork-spark --checkpoint-dir file:///data/fork >fork.conf
        holdfast restore "$P" s3://new/spark --checkpoint-dir s3://new/state --keep-query-id
    """,
    options=[
        option("pointer", metavar="POINTER", help="URI of the savepoint's directory"),
        option(
            "checkpoint_location",
            metavar="CHECKPOINT_LOCATION",
            help="URI of the new checkpointLocation; must not exist",
        ),
        flag(
            "--keep-query-id",
            "move the query instead: Spark regards it as the same query, and the old one must never run again",
        ),
        option(
            "--paths",
            nargs=2,
            action="append",
            default=[],
            metavar=("OLD", "NEW"),
            help="rewrite the URIs of input files: replace prefix OLD by NEW; may be repeated",
        ),
        flag("--dry-run", "check whether the restore can be done, but write nothing"),
        json_option("one object"),
        job_options(
            "by default spark.holdfast.checkpoint.dir of --conf, and a job with the name of the query"
        ),
        STORES,
    ],
)
def restore_command(options: argparse.Namespace) -> int:
    """Restore the savepoint, and print the settings that the query needs."""
    with require_spark():
        from holdfast.spark.savepoints import plan_restore  # noqa: PLC0415  # needs PySpark
    paths = {old: new for old, new in options.paths}  # noqa: C416  # pairs are lists
    if len(paths) < len(options.paths):
        raise InvalidRequestError("--paths has the same old prefix twice")
    planned = plan_restore(
        options.pointer,
        options.checkpoint_location,
        checkpoint_dir=options.checkpoint_dir,
        job_id=options.job,
        keep_query_id=options.keep_query_id,
        paths=paths,
        configuration=configuration(options),
    )
    if options.dry_run:
        if options.json:
            print_json(
                {
                    "dry_run": True,
                    "batch": planned.batch_id,
                    "checkpoint_location": planned.location,
                    "bytes": planned.size_bytes,
                    "restored_before": planned.completed is not None,
                }
            )
        print_status(
            f"a query at {planned.location} would resume after batch {planned.batch_id}, "
            f"with {bytes_text(planned.size_bytes)} of files"
        )
        print_status("nothing was written")
        return 0
    hint = "run the command again to finish it; until then Spark can't start the query"
    with interrupt_hint(hint):
        restored = planned.run()
    if options.json:
        fields = asdict(restored)
        print_json(
            {
                "dry_run": False,
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


def _target(parser: argparse.ArgumentParser) -> None:
    target = parser.add_mutually_exclusive_group()
    target.add_argument(
        "--checkpoint",
        type=lambda text: int(text) if text.isascii() and text.isdigit() else text,
        metavar="ID",
        help="for queries with operators: id of a retained checkpoint, or the URI of its directory",
    )
    target.add_argument(
        "--batch",
        type=int,
        metavar="N",
        help="for queries without Holdfast operators: last batch to keep",
    )


@command(
    "rollback",
    help="roll a stopped query back to an earlier batch, in place",
    description="Roll a stopped query back to an earlier batch, in place.\n\n"
    "Spark's logs, its state, and the checkpoints of operators are deleted together for all later\n"
    "batches.\n\n"
    "  without --checkpoint and --batch   lists the possible targets\n"
    "  with one of them                   prints the files that would be deleted\n"
    "  with --yes too                     rolls back\n\n"
    "End the Spark application that ran the query first: its executors could still store state\n"
    "of the later batches, which this command can't detect. Run the command again to finish an\n"
    "interrupted rollback. The sink is not rolled back: it must replace repeated batches, or\n"
    "their rows must be deleted first.",
    examples="""
        holdfast rollback file:///data/totals-spark
        holdfast rollback file:///data/totals-spark --checkpoint 41 --yes
    """,
    options=[
        CHECKPOINT_LOCATION,
        _target,
        NO_OPERATORS,
        delete_options("roll back"),
        json_option("one object; a list of them without --checkpoint and --batch"),
        job_options("by default as recorded in the checkpointLocation"),
        STORES,
    ],
)
def rollback_command(options: argparse.Namespace) -> int:
    """List the possible targets, print the files that a rollback would delete, or roll back."""
    with require_spark():
        from holdfast.spark.savepoints import preview_rollback, roll_back, rollback_points  # noqa: PLC0415  # needs PySpark
    query: dict[str, Any] = {
        "checkpoint_dir": options.checkpoint_dir,
        "job_id": options.job,
        "operators": options.operators,
        "configuration": configuration(options),
    }
    location = options.checkpoint_location
    target = {"checkpoint": options.checkpoint, "batch_id": options.batch}
    if options.checkpoint is None and options.batch is None:
        if options.yes:
            raise InvalidRequestError("set the target with --checkpoint or --batch")
        return _print_points(rollback_points(location, **query), as_json=options.json)
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


def _print_points(points: "list[RollbackPoint]", *, as_json: bool) -> int:
    rows = [
        {
            "checkpoint": point.checkpoint,
            "batch": point.batch_id,
            "begun": None if point.started_ms is None else iso_time(point.started_ms),
        }
        for point in points
    ]
    if as_json:
        print_json(rows)
    else:
        texts = [
            {key: "-" if value is None else str(value) for key, value in row.items()}
            for row in rows
        ]
        print_table(texts, right=("checkpoint", "batch"))
    if not points:
        print_status("there is no checkpoint or batch to roll back to")
        return 1
    name = "--batch" if points[0].checkpoint is None else "--checkpoint"
    print_status(f"{name} with one of these prints the files that a rollback would delete")
    return 0
