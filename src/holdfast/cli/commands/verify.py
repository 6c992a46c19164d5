"""`holdfast verify`: whether every byte is as it was written."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.cli.command import add_command, add_json
from holdfast.cli.output import (
    bytes_text,
    count_text,
    print_json,
    print_line,
    print_lines,
    progress,
    say,
)
from holdfast.cli.pointed_checkpoint import POINTER_HELP, pointed, reach
from holdfast.cli.stores import add_stores, use_stores
from holdfast.common import uripath
from holdfast.errors import (
    CheckpointCorruptedError,
    CheckpointError,
    CheckpointNotFoundError,
    InvalidRequestError,
)
from holdfast.locations.coordination import VerifiedFile, files_of, find_checkpoints
from holdfast.locations.storages import METADATA_FILE, CompletedCheckpoint
from holdfast.spark_progress import all_streams, verify_checkpoints

if TYPE_CHECKING:
    from holdfast.cli.command import Commands

_NOTHING_FOUND, _DAMAGED = 1, 3

_MAX_PASSES = 20


def add_to(commands: "Commands") -> None:
    """Add the command."""
    command = add_command(
        commands,
        "verify",
        verify_command,
        help="read every byte of checkpoints and compare it with its checksum",
        description=(
            "Read every byte that checkpoints lead to, wherever it is, and compare it with\n"
            "its checksum: metadata, state, and Spark's files in savepoints. Goes on behind\n"
            "a file that is damaged or gone, and names them all."
        ),
        examples="""
            holdfast verify s3://bucket/checkpoints/totals/chk-12
            holdfast verify --all s3://bucket/checkpoints
        """,
    )
    command.add_argument("pointers", nargs="+", metavar="pointer", help=POINTER_HELP)
    command.add_argument(
        "--all",
        action="store_true",
        help="all checkpoints and savepoints below the directories that are named, not the newest",
    )
    add_json(command, "one object")
    add_stores(command)


@dataclass(slots=True)
class _ToVerify:
    """The checkpoints to verify, and those of which something is known to be wrong already."""

    checkpoints: dict[str, CompletedCheckpoint] = field(default_factory=dict)
    failed: list[VerifiedFile] = field(default_factory=list)
    missing: int = 0


def verify_command(options: argparse.Namespace) -> int:
    """Verify, and print what is wrong; the status is 0 if nothing is, else 3."""
    task, files, checkpoints = _verify(options)
    wrong = sorted((file for file in files if file.failure is not None), key=lambda file: file.uri)
    size = sum(item.size for item in files) + sum(item.metadata_bytes for item in checkpoints)
    damaged = [_damage(file) for file in wrong]
    result = {
        "checkpoints": sorted(item.location.external_pointer for item in checkpoints),
        "files": len(files) + len(checkpoints),
        "bytes": size,
        "damaged": damaged,
    }
    if options.json:
        print_json(result)
    else:
        print_lines([{key: str(damage[key]) for key in ("problem", "uri")} for damage in damaged])
        for file in wrong:
            say(str(file.failure))
        if checkpoints or wrong:
            print_line(_summary(result))
    if wrong:
        return _DAMAGED
    if not checkpoints and not task.missing:
        say(f"no completed checkpoint or savepoint below {', '.join(options.pointers)}")
    return _NOTHING_FOUND if task.missing or not checkpoints else 0


def _verify(
    options: argparse.Namespace,
) -> tuple[_ToVerify, list[VerifiedFile], list[CompletedCheckpoint]]:
    """Verify until no checkpoint was deleted meanwhile; all files that were read, and the checkpoints that are whole."""
    task = _to_verify(options)
    files = list(task.failed)
    checkpoints: list[CompletedCheckpoint] = []
    for _ in range(_MAX_PASSES):
        gone: list[CompletedCheckpoint] = []
        files += _verified(list(task.checkpoints.values()), files, gone)
        checkpoints += [item for item in task.checkpoints.values() if item not in gone]
        if not gone:
            break
        if not options.all:
            for item in gone:
                say(f"{item.location.external_pointer} was deleted while it was read")
        # Jobs have gone on meanwhile: the checkpoints that replaced what they deleted are verified, too.
        known = {item.location.external_pointer for item in (*checkpoints, *gone)}
        task = _to_verify(options)
        files += [file for file in task.failed if file not in files]
        task.checkpoints = {
            pointer: item for pointer, item in task.checkpoints.items() if pointer not in known
        }
        if not task.checkpoints:
            break
    else:
        say(
            "checkpoints are deleted faster than they can be read; keep more of them "
            "(spark.holdfast.checkpoint.num-retained), or verify a copy (holdfast copy)"
        )
        task.missing += 1
    return task, files, checkpoints


def _verified(
    checkpoints: list[CompletedCheckpoint],
    before: list[VerifiedFile],
    gone: list[CompletedCheckpoint],
) -> list[VerifiedFile]:
    """Verify the files of checkpoints that were not verified before; checkpoints that their jobs delete are noted."""
    known = {(file.uri, file.size) for file in before}
    streams = (stream for checkpoint in checkpoints for stream in all_streams(checkpoint))
    total = sum(file.size for file in files_of(streams) if (file.uri, file.size) not in known)
    with progress("verifying", total) as advance:
        return list(
            verify_checkpoints(checkpoints, on_bytes=advance, on_gone=gone.append, known=known)
        )


def _to_verify(options: argparse.Namespace) -> _ToVerify:
    """Load the checkpoints to verify; a damaged `_metadata` counts as a file that is wrong."""
    task = _ToVerify()
    for pointer in options.pointers:
        loaded: Sequence[CompletedCheckpoint | VerifiedFile]
        try:
            loaded = list(_below(options, pointer)) if options.all else [pointed(options, pointer)]
        except CheckpointNotFoundError as error:
            say(str(error))
            task.missing += 1
            continue
        except InvalidRequestError:
            raise
        except CheckpointError as error:
            loaded = [VerifiedFile(error.location or pointer, 0, error)]
        for result in loaded:
            if isinstance(result, VerifiedFile):
                task.failed.append(result)
            else:
                task.checkpoints[result.location.external_pointer] = result
    return task


def _below(
    options: argparse.Namespace, directory: str
) -> Iterator[CompletedCheckpoint | VerifiedFile]:
    use_stores(options, directory)
    for listed in find_checkpoints(directory):
        metadata = uripath.join(listed.pointer, METADATA_FILE)
        if listed.checkpoint is None:
            yield VerifiedFile(metadata, 0, listed.failure)
            continue
        try:
            reach(options, listed.checkpoint)
        except InvalidRequestError:
            raise
        except CheckpointError as failure:  # Spark's side
            yield VerifiedFile(metadata, listed.checkpoint.metadata_bytes, failure)
        else:
            yield listed.checkpoint


def _damage(file: VerifiedFile) -> dict[str, Any]:
    if isinstance(file.failure, CheckpointNotFoundError):
        problem = "missing"
    elif isinstance(file.failure, CheckpointCorruptedError):
        problem = "damaged"
    else:
        problem = "unreadable"
    return {"uri": file.uri, "bytes": file.size, "problem": problem, "message": str(file.failure)}


def _summary(result: dict[str, Any]) -> str:
    wrong = len(result["damaged"])
    verdict = f"{count_text(wrong, 'file')} not as written" if wrong else "all as written"
    return (
        f"{count_text(len(result['checkpoints']), 'checkpoint')}, "
        f"{count_text(result['files'], 'file')}, {bytes_text(result['bytes'])}: {verdict}"
    )
