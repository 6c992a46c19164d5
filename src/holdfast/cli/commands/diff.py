"""`holdfast diff`: how two checkpoints differ."""

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from holdfast.cli.command import add_command, add_json
from holdfast.cli.output import bytes_text, count_text, print_json, print_line, print_pairs
from holdfast.cli.pointed_checkpoint import POINTER_HELP, follow, pointed, progress_in, summary
from holdfast.cli.stores import add_stores
from holdfast.locations.handles import FileStateHandle
from holdfast.locations.metadata import CheckpointMetadata
from holdfast.locations.storages import CompletedCheckpoint
from holdfast.spark_progress import (
    HISTORY,
    SPARK,
    SPARK_FILES,
    SparkFilesComparison,
    all_streams,
    compare_spark_files,
    spark_files_of,
)

if TYPE_CHECKING:
    from holdfast.backends.inspection import FileComparison
    from holdfast.cli.command import Commands

_SHOWN = 8
"""Subtasks that are named."""

_TIME = "batchTimestampMs"

_FORMS = "forms"
"""Texts that only tell types of classes apart: long, and not for people."""


def add_to(commands: "Commands") -> None:
    """Add the command."""
    command = add_command(
        commands,
        "diff",
        diff_command,
        help="compare two checkpoints or savepoints",
        description=(
            "Compare two checkpoints or savepoints: operators and states, how they are\n"
            "stored and which subtask has them, where the query stood, what sinks have\n"
            "noted, Spark's files of savepoints, and which files both lead to. Files are\n"
            "compared by their checksums: a copy is like what it was made of. Status 0 if\n"
            "they are alike, 1 if they differ, as that of diff(1)."
        ),
        examples="""
            holdfast diff file:///data/holdfast/totals/chk-11 file:///data/holdfast/totals/chk-12
            holdfast diff s3://bucket/savepoints s3://bucket/checkpoints/totals
        """,
    )
    command.add_argument("first", help=POINTER_HELP)
    command.add_argument("second", help="the same for the other one")
    add_json(command, "one object with everything")
    add_stores(command)


def diff_command(options: argparse.Namespace) -> int:
    """Print the differences; the status is 0 if there are none, else 1."""
    first, second = (pointed(options, pointer) for pointer in (options.first, options.second))
    comparison = follow(
        options,
        options.first,
        first,
        lambda one: follow(options, options.second, second, lambda other: _compared(one, other)),
    )
    if options.json:
        print_json(comparison)
    else:
        _print(comparison)
    return 0 if comparison["is_same"] else 1


def _compared(first: CompletedCheckpoint, second: CompletedCheckpoint) -> dict[str, Any]:
    # Not at the top: it takes a while to load Arrow, and other commands need none.
    from holdfast.backends.inspection import compare, compare_files, compare_subtasks  # noqa: PLC0415

    metadata = first.metadata, second.metadata
    differences = compare(*metadata)
    subtasks = compare_subtasks(*metadata)
    coordinator_states = _other_coordinator_states(*metadata)
    # Where only one is a savepoint, it is the state of operators that both have.
    both = (first, second)
    are_savepoints = all(
        SPARK_FILES in checkpoint.metadata.coordinator_states for checkpoint in both
    )
    spark_files = _compared_spark_files(*both) if are_savepoints else None
    streams = [
        all_streams(checkpoint) if are_savepoints else checkpoint.metadata.streams()
        for checkpoint in both
    ]
    files = compare_files(*streams)
    progress = {
        name: [before, after]
        for name, before, after in zip(
            ("job", "batch", "query_id", "offsets"), _stood(first), _stood(second), strict=True
        )
        if before != after
    }
    return {
        "is_same": not (differences or subtasks or coordinator_states or progress)
        and (spark_files is None or spark_files.is_same)
        and files.is_same,
        "first": summary(first),
        "second": summary(second),
        "progress": progress,
        "operators": [asdict(difference) for difference in differences],
        "subtasks": subtasks,
        "coordinator_states": coordinator_states,
        "spark_files": None if spark_files is None else asdict(spark_files),
        "files": _files(files),
    }


def _other_coordinator_states(first: CheckpointMetadata, second: CheckpointMetadata) -> list[str]:
    """Names of the coordinator's states that differ; without Spark's own, which are compared apart, and the history."""
    old, new = first.coordinator_states, second.coordinator_states
    names = sorted((old.keys() | new.keys()) - {SPARK, SPARK_FILES, HISTORY})
    return [name for name in names if old.get(name) != new.get(name)]


def _compared_spark_files(
    first: CompletedCheckpoint, second: CompletedCheckpoint
) -> SparkFilesComparison:
    old, new = (
        spark_files_of(checkpoint.metadata, checkpoint.location.external_pointer)
        for checkpoint in (first, second)
    )
    return compare_spark_files(old, new)


def _stood(checkpoint: CompletedCheckpoint) -> tuple[Any, ...]:
    """Where a query stood: its job, and its batch, id and offsets if it was one of Spark's."""
    progress = progress_in(checkpoint)
    job = checkpoint.metadata.job_id
    if progress is None:
        return job, None, None, None
    return job, progress.batch_id, progress.query_id, progress.offsets


