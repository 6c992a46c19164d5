"""`holdfast flink import` and `export`: conversion of savepoints of Flink to savepoints of Holdfast, and back."""

import argparse
from typing import TYPE_CHECKING, Any

from holdfast.cli.options import add_command, add_json, add_stores, configure_stores
from holdfast.cli.output import count_text, print_list, print_status, write_and_print
from holdfast.errors import CheckpointNotFoundError, InvalidRequestError

if TYPE_CHECKING:
    from holdfast.flink import FlinkSavepoint

_NO_LIMIT = "never"


def add_export(kinds: "argparse._SubParsersAction[Any]") -> None:
    """Add the command to those of `holdfast flink`."""
    command = add_command(
        kinds,
        "export",
        export_command,
        help="convert a checkpoint or savepoint of Holdfast to a savepoint of Flink",
        description=(
            "Convert a checkpoint or savepoint of Holdfast to a savepoint of Flink. Flink 1.11 to 2.3 restores it on any\n"
            "backend, at any parallelism, if the job asks for the same states with the same types: numbers, booleans,\n"
            "texts, bytes, dates, times, decimals, lists, maps, and tuples, which structs and keys of several columns\n"
            "become; tumbling and sliding windows.\n\n"
            "All states are read, and losses are reported, before anything is written. Only the URI of the\n"
            "savepoint is printed on standard output."
        ),
        examples="""
            holdfast flink export s3://bucket/holdfast/orders/savepoint-1a2b3c4d --to s3://bucket/flink --dry-run
            holdfast flink export file:///data/savepoints/savepoint-1a2b3c4d --to file:///data/flink --map orders=totals
        """,
    )
    command.add_argument("pointer", help="URI of the checkpoint or savepoint of Holdfast")
    command.add_argument("--to", metavar="TARGET", help="URI of the directory for the savepoint")
    command.add_argument(
        "--map",
        action="append",
        default=[],
        metavar="UID=UID",
        help="an operator and its uid in the job of Flink; may be repeated, and other operators are left out then",
    )
    command.add_argument(
        "--allow-loss", action="store_true", help="leave out states that can't be converted"
    )
    command.add_argument(
        "--dry-run",
        action="store_true",
        help="read all states and report the result, but write nothing",
    )
    add_json(command, "one object")
    add_stores(command)


def export_command(options: argparse.Namespace) -> int:
    """Read the states, report kept and lost ones, then write the savepoint, and print its pointer.

    Raises:
        InvalidRequestError: An option can't be used, or a state can't be written for Flink.
        CheckpointError: A state can't be read, or the savepoint can't be written.
    """
    if options.to is None and not options.dry_run:
        raise InvalidRequestError("no directory for the savepoint; set --to, or use --dry-run")
    operators = {}
    for text in options.map:
        uid, _, name = text.partition("=")
        if not uid or not name:
            raise InvalidRequestError(f"--map takes UID=UID, got {text!r}")
        operators[uid] = name
    configure_stores(options, options.pointer, options.to)
    from holdfast.flink import FlinkExport  # noqa: PLC0415  # loads Arrow

    try:
        planned = FlinkExport.of(options.pointer, operators or None, allow_loss=options.allow_loss)
    except CheckpointNotFoundError as error:
        print_status(str(error))
        return 1
    print_list("kept:", planned.kept)
    print_list("lost:", planned.lost)
    write_and_print(
        options,
        lambda: planned.write(options.to),
        {"kept": planned.kept, "lost": planned.lost},
        hint="delete the incomplete directory in --to",
        next_step="start a job from the savepoint with `flink run -s`",
    )
    return 0


