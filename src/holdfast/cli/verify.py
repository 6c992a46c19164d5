"""`holdfast verify`: every byte compared with its checksum."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.cli.options import (
    POINTER_HELP,
    STORES,
    command,
    configure_stores,
    flag,
    json_option,
    option,
    resolve_checkpoint,
)
from holdfast.cli.output import (
    bytes_text,
    count_text,
    print_json,
    print_line,
    print_status,
    print_table,
    progress,
)
from holdfast.common import uripath
from holdfast.errors import (
    CheckpointCorruptedError,
    CheckpointError,
    CheckpointNotFoundError,
    InvalidRequestError,
)
from holdfast.locations.coordination import VerifiedFile, find_checkpoints
from holdfast.locations.handles import files_of
from holdfast.locations.storages import METADATA_FILE, CompletedCheckpoint
from holdfast.spark_progress import all_streams, directories_of, verify_checkpoints

_NOTHING_FOUND, _FAILED = 1, 3

_MAX_PASSES = 20


@dataclass(slots=True)
class _Selection:
    """Checkpoints to verify, and files that are already known to be corrupt or missing."""

    checkpoints: dict[str, CompletedCheckpoint] = field(default_factory=dict)
    failed: list[VerifiedFile] = field(default_factory=list)
    missing: int = 0


@command(
    "verify",
    help="read every byte of checkpoints and compare it with its checksum",
    description="Read all files of checkpoints and compare them with their checksums: metadata,\n"
    "state, and Spark's files in savepoints. Continues after a corrupt or missing\n"
    "file, and reports all of them, with the checkpoints that need them.",
    examples="""
        holdfast verify s3://bucket/checkpoints/totals/chk-12
        holdfast verify --all s3://bucket/checkpoints
    """,
    options=[
        option("pointers", nargs="+", metavar="POINTER", help=POINTER_HELP),
        flag(
            "--all",
            "all checkpoints and savepoints below the given directories, not only the newest",
        ),
        json_option("one object"),
        STORES,
    ],
)
def verify_command(options: argparse.Namespace) -> int:
    """Verify, and print failures; the status is 3 if there are any."""
    task, files, checkpoints = _verify(options)
    wrong = sorted((file for file in files if file.failure is not None), key=lambda file: file.uri)
    size = sum(item.size for item in files) + sum(item.metadata_bytes for item in checkpoints)
    failed = [_failure_row(file) for file in wrong]
    result: dict[str, Any] = {
        "checkpoints": sorted(item.location.external_pointer for item in checkpoints),
        "files": len(files) + len(checkpoints),
        "bytes": size,
        "failed": failed,
        "damaged": _damaged_checkpoints(wrong, checkpoints),
    }
    if options.json:
        print_json(result)
    else:
        print_table([{key: str(row[key]) for key in ("problem", "uri")} for row in failed])
        for file in wrong:
            print_status(str(file.failure))
        for pointer in result["damaged"]:
            print_line(f"damaged checkpoint: {pointer}")
        if checkpoints or wrong:
            print_line(_summary(result))
    if wrong:
        return _FAILED
    if not checkpoints and not task.missing:
        print_status(f"no completed checkpoint or savepoint below {', '.join(options.pointers)}")
    return _NOTHING_FOUND if task.missing or not checkpoints else 0


def _verify(
    options: argparse.Namespace,
) -> tuple[_Selection, list[VerifiedFile], list[CompletedCheckpoint]]:
    """Verify until no checkpoint is deleted in the meantime; return all files that were read, and the checkpoints."""
    files: list[VerifiedFile] = []
    checkpoints: list[CompletedCheckpoint] = []
    seen: set[str] = set()
    # Running jobs replace checkpoints that they delete: the new ones are verified in the next pass.
    for _ in range(_MAX_PASSES):
        task = _select(options)
        files += [file for file in task.failed if file not in files]
        new = [item for pointer, item in task.checkpoints.items() if pointer not in seen]
        seen |= task.checkpoints.keys()
        gone: list[CompletedCheckpoint] = []
        files += _verify_files(new, files, gone)
        checkpoints += [item for item in new if item not in gone]
        if not gone:
            break
        if not options.all:
            for item in gone:
                print_status(f"{item.location.external_pointer} was deleted while it was read")
    else:
        print_status(
            "checkpoints are deleted faster than they can be read; keep more of them "
            "(spark.holdfast.checkpoint.num-retained), or verify a copy (holdfast copy)"
        )
        task.missing += 1
    return task, files, checkpoints


def _verify_files(
    checkpoints: list[CompletedCheckpoint],
    before: list[VerifiedFile],
    gone: list[CompletedCheckpoint],
) -> list[VerifiedFile]:
    """Verify the files that were not verified before, and collect checkpoints that are deleted in the meantime."""
    known = {(file.uri, file.size) for file in before}
    streams = (stream for checkpoint in checkpoints for stream in all_streams(checkpoint))
    total = sum(file.size for file in files_of(streams) if (file.uri, file.size) not in known)
    with progress("verifying", total) as advance:
        return list(
            verify_checkpoints(checkpoints, on_bytes=advance, on_gone=gone.append, known=known)
        )


def _select(options: argparse.Namespace) -> _Selection:
    """Load the checkpoints to verify; a corrupt `_metadata` is a failed file."""
    task = _Selection()
    for pointer in options.pointers:
        loaded: Sequence[CompletedCheckpoint | VerifiedFile]
        try:
            loaded = (
                list(_below(options, pointer))
                if options.all
                else [resolve_checkpoint(options, pointer)]
            )
        except CheckpointNotFoundError as error:
            print_status(str(error))
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
    configure_stores(options, directory)
    for listed in find_checkpoints(directory):
        metadata = uripath.join(listed.pointer, METADATA_FILE)
        if listed.checkpoint is None:
            yield VerifiedFile(metadata, 0, listed.failure)
            continue
        try:
            configure_stores(options, *directories_of(listed.checkpoint))
        except InvalidRequestError:
            raise
        except CheckpointError as failure:  # in the list of Spark's files
            yield VerifiedFile(metadata, listed.checkpoint.metadata_bytes, failure)
        else:
            yield listed.checkpoint


def _damaged_checkpoints(
    wrong: list[VerifiedFile], checkpoints: list[CompletedCheckpoint]
) -> list[str]:
    """Return the pointers of the checkpoints that need one of the wrong files, sorted."""
    uris = {file.uri for file in wrong}
    damaged = {
        item.location.external_pointer
        for item in checkpoints
        if not uris.isdisjoint(file.uri for file in files_of(all_streams(item)))
    }
    damaged |= {uripath.parent(uri) for uri in uris if uripath.name(uri) == METADATA_FILE}
    return sorted(damaged)


def _failure_row(file: VerifiedFile) -> dict[str, Any]:
    if isinstance(file.failure, CheckpointNotFoundError):
        problem = "missing"
    elif isinstance(file.failure, CheckpointCorruptedError):
        problem = "corrupt"
    else:
        problem = "unreadable"
    return {"uri": file.uri, "bytes": file.size, "problem": problem, "message": str(file.failure)}


def _summary(result: dict[str, Any]) -> str:
    wrong = len(result["failed"])
    verdict = f"{count_text(wrong, 'file')} corrupt or missing" if wrong else "all checksums match"
    return (
        f"{count_text(len(result['checkpoints']), 'checkpoint')}, "
        f"{count_text(result['files'], 'file')}, {bytes_text(result['bytes'])}: {verdict}"
    )
