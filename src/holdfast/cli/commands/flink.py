"""`holdfast flink`: savepoints and checkpoints of Flink jobs, shown, imported and exported."""

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from holdfast.cli.commands.flink_moves import add_export, add_import
from holdfast.cli.options import add_command, add_json, add_stores, configure_stores
from holdfast.cli.output import count_text, print_json, print_line, print_status, print_table
from holdfast.cli.rows import add_rows, print_rows
from holdfast.errors import CheckpointNotFoundError, InvalidRequestError

if TYPE_CHECKING:
    import pyarrow as pa

    from holdfast.cli.options import Commands
    from holdfast.flink import FlinkSavepoint

_NUMBERS = ("subtask", "key_group", "timestamp", "parallelism", "states")
_POINTER_HELP = "URI of the directory of a savepoint or retained checkpoint of Flink"


def add_to(commands: "Commands") -> None:
    """Add the commands."""
    whole = commands.add_parser(
        "flink", help="show, import and export savepoints of Apache Flink jobs"
    )
    kinds = whole.add_subparsers(required=True, metavar="ACTION", title="actions")
    show = add_command(
        kinds,
        "show",
        show_command,
        help="show operators and states of a savepoint of Flink",
        description=(
            "Show the operators of a savepoint or retained checkpoint of Apache Flink 1.8 to 2.3, their states\n"
            "and the types of these. Flink and Java are not needed. An unreadable state is shown with its error.\n\n"
            "Before Flink 2.0 a savepoint has no uids: give the known ones as options."
        ),
        examples="""
            holdfast flink show s3://bucket/savepoints/savepoint-1a2b3c-4d5e6f
            holdfast flink show file:///data/flink/savepoint-1a2b3c-4d5e6f --uid orders --uid totals --json
        """,
    )
    show.add_argument("pointer", help=_POINTER_HELP)
    add_json(show, "one object with everything")
    cat = add_command(
        kinds,
        "cat",
        cat_command,
        help="print states of a savepoint of Flink as rows",
        description=(
            "Print a state of a savepoint or retained checkpoint of Apache Flink as rows; without a state, list\n"
            "the states. JSON has bytes in base64, times in ISO 8601, and decimals as text; tables have long\n"
            "values truncated."
        ),
        examples="""
            holdfast flink cat s3://bucket/savepoints/savepoint-1a2b3c-4d5e6f orders seen --limit 10
            holdfast flink cat file:///data/flink/savepoint-1a2b3c-4d5e6f orders by-day --explode --json
            holdfast flink cat file:///data/flink/savepoint-1a2b3c-4d5e6f orders --timers
        """,
    )
    cat.add_argument("pointer", help=_POINTER_HELP)
    cat.add_argument("operator", nargs="?", help="uid, id or name of the operator")
    cat.add_argument("state", nargs="?", help="name of the state")
    cat.add_argument("--kind", help="kind of the state, if two states have the same name")
    cat.add_argument(
        "--timers", action="store_true", help="the operator's timers instead of a state"
    )
    cat.add_argument("--subtask", type=int, metavar="N", help="only the state of this subtask")
    cat.add_argument(
        "--explode", action="store_true", help="a row for each element of a list or entry of a map"
    )
    cat.add_argument("--bytes", action="store_true", help="stored bytes instead of decoded values")
    cat.add_argument(
        "--type",
        action="append",
        default=[],
        metavar="COLUMN=TYPE",
        help="of state of PyFlink, the type of `value`, and of maps also of `map_key`, such as value=long; "
        "may be repeated",
    )
    add_rows(cat)
    imported = add_import(kinds)
    imported.add_argument("pointer", help=_POINTER_HELP)
    imported.set_defaults(open_savepoint=_open_savepoint)
    add_export(kinds)
    for command in (show, cat, imported):
        command.add_argument(
            "--uid",
            action="append",
            default=[],
            help="uid of an operator, for savepoints before Flink 2.0; may be repeated",
        )
        command.add_argument(
            "--moved",
            action="append",
            default=[],
            metavar="OLD=NEW",
            help="old and new prefix of the URIs of files that were moved; may be repeated",
        )
        add_stores(command)


