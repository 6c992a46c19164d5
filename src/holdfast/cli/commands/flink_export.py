"""`holdfast flink export`: a savepoint of Flink, made of one of Holdfast."""

import argparse
from typing import Any

from holdfast.cli.command import add_command, add_json
from holdfast.cli.moves import say_all, write_and_print
from holdfast.cli.output import say
from holdfast.cli.stores import add_stores, use_stores
from holdfast.errors import CheckpointNotFoundError, InvalidRequestError


def add_export(kinds: "argparse._SubParsersAction[Any]") -> None:
    """Add the command to those of `holdfast flink`."""
    command = add_command(
        kinds,
        "export",
        export_command,
        help="make a savepoint of Flink of a checkpoint or savepoint of Holdfast",
        description=(
            "Make a savepoint of Flink of a checkpoint or savepoint of Holdfast. Flink 1.11 to 2.3 restores it on any\n"
            "backend, at any parallelism, if the job asks for the same states with the same types: numbers, booleans,\n"
            "texts, bytes, dates, times, decimals, lists, maps, and tuples, which structs and keys of several columns\n"
            "become; tumbling and sliding windows.\n\n"
            "Everything is read, and what is lost is said, before anything is written. Prints the URI of the\n"
            "savepoint, and nothing else on standard output."
        ),
        examples="""
            holdfast flink export s3://bucket/holdfast/orders/savepoint-1a2b3c4d --to s3://bucket/flink --dry-run
            holdfast flink export file:///data/savepoints/savepoint-1a2b3c4d --to file:///data/flink --map orders=totals
        """,
    )
    command.add_argument("pointer", help="URI of the checkpoint or savepoint of Holdfast")
    command.add_argument(
        "--to", metavar="TARGET", help="URI of the directory to make the savepoint in"
    )
    command.add_argument(
        "--map",
        action="append",
        default=[],
        metavar="UID=UID",
        help="an operator, and its uid in the job of Flink; may be repeated, and no other operators are taken then",
    )
    command.add_argument(
        "--allow-loss", action="store_true", help="leave out what can't be written for Flink"
    )
    command.add_argument(
        "--dry-run", action="store_true", help="read everything, only say what would be done"
    )
    add_json(command, "one object")
    add_stores(command)


def export_command(options: argparse.Namespace) -> int:
    """Read the states, say what is kept and lost, then write the savepoint, and print the pointer to it.

    Raises:
        InvalidRequestError: An option can't be used, or a state can't be written for Flink.
        CheckpointError: A state can't be read, or the savepoint can't be written.
    """
    if options.to is None and not options.dry_run:
        raise InvalidRequestError("no directory for the savepoint; name it by --to, or --dry-run")
    operators = {}
    for text in options.map:
        uid, _, name = text.partition("=")
        if not uid or not name:
            raise InvalidRequestError(f"--map takes UID=UID, and not {text!r}")
        operators[uid] = name
    use_stores(options, options.pointer, options.to)
    from holdfast.flink import FlinkExport  # noqa: PLC0415  # it loads Arrow

    try:
        planned = FlinkExport.of(options.pointer, operators or None, allow_loss=options.allow_loss)
    except CheckpointNotFoundError as error:
        say(str(error))
        return 1
    say_all("what is kept:", planned.kept)
    say_all("what is lost:", planned.lost)
    write_and_print(
        options,
        lambda: planned.write(options.to),
        {"kept": planned.kept, "lost": planned.lost},
        if_interrupted="delete the directory that was begun in --to",
        next_step="`flink run -s` lets a job begin with the savepoint",
    )
    return 0
