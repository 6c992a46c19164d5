"""`holdfast show`: everything in a checkpoint except the elements of its states."""

import argparse
import json
import statistics
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.cli.options import (
    POINTER,
    STORES,
    claimant_values,
    command,
    exit_if_missing,
    flag,
    json_option,
    resolve_checkpoint,
    retry_if_deleted,
)
from holdfast.cli.output import (
    bytes_text,
    count_text,
    ms_text,
    print_json,
    print_line,
    print_pairs,
    print_status,
    print_table,
    second_text,
    span_text,
)
from holdfast.errors import CheckpointError
from holdfast.locations.coordination import deleted_error, is_gone
from holdfast.locations.handles import FileStateHandle, files_of
from holdfast.locations.storages import CompletedCheckpoint
from holdfast.spark_progress import (
    HISTORY,
    SPARK,
    SPARK_FILES,
    CheckpointView,
    all_streams,
    find_progress,
    find_spark_files,
    iso_time,
    sources_of,
)

if TYPE_CHECKING:
    from holdfast.backends.inspection import ShownColumn, StoredState

_MEASURES = (
    *("rows_in", "rows_out", "rows_late", "state_bytes"),
    *("restore_ms", "process_ms", "sync_ms", "async_ms"),
)
_FETCH_MEASURES = ("fetched_bytes", "fetch_requests", "fetch_ms")


@command(
    "show",
    help="show what is in a checkpoint or savepoint",
    description="Show what is in a checkpoint or savepoint: operators, their states and how\n"
    "those are stored, sizes, statistics of subtasks, and Spark's progress. Elements\n"
    "are not read.",
    examples="""
        holdfast show file:///data/holdfast
        holdfast show s3://bucket/checkpoints/totals/chk-12 --subtasks
    """,
    options=[
        POINTER,
        flag("--subtasks", "statistics of each subtask, instead of minimum, median and maximum"),
        json_option("one object with everything"),
        STORES,
    ],
)
def show_command(options: argparse.Namespace) -> int:
    """Print the contents of the checkpoint."""
    with exit_if_missing():
        checkpoint = resolve_checkpoint(options, options.pointer)
    shown = retry_if_deleted(options, options.pointer, checkpoint, checkpoint_values)
    if options.json:
        print_json(shown)
    else:
        _print(shown, subtasks=options.subtasks, now_s=options.clock.now_ms() / 1000)
    return 0


def checkpoint_values(checkpoint: CompletedCheckpoint) -> dict[str, Any]:
    """Return the values to show, as in `--json`. Raises `CheckpointNotFoundError` if the checkpoint is deleted in the meantime."""
    from holdfast.backends.inspection import states_of  # noqa: PLC0415  # loads Arrow

    metadata = checkpoint.metadata
    pointer = checkpoint.location.external_pointer
    view: dict[str, Any] = msgspec.to_builtins(CheckpointView.of(checkpoint))
    for uid, operator in metadata.operators.items():
        states = [state_values(state) for state in states_of(uid, operator)]
        if any(state["failure"] for state in states) and is_gone(checkpoint):
            raise deleted_error(pointer)
        view["operators"][uid]["states"] = states
    progress = find_progress(metadata)
    others = metadata.coordinator_states.keys() - {SPARK, SPARK_FILES, HISTORY}
    return view | {
        "claimed_by": claimant_values(pointer),
        "commit_token": metadata.commit_token,
        "spark": None
        if progress is None
        else {
            **msgspec.structs.asdict(progress),
            "watermark": progress.times[1],
            "sources": list(map(_source, sources_of(progress.offsets))),
        },
        "spark_files": _spark_files(checkpoint),
        "coordinator_states": {
            name: len(metadata.coordinator_states[name]) for name in sorted(others)
        },
        "files": [
            {"uri": file.uri, "bytes": file.size} for file in files_of(all_streams(checkpoint))
        ],
    }


def _source(offsets: str) -> Any:
    """Parse the offsets of a source; return their text if they are not JSON."""
    try:
        return json.loads(offsets)
    except (ValueError, RecursionError):
        return offsets


def _source_text(source: Any) -> str:
    """Format the offsets of a source, with a line for each topic if it has topics with partitions, such as Kafka."""
    is_by_topic = (
        isinstance(source, dict)
        and bool(source)
        and all(isinstance(partitions, dict) and partitions for partitions in source.values())
    )
    if not is_by_topic:
        return source if isinstance(source, str) else json.dumps(source, separators=(",", ":"))
    return "\n".join(
        f"{topic}: "
        + ", ".join(f"partition {number} at {offset}" for number, offset in partitions.items())
        for topic, partitions in source.items()
    )


def _spark_files(checkpoint: CompletedCheckpoint) -> dict[str, Any] | None:
    content = find_spark_files(checkpoint)
    if content is None:
        return None
    return {
        "is_committed": content.is_committed,
        "settings": content.settings,
        "bytes": sum(file.handle.size for file in content.files),
        "files": [
            {
                "path": file.path,
                "bytes": file.handle.size,
                "uri": file.handle.uri if isinstance(file.handle, FileStateHandle) else None,
            }
            for file in content.files
        ],
    }


