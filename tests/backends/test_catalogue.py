"""The catalogue of a checkpoint: each state has one name, kind and size in all listings."""

import json
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
from contracts.checkpoints import Checkpoint
from contracts.elements import Point, broadcast_state, list_state, union_state
from contracts.raw_state import THREE, groups_of, partitions_of
from contracts.values import EXCLUSIVE

import holdfast
from holdfast.backends import OperatorStateBackend, check, compare
from holdfast.backends.assignment import OperatorSettings, assign
from holdfast.backends.inspection import stored_states
from holdfast.backends.inspection.catalogue import READERS
from holdfast.cli.command_line import main
from holdfast.locations import CheckpointMetadata, StoredOperator, StoredSubtask, load_checkpoint
from holdfast.locations.storages import resolve_pointer

KINDS = {
    "numbers": "list",
    "u": "union",
    "rules": "broadcast",
    "<raw operator>": "raw operator",
    "<raw keyed>": "raw keyed",
}


@pytest.fixture
def pointer(tmp_path: Path) -> str:
    """A checkpoint of an operator with all kinds of state, in two subtasks."""
    checkpoint = Checkpoint(f"file://{tmp_path}")

    def fill(backend: OperatorStateBackend, subtask: int) -> None:
        list_state(backend, "numbers").add_all(range(5 + subtask))
        union_state(backend).add(subtask)
        broadcast_state(backend, "rules", (str, Point), {"a": Point(1)})

    checkpoint.add("op", fill, parallelism=2)
    operator = checkpoint.operators["op"]

    def stream() -> Any:
        return checkpoint.location.create_checkpoint_state_output_stream(EXCLUSIVE)

    keyed = groups_of(stream(), THREE, {0: b"zero", 2: b"two"})
    assert keyed is not None
    raw = partitions_of(stream(), b"one", b"", b"three")
    state = msgspec.structs.replace(operator.subtasks[1], raw_operator=(raw,), raw_keyed=(keyed,))
    checkpoint.operators["op"] = StoredOperator(2, 3, operator.subtasks | {1: state})
    return checkpoint.complete()


def metadata_of(pointer: str) -> CheckpointMetadata:
    return load_checkpoint(resolve_pointer(pointer)).metadata


def test_all_listings_of_states_have_the_same_names(
    pointer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = holdfast.states(pointer).to_pylist()
    assert [row["state"] for row in rows] == ["numbers", "u", "rules", None, None]
    assert [row["kind"] for row in rows] == list(KINDS.values())
    assert [row["stored_elements"] for row in rows] == [11, 2, 1, 3, 2]
    assert main(["cat", pointer, "--json"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == rows
    assert main(["show", pointer, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["operators"]["op"]["states"]
    assert [
        {"operator": "op"} | {name: state[name] for name in rows[0] if name != "operator"}
        for state in shown
    ] == rows
    assert [state.state for state in check(pointer, {})] == ["numbers", "u", "rules"]
    metadata = metadata_of(pointer)
    empty = msgspec.structs.replace(metadata, operators={})
    assert {each.state for each in compare(metadata, empty)} == {"", *KINDS}


@pytest.mark.parametrize("command", ["show", "cat"])
def test_table_has_raw_state_by_its_kind(
    pointer: str, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert main([command, pointer]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    for kind in ("raw operator", "raw keyed"):
        assert [line for line in lines if f"- {kind} " in line]


def test_bytes_shared_by_subtasks_count_once(pointer: str) -> None:
    metadata = metadata_of(pointer)
    assigned = assign(metadata, {"op": OperatorSettings(3)})["op"]
    subtasks = dict(enumerate(assigned.subtasks))
    rescaled = msgspec.structs.replace(metadata, operators={"op": StoredOperator(3, 3, subtasks)})
    before = {state.label: state for state in stored_states(metadata)}
    after = {state.label: state for state in stored_states(rescaled)}
    assert after["numbers"].subtasks == 3
    assert after["numbers"].elements == before["numbers"].elements
    for name in ("numbers", "<raw operator>", "<raw keyed>"):
        assert after[name].bytes == before[name].bytes


def test_file_of_two_handles_of_a_subtask_counts_once(pointer: str) -> None:
    subtask = metadata_of(pointer).operators["op"].subtasks[1]
    twice = subtask.together_with(StoredSubtask(raw_operator=subtask.raw_operator))
    assert len(twice.streams()) == len(subtask.streams()) + 1
    assert twice.stored_bytes == subtask.stored_bytes


def test_every_handle_class_has_a_reader() -> None:
    handles = {
        field: get_args(hint)[0]
        for field, hint in get_type_hints(StoredSubtask).items()
        if field != "statistics"
    }
    kinds = {field: set(get_args(handle)) or {handle} for field, handle in handles.items()}
    assert kinds == {field: set(readers) for field, readers in READERS.items()}