def add_import(kinds: "argparse._SubParsersAction[Any]") -> argparse.ArgumentParser:
    """Add the command to those of `holdfast flink`."""
    command = add_command(
        kinds,
        "import",
        import_command,
        help="convert a savepoint of Flink to a savepoint of Holdfast",
        description=(
            "Convert a savepoint of Flink to a savepoint of Holdfast, from which a new query starts: operator state, keyed\n"
            "state and timers. All states of operators with a known uid are converted, except those of windows\n"
            "and sources; --map selects others, or renames them. Key groups are verified with Flink's hash.\n\n"
            "All states are read, and losses are reported, before anything is written. Only the URI of the\n"
            "savepoint is printed on standard output."
        ),
        examples="""
            holdfast flink import s3://bucket/savepoints/savepoint-1a2b3c-4d5e6f --key orders=customer --dry-run
            holdfast flink import file:///data/flink/savepoint-1a2b3c-4d5e6f --to file:///data/savepoints \
--map orders/seen=orders/last-seen --ttl orders/seen=3600000 --key orders=customer
        """,
    )
    command.add_argument("--to", metavar="TARGET", help="URI of the directory for the savepoint")
    command.add_argument(
        "--map",
        action="append",
        default=[],
        metavar="OPERATOR/STATE=UID/STATE",
        help="a state and its new name; may be repeated, and other states are left out then",
    )
    command.add_argument(
        "--key",
        action="append",
        default=[],
        metavar="UID=COLUMN,…",
        help="key columns of an operator of the query; may be repeated",
    )
    command.add_argument(
        "--ttl",
        action="append",
        default=[],
        metavar="OPERATOR/STATE=MS",
        help="time to live of a state's values, or `never` for no limit: Flink stores only the time of their last "
        "use; may be repeated",
    )
    command.add_argument("--no-timers", action="store_true", help="no timers of functions")
    command.add_argument(
        "--allow-loss",
        action="store_true",
        help="ignore unreadable states, null values, and rows in flight",
    )
    command.add_argument(
        "--dry-run",
        action="store_true",
        help="read all states and report the result, but write nothing",
    )
    add_json(command, "one object")
    return command


def import_command(options: argparse.Namespace) -> int:
    """Read the states, report kept and lost ones, then write the savepoint, and print its pointer.

    Raises:
        InvalidRequestError: An option can't be used.
        CheckpointError: A state can't be read, or the savepoint can't be written.
    """
    if options.to is None and not options.dry_run:
        raise InvalidRequestError("no directory for the savepoint; set --to, or use --dry-run")
    states = {_place(old): _place(new) for old, new in _pairs("--map", options.map)}
    key = {uid: names.split(",") for uid, names in _pairs("--key", options.key)}
    ttl_ms = {_place(place): _milliseconds(text) for place, text in _pairs("--ttl", options.ttl)}
    try:
        savepoint: FlinkSavepoint = options.open_savepoint(options)
    except CheckpointNotFoundError as error:
        print_status(str(error))
        return 1
    from holdfast.flink import FlinkStateImport  # noqa: PLC0415  # loads Arrow

    planned = FlinkStateImport.of(
        savepoint,
        states or None,
        key=key,
        ttl_ms=ttl_ms,
        timers=not options.no_timers,
        allow_loss=options.allow_loss,
    )
    print_list("kept:", planned.kept)
    rows: list[dict[str, Any]] = []

    def report_rows(uid: str, state: str, count: int) -> None:
        print_status(f"read {uid}/{state}: {count_text(count, 'row')}")
        rows.append({"operator": uid, "state": state, "rows": count})

    states_read = planned.read(report_rows)
    print_list("lost:", states_read.lost)
    for operator, offsets in planned.starting_offsets.items():
        print_status(f"source {operator} resumes at startingOffsets {offsets}")
    write_and_print(
        options,
        lambda: states_read.write(options.to),
        {
            "states": rows,
            "lost": states_read.lost,
            "starting_offsets": planned.starting_offsets,
        },
        hint="delete the incomplete directory in --to",
        next_step="start a query from the savepoint with spark.holdfast.savepoint.path",
    )
    return 0


def _pairs(option: str, texts: list[str]) -> list[tuple[str, str]]:
    pairs = []
    for text in texts:
        name, _, value = text.rpartition("=")
        if not name or not value:
            raise InvalidRequestError(f"{option} takes NAME=VALUE, got {text!r}")
        pairs.append((name, value))
    return pairs


def _place(text: str) -> tuple[str, str]:
    operator, _, state = text.partition("/")
    if not operator or not state:
        raise InvalidRequestError(f"a state must be OPERATOR/STATE, got {text!r}")
    return operator, state


def _milliseconds(text: str) -> int | None:
    if text == _NO_LIMIT:
        return None
    if not text.isdecimal():
        message = f"--ttl takes milliseconds or {_NO_LIMIT}, got {text!r}"
        raise InvalidRequestError(message)
    return int(text)
