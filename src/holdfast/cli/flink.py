"""`holdfast flink`: savepoints and checkpoints of Flink jobs, shown, imported and exported."""

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from holdfast.cli.options import (
    ROWS,
    STORES,
    CommandGroup,
    command,
    configure_stores,
    exit_if_missing,
    flag,
    json_option,
    list_option,
    option,
    split_pair,
)
from holdfast.cli.output import (
    count_text,
    print_json,
    print_line,
    print_list,
    print_rows,
    print_status,
    print_table,
    write_and_print,
)
from holdfast.errors import InvalidRequestError

if TYPE_CHECKING:
    import pyarrow as pa

    from holdfast.flink import FlinkSavepoint

_NUMBERS = ("subtask", "key_group", "timestamp", "parallelism", "states")
_NO_LIMIT = "never"

_POINTER = option(
    "pointer",
    metavar="POINTER",
    help="URI of the directory of a savepoint or retained checkpoint of Flink",
)
_PLACES = (
    list_option(
        "--uid", "UID", "uid of an operator, for savepoints before Flink 2.0; may be repeated"
    ),
    list_option(
        "--moved",
        "OLD=NEW",
        "old and new prefix of the URIs of files that were moved; may be repeated",
    ),
    STORES,
)
_TARGET = option(
    "target",
    nargs="?",
    metavar="TARGET",
    help="URI of the directory for the savepoint; not needed with --dry-run",
)
_DRY_RUN = flag("--dry-run", "read all states and report the result, but write nothing")


@command(
    "show",
    help="show operators and states of a Flink savepoint",
    description=(
        "Show the operators of a savepoint or retained checkpoint of Apache Flink 1.8 to 2.3, their states\n"
        "and the types of these. Flink and Java are not needed. An unreadable state is shown with its error.\n\n"
        "Before Flink 2.0 a savepoint has no uids: give the known ones as options."
    ),
    examples="""
        holdfast flink show s3://bucket/savepoints/savepoint-1a2b3c-4d5e6f
        holdfast flink show file:///data/flink/savepoint-1a2b3c-4d5e6f --uid orders --uid totals --json
    """,
    options=[_POINTER, json_option("one object with everything"), *_PLACES],
)
def show_command(options: argparse.Namespace) -> int:
    """Print operators and states."""
    with exit_if_missing():
        savepoint = _open_savepoint(options)
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


@command(
    "cat",
    help="print states of a Flink savepoint as rows",
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
    options=[
        _POINTER,
        option("operator", nargs="?", metavar="OPERATOR", help="uid, id or name of the operator"),
        option("state", nargs="?", metavar="STATE", help="name of the state"),
        option(
            "--kind", metavar="KIND", help="kind of the state, if two states have the same name"
        ),
        flag("--timers", "the operator's timers instead of a state"),
        option("--subtask", type=int, metavar="N", help="only the state of this subtask"),
        flag("--explode", "a row for each element of a list or entry of a map"),
        flag("--bytes", "stored bytes instead of decoded values"),
        list_option(
            "--type",
            "COLUMN=TYPE",
            "of state of PyFlink, the type of `value`, and of maps also of `map_key`, such as value=long; "
            "may be repeated",
        ),
        *ROWS,
        *_PLACES,
    ],
)
def cat_command(options: argparse.Namespace) -> int:
    """Print the rows of a state, or a row for each state."""
    with exit_if_missing():
        savepoint = _open_savepoint(options)
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
            types=dict(split_pair("--type", text, "NAME=VALUE") for text in options.type),
        )
    if not print_rows(options, batches, right=_NUMBERS):
        print_status("it is empty")
    return 0


