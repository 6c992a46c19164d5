"""`holdfast copy`: a checkpoint or savepoint to another directory, of any store."""

import argparse
from typing import Any

from holdfast.cli.options import (
    POINTER,
    STORES,
    command,
    configure_stores,
    exit_if_missing,
    flag,
    json_option,
    option,
    resolve_checkpoint,
    retry_if_deleted,
)
from holdfast.cli.output import (
    bytes_text,
    count_text,
    interrupt_hint,
    print_json,
    print_status,
    progress,
)
from holdfast.locations.handles import files_of
from holdfast.locations.storages import CompletedCheckpoint
from holdfast.spark_progress import all_streams, copy_savepoint


@command(
    "copy",
    help="copy a checkpoint or savepoint to another directory, of any store",
    description="Copy a checkpoint or savepoint with all files that it refers to into a\n"
    "self-contained savepoint. Checksums are verified while files are read. The copy\n"
    "is published once it is complete; after a failure no files are left.",
    examples="""
        holdfast copy file:///data/savepoints/savepoint-totals-0a1b2c3d4e5f s3://bucket/savepoints
        holdfast copy s3://bucket/checkpoints/totals s3://archive/totals
    """,
    options=[
        POINTER,
        option("target", metavar="TARGET", help="URI of the directory for the savepoint"),
        flag("--dry-run", "print the number and size of the files, but write nothing"),
        json_option("one object"),
        STORES,
    ],
)
def copy_command(options: argparse.Namespace) -> int:
    """Copy the checkpoint or savepoint, and print the URI of the copy."""
    configure_stores(options, options.target)
    with exit_if_missing():
        checkpoint = resolve_checkpoint(options, options.pointer)

    if options.dry_run:
        return _preview(options, checkpoint)

    def copy_verified(
        checkpoint: CompletedCheckpoint,
    ) -> tuple[CompletedCheckpoint, CompletedCheckpoint]:
        total = sum(file.size for file in files_of(all_streams(checkpoint)))
        hint = "if files are left, `holdfast clean --savepoint-dir` deletes them"
        with interrupt_hint(hint), progress("copying", total) as advance:
            return checkpoint, copy_savepoint(checkpoint, options.target, on_bytes=advance)

    checkpoint, copy = retry_if_deleted(options, options.pointer, checkpoint, copy_verified)
    files = files_of(all_streams(checkpoint))
    pointer = copy.location.external_pointer
    size = sum(file.size for file in files) + copy.metadata_bytes
    if options.json:
        print_json(_values(checkpoint, pointer, len(files) + 1, size))
    else:
        print(pointer)
        print_status(
            f"copied and verified {count_text(len(files) + 1, 'file')}, {bytes_text(size)}"
        )
    return 0


def _preview(options: argparse.Namespace, checkpoint: CompletedCheckpoint) -> int:
    """Print the size of a copy."""
    files = files_of(all_streams(checkpoint))
    size = sum(file.size for file in files) + checkpoint.metadata_bytes
    if options.json:
        print_json(_values(checkpoint, None, len(files) + 1, size))
    print_status(f"{count_text(len(files) + 1, 'file')} ({bytes_text(size)}) would be copied")
    print_status("nothing was written")
    return 0


def _values(
    checkpoint: CompletedCheckpoint, pointer: str | None, files: int, size: int
) -> dict[str, Any]:
    source = checkpoint.location.external_pointer
    return {"from": source, "pointer": pointer, "files": files, "bytes": size}