def _files(files: "FileComparison") -> dict[str, Any]:
    def listed(some: tuple[FileStateHandle, ...]) -> list[dict[str, Any]]:
        return [{"uri": file.uri, "bytes": file.size} for file in some]

    return {
        "only_first": listed(files.only_first),
        "only_second": listed(files.only_second),
        "shared": listed(files.shared),
        "copies": listed(files.copies),
        "inline_differs": files.inline_differs,
    }


def _print(comparison: dict[str, Any]) -> None:
    for side in ("first", "second"):
        checkpoint = comparison[side]
        print_line(
            f"{side}: {checkpoint['kind']} {checkpoint['checkpoint']}, {checkpoint['pointer']}"
        )
    if comparison["is_same"]:
        print_line("alike: the same states, bytes and progress")
        return
    kinds = ("progress", "operators", "subtasks", "coordinator_states", "spark_files")
    if any(comparison[kind] for kind in kinds):
        print_line()
    for name, (before, after) in comparison["progress"].items():
        if name == "offsets" and before and after:
            _print_offsets(before, after)
        else:
            _print_change(name.removesuffix("_id"), before, after)
    _print_operators(comparison["operators"])
    for uid, indices in comparison["subtasks"].items():
        print_line(f"operator {uid}: other state in {_subtasks_text(indices)}")
    for name in comparison["coordinator_states"]:
        print_line(f"{name}: not the same")
    if comparison["spark_files"] is not None:
        _print_spark_files(comparison["spark_files"])
    _print_files(comparison["files"])


def _print_operators(operators: list[dict[str, Any]]) -> None:
    for operator in operators:
        what = (
            f"state {operator['state']} of {operator['operator']}"
            if operator["state"]
            else f"operator {operator['operator']}"
        )
        if operator["change"] != "changed":
            print_line(f"{what}: {operator['change']}")
        changes = operator["changes"]
        for name, (before, after) in changes.items():
            if name != _FORMS:
                _print_change(f"{what}: {name.replace('_', ' ')}", before, after)
            elif "arrow_type" not in changes:  # else that shows what is different
                print_line(f"{what}: its classes have other fields, defaults or types")


def _subtasks_text(indices: list[int]) -> str:
    shown = ", ".join(map(str, indices[:_SHOWN]))
    more = f" and {len(indices) - _SHOWN} more" if len(indices) > _SHOWN else ""
    return f"{'subtask' if len(indices) == 1 else 'subtasks'} {shown}{more}"


def _print_spark_files(files: dict[str, Any]) -> None:
    if files["is_committed"] is not None:
        _print_change("Spark has noted the batch as done", *files["is_committed"])
    for name, (before, after) in files["settings"].items():
        _print_change(name, before, after)
    if files["paths"]:
        print_line(f"Spark's own: {count_text(len(files['paths']), 'file')} not the same")


def _print_offsets(before: str, after: str) -> None:
    """Print how two entries of Spark's offset log differ; the time only if nothing else does."""
    try:
        old, new = _entry(before), _entry(after)
    except (ValueError, TypeError, AttributeError):  # no entry as Spark writes it
        _print_change("offsets", before, after)
        return
    names = [name for name in sorted(old | new) if old.get(name) != new.get(name)]
    if not names:  # written in another way
        _print_change("offsets", before, after)
    for name in names:
        if name != _TIME or len(names) == 1:
            _print_change(name, old.get(name), new.get(name))


def _entry(offsets: str) -> dict[str, Any]:
    """The version, settings, time, watermark and offsets of an entry of the log, by name.

    Raises:
        ValueError: The text is no such entry; `TypeError` and `AttributeError` mean the same.
    """
    log_version, *lines = offsets.splitlines()
    settings = json.loads(lines[0]) if lines else {}
    sources = {f"offsets of source {number}": source for number, source in enumerate(lines[1:])}
    return {"version of the log": log_version, **settings.pop("conf", {}), **settings, **sources}


def _print_change(what: str, before: Any, after: Any) -> None:
    old, new = _text(before), _text(after)
    if "\n" in old + new or len(what) + len(old) + len(new) > 70:
        print_line(f"{what}:")
        for sign, text in (("-", old), ("+", new)):
            for line in text.splitlines():
                print_line(f"  {sign} {line}")
    else:
        print_line(f"{what}: {old} -> {new}")


def _text(value: Any) -> str:
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value in (None, "") else str(value)


def _print_files(files: dict[str, Any]) -> None:
    print_line()
    kinds = {
        "only_first": "files only in the first",
        "only_second": "files only in the second",
        "shared": "files of both",
        "copies": "same bytes elsewhere",
    }
    pairs = {}
    for key, title in kinds.items():
        size = sum(file["bytes"] for file in files[key])
        pairs[title] = f"{count_text(len(files[key]), 'file')}, {bytes_text(size)}"
    pairs["state in metadata"] = "differs" if files["inline_differs"] else "is the same"
    print_pairs(pairs)
