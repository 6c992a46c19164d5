"""Rows of keyed state that differ between two checkpoints."""

from typing import Any

import pyarrow as pa
import pytest
from contracts.checkpoints import Checkpoint
from contracts.elements import list_state
from contracts.written_keyed_states import KEYS_OF_TYPES, keyed_checkpoint, write_keys
from hypothesis import given
from hypothesis import strategies as st

from holdfast import iter_state, read_state, state_changes
from holdfast.backends import ValueStateDescriptor
from holdfast.backends.keyed import ColumnarStateTables, KeyedStateBackend
from holdfast.backends.keys import KeyGroupRange
from holdfast.errors import CheckpointNotFoundError, InvalidRequestError
from holdfast.locations import (
    CheckpointMetadata,
    StoredOperator,
    StoredSubtask,
    complete_checkpoint,
)
from holdfast.locations.adapters import CheckpointStorageAccess, file_system_for
from holdfast.locations.coordination import without_placeholders
from holdfast.locations.storages import FileSystemCheckpointStorage
from holdfast.testing import counting_file_system

GROUPS = KeyGroupRange(0, 7)


class GrowingJob:
    """A job with a state of pairs by text, whose checkpoints share segments."""

    def __init__(self, directory: str, value: pa.DataType, groups: KeyGroupRange = GROUPS) -> None:
        self._groups = len(groups)
        storage = FileSystemCheckpointStorage(directory, inline_threshold=0)
        self._access: CheckpointStorageAccess = storage.create_checkpoint_storage("job")
        self._access.initialize_base_locations_for_checkpoint()
        self._backend = KeyedStateBackend(
            ColumnarStateTables(groups), pa.schema([("k", pa.string())]), len(groups)
        )
        self._state = self._backend.get_state(ValueStateDescriptor("s", value))
        self._type = value
        self._number = 0
        self._restored = StoredSubtask()

    def complete(self, put: dict[str | None, Any], delete: list[str | None]) -> str:
        """Complete a checkpoint after some changes; returns its pointer."""
        self._number += 1
        for key, value in put.items():
            keys = self._backend.keys([pa.array([key], pa.string())])
            self._state.columns.put(keys, pa.array([value], self._type))
        for key in delete:
            self._state.columns.clear(self._backend.keys([pa.array([key], pa.string())]))
        location = self._access.initialize_location_for_checkpoint(self._number)
        state = self._backend.snapshot(self._number, location).run().state
        self._backend.notify_checkpoint_complete(self._number)
        operator = StoredOperator(1, self._groups, {0: state}, key=("k",))
        operator = without_placeholders("op", operator, [self._restored], may_refer=True)
        self._restored = operator.subtasks[0]
        metadata = CheckpointMetadata(
            job_id="job",
            checkpoint_id=self._number,
            created_ms=0,
            duration_ms=0.0,
            writer="test",
            operators={"op": operator},
        )
        return complete_checkpoint(location, metadata).location.external_pointer


def expected_changes(before: pa.Table, after: pa.Table) -> set[tuple[str, str]]:
    """Compare tables by Python."""
    old, new = (
        {row["k"]: repr(row["value"]) for row in table.to_pylist()} for table in (before, after)
    )
    changes = {
        key: "removed" if key not in new else "added" if key not in old else "changed"
        for key in old.keys() | new.keys()
        if old.get(key) != new.get(key)
    }
    return {(repr(key), change) for key, change in changes.items()}


keys = st.sampled_from([None, "", "a", "b", "c", "d"])
values = st.one_of(st.none(), st.floats(width=32), st.just(float("nan")))


@given(
    rounds=st.lists(
        st.tuples(st.dictionaries(keys, values), st.lists(keys, max_size=2)), min_size=2, max_size=4
    )
)
def test_changes_equal_those_of_two_whole_reads(
    memory_directory: str, rounds: list[tuple[dict[str | None, Any], list[str | None]]]
) -> None:
    file_system_for(memory_directory).delete_tree(f"{memory_directory}/job")
    job = GrowingJob(memory_directory, pa.struct([("x", pa.float64())]))
    pointers = [
        job.complete({key: {"x": value} for key, value in put.items()}, delete)
        for put, delete in rounds
    ]
    tables = [read_state(pointer, "op", "s") for pointer in pointers]
    changes = state_changes(pointers[0], pointers[-1], "op", "s")
    changed = {(repr(row["k"]), row["change"]) for row in changes.to_pylist()}
    assert changed == expected_changes(tables[0], tables[-1])
    for row in changes.to_pylist():
        assert (row["before"] is None) == (row["change"] == "added")
        assert (row["after"] is None) == (row["change"] == "removed")
    assert state_changes(pointers[0], pointers[0], "op", "s").num_rows == 0


