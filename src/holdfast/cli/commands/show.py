"""`holdfast show`: all about one checkpoint, but for the elements of its states."""

import argparse
import json
import statistics
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.cli.command import add_command, add_json
from holdfast.cli.output import (
    age_text,
    bytes_text,
    count_text,
    print_json,
    print_line,
    print_pairs,
    print_table,
    say,
    time_text,
)
from holdfast.cli.pointed_checkpoint import POINTER_HELP, follow, pointed, progress_in, summary
from holdfast.cli.stores import add_stores
from holdfast.errors import CheckpointError, CheckpointNotFoundError
from holdfast.locations.coordination import files_of, is_gone
from holdfast.locations.handles import FileStateHandle
from holdfast.locations.metadata import StoredOperator, StoredSubtask, SubtaskStatistics
from holdfast.locations.storages import CompletedCheckpoint
from holdfast.spark_progress import (
    HISTORY,
    SPARK,
    SPARK_FILES,
    all_streams,
    sources_of,
    spark_files_of,
)

if TYPE_CHECKING:
    from holdfast.backends.inspection import ShownColumn, StoredState
    from holdfast.cli.command import Commands

_MILLISECONDS = ("restore_ms", "process_ms", "sync_ms", "async_ms")
_MEASURED = ("rows_in", "rows_out", "rows_late", "state_bytes", *_MILLISECONDS)


def add_to(commands: "Commands") -> None:
    """Add the command."""
    command = add_command(
        commands,
        "show",
        show_command,
        help="show what is in a checkpoint or savepoint",
        description=(
            "Show what is in a checkpoint or savepoint: operators, their states and how\n"
            "those are stored, sizes, what each subtask did, and Spark's progress. Elements\n"
            "are not read."
        ),
        examples="""
            holdfast show file:///data/holdfast
            holdfast show s3://bucket/checkpoints/totals/chk-12 --subtasks
        """,
    )
    command.add_argument("pointer", help=POINTER_HELP)
    command.add_argument(
        "--subtasks",
        action="store_true",
        help="what each subtask did, instead of least, median and most",
    )
    add_json(command, "one object with everything")
    add_stores(command)


def show_command(options: argparse.Namespace) -> int:
    """Print what the checkpoint holds."""
    try:
        checkpoint = pointed(options, options.pointer)
    except CheckpointNotFoundError as error:
        say(str(error))
        return 1
    shown = follow(options, options.pointer, checkpoint, _shown_whole)
    if options.json:
        print_json(shown)
    else:
        _print(shown, subtasks=options.subtasks, now_s=options.clock.now_ms() / 1000)
    return 0


def _shown_whole(checkpoint: CompletedCheckpoint) -> dict[str, Any]:
    """What the checkpoint holds. Raises `CheckpointNotFoundError` if it was deleted before all of it was read."""
    shown = _shown(checkpoint)
    states = (state for operator in shown["operators"].values() for state in operator["states"])
    if any(state["failure"] for state in states) and is_gone(checkpoint):
        message = "checkpoint was deleted while it was read"
        raise CheckpointNotFoundError(message, checkpoint.location.external_pointer)
    return shown


def _shown(checkpoint: CompletedCheckpoint) -> dict[str, Any]:
    # Not at the top: it takes a while to load Arrow, and other commands need none.
    from holdfast.backends.inspection import states_of  # noqa: PLC0415

    metadata = checkpoint.metadata
    progress = progress_in(checkpoint)
    others = metadata.coordinator_states.keys() - {SPARK, SPARK_FILES, HISTORY}
    return {
        **summary(checkpoint),
        "duration_ms": metadata.duration_ms,
        "epoch": metadata.epoch,
        "writer": metadata.writer,
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
        "operators": {
            uid: _operator(operator, states_of(uid, operator))
            for uid, operator in metadata.operators.items()
        },
        "files": [
            {"uri": file.uri, "bytes": file.size} for file in files_of(all_streams(checkpoint))
        ],
    }


def _source(offsets: str) -> Any:
    """Return the offsets of a source as JSON has them, or their text if they are no JSON."""
    try:
        return json.loads(offsets)
    except (ValueError, RecursionError):
        return offsets


def _source_text(source: Any) -> str:
    """Return the offsets of a source in a line for each topic, if it has topics with partitions, as Kafka has."""
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
    if SPARK_FILES not in checkpoint.metadata.coordinator_states:
        return None
    content = spark_files_of(checkpoint.metadata, checkpoint.location.external_pointer)
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


