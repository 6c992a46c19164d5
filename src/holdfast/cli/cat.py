"""`holdfast cat`: the elements of a state."""

import argparse
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from holdfast.cli.options import (
    POINTER,
    ROWS,
    STORES,
    command,
    exit_if_missing,
    option,
    resolve_checkpoint,
    retry_if_deleted,
)
from holdfast.cli.output import bytes_text, cell_text, element_cell, print_rows, print_status
from holdfast.errors import CheckpointNotFoundError, StorageUnavailableError
from holdfast.locations.storages import CompletedCheckpoint

if TYPE_CHECKING:
    import pyarrow as pa


_NUMBERS = ("subtasks", "stored_elements", "bytes", "subtask", "partition", "key_group")


def _named_value(text: str) -> tuple[str, str | None]:
    name, equals, value = text.partition("=")
    if not name:
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE, or NAME for null, got {text!r}")
    return name, value if equals else None


@command(
    "cat",
    help="print states of a checkpoint or savepoint as rows",
    description="Print the elements of a state as rows; without a state, list the states.\n\n"
    "The job and its classes are not needed. JSON has bytes in base64, times in ISO 8601, and\n"
    "decimals as text; tables have long values truncated.",
    examples="""
        holdfast cat file:///data/holdfast/job/chk-12
        holdfast cat s3://bucket/savepoints/savepoint-job-5f2d operator totals --limit 10
        holdfast cat file:///data/holdfast/job/chk-12 operator --raw keyed --json
        holdfast cat file:///data/holdfast/job/chk-12 operator totals --key user=ann
    """,
    options=[
        POINTER,
        option("operator", nargs="?", metavar="OPERATOR", help="uid of the operator"),
        option("state", nargs="?", metavar="STATE", help="name of the state"),
        option(
            "--raw",
            choices=("operator", "keyed"),
            help="the operator's raw state instead, by partition or by key group",
        ),
        option(
            "--kind",
            metavar="KIND",
            help="kind of the state, if an operator state and a keyed state have the same name",
        ),
        option(
            "--key",
            action="append",
            type=_named_value,
            metavar="NAME[=VALUE]",
            help="only the rows of this key, without reading others; once for each of its columns, with the value as "
            "printed by this command; NAME without a value is null",
        ),
        option("--subtask", type=int, metavar="N", help="only the state of this subtask"),
        *ROWS,
        STORES,
    ],
)
def cat_command(options: argparse.Namespace) -> int:
    """Print the rows of a state, or a row for each state."""
    with exit_if_missing():
        checkpoint = resolve_checkpoint(options, options.pointer)
    return retry_if_deleted(
        options, options.pointer, checkpoint, lambda checkpoint: _print(options, checkpoint)
    )


def _print(options: argparse.Namespace, checkpoint: CompletedCheckpoint) -> int:
    pointer = checkpoint.location.external_pointer
    exists, batches = _select(options, checkpoint)
    cell = _state_cell if _is_listing(options) else element_cell
    if options.json:  # rows are printed while they are read
        batches = _until_deleted(batches, pointer)
    has_rows = print_rows(options, batches, right=_NUMBERS, cell=cell)
    if exists and not has_rows:
        print_status("it is empty" if options.key is None else "the state has no rows of that key")
    return 0 if exists else 1


def _until_deleted(batches: "Iterable[pa.RecordBatch]", pointer: str) -> "Iterator[pa.RecordBatch]":
    """Yield batches; after the first rows a missing file is an error without a retry, so that no rows are printed twice."""
    has_rows = False
    try:
        for batch in batches:
            yield batch
            has_rows = has_rows or batch.num_rows > 0
    except CheckpointNotFoundError as error:
        if not has_rows:
            raise
        message = (
            f"the printed rows are not complete: a file of the state is missing ({error}); if the job has "
            "deleted this checkpoint in the meantime, repeat the command with the job's directory"
        )
        raise StorageUnavailableError(message, pointer) from error


def _select(
    options: argparse.Namespace, checkpoint: CompletedCheckpoint
) -> "tuple[bool, Iterable[pa.RecordBatch]]":
    """Return whether the selected state exists, and its rows."""
    from holdfast.backends.inspection import readable_state, states  # noqa: PLC0415  # loads Arrow

    if _is_listing(options):
        table = states(checkpoint.location.external_pointer)
        return table.num_rows > 0, table.to_batches()
    readable = readable_state(
        checkpoint.metadata,
        options.operator,
        options.state,
        raw=options.raw,
        kind=options.kind,
        key=None if options.key is None else dict(options.key),
    )
    # A broadcast state is the same in every subtask; one copy is read.
    is_unfiltered = options.subtask is None or not readable.has_subtasks
    parts = [part for part in readable.parts if is_unfiltered or part.subtask == options.subtask]
    if not parts and readable.parts:
        subtasks = ", ".join(
            str(subtask) for subtask in dict.fromkeys(part.subtask for part in readable.parts)
        )
        print_status(f"no state of subtask {options.subtask}; subtasks with state: {subtasks}")
    return bool(parts), readable.batches(parts)


def _is_listing(options: argparse.Namespace) -> bool:
    """Return whether to list states."""
    selection = (options.operator, options.raw, options.kind, options.key)
    return all(argument is None for argument in selection)


def _state_cell(name: str, value: Any) -> str:
    if name == "bytes":
        return bytes_text(value)
    if name == "state" and value is None:
        return "-"
    return cell_text(value)