def test_values_before_and_after_are_shown(memory_directory: str) -> None:
    job = GrowingJob(memory_directory, pa.int64())
    first = job.complete({"a": 1, "b": 2, "c": 3}, [])
    second = job.complete({"a": 10, "d": 4}, ["b"])
    assert sorted(state_changes(first, second).to_pylist(), key=lambda row: row["k"]) == [
        {"change": "changed", "k": "a", "before": 1, "after": 10},
        {"change": "removed", "k": "b", "before": 2, "after": None},
        {"change": "added", "k": "d", "before": None, "after": 4},
    ]


def test_files_of_both_checkpoints_are_not_read(memory_directory: str) -> None:
    with counting_file_system(memory_directory) as counts:
        job = GrowingJob(counts.directory, pa.int64())
        first = job.complete({f"user-{number}": number for number in range(50)}, [])
        second = job.complete({}, [])
        counts.clear()
        assert state_changes(first, second).num_rows == 0
        assert counts.calls["open"] == 6  # of each _metadata and, twice, the manifest


@pytest.mark.parametrize("kind", KEYS_OF_TYPES)
def test_keys_of_every_type_are_compared(memory_directory: str, kind: str) -> None:
    schema, rows = KEYS_OF_TYPES[kind]
    first = write_keys(memory_directory, schema, rows[:-1])
    second = write_keys(memory_directory, schema, [rows[-1], *rows[1:-1]], checkpoint_id=2)
    changes = state_changes(first, second, state="list")
    kinds = changes["change"].to_pylist()
    assert (kinds.count("added"), kinds.count("removed")) == (1, 1)
    assert len(kinds) == 2


@pytest.mark.parametrize("name", ["lists", "pages", "people"])
def test_equal_states_of_other_subtasks_have_no_changes(memory_directory: str, name: str) -> None:
    first = keyed_checkpoint(f"{memory_directory}/a", parallelism=1)
    second = keyed_checkpoint(f"{memory_directory}/b", parallelism=4)
    assert state_changes(first, second, "op", name).num_rows == 0


def test_states_with_other_columns_are_refused(memory_directory: str) -> None:
    numbers = GrowingJob(f"{memory_directory}/a", pa.int64()).complete({"a": 1}, [])
    texts = GrowingJob(f"{memory_directory}/b", pa.string()).complete({"a": "1"}, [])
    with pytest.raises(InvalidRequestError, match="value: int64 in the first"):
        state_changes(numbers, texts)
    job_of_many = GrowingJob(f"{memory_directory}/e", pa.int64(), KeyGroupRange(0, 15))
    with pytest.raises(InvalidRequestError, match="8 key groups in the first checkpoint, and 16"):
        state_changes(numbers, job_of_many.complete({"a": 1}, []))
    checkpoint = Checkpoint(f"{memory_directory}/d")
    checkpoint.add("op", lambda backend, _: list_state(backend).add(1))
    with pytest.raises(InvalidRequestError, match="has no keys"):
        state_changes(checkpoint.complete(), numbers)


class TestStream:
    def test_stream_has_the_rows_of_a_read(self, memory_directory: str) -> None:
        pointer = write_keys(memory_directory, *KEYS_OF_TYPES["string"])
        stream = iter_state(pointer, state="value")
        table = read_state(pointer, state="value")
        assert stream.schema == table.schema
        assert stream.read_all().equals(table)

    def test_missing_file_is_the_error_of_the_read(self, memory_directory: str) -> None:
        pointer = write_keys(memory_directory, *KEYS_OF_TYPES["string"])
        stream = iter_state(pointer, state="value")
        file_system_for(pointer).delete_tree(pointer.rpartition("/")[0])
        with pytest.raises(CheckpointNotFoundError, match="HF-DELETED"):
            list(stream)
