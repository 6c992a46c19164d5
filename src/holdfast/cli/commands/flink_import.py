"""`holdfast flink import`: a savepoint of Holdfast, made of one of Flink."""

import argparse
from typing import TYPE_CHECKING, Any

from holdfast.cli.command import add_command, add_json
from holdfast.cli.moves import say_all, write_and_print
from holdfast.cli.output import count_text, say
from holdfast.errors import CheckpointNotFoundError, InvalidRequestError

if TYPE_CHECKING:
    from holdfast.flink import FlinkSavepoint

_FOR_EVER = "never"


def add_import(kinds: "argparse._SubParsersAction[Any]") -> argparse.ArgumentParser:
    """Add the command to those of `holdfast flink`."""
    command = add_command(
        kinds,
        "import",
        import_command,
        help="make a savepoint of Holdfast of a savepoint of Flink",
        description=(
            "Make a savepoint of Holdfast of a savepoint of Flink, for a new query to begin with: operator state, keyed\n"
            "state and timers. All states of operators whose uid is known are taken, but those of windows and\n"
            "sources; --map takes others, or under other names. Key groups are compared with Flink's hash.\n\n"
            "Everything is read, and what is lost is said, before anything is written. Prints the URI of the\n"
            "savepoint, and nothing else on standard output."
        ),
        examples="""
            holdfast flink import s3://bucket/savepoints/savepoint-1a2b3c-4d5e6f --key orders=customer --dry-run
            holdfast flink import file:///data/flink/savepoint-1a2b3c-4d5e6f --to file:///data/savepoints \
--map orders/seen=orders/last-seen --ttl orders/seen=3600000 --key orders=customer
        """,
    )
    command.add_argument(
        "--to", metavar="TARGET", help="URI of the directory to make the savepoint in"
    )
    command.add_argument(
        "--map",
        action="append",
        default=[],
        metavar="OPERATOR/STATE=UID/STATE",
        help="a state, and what it becomes; may be repeated, and no other states are taken then",
    )
    command.add_argument(
        "--key",
        action="append",
        default=[],
        metavar="UID=COLUMN,…",
        help="columns by which an operator of the query deals its rows; may be repeated",
    )
    command.add_argument(
        "--ttl",
        action="append",
        default=[],
        metavar="OPERATOR/STATE=MS",
        help="how long values of a state with a time to live live, or `never` for ever: Flink stores only when they "
        "were last used; may be repeated",
    )
    command.add_argument("--no-timers", action="store_true", help="no timers of functions")
    command.add_argument(
        "--allow-loss",
        action="store_true",
        help="go on although states can't be read, values are null, or rows are in flight",
    )
    command.add_argument(
        "--dry-run", action="store_true", help="read everything, only say what would be done"
    )
    add_json(command, "one object")
    return command


def import_command(options: argparse.Namespace) -> int:
    """Read the states, say what is kept and lost, then write the savepoint, and print the pointer to it.

    Raises:
        InvalidRequestError: An option can't be used.
        CheckpointError: A state can't be read, or the savepoint can't be written.
    """
    if options.to is None and not options.dry_run:
        raise InvalidRequestError("no directory for the savepoint; name it by --to, or --dry-run")
    states = {_place(old): _place(new) for old, new in _pairs("--map", options.map)}
    key = {uid: names.split(",") for uid, names in _pairs("--key", options.key)}
    ttl_ms = {_place(place): _milliseconds(text) for place, text in _pairs("--ttl", options.ttl)}
    try:
        savepoint: FlinkSavepoint = options.opened(options)
    except CheckpointNotFoundError as error:
        say(str(error))
        return 1
    from holdfast.flink import FlinkStateImport  # noqa: PLC0415  # it loads Arrow

    planned = FlinkStateImport.of(
        savepoint,
        states or None,
        key=key,
        ttl_ms=ttl_ms,
        timers=not options.no_timers,
        allow_loss=options.allow_loss,
    )
    say_all("what is kept:", planned.kept)
    rows: list[dict[str, Any]] = []

    def tell(uid: str, state: str, count: int) -> None:
        say(f"read {uid}/{state}: {count_text(count, 'row')}")
        rows.append({"operator": uid, "state": state, "rows": count})

    states_read = planned.read(tell)
    say_all("what is lost:", states_read.lost)
    for operator, offsets in planned.starting_offsets.items():
        say(f"source {operator} goes on at startingOffsets {offsets}")
    write_and_print(
        options,
        lambda: states_read.write(options.to),
        {
            "states": rows,
            "lost": states_read.lost,
            "starting_offsets": planned.starting_offsets,
        },
        if_interrupted="delete the directory that was begun in --to",
        next_step="spark.holdfast.savepoint.path lets a query begin with the savepoint",
    )
    return 0


def _pairs(option: str, texts: list[str]) -> list[tuple[str, str]]:
    pairs = []
    for text in texts:
        name, _, value = text.rpartition("=")
        if not name or not value:
            raise InvalidRequestError(f"{option} takes NAME=VALUE, and not {text!r}")
        pairs.append((name, value))
    return pairs


def _place(text: str) -> tuple[str, str]:
    operator, _, state = text.partition("/")
    if not operator or not state:
        raise InvalidRequestError(f"a state is named OPERATOR/STATE, and not {text!r}")
    return operator, state


def _milliseconds(text: str) -> int | None:
    if text == _FOR_EVER:
        return None
    if not text.isdecimal():
        message = f"--ttl takes milliseconds or {_FOR_EVER}, and not {text!r}"
        raise InvalidRequestError(message)
    return int(text)
