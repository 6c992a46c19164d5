"""`holdfast verify`: whether every byte is as it was written."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.cli.checkpoints import POINTER_HELP, pointed, reach
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
class _Found:
    """What is to be verified, and what is known to be wrong already."""

    checkpoints: dict[str, CompletedCheckpoint] = field(default_factory=dict)
    failed: list[VerifiedFile] = field(default_factory=list)
    missing: int = 0

    def leave_out(self, gone: list[CompletedCheckpoint], *, are_named: bool) -> None:
        """Take out what jobs have deleted; who named it is told."""
        for one in gone:
            pointer = one.location.external_pointer
            del self.checkpoints[pointer]
            if are_named:
                say(f"{pointer} was deleted while it was read")
                self.missing += 1


def verify_command(options: argparse.Namespace) -> int:
    """Verify, and print what is wrong; status 0 if nothing is, 3 if something is."""
    found = _found(options)
    loaded = list(found.checkpoints.values())
    total = sum(file.size for file in files_of(s for one in loaded for s in all_streams(one)))
    gone: list[CompletedCheckpoint] = []
    with progress("verifying", total) as advance:
        verified = verify_checkpoints(loaded, on_bytes=advance, on_gone=gone.append)
        files = [*found.failed, *verified]
    found.leave_out(gone, are_named=not options.all)
    checkpoints = list(found.checkpoints.values())
    wrong = sorted((one for one in files if one.failure is not None), key=lambda one: one.uri)
    size = sum(one.size for one in files) + sum(one.metadata_bytes for one in checkpoints)
    damaged = [_damage(one) for one in wrong]
    result = {
        "checkpoints": sorted(found.checkpoints),
        "files": len(files) + len(checkpoints),
        "bytes": size,
        "damaged": damaged,
    }
    if options.json:
        print_json(result)
    else:
        print_lines([{key: str(one[key]) for key in ("problem", "uri")} for one in damaged])
        for one in wrong:
            say(str(one.failure))
        if checkpoints or wrong:
            print_line(_summary(result))
    if wrong:
        return _DAMAGED
    if not checkpoints and not found.missing:
        say(f"no completed checkpoint or savepoint below {', '.join(options.pointers)}")
    return _NOTHING_FOUND if found.missing or not checkpoints else 0


def _found(options: argparse.Namespace) -> _Found:
    """Load what is to be verified; a `_metadata` that is damaged is one of the results."""
    found = _Found()
    for pointer in options.pointers:
        loaded: Sequence[CompletedCheckpoint | VerifiedFile]
        try:
            loaded = list(_below(options, pointer)) if options.all else [pointed(options, pointer)]
        except CheckpointNotFoundError as error:
            say(str(error))
            found.missing += 1
            continue
        except InvalidRequestError:
            raise
        except CheckpointError as error:
            loaded = [VerifiedFile(error.location or pointer, 0, error)]
        for one in loaded:
            if isinstance(one, VerifiedFile):
                found.failed.append(one)
            else:
                found.checkpoints[one.location.external_pointer] = one
    return found


def _below(
    options: argparse.Namespace, directory: str
) -> Iterator[CompletedCheckpoint | VerifiedFile]:
    use_stores(options, directory)
    for one in find_checkpoints(directory):
        metadata = uripath.join(one.pointer, METADATA_FILE)
        if one.checkpoint is None:
            yield VerifiedFile(metadata, 0, one.failure)
            continue
        try:
            reach(options, one.checkpoint)
        except InvalidRequestError:
            raise
        except CheckpointError as failure:  # Spark's side
            yield VerifiedFile(metadata, one.checkpoint.metadata_bytes, failure)
        else:
            yield one.checkpoint


def _damage(one: VerifiedFile) -> dict[str, Any]:
    if isinstance(one.failure, CheckpointNotFoundError):
        problem = "missing"
    elif isinstance(one.failure, CheckpointCorruptedError):
        problem = "damaged"
    else:
        problem = "unreadable"
    return {"uri": one.uri, "bytes": one.size, "problem": problem, "message": str(one.failure)}


def _summary(result: dict[str, Any]) -> str:
    wrong = len(result["damaged"])
    verdict = f"{count_text(wrong, 'file')} not as written" if wrong else "all as written"
    return (
        f"{count_text(len(result['checkpoints']), 'checkpoint')}, "
        f"{count_text(result['files'], 'file')}, {bytes_text(result['bytes'])}: {verdict}"
    )