@command(
    "export",
    help="convert a Holdfast checkpoint or savepoint to a Flink savepoint",
    description="Convert a Holdfast checkpoint or savepoint to a Flink savepoint. Flink 1.11 to 2.3 restores it on any\n"
    "backend, at any parallelism, if the job asks for the same states with the same types: numbers, booleans,\n"
    "texts, bytes, dates, times, decimals, lists, maps, and tuples, which structs and keys of several columns\n"
    "become; tumbling and sliding windows.\n\n"
    "All states are read, and losses are reported, before anything is written. Only the URI of the\n"
    "savepoint is printed on standard output.",
    examples="""
        holdfast flink export s3://bucket/holdfast/orders/savepoint-1a2b3c4d s3://bucket/flink --dry-run
        holdfast flink export file:///data/savepoints/savepoint-1a2b3c4d file:///data/flink --map orders=totals
    """,
    options=[
        option("pointer", metavar="POINTER", help="URI of the Holdfast checkpoint or savepoint"),
        _TARGET,
        list_option(
            "--map",
            "UID=UID",
            "an operator and its uid in the job of Flink; may be repeated, and other operators are left out then",
        ),
        flag("--allow-loss", "leave out states that can't be converted"),
        _DRY_RUN,
        json_option("one object"),
        STORES,
    ],
)
def export_command(options: argparse.Namespace) -> int:
    """Read the states, report kept and lost ones, then write the savepoint, and print its pointer."""
    _check_target(options)
    operators = dict(split_pair("--map", text, "UID=UID") for text in options.map)
    configure_stores(options, options.pointer, options.target)
    from holdfast.flink import FlinkExport  # noqa: PLC0415  # loads Arrow

    with exit_if_missing():
        planned = FlinkExport.of(options.pointer, operators or None, allow_loss=options.allow_loss)
    print_list("kept:", planned.kept)
    print_list("lost:", planned.lost)
    write_and_print(
        options,
        lambda: planned.write(options.target),
        {"kept": planned.kept, "lost": planned.lost},
        hint="delete the incomplete directory in TARGET",
        next_step="start a job from the savepoint with `flink run -s`",
    )
    return 0


@command(
    "import",
    help="convert a Flink savepoint to a Holdfast savepoint",
    description="Convert a Flink savepoint to a Holdfast savepoint, from which a new query starts: operator state, keyed\n"
    "state and timers. All states of operators with a known uid are converted, except those of windows\n"
    "and sources; --map selects others, or renames them. Key groups are verified with Flink's hash.\n\n"
    "All states are read, and losses are reported, before anything is written. Only the URI of the\n"
    "savepoint is printed on standard output.",
    examples="""
        holdfast flink import s3://bucket/savepoints/savepoint-1a2b3c-4d5e6f --key orders=customer --dry-run
        holdfast flink import file:///data/flink/savepoint-1a2b3c-4d5e6f file:///data/savepoints \
--map orders/seen=orders/last-seen --ttl orders/seen=3600000 --key orders=customer
    """,
    options=[
        _POINTER,
        _TARGET,
        list_option(
            "--map",
            "OPERATOR/STATE=UID/STATE",
            "a state and its new name; may be repeated, and other states are left out then",
        ),
        list_option(
            "--key", "UID=COLUMN,…", "key columns of an operator of the query; may be repeated"
        ),
        list_option(
            "--ttl",
            "OPERATOR/STATE=MS",
            "time to live of a state's values, or `never` for no limit: Flink stores only the time of their last "
            "use; may be repeated",
        ),
        flag("--no-timers", "no timers of functions"),
        flag("--allow-loss", "ignore unreadable states, null values, and rows in flight"),
        _DRY_RUN,
        json_option("one object"),
        *_PLACES,
    ],
)
def import_command(options: argparse.Namespace) -> int:
    """Read the states, report kept and lost ones, then write the savepoint, and print its pointer."""
    _check_target(options)
    states = {_place(old): _place(new) for old, new in _pairs("--map", options.map)}
    key = {uid: names.split(",") for uid, names in _pairs("--key", options.key)}
    ttl_ms = {_place(place): _milliseconds(text) for place, text in _pairs("--ttl", options.ttl)}
    with exit_if_missing():
        savepoint = _open_savepoint(options)
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
        lambda: states_read.write(options.target),
        {"states": rows, "lost": states_read.lost, "starting_offsets": planned.starting_offsets},
        hint="delete the incomplete directory in TARGET",
        next_step="start a query from the savepoint with spark.holdfast.savepoint.path",
    )
    return 0


def _check_target(options: argparse.Namespace) -> None:
    if options.target is None and not options.dry_run:
        raise InvalidRequestError("no directory for the savepoint; name TARGET, or use --dry-run")


def _pairs(name: str, texts: list[str]) -> list[tuple[str, str]]:
    return [split_pair(name, text, "NAME=VALUE", at_last=True) for text in texts]


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


def _open_savepoint(options: argparse.Namespace) -> "FlinkSavepoint":
    from holdfast import flink  # noqa: PLC0415  # loads Arrow

    form = "OLD=NEW, such as --moved s3://old/flink=s3://new/flink"
    moved = dict(split_pair("--moved", pair, form) for pair in options.moved)
    configure_stores(options, options.pointer, *moved.values(), getattr(options, "target", None))
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


FLINK = CommandGroup(
    "flink",
    "read, import and export savepoints of Apache Flink",
    "action",
    [show_command, cat_command, import_command, export_command],
)