def _operator(operator: StoredOperator, states: "list[StoredState]") -> dict[str, Any]:
    return {
        "parallelism": operator.parallelism,
        "max_parallelism": operator.max_parallelism,
        "key": list(operator.key),
        "key_hash": operator.key_hash,
        "key_types": list(operator.key_types),
        "states": [_state(state) for state in states],
        "subtasks": {str(index): _subtask(state) for index, state in operator.subtasks.items()},
    }


def _state(state: "StoredState") -> dict[str, Any]:
    columns: tuple[ShownColumn, ...] = ()
    failure = None
    try:
        columns = state.readable().content
    except CheckpointError as error:
        failure = str(error)
    row = state.row(columns)
    del row["operator"]  # whose states these are
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


def _subtask(subtask: StoredSubtask) -> dict[str, Any]:
    counted: SubtaskStatistics | None = subtask.statistics
    return {
        "stored_bytes": subtask.stored_bytes,
        "statistics": None
        if counted is None
        else {
            field: getattr(counted, field)
            for field in (*_MEASURED, "restored_from", "backend_metrics")
        },
    }


def _print(shown: dict[str, Any], *, subtasks: bool, now_s: float) -> None:
    completed = datetime.fromisoformat(shown["completed"])
    age = age_text(now_s - completed.timestamp())
    epoch = f", in epoch {shown['epoch']}" if shown["epoch"] else ""
    print_line(f"{shown['kind']} {shown['checkpoint']} of job {shown['job']}")
    pairs = {
        "pointer": shown["pointer"],
        "completed": f"{completed:%Y-%m-%d %H:%M:%S} UTC, {age} ago",
        "duration": _ms(shown["duration_ms"]),
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
        when = datetime.fromisoformat(holder["claimed"])
        pairs["claimed by"] = (
            f"job {holder['job']} in {holder['directory']}, {when:%Y-%m-%d %H:%M:%S} UTC"
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
            pairs["watermark"] = time_text(spark["watermark"])
        pairs["offsets"] = "\n".join(map(_source_text, spark["sources"])) or "-"
    if (files := shown["spark_files"]) is not None:
        is_noted = "noted as done" if files["is_committed"] else "not yet noted as done"
        what = f"{count_text(len(files['files']), 'file')}, {bytes_text(files['bytes'])}"
        pairs["Spark's own"] = f"{what}; the batch is {is_noted}"
    for name, size in shown["coordinator_states"].items():
        pairs[name] = bytes_text(size)
    return pairs


def _print_operator(uid: str, operator: dict[str, Any], *, subtasks: bool) -> None:
    key = operator["key"]
    dealt = f"by {', '.join(key)} ({operator['key_hash']})" if key else "evenly"
    print_line(
        f"operator {uid}: {count_text(operator['parallelism'], 'subtask')}, "
        f"at most {operator['max_parallelism']}; rows dealt {dealt}"
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
            say(state["failure"])
    _print_statistics(operator["subtasks"], subtasks=subtasks)


def _print_statistics(each: dict[str, Any], *, subtasks: bool) -> None:
    counted = {
        index: subtask["statistics"]
        for index, subtask in each.items()
        if subtask["statistics"] is not None
    }
    if not counted:
        return
    print_line()
    if subtasks:
        rows = [
            {
                "subtask": index,
                **{_title(field): _measure(field, statistics[field]) for field in _MEASURED},
                "restored from": statistics["restored_from"] or "-",
            }
            for index, statistics in counted.items()
        ]
        print_table(rows, right=("subtask", *map(_title, _MEASURED)))
        return
    rows = []
    for field in _MEASURED:
        values = [statistics[field] for statistics in counted.values()]
        spread = {"least": min(values), "median": statistics.median(values), "most": max(values)}
        texts = {name: _measure(field, value) for name, value in spread.items()}
        most = max(counted, key=lambda index: counted[index][field])
        rows.append({"a subtask's": _title(field), **texts, "most in": most})
    print_table(rows, right=("least", "median", "most", "most in"))


def _title(field: str) -> str:
    return field.removesuffix("_ms").replace("state_bytes", "written").replace("_", " ")


def _measure(field: str, value: float) -> str:
    if field in _MILLISECONDS:
        return _ms(value)
    return bytes_text(round(value)) if field == "state_bytes" else f"{value:.0f}"


def _ms(milliseconds: float) -> str:
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    return f"{milliseconds / 1000:.1f} s"