def state_values(state: "StoredState") -> dict[str, Any]:
    """Return the values of a state to show; `failure` has the error if its columns can't be read."""
    columns: tuple[ShownColumn, ...] = ()
    failure = None
    try:
        columns = state.readable().content
    except CheckpointError as error:
        failure = str(error)
    row = state.row(columns)
    del row["operator"]
    return {
        **row,
        "columns": [
            {
                "name": column.name,
                "type": column.stored_name,
                "arrow_type": str(column.type),
                "stored_as": column.kind,
            }
            for column in columns
        ],
        "failure": failure,
    }


def _print(shown: dict[str, Any], *, subtasks: bool, now_s: float) -> None:
    age = span_text(now_s - shown["completed_ms"] / 1000)
    epoch = f", in epoch {shown['epoch']}" if shown["epoch"] else ""
    print_line(f"{shown['kind']} {shown['checkpoint']} of job {shown['job']}")
    pairs = {
        "pointer": shown["pointer"],
        "completed": f"{second_text(shown['completed'])} UTC, {age} ago",
        "duration": ms_text(shown["duration_ms"]),
        "written by": shown["writer"] + epoch,
        "size": f"{bytes_text(shown['total_bytes'])}: {bytes_text(shown['new_bytes'])} new, "
        f"{bytes_text(shown['referenced_bytes'])} referenced",
        "files": f"{count_text(len(shown['files']), 'file')} and metadata of "
        f"{bytes_text(shown['metadata_bytes'])}",
    }
    print_pairs(pairs | _claim_pairs(shown) | _spark_pairs(shown))
    for uid, operator in shown["operators"].items():
        print_line()
        _print_operator(uid, operator, subtasks=subtasks)


def _claim_pairs(shown: dict[str, Any]) -> dict[str, str]:
    pairs = {}
    if (holder := shown["claimed_by"]) is not None:
        pairs["claimed by"] = (
            f"job {holder['job']} in {holder['directory']}, {second_text(holder['claimed'])} UTC"
        )
    if shown["has_claimed"]:
        pairs["has claimed"] = "\n".join(shown["has_claimed"])
    return pairs


def _spark_pairs(shown: dict[str, Any]) -> dict[str, str]:
    pairs = {}
    if (spark := shown["spark"]) is not None:
        name = f"{spark['query_name']}, " if spark["query_name"] else ""
        pairs = {
            "batch": str(spark["batch_id"]),
            "query": f"{name}{spark['query_id']}, on Spark {spark['spark_version']}",
            "run": spark["run_id"],
            "checkpointLocation": spark["checkpoint_location"],
        }
        if spark["watermark"]:
            pairs["watermark"] = iso_time(spark["watermark"])
        pairs["offsets"] = "\n".join(map(_source_text, spark["sources"])) or "-"
    if (files := shown["spark_files"]) is not None:
        commit = "committed" if files["is_committed"] else "not committed"
        size = f"{count_text(len(files['files']), 'file')}, {bytes_text(files['bytes'])}"
        pairs["Spark's files"] = f"{size}; the batch is {commit} in Spark's log"
    for name, size in shown["coordinator_states"].items():
        pairs[name] = bytes_text(size)
    return pairs


def _print_operator(uid: str, operator: dict[str, Any], *, subtasks: bool) -> None:
    key = operator["key"]
    partitioning = f"by {', '.join(key)} ({operator['key_hash']})" if key else "evenly"
    print_line(
        f"operator {uid}: {count_text(operator['parallelism'], 'subtask')}, "
        f"at most {operator['max_parallelism']}; rows partitioned {partitioning}"
    )
    print_table(
        [
            {
                "state": state["state"] or "-",
                "kind": state["kind"],
                "stored": str(state["stored_elements"]),
                "size": bytes_text(state["bytes"]),
                "type": "can't be read" if state["failure"] else state["type"],
            }
            for state in operator["states"]
        ],
        right=("stored", "size"),
    )
    for state in operator["states"]:
        if state["failure"]:
            print_status(state["failure"])
    _print_statistics(operator["subtasks"], subtasks=subtasks)


def _print_statistics(all_subtasks: list[dict[str, Any]], *, subtasks: bool) -> None:
    recorded = [subtask for subtask in all_subtasks if subtask["rows_in"] is not None]
    if not recorded:
        return
    print_line()
    has_fetched = any(subtask["fetch_requests"] for subtask in recorded)
    measures = (*_MEASURES, *(_FETCH_MEASURES if has_fetched else ()))
    if subtasks:
        rows = [
            {
                "subtask": str(subtask["subtask"]),
                **{_title(name): _measure(name, subtask[name]) for name in measures},
                "restored from": subtask["restored_from"] or "-",
            }
            for subtask in recorded
        ]
        print_table(rows, right=("subtask", *map(_title, measures)))
        return
    rows = []
    for name in measures:
        values = [subtask[name] for subtask in recorded]
        largest = max(recorded, key=lambda subtask: subtask[name])
        rows.append(
            {
                "per subtask": _title(name),
                "min": _measure(name, min(values)),
                "median": _measure(name, statistics.median(values)),
                "max": _measure(name, max(values)),
                "max in": str(largest["subtask"]),
            }
        )
    print_table(rows, right=("min", "median", "max", "max in"))


def _title(name: str) -> str:
    return name.removesuffix("_ms").replace("state_bytes", "written").replace("_", " ")


def _measure(name: str, value: float) -> str:
    if name.endswith("_ms"):
        return ms_text(value)
    return bytes_text(value) if name.endswith("_bytes") else f"{value:.0f}"
