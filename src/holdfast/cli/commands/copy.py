"""`holdfast copy`: a checkpoint or savepoint to another directory, of any store."""

import argparse
from typing import TYPE_CHECKING

from holdfast.cli.command import add_command, add_json
from holdfast.cli.output import (
    bytes_text,
    count_text,
    print_json,
    progress,
    say,
    told_when_interrupted,
)
from holdfast.cli.pointed_checkpoint import POINTER_HELP, follow, pointed
from holdfast.cli.stores import add_stores, use_stores
from holdfast.errors import CheckpointNotFoundError
from holdfast.locations.coordination import files_of
from holdfast.locations.storages import CompletedCheckpoint
from holdfast.spark_progress import all_streams, copy_savepoint

if TYPE_CHECKING:
    from holdfast.cli.command import Commands


def add_to(commands: "Commands") -> None:
    """Add the command."""
    command = add_command(
        commands,
        "copy",
        copy_command,
        help="copy a checkpoint or savepoint to another directory, of any store",
        description=(
            "Copy a checkpoint or savepoint with all files that it leads to, wherever they\n"
            "are, into a savepoint that holds everything itself. Every byte is verified\n"
            "while it is read. The copy exists once it is whole; if anything fails before,\n"
            "nothing is left of it."
        ),
        examples="""
            holdfast copy file:///data/savepoints/savepoint-totals-0a1b2c3d4e5f s3://bucket/savepoints
            holdfast copy s3://bucket/checkpoints/totals s3://archive/totals
        """,
    )
    command.add_argument("pointer", help=POINTER_HELP)
    command.add_argument("target", help="URI of the directory to make the savepoint in")
    add_json(command, "one object")
    add_stores(command)


def copy_command(options: argparse.Namespace) -> int:
    """Copy the checkpoint or savepoint, and print the URI of the copy."""
    use_stores(options, options.target)
    try:
        checkpoint = pointed(options, options.pointer)
    except CheckpointNotFoundError as error:
        say(str(error))
        return 1

    def copied(checkpoint: CompletedCheckpoint) -> tuple[CompletedCheckpoint, CompletedCheckpoint]:
        total = sum(file.size for file in files_of(all_streams(checkpoint)))
        way_out = "if files are left, `holdfast clean --savepoint-dir` deletes them"
        with told_when_interrupted(way_out), progress("copying", total) as advance:
            return checkpoint, copy_savepoint(checkpoint, options.target, on_bytes=advance)

    checkpoint, copy = follow(options, options.pointer, checkpoint, copied)
    files = files_of(all_streams(checkpoint))
    pointer = copy.location.external_pointer
    size = sum(file.size for file in files) + copy.metadata_bytes
    if options.json:
        print_json(
            {
                "from": checkpoint.location.external_pointer,
                "pointer": pointer,
                "files": len(files) + 1,
                "bytes": size,
            }
        )
    else:
        print(pointer)
        say(f"copied and verified {count_text(len(files) + 1, 'file')}, {bytes_text(size)}")
    return 0
