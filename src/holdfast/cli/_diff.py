"""`holdfast diff`: what is not the same in two checkpoints."""

import argparse
import json
from dataclasses import asdict
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from holdfast.cli._checkpoints import POINTER_HELP, pointed, progress_in, summary
from holdfast.cli._command import add_command, add_json
from holdfast.cli._output import bytes_text, count_text, print_json, print_pairs
from holdfast.cli._stores import add_stores
from holdfast.locations import CompletedCheckpoint, FileStateHandle
from holdfast.spark_side import SPARK_FILES, all_streams

if TYPE_CHECKING:
    from holdfast.backends import FileComparison
    from holdfast.cli._command import Commands


def add_to(commands: "Commands") -> None:
    """Add the command."""
    command = add_command(
        commands,
        "diff",
        diff_command,
        help="compare two checkpoints or savepoints",
        description=(
            "Compare two checkpoints or savepoints: operators and states, how they are\n"
            "stored, where the query stood, and which files both lead to. Files are\n"
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
    """Print what differs; status 0 if nothing does, 1 if something does."""
    found = _compared(pointed(options, options.first), pointed(options, options.second))
    if options.json:
        print_json(found)
    else:
        _print(found)
    return 0 if found["is_same"] else 1


def _compared(first: CompletedCheckpoint, second: CompletedCheckpoint) -> dict[str, Any]:
    # Not at the top: it takes a while to load Arrow, and other commands need none.
    from holdfast.backends import compare, compare_files  # noqa: PLC0415

    differences = compare(first.metadata, second.metadata)
    # Where only one is a savepoint, it is the state of operators that both have.
    both = (first, second)
    are_savepoints = all(SPARK_FILES in one.metadata.coordinator_states for one in both)
    streams = [all_streams(one) if are_savepoints else one.metadata.streams() for one in both]
    files = compare_files(*streams)
    progress = {
        name: [before, after]
        for name, before, after in zip(
            ("job", "batch", "query_id", "offsets"), _stood(first), _stood(second), strict=True
        )
        if before != after
    }
    return {
        "is_same": not (differences or progress) and files.is_same,
        "first": summary(first),
        "second": summary(second),
        "progress": progress,
        "operators": [asdict(one) for one in differences],
        "files": _files(files),
    }


def _stood(checkpoint: CompletedCheckpoint) -> tuple[Any, ...]:
    """Where a query was."""
    progress = progress_in(checkpoint)
    job = checkpoint.metadata.job_id
    if progress is None:
        return job, None, None, None
    return job, progress.batch_id, progress.query_id, progress.offsets


def _files(files: "FileComparison") -> dict[str, Any]:
    def listed(some: tuple[FileStateHandle, ...]) -> list[dict[str, Any]]:
        return [{"uri": one.uri, "bytes": one.size} for one in some]

    return {
        "only_first": listed(files.only_first),
        "only_second": listed(files.only_second),
        "shared": listed(files.shared),
        "copies": listed(files.copies),
        "inline_differs": files.inline_differs,
    }


def _print(found: dict[str, Any]) -> None:
    for side in ("first", "second"):
        one = found[side]
        print(f"{side}: {one['kind']} {one['checkpoint']}, {one['pointer']}")
    if found["is_same"]:
        print("alike: the same states, bytes and progress")
        return
    if found["progress"] or found["operators"]:
        print()
    for name, (before, after) in found["progress"].items():
        if name == "offsets" and before and after:
            _print_offsets(before, after)
        else:
            _print_change(name.removesuffix("_id"), before, after)
    for one in found["operators"]:
        what = f"state {one['state']} of {one['uid']}" if one["state"] else f"operator {one['uid']}"
        if one["what"] != "changed":
            print(f"{what}: {one['what']}")
        for name, (before, after) in one["changes"].items():
            _print_change(f"{what}: {name.replace('_', ' ')}", before, after)
    _print_files(found["files"])


def _print_offsets(before: str, after: str) -> None:
    """What differs in entries of Spark's offset log: sources, watermark, settings; not the time."""
    (old_settings, old), (new_settings, new) = _entry(before), _entry(after)
    for name in sorted(old_settings | new_settings):
        values = old_settings.get(name), new_settings.get(name)
        if values[0] != values[1]:
            _print_change(name, *values)
    for number, (one, other) in enumerate(zip_longest(old, new)):
        if one != other:
            _print_change(f"offsets of source {number}", one, other)


def _entry(offsets: str) -> tuple[dict[str, Any], list[str]]:
    """Settings with the watermark, and a line for each source; the first line is the version."""
    head, *sources = offsets.splitlines()[1:] or ["{}"]
    found: dict[str, Any] = json.loads(head)
    found.pop("batchTimestampMs", None)
    return {**found.pop("conf", {}), **found}, sources


def _print_change(what: str, before: Any, after: Any) -> None:
    old, new = _text(before), _text(after)
    if "\n" in old + new or len(what) + len(old) + len(new) > 70:
        print(f"{what}:")
        for sign, text in (("-", old), ("+", new)):
            for line in text.splitlines():
                print(f"  {sign} {line}")
    else:
        print(f"{what}: {old} -> {new}")


def _text(value: Any) -> str:
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value in (None, "") else str(value)


def _print_files(files: dict[str, Any]) -> None:
    print()
    kinds = {
        "only_first": "files only in the first",
        "only_second": "files only in the second",
        "shared": "files of both",
        "copies": "same bytes elsewhere",
    }
    pairs = {}
    for key, title in kinds.items():
        size = sum(one["bytes"] for one in files[key])
        pairs[title] = f"{count_text(len(files[key]), 'file')}, {bytes_text(size)}"
    pairs["state in metadata"] = "differs" if files["inline_differs"] else "is the same"
    print_pairs(pairs)
