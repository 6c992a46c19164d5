"""`holdfast cat`: what is in a state."""

import argparse
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from holdfast.cli.command import add_command
from holdfast.cli.output import bytes_text, say
from holdfast.cli.pointed_checkpoint import POINTER_HELP, follow, pointed
from holdfast.cli.printed_rows import add_rows, cell_text, element_cell, print_rows
from holdfast.cli.stores import add_stores
from holdfast.errors import CheckpointNotFoundError, StorageUnavailableError
from holdfast.locations.storages import CompletedCheckpoint

if TYPE_CHECKING:
    import pyarrow as pa

    from holdfast.cli.command import Commands

_NUMBERS = ("subtasks", "stored_elements", "bytes", "subtask", "partition", "key_group")


def add_to(commands: "Commands") -> None:
    """Add the command."""
    command = add_command(
        commands,
        "cat",
        cat_command,
        help="print states of a checkpoint or savepoint as rows",
        description=(
            "Print the elements of a state as rows; without a state, what states there are.\n\n"
            "Neither the job nor its classes are needed. In JSON, bytes are in base64, times in ISO\n"
            "8601, decimals are texts; as a table, long values are cut."
        ),
        examples="""
            holdfast cat file:///data/holdfast/job/chk-12
            holdfast cat s3://bucket/savepoints/savepoint-job-5f2d operator totals --limit 10
            holdfast cat file:///data/holdfast/job/chk-12 operator --raw keyed --json
            holdfast cat file:///data/holdfast/job/chk-12 operator totals --key user=ann
        """,
    )
    command.add_argument("pointer", help=POINTER_HELP)
    command.add_argument("operator", nargs="?", help="uid of the operator")
    command.add_argument("state", nargs="?", help="name of the state")
    command.add_argument(
        "--raw",
        choices=("operator", "keyed"),
        help="the operator's raw state instead, in partitions or by key group",
    )
    command.add_argument(
        "--kind", help="the state's kind, where operator state and keyed state have one name"
    )
    command.add_argument(
        "--key",
        action="append",
        type=_named_value,
        metavar="NAME[=VALUE]",
        help="only the rows of this key, without reading others; once for each of its columns, with the value as this "
        "command prints it; NAME alone is null",
    )
    command.add_argument("--subtask", type=int, metavar="N", help="only what this subtask has")
    add_rows(command)
    add_stores(command)


def cat_command(options: argparse.Namespace) -> int:
    """Print the rows of a state, or a row for each state.

    Raises:
        InvalidRequestError: There is no such state.
        CheckpointError: The state can't be read.
    """
    try:
        checkpoint = pointed(options, options.pointer)
    except CheckpointNotFoundError as error:
        say(str(error))
        return 1
    return follow(
        options, options.pointer, checkpoint, lambda checkpoint: _print(options, checkpoint)
    )


def _print(options: argparse.Namespace, checkpoint: CompletedCheckpoint) -> int:
    pointer = checkpoint.location.external_pointer
    is_there, batches = _asked_for(options, pointer)
    cell = _state_cell if _is_listing(options) else element_cell
    if options.json:  # whose rows are printed as they are read
        batches = _until_deleted(batches, pointer)
    is_any = print_rows(options, batches, right=_NUMBERS, cell=cell)
    if is_there and not is_any:
        say("it is empty" if options.key is None else "nothing is kept for that key")
    return 0 if is_there else 1


def _until_deleted(batches: "Iterable[pa.RecordBatch]", pointer: str) -> "Iterator[pa.RecordBatch]":
    """The batches; a missing file is another error once rows were printed, so that none are printed twice."""
    has_rows = False
    try:
        for batch in batches:
            yield batch
            has_rows = has_rows or batch.num_rows > 0
    except CheckpointNotFoundError as error:
        if not has_rows:
            raise
        message = (
            f"the rows that were printed are not all: a file of the state is gone ({error}); if the job "
            "has deleted this checkpoint meanwhile, repeat the command with the job's directory"
        )
        raise StorageUnavailableError(message, pointer) from error


def _asked_for(
    options: argparse.Namespace, pointer: str
) -> "tuple[bool, Iterable[pa.RecordBatch]]":
    """Whether the state or checkpoint that is asked for exists, and its rows, which may be none."""
    # Not at the top: the other commands need no Arrow.
    from holdfast.backends.inspection import readable_state, states  # noqa: PLC0415

    if _is_listing(options):
        table = states(pointer)
        return table.num_rows > 0, table.to_batches()
    readable = readable_state(
        pointer,
        options.operator,
        options.state,
        raw=options.raw,
        kind=options.kind,
        key=None if options.key is None else dict(options.key),
    )
    # A broadcast state is the same in every subtask; one copy of it is read.
    is_any = options.subtask is None or not readable.has_subtasks
    parts = [part for part in readable.parts if is_any or part.subtask == options.subtask]
    if not parts and readable.parts:
        there = ", ".join(
            str(subtask) for subtask in dict.fromkeys(part.subtask for part in readable.parts)
        )
        say(f"nothing of subtask {options.subtask}; there are {there}")
    return bool(parts), readable.batches(parts)


def _is_listing(options: argparse.Namespace) -> bool:
    """Whether no state is named."""
    asked = (options.operator, options.raw, options.kind, options.key)
    return all(argument is None for argument in asked)


def _state_cell(name: str, value: Any) -> str:
    if name == "bytes":
        return bytes_text(value)
    if name == "state" and value is None:
        return "-"
    return cell_text(value)


def _named_value(text: str) -> tuple[str, str | None]:
    name, equals, value = text.partition("=")
    if not name:
        raise argparse.ArgumentTypeError(f"{text!r} is neither NAME=VALUE nor NAME, for null")
    return name, value if equals else None
