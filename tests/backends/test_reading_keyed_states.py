"""Keyed state of a checkpoint read from outside: listed, described, and read as rows."""

import json
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from contracts.elements import Point, list_state
from contracts.keyed_tables import STATES, THEN, TOTALS, USER, write_keyed

import holdfast
from holdfast.backends import (
    ListStateDescriptor,
    OperatorStateBackend,
    check_restore,
    compare_states,
)
from holdfast.backends.assignment import OperatorSettings, assign
from holdfast.backends.inspection import readable_state, stored_states
from holdfast.backends.keyed import TableSpec
from holdfast.backends.keys import KeyGroupRange
from holdfast.cli.command_line import main
from holdfast.errors import (
    CheckpointCorruptedError,
    CheckpointNotFoundError,
    InvalidRequestError,
    StateMigrationError,
)
from holdfast.locations import CheckpointMetadata, StoredOperator, StoredSubtask, load_checkpoint
from holdfast.locations.coordination import find_checkpoint
from holdfast.locations.handles import FileStateHandle, SegmentsStateHandle
from holdfast.locations.storages import resolve_pointer

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Completes a checkpoint of an operator with keyed states, and gives its pointer."""
    return partial(write_keyed, f"file://{tmp_path}")


def metadata_of(pointer: str) -> CheckpointMetadata:
    return load_checkpoint(resolve_pointer(pointer)).metadata


def handle_in(pointer: str, subtask: int = 0) -> SegmentsStateHandle:
    (handle,) = metadata_of(pointer).operators["op"].subtasks[subtask].managed_keyed
    assert isinstance(handle, SegmentsStateHandle)
    return handle


@pytest.mark.parametrize("inline_threshold", [0, 20 << 10])
def test_states_are_listed_with_their_kinds_types_and_rows(
    write: Write, inline_threshold: int
) -> None:
    rows = holdfast.states(write(inline_threshold=inline_threshold)).to_pylist()
    assert all(row["bytes"] > 0 for row in rows)
    shown = [
        (row["state"], row["kind"], row["subtasks"], row["stored_elements"], row["type"])
        for row in rows
    ]
    assert shown == [
        ("totals", "keyed value", 2, 4, "string to int64"),
        ("people", "keyed value", 2, 1, "string to struct<name: string, age: int32>"),
        ("seen", "keyed map", 2, 3, "string to int64 to string to list<item: int64>"),
        ("due", "keyed timers", 2, 1, "int32 to bool to timestamp[ms, tz=UTC]"),
    ]


def test_state_is_read_with_its_keys_and_values(write: Write) -> None:
    assert holdfast.read_state(write(), "op", "totals").to_pylist() == [
        {"subtask": 0, "user": "ann", "value": 1},
        {"subtask": 0, "user": "bob", "value": 2},
        {"subtask": 0, "user": None, "value": 3},
        {"subtask": 1, "user": "eve", "value": 4},
    ]


def test_struct_is_read_as_a_value(write: Write) -> None:
    assert holdfast.read_state(write(), "op", "people").to_pylist() == [
        {"subtask": 0, "user": "ann", "value": {"name": "Ann", "age": 31}}
    ]


def test_entries_of_a_map_have_namespace_sub_key_and_time(write: Write) -> None:
    assert holdfast.read_state(write(), "op", "seen").to_pylist() == [
        {
            "subtask": subtask,
            "user": user,
            "window": window,
            "page": page,
            "value": value,
            "changed": THEN,
        }
        for subtask, user, window, page, value in [
            (0, "ann", 7, "/a", [1, 2]),
            (0, "ann", 7, "/b", []),
            (1, "eve", 8, "/a", [3]),
        ]
    ]


def test_key_columns_with_a_taken_name_get_a_prefix(
    write: Write,
) -> None:
    assert holdfast.read_state(write(), "op", "due").to_pylist() == [
        {"subtask": 0, "key.value": 5, "key.changed": True, "sub.subtask": THEN}
    ]


def test_rows_cut_by_rescaling_are_counted_and_read_once(write: Write) -> None:
    metadata = metadata_of(write())
    assigned = assign(metadata, {"op": OperatorSettings(3)})["op"]
    rescaled = msgspec.structs.replace(
        metadata, operators={"op": StoredOperator(3, 8, dict(enumerate(assigned.subtasks)))}
    )
    readable = stored_states(rescaled)[0].readable()
    table = pa.Table.from_batches(readable.batches(), readable.schema)
    assert [(row["user"], row["value"]) for row in table.to_pylist()] == [
        ("ann", 1),
        ("bob", 2),
        (None, 3),
        ("eve", 4),
    ]


def test_keyed_reader_is_picklable(write: Write) -> None:
    readable = readable_state(find_checkpoint(write()).metadata, "op", "totals")
    sent = pickle.loads(pickle.dumps(readable))
    assert [len(batch) for part in sent.split() for batch in sent.batches([part])] == [3, 1]


def test_serialized_values_are_read_as_values(write: Write) -> None:
    serializer = ListStateDescriptor("points", Point).serializer
    values = pa.schema([serializer.field("value")])
    spec = TableSpec("points", "value", USER, values)
    pointer = write({0: {"points": (spec, [("ann", {"x": 7})])}})
    (row,) = holdfast.read_state(pointer).to_pylist()
    assert (row["user"], row["value"]["x"]) == ("ann", 7)
    (row,) = holdfast.states(pointer).to_pylist()
    assert row["stored_as"] == "arrow to arrow"
    assert row["type"].startswith("string to ")


def with_values(spec: TableSpec, values: pa.Schema) -> TableSpec:
    return TableSpec(spec.name, spec.kind, spec.key, values)


def test_subtasks_with_different_forms_of_a_state_are_refused(write: Write) -> None:
    other = with_values(TOTALS, pa.schema([("value", pa.float64())]))
    pointer = write({0: {"totals": (TOTALS, [("ann", 1)])}, 1: {"totals": (other, [("eve", 0.5)])}})
    with pytest.raises(StateMigrationError, match="stored by subtask 1 in another form"):
        holdfast.read_state(pointer)


class TestDamage:
    def test_missing_manifest_is_shown_and_no_state_is_read_in_part(
        self, write: Write, capsys: pytest.CaptureFixture[str]
    ) -> None:
        pointer = write()
        manifest = handle_in(pointer).manifest
        manifest.discard_state()
        assert main(["show", pointer, "--json"]) == 0
        states = json.loads(capsys.readouterr().out)["operators"]["op"]["states"]
        assert [state["kind"] for state in states if state["failure"]] == ["keyed"]
        for name, kind in (("totals", None), ("totals", "keyed value"), (None, None)):
            with pytest.raises(CheckpointNotFoundError) as caught:
                holdfast.read_state(pointer, "op", name, kind=kind)
            assert isinstance(manifest, FileStateHandle)
            assert caught.value.location == manifest.uri
        assert main(["cat", pointer, "op", "totals"]) == 3
        with pytest.raises(CheckpointNotFoundError):
            holdfast.states(pointer)
        with pytest.raises(CheckpointNotFoundError):
            check_restore(pointer, {})

    def test_damaged_segment_is_named(self, write: Write) -> None:
        pointer = write()
        ((name, stream),) = handle_in(pointer).segments.items()
        assert isinstance(stream, FileStateHandle)
        path = Path(stream.uri.removeprefix("file://"))
        content = bytearray(path.read_bytes())
        content[100] ^= 1
        path.write_bytes(content)
        with pytest.raises(CheckpointCorruptedError) as caught:
            holdfast.read_state(pointer, "op", "totals")
        assert caught.value.location == stream.uri
        assert name


class TestCommands:
    def test_cat_prints_rows_and_truncates_long_values(
        self, write: Write, capsys: pytest.CaptureFixture[str]
    ) -> None:
        spec = TableSpec(
            "sizes", "value", pa.schema([("bytes", pa.string())]), pa.schema([("v", pa.int64())])
        )
        pointer = write({0: {"sizes": (spec, [("x" * 300, 1)])}})
        assert main(["cat", pointer, "op", "sizes"]) == 0
        assert "x" * 200 + "…" in capsys.readouterr().out
        assert main(["cat", pointer, "op", "sizes", "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == {
            "subtask": 0,
            "bytes": "x" * 300,
            "value": 1,
        }

    def test_show_lists_them(self, write: Write, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["show", write()]) == 0
        lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
        assert any(line.startswith("totals keyed value 4 ") for line in lines)

    def test_removed_state_is_a_difference(self, write: Write) -> None:
        metadata = metadata_of(write())
        (subtask,) = {
            index: msgspec.structs.replace(state, managed_keyed=())
            for index, state in metadata.operators["op"].subtasks.items()
            if index == 0
        }.values()
        operator = msgspec.structs.replace(
            metadata.operators["op"], subtasks={0: subtask, 1: subtask}
        )
        without = msgspec.structs.replace(metadata, operators={"op": operator})
        assert [(each.state, each.change) for each in compare_states(metadata, without)] == [
            (name, "removed") for name in ("due", "people", "seen", "totals")
        ]


def test_operator_descriptor_is_not_compared_with_keyed_state(
    write: Write,
) -> None:
    backend = OperatorStateBackend()
    list_state(backend, "totals", pa.string()).add("a")
    pointer = write(operator_state=backend)
    checks = check_restore(pointer, {"op": [ListStateDescriptor("totals", pa.string())]})
    assert [(each.state, each.outcome.value) for each in checks] == [
        (name, "restored") for name in ("totals", "totals", "people", "seen", "due")
    ]


def test_states_with_one_name_are_distinguished_by_kind(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    backend = OperatorStateBackend()
    list_state(backend, "totals", pa.string()).add("a")
    pointer = write(operator_state=backend)
    with pytest.raises(
        InvalidRequestError, match=r"choose one of the kinds \['list', 'keyed value'\]"
    ):
        holdfast.read_state(pointer, "op", "totals")
    assert holdfast.read_state(pointer, "op", "totals", kind="list")["value"].to_pylist() == ["a"]
    assert main(["cat", pointer, "op", "totals", "--kind", "keyed value", "--json"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
    with pytest.raises(InvalidRequestError, match="has no keyed list state"):
        holdfast.read_state(pointer, "op", "totals", kind="keyed list")


def test_operator_descriptor_never_matches_keyed_state(write: Write) -> None:
    checks = check_restore(write(), {"op": [ListStateDescriptor("totals", pa.string())]})
    assert [(each.state, each.outcome.value) for each in checks] == [
        *((name, "restored") for name in STATES[0]),
        ("totals", "new"),
    ]


def test_handle_range_limits_the_rows_read(write: Write) -> None:
    handle = handle_in(write())
    assert handle.key_groups == (0, 3)
    groups = KeyGroupRange(1, 1)
    part = handle.intersection(groups.start_key_group, groups.end_key_group)
    assert part is not None
    state = StoredOperator(1, 8, {0: StoredSubtask(managed_keyed=(part,))})
    metadata = CheckpointMetadata(
        job_id="job",
        checkpoint_id=1,
        created_ms=0,
        duration_ms=0.0,
        writer="test",
        operators={"op": state},
    )
    readable = stored_states(metadata)[0].readable()
    (batch,) = readable.batches()
    assert batch["user"].to_pylist() == ["bob"]
