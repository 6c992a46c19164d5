"""`holdfast diff`."""

import json
from collections.abc import Callable
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from contracts.elements import Order
from jobs.stopped_query import put
from jobs.stores import Store, write_checkpoint

from holdfast import take_savepoint
from holdfast.cli.command_line import main
from holdfast.locations import (
    CompletedCheckpoint,
    FileSystemCheckpointStorage,
    StoredOperator,
    complete_checkpoint,
    copy_checkpoint,
)
from holdfast.locations.adapters import (
    ByteStreamStateHandle,
    ChecksumBuilder,
    FileStateHandle,
    StreamStateHandle,
)
from holdfast.locations.handles import files_of
from holdfast.spark_progress import SPARK, SparkFile, SparkFiles, compare_spark_files, progress_of


def test_json_has_every_difference(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    first = write_checkpoint(store.directory, 1)
    second = write_checkpoint(store.directory, 2, elements=9, before=first)
    a, b = (checkpoint.location.external_pointer for checkpoint in (first, second))
    assert main(["diff", a, b, "--json", *store.options]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert (printed.pop("first")["pointer"], printed.pop("second")["pointer"]) == (a, b)
    old, shared = files_of(first.metadata.streams())
    new, _ = files_of(second.metadata.streams())
    seen = [
        sum(
            subtask.managed_operator[0].states["seen"].length
            for subtask in checkpoint.metadata.operators["visits"].subtasks.values()
        )
        for checkpoint in (first, second)
    ]
    assert printed == {
        "is_same": False,
        "progress": {
            "batch": [0, 1],
            "offsets": [
                'v1\n{"batchTimestampMs":1,"conf":{"a":"b"}}\n{"logOffset":1}',
                'v1\n{"batchTimestampMs":2,"conf":{"a":"b"}}\n{"logOffset":2}',
            ],
        },
        "operators": [
            {
                "operator": "visits",
                "state": "seen",
                "change": "changed",
                "changes": {"stored_elements": [4, 10], "bytes": seen},
            }
        ],
        "subtasks": {"visits": [0]},
        "coordinator_states": [],
        "spark_files": None,
        "files": {
            "only_first": [{"uri": old.uri, "bytes": old.size}],
            "only_second": [{"uri": new.uri, "bytes": new.size}],
            "shared": [{"uri": shared.uri, "bytes": shared.size}],
            "copies": [],
            "inline_differs": False,
        },
    }


def test_text_lists_changes_of_operators_and_states(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = f"file://{tmp_path}"
    write_checkpoint(directory, 1)
    write_checkpoint(directory, 2, parallelism=3, element_type=Order)
    assert main(["diff", f"{directory}/job/chk-1", f"{directory}/job/chk-2"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "batch: 0 -> 1" in lines
    assert 'offsets of source 0: {"logOffset":1} -> {"logOffset":2}' in lines
    assert "operator visits: parallelism: 2 -> 3" in lines
    assert "state seen of visits: type: int64 -> contracts.elements.Order" in lines
    at = lines.index("state seen of visits: arrow type:")
    assert lines[at + 1 : at + 3] == [
        "  - int64",
        "  + struct<number: int64 not null, lines: list<item: string not null> not null>",
    ]
    assert "operator visits: different state in subtasks 0, 1, 2" in lines


def test_classes_with_the_same_arrow_type_are_different(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = f"file://{tmp_path}"
    write_checkpoint(directory, 1, element_type=make_dataclass("Visit", [("page", int)]))
    with_default = make_dataclass("Visit", [("page", int, 0)])
    write_checkpoint(directory, 2, element_type=with_default)
    assert main(["diff", f"{directory}/job/chk-1", f"{directory}/job/chk-2"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "state seen of visits: its classes have different fields, defaults or types" in lines
    assert not any("forms" in line or "DataclassType" in line for line in lines)


def with_other(completed: CompletedCheckpoint, directory: str, **changes: Any) -> str:
    """Complete a savepoint with the same files and other metadata; the pointer to it."""
    access = FileSystemCheckpointStorage(directory).create_checkpoint_storage("job")
    location = access.initialize_location_for_savepoint(1, directory)
    metadata = msgspec.structs.replace(completed.metadata, commit_token=uuid4().hex, **changes)
    return complete_checkpoint(location, metadata).location.external_pointer


def subtasks_swapped(operator: StoredOperator) -> StoredOperator:
    """The same with each other's state."""
    first, other = operator.subtasks.values()
    return msgspec.structs.replace(operator, subtasks={0: other, 1: first})


def elements_of_others(operator: StoredOperator) -> StoredOperator:
    """The same with other positions in the same files."""
    [handle] = operator.subtasks[0].managed_operator
    seen = msgspec.structs.replace(handle.states["seen"], first=1)
    other = msgspec.structs.replace(handle, states=handle.states | {"seen": seen})
    subtask = msgspec.structs.replace(operator.subtasks[0], managed_operator=(other,))
    return msgspec.structs.replace(operator, subtasks=operator.subtasks | {0: subtask})


@pytest.mark.parametrize(
    ("change", "others"), [(subtasks_swapped, [0, 1]), (elements_of_others, [0])]
)
def test_the_same_files_used_otherwise_are_a_difference(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[StoredOperator], StoredOperator],
    others: list[int],
) -> None:
    first = write_checkpoint(f"file://{tmp_path}", 1)
    pointer = first.location.external_pointer
    operators = {"visits": change(first.metadata.operators["visits"])}
    other = with_other(first, f"file://{tmp_path}", operators=operators)
    assert main(["diff", pointer, other, "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert (printed["is_same"], printed["subtasks"]) == (False, {"visits": others})
    assert (printed["files"]["only_first"], printed["files"]["only_second"]) == ([], [])


def test_state_in_metadata_equals_the_same_bytes_in_a_file(tmp_path: Path) -> None:
    first = write_checkpoint(f"file://{tmp_path}", 1)
    operator = first.metadata.operators["visits"]

    def inline(stream: StreamStateHandle) -> StreamStateHandle:
        with stream.open_input_stream() as file:
            return ByteStreamStateHandle(file.read())

    subtasks = {index: state.with_streams(inline) for index, state in operator.subtasks.items()}
    operators = {"visits": msgspec.structs.replace(operator, subtasks=subtasks)}
    other = with_other(first, f"file://{tmp_path}", operators=operators)
    assert main(["diff", first.location.external_pointer, other]) == 0
    assert main(["diff", other, first.location.external_pointer]) == 0


def test_operators_with_each_other_s_files_differ(tmp_path: Path) -> None:
    first, second = (
        write_checkpoint(f"file://{tmp_path}", number, elements=number).metadata.operators["visits"]
        for number in (1, 2)
    )
    completed = write_checkpoint(f"file://{tmp_path}", 3)
    there = with_other(completed, f"file://{tmp_path}", operators={"a": first, "b": second})
    swapped = with_other(completed, f"file://{tmp_path}", operators={"b": first, "a": second})
    assert main(["diff", there, there]) == 0
    assert main(["diff", there, swapped]) == 1


def test_states_of_sinks_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = write_checkpoint(f"file://{tmp_path}", 1)
    pointer = first.location.external_pointer
    states = first.metadata.coordinator_states | {"sink/visits": b"9999"}
    other = with_other(first, f"file://{tmp_path}", coordinator_states=states)
    assert main(["diff", pointer, other, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["coordinator_states"] == ["sink/visits"]
    assert main(["diff", pointer, other]) == 1
    assert "sink/visits: different" in capsys.readouterr().out.splitlines()


OFFSETS = 'v1\n{"batchTimestampMs":1,"conf":{"a":"b"}}\n{"logOffset":1}'


@pytest.mark.parametrize(
    ("offsets", "line"),
    [
        (OFFSETS.replace('Ms":1', 'Ms":2'), "batchTimestampMs: 1 -> 2"),
        (OFFSETS.replace("v1", "v2"), "version of the log: v1 -> v2"),
        (OFFSETS.replace(",", ", "), '  + {"batchTimestampMs":1, "conf":{"a":"b"}}'),
        ("v1\n{", "  + {"),
        ("v1\n[]", "  + []"),
    ],
)
def test_any_difference_of_offsets_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], offsets: str, line: str
) -> None:
    first = write_checkpoint(f"file://{tmp_path}", 1)
    progress = msgspec.structs.replace(progress_of(first.metadata), offsets=offsets)
    states = first.metadata.coordinator_states | {SPARK: msgspec.msgpack.encode(progress)}
    other = with_other(first, f"file://{tmp_path}", coordinator_states=states)
    assert main(["diff", first.location.external_pointer, other]) == 1
    assert line in capsys.readouterr().out.splitlines()


def test_spark_s_side_of_savepoints_is_compared_wherever_it_is() -> None:
    checksum = ChecksumBuilder().finish()
    first = SparkFiles(
        is_committed=False,
        settings={"a": "1"},
        files=(SparkFile("offsets/0", FileStateHandle("file:/a/1", 0, checksum)),),
    )
    moved = SparkFile("offsets/0", FileStateHandle("file:/b/2", 0, checksum))
    assert compare_spark_files(first, msgspec.structs.replace(first, files=(moved,))).is_same
    other = SparkFiles(is_committed=True, settings={}, files=(SparkFile("x", moved.handle),))
    comparison = compare_spark_files(first, other)
    assert not comparison.is_same
    assert comparison.is_committed == (False, True)
    assert comparison.settings == {"a": ("1", None)}
    assert comparison.paths == ("offsets/0", "x")


def test_a_checkpoint_is_like_itself_and_like_its_copy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    completed = write_checkpoint(f"file://{tmp_path}/checkpoints", 1)
    copy = copy_checkpoint(completed, f"file://{tmp_path}/copies").location.external_pointer
    pointer = completed.location.external_pointer
    assert main(["diff", pointer, pointer]) == 0
    assert "equal" in capsys.readouterr().out
    assert main(["diff", pointer, copy, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["is_same"]
    assert len(printed["files"]["copies"]) == 2


@pytest.mark.usefixtures("as_without_spark")
def test_a_savepoint_equals_its_checkpoint(
    stopped_query: str, directory: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pointer = take_savepoint(stopped_query, f"{directory}/savepoints")
    assert main(["diff", pointer, f"{directory}/checkpoints", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["files"]["copies"]) == 2
    put(f"{stopped_query}/state/0/0/4.snapshot", "whole" * 2000)
    another = take_savepoint(stopped_query, f"{directory}/more")
    assert main(["diff", pointer, another, "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert (printed["progress"], printed["operators"]) == ({}, [])
    assert [file["bytes"] for file in printed["files"]["only_second"]] == [10000]
    assert printed["spark_files"] == {
        "is_committed": None,
        "settings": {},
        # The deltas that it makes needless are left out.
        "paths": [
            *(f"state/0/0/{number}.delta" for number in (1, 2, 3)),
            "state/0/0/4.snapshot",
        ],
    }


def test_nothing_there_is_status_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pointer = write_checkpoint(f"file://{tmp_path}", 1).location.external_pointer
    assert main(["diff", pointer, f"file://{tmp_path}/none"]) == 3
    assert capsys.readouterr().out == ""
