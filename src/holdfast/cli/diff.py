"""`holdfast diff`: the differences between two checkpoints."""

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from holdfast.cli.listing import checkpoint_row
from holdfast.cli.options import (
    POINTER_HELP,
    STORES,
    command,
    json_option,
    option,
    resolve_checkpoint,
    retry_if_deleted,
)
from holdfast.cli.output import bytes_text, count_text, print_json, print_line, print_pairs
from holdfast.locations.metadata import CheckpointMetadata
from holdfast.locations.storages import CompletedCheckpoint
from holdfast.spark_progress import (
    HISTORY,
    SPARK,
    SPARK_FILES,
    all_streams,
    compare_spark_files,
    find_progress,
    find_spark_files,
)

if TYPE_CHECKING:
    from holdfast.backends.inspection import FileComparison

_MAX_SUBTASKS = 8
"""Number of subtasks to list."""

_KINDS_OF_FILES = {
    "only_first": "files only in the first",
    "only_second": "files only in the second",
    "shared": "files of both",
    "copies": "same bytes elsewhere",
}

_TIME = "batchTimestampMs"

_FORMS = "forms"
"""Long texts that distinguish types of classes, and are not readable."""


@command(
    "diff",
    help="compare two checkpoints or savepoints",
    description="Compare two checkpoints or savepoints: operators and states, how they are\n"
    "stored and in which subtask, the progress of the query, the states of sinks,\n"
    "Spark's files of savepoints, and shared files. Files are compared by their\n"
    "checksums, so a copy is equal to its original. As with diff(1), status 0 means\n"
    "equal, and 1 different.",
    examples="""
        holdfast diff file:///data/holdfast/totals/chk-11 file:///data/holdfast/totals/chk-12
        holdfast diff s3://bucket/savepoints s3://bucket/checkpoints/totals
    """,
    options=[
        option("first", metavar="FIRST", help=POINTER_HELP),
        option("second", metavar="SECOND", help="the same for the second"),
        json_option("one object with everything"),
        STORES,
    ],
)
def diff_command(options: argparse.Namespace) -> int:
    """Print the differences; the status is 1 if there are any, else 0."""
    first, second = (
        resolve_checkpoint(options, pointer) for pointer in (options.first, options.second)
    )
    comparison = retry_if_deleted(
        options,
        options.first,
        first,
        lambda old: retry_if_deleted(
            options, options.second, second, lambda new: _compare(old, new)
        ),
    )
    if options.json:
        print_json(comparison)
    else:
        _print(comparison)
    return 0 if comparison["is_same"] else 1


def _compare(first: CompletedCheckpoint, second: CompletedCheckpoint) -> dict[str, Any]:
    from holdfast.backends.inspection import (  # noqa: PLC0415  # loads Arrow
        compare_files,
        compare_states,
        compare_subtasks,
    )

    metadata = first.metadata, second.metadata
    differences = compare_states(*metadata)
    subtasks = compare_subtasks(*metadata)
    coordinator_states = _other_coordinator_states(*metadata)
    # If only one is a savepoint, only the state of operators is compared.
    old, new = find_spark_files(first), find_spark_files(second)
    if old is None or new is None:
        spark_files = None
        files = compare_files(*(each.streams() for each in metadata))
    else:
        spark_files = compare_spark_files(old, new)
        files = compare_files(all_streams(first), all_streams(second))
    progress = {
        name: [before, after]
        for name, before, after in zip(
            ("job", "batch", "query_id", "offsets"),
            _position(first),
            _position(second),
            strict=True,
        )
        if before != after
    }
    return {
        "is_same": not (differences or subtasks or coordinator_states or progress)
        and (spark_files is None or spark_files.is_same)
        and files.is_same,
        "first": checkpoint_row(first),
        "second": checkpoint_row(second),
        "progress": progress,
        "operators": [asdict(difference) for difference in differences],
        "subtasks": subtasks,
        "coordinator_states": coordinator_states,
        "spark_files": None if spark_files is None else asdict(spark_files),
        "files": _files(files),
    }


def _other_coordinator_states(first: CheckpointMetadata, second: CheckpointMetadata) -> list[str]:
    """Return the names of coordinator states that differ, without the history and the states of Spark."""
    old, new = first.coordinator_states, second.coordinator_states
    names = sorted((old.keys() | new.keys()) - {SPARK, SPARK_FILES, HISTORY})
    return [name for name in names if old.get(name) != new.get(name)]