def show_command(options: argparse.Namespace) -> int:
    """Print operators and states."""
    try:
        savepoint = _open_savepoint(options)
    except CheckpointNotFoundError as error:
        print_status(str(error))
        return 1
    states: dict[str, list[dict[str, Any]]] = {}
    for state in savepoint.states().to_pylist():
        states.setdefault(state.pop("operator"), []).append(state)
    operators = savepoint.operators().to_pylist()
    for operator in operators:
        operator["states"] = states.get(operator["operator"], [])
    shown = {
        "pointer": savepoint.pointer,
        "checkpoint": savepoint.checkpoint_id,
        "metadata_version": savepoint.metadata_version,
        "operators": operators,
        "warnings": savepoint.warnings(),
    }
    if options.json:
        print_json(shown)
    else:
        _print(shown)
    return 0


def cat_command(options: argparse.Namespace) -> int:
    """Print the rows of a state, or a row for each state.

    Raises:
        InvalidRequestError: There is no such state, or options contradict each other.
        CheckpointError: The state can't be read.
    """
    try:
        savepoint = _open_savepoint(options)
    except CheckpointNotFoundError as error:
        print_status(str(error))
        return 1
    if options.timers and (options.operator is None or options.state is not None):
        raise InvalidRequestError("--timers takes an operator and no state")
    if options.timers:
        batches: Iterable[pa.RecordBatch] = savepoint.timers(options.operator).to_batches()
    elif options.state is None:
        batches = savepoint.states(options.operator).to_batches()
    else:
        batches = savepoint.iter_state(
            options.operator,
            options.state,
            kind=options.kind,
            subtask=options.subtask,
            explode=options.explode,
            as_bytes=options.bytes,
            types=dict(_pair("--type", text) for text in options.type),
        )
    if not print_rows(options, batches, right=_NUMBERS):
        print_status("it is empty")
    return 0


def _pair(option: str, text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    if not name or not value:
        raise InvalidRequestError(f"{option} takes NAME=VALUE, got {text!r}")
    return name, value


def _open_savepoint(options: argparse.Namespace) -> "FlinkSavepoint":
    from holdfast import flink  # noqa: PLC0415  # loads Arrow

    moved = {}
    for pair in options.moved:
        old, equals, new = pair.partition("=")
        if not old or not equals or not new:
            message = f"--moved takes OLD=NEW, such as --moved s3://old/flink=s3://new/flink, got {pair!r}"
            raise InvalidRequestError(message)
        moved[old] = new
    configure_stores(options, options.pointer, *moved.values(), getattr(options, "to", None))
    return flink.open_savepoint(options.pointer, moved=moved, uids=options.uid)


def _print(shown: dict[str, Any]) -> None:
    print_line(
        f"{shown['pointer']}: checkpoint {shown['checkpoint']}, metadata of version {shown['metadata_version']}"
    )
    stateless = []
    for operator in shown["operators"]:
        if not operator["states"]:
            stateless.append(operator["name"] or operator["operator"])
            continue
        name = f" ({operator['name']})" if operator["name"] else ""
        print_line()
        print_line(
            f"operator {operator['operator']}{name}: {count_text(operator['parallelism'], 'subtask')}, "
            f"at most {operator['max_parallelism']}"
        )
        print_table(
            [
                {
                    "state": state["state"] or "-",
                    "kind": state["kind"],
                    **{part: state[part] or "-" for part in ("key", "namespace", "value")},
                }
                for state in operator["states"]
            ]
        )
        for state in operator["states"]:
            if state["failure"]:
                print_status(f"{state['state'] or state['kind']} can't be read: {state['failure']}")
    if stateless:
        print_line()
        print_line(f"without state: {', '.join(stateless)}")
    for warning in shown["warnings"]:
        print_status(warning)