def _position(checkpoint: CompletedCheckpoint) -> tuple[Any, ...]:
    """Return the job, and batch, query id and offsets if a Spark query took the checkpoint."""
    job, progress = checkpoint.metadata.job_id, find_progress(checkpoint.metadata)
    if progress is None:
        return job, None, None, None
    return job, progress.batch_id, progress.query_id, progress.offsets


def _files(files: "FileComparison") -> dict[str, Any]:
    rows = {
        name: [{"uri": file.uri, "bytes": file.size} for file in getattr(files, name)]
        for name in _KINDS_OF_FILES
    }
    return {**rows, "inline_differs": files.inline_differs}


def _print(comparison: dict[str, Any]) -> None:
    for side in ("first", "second"):
        checkpoint = comparison[side]
        print_line(
            f"{side}: {checkpoint['kind']} {checkpoint['checkpoint']}, {checkpoint['pointer']}"
        )
    if comparison["is_same"]:
        print_line("equal: the same states, bytes and progress")
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
        print_line(f"operator {uid}: different state in {_subtasks_text(indices)}")
    for name in comparison["coordinator_states"]:
        print_line(f"{name}: different")
    if comparison["spark_files"] is not None:
        _print_spark_files(comparison["spark_files"])
    _print_files(comparison["files"])


def _print_operators(operators: list[dict[str, Any]]) -> None:
    for operator in operators:
        subject = (
            f"state {operator['state']} of {operator['operator']}"
            if operator["state"]
            else f"operator {operator['operator']}"
        )
        if operator["change"] != "changed":
            print_line(f"{subject}: {operator['change']}")
        changes = operator["changes"]
        for name, (before, after) in changes.items():
            if name != _FORMS:
                _print_change(f"{subject}: {name.replace('_', ' ')}", before, after)
            elif "arrow_type" not in changes:  # else that shows the difference
                print_line(f"{subject}: its classes have different fields, defaults or types")


def _subtasks_text(indices: list[int]) -> str:
    shown = ", ".join(map(str, indices[:_MAX_SUBTASKS]))
    more = f" and {len(indices) - _MAX_SUBTASKS} more" if len(indices) > _MAX_SUBTASKS else ""
    return f"{'subtask' if len(indices) == 1 else 'subtasks'} {shown}{more}"


def _print_spark_files(files: dict[str, Any]) -> None:
    if files["is_committed"] is not None:
        _print_change("batch is committed in Spark's log", *files["is_committed"])
    for name, (before, after) in files["settings"].items():
        _print_change(name, before, after)
    if files["paths"]:
        print_line(f"Spark's files: {count_text(len(files['paths']), 'file')} different")


def _print_offsets(before: str, after: str) -> None:
    """Print the differences of two entries of Spark's offset log; the time only if it is the only one."""
    try:
        old, new = _entry(before), _entry(after)
    except (ValueError, TypeError, AttributeError):  # not an entry of Spark's log
        _print_change("offsets", before, after)
        return
    names = [name for name in sorted(old | new) if old.get(name) != new.get(name)]
    if not names:  # formatted differently
        _print_change("offsets", before, after)
    for name in names:
        if name != _TIME or len(names) == 1:
            _print_change(name, old.get(name), new.get(name))


def _entry(offsets: str) -> dict[str, Any]:
    """Parse an entry of the log into version, settings, time, watermark and offsets, by name.

    Raises:
        ValueError: The text is not a valid entry; so do `TypeError` and `AttributeError`.
    """
    log_version, *lines = offsets.splitlines()
    settings = json.loads(lines[0]) if lines else {}
    sources = {f"offsets of source {number}": source for number, source in enumerate(lines[1:])}
    return {"version of the log": log_version, **settings.pop("conf", {}), **settings, **sources}


def _print_change(name: str, before: Any, after: Any) -> None:
    old, new = _text(before), _text(after)
    if "\n" in old + new or len(name) + len(old) + len(new) > 70:
        print_line(f"{name}:")
        for sign, text in (("-", old), ("+", new)):
            for line in text.splitlines():
                print_line(f"  {sign} {line}")
    else:
        print_line(f"{name}: {old} -> {new}")


def _text(value: Any) -> str:
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value in (None, "") else str(value)


def _print_files(files: dict[str, Any]) -> None:
    print_line()
    pairs = {}
    for key, title in _KINDS_OF_FILES.items():
        size = sum(file["bytes"] for file in files[key])
        pairs[title] = f"{count_text(len(files[key]), 'file')}, {bytes_text(size)}"
    pairs["state in metadata"] = "different" if files["inline_differs"] else "equal"
    print_pairs(pairs)
