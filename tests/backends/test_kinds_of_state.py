"""A kind of keyed state that Holdfast doesn't have goes through all that moves state about.

The product uses only the methods of `StateHandle` and `KeyedStateHandle`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self, cast

import msgspec
import pyarrow as pa
import pytest
from contracts.elements import memory_factory
from contracts.values import EXCLUSIVE

from holdfast.backends import compare
from holdfast.backends.assignment import OperatorSettings, assign
from holdfast.backends.inspection import ShownColumn, stored_states
from holdfast.backends.inspection.catalogue import READERS
from holdfast.backends.snapshot import AsyncSnapshot, SnapshotStreams
from holdfast.locations import (
    CheckpointMetadata,
    CompletedCheckpoint,
    FileSystemCheckpointStorage,
    StoredOperator,
    StoredSubtask,
    complete_checkpoint,
    copy_checkpoint,
    verify,
)
from holdfast.locations.adapters import ByteStreamStateHandle, StreamStateHandle
from holdfast.locations.handles import KeyGroupsStateHandle


class Runs(msgspec.Struct, frozen=True, tag="runs"):
    """Keyed state in several files: a kind that Holdfast doesn't have."""

    key_groups: tuple[int, int]
    runs: tuple[StreamStateHandle, ...]
    manifest: StreamStateHandle

    @property
    def size(self) -> int:
        return sum(stream.size for stream in self.streams())

    def streams(self) -> tuple[StreamStateHandle, ...]:
        return (*self.runs, self.manifest)

    def with_streams(self, change: Callable[[StreamStateHandle], StreamStateHandle], /) -> Self:
        runs = tuple(change(run) for run in self.runs)
        return msgspec.structs.replace(self, runs=runs, manifest=change(self.manifest))

    def shared_streams(self) -> Mapping[str, StreamStateHandle]:
        return {}

    def discard_state(self) -> None:
        for stream in self.streams():
            stream.discard_state()

    def find_inconsistency(self) -> str | None:
        return None if self.runs else "no runs"

    def intersection(self, first: int, last: int, /) -> Self | None:
        start, end = max(first, self.key_groups[0]), min(last, self.key_groups[1])
        return msgspec.structs.replace(self, key_groups=(start, end)) if start <= end else None


def keyed_subtask(*runs: Runs) -> StoredSubtask:
    return StoredSubtask(managed_keyed=cast("tuple[KeyGroupsStateHandle, ...]", runs))


@pytest.fixture
def checkpoint(local_directory: str) -> CompletedCheckpoint:
    """One operator, whose two subtasks have two runs each, and a manifest in the handle."""
    storage = FileSystemCheckpointStorage(local_directory, inline_threshold=0)
    access = storage.create_checkpoint_storage("job")
    access.initialize_base_locations_for_checkpoint()
    location = access.initialize_location_for_checkpoint(1)

    def file(content: bytes) -> StreamStateHandle:
        with location.create_checkpoint_state_output_stream(EXCLUSIVE) as stream:
            stream.write(content)
            handle = stream.close_and_get_handle()
        assert handle is not None
        return handle

    def subtask(first: int, last: int) -> StoredSubtask:
        manifest = ByteStreamStateHandle(b"manifest")
        return keyed_subtask(Runs((first, last), (file(b"old" * 100), file(b"new")), manifest))

    operators = {"counts": StoredOperator(2, 8, {0: subtask(0, 3), 1: subtask(4, 7)})}
    metadata = CheckpointMetadata(
        job_id="job",
        checkpoint_id=1,
        created_ms=0,
        duration_ms=0.0,
        writer="test",
        operators=operators,
    )
    return complete_checkpoint(location, metadata)


def runs_in(state: StoredSubtask) -> list[Runs]:
    return cast("list[Runs]", list(state.managed_keyed))


def test_its_files_are_counted_verified_and_copied(
    checkpoint: CompletedCheckpoint, tmp_path: Path
) -> None:
    assert checkpoint.metadata.state_bytes == 2 * (300 + 3 + 8)
    copy = copy_checkpoint(checkpoint, tmp_path / "archive")
    streams = copy.metadata.streams()
    assert len(streams) == 6
    assert [file.failure for file in verify(streams)] == [None] * 4
    assert all(file.uri.startswith(f"file://{tmp_path}/archive/") for file in verify(streams))


@dataclass(frozen=True)
class CountPart:
    """A subtask's part of a state by key: one row for each run."""

    subtask: int
    handle: Runs

    @property
    def elements(self) -> int:
        return len(self.handle.runs)

    def extents(self) -> list[tuple[StreamStateHandle, int, int]]:
        return [(run, 0, run.size) for run in self.handle.runs]

    def stored_schema(self) -> pa.Schema:
        return pa.schema([("user", pa.string()), ("value", pa.int64())])

    def columns(self, stored: pa.Schema, /) -> tuple[ShownColumn, ...]:
        return tuple(ShownColumn.of(field, field.name, "counts") for field in stored)

    def split(self) -> list["CountPart"]:
        return [self]

    def batches(self, stored: pa.Schema, /) -> Iterator[pa.RecordBatch]:
        for number, run in enumerate(self.handle.runs):
            yield pa.record_batch([[f"{self.subtask}-{number}"], [run.size]], schema=stored)


def counts_in(subtask: int, handle: Runs) -> Iterator[tuple[str, str, CountPart]]:
    yield "counts", "keyed value", CountPart(subtask, handle)


def test_catalogue_entry_lists_and_reads_a_new_handle(
    checkpoint: CompletedCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(READERS["managed_keyed"], Runs, counts_in)
    (state,) = stored_states(checkpoint.metadata)
    readable = state.readable()
    assert state.row(readable.content) == {
        "operator": "counts",
        "state": "counts",
        "kind": "keyed value",
        "subtasks": 2,
        "stored_elements": 4,
        "bytes": 2 * (300 + 3),
        "type": "string to int64",
        "arrow_type": "string to int64",
        "stored_as": "arrow to arrow",
    }
    assert pa.Table.from_batches(readable.batches(), readable.schema).to_pydict() == {
        "subtask": [0, 0, 1, 1],
        "user": ["0-0", "0-1", "1-0", "1-1"],
        "value": [300, 3, 300, 3],
    }
    lost = msgspec.structs.replace(checkpoint.metadata, operators={})
    differences = compare(checkpoint.metadata, lost)
    assert [(each.operator, each.state) for each in differences] == [
        ("counts", ""),
        ("counts", "counts"),
    ]


def test_it_is_cut_by_key_groups_when_the_job_is_rescaled(checkpoint: CompletedCheckpoint) -> None:
    subtasks = assign(checkpoint.metadata, {"counts": OperatorSettings(3)})["counts"].subtasks
    assert [[run.key_groups for run in runs_in(subtask)] for subtask in subtasks] == [
        [(0, 2)],
        [(3, 3), (4, 5)],
        [(6, 7)],
    ]


def test_error_of_a_handle_names_its_operator(checkpoint: CompletedCheckpoint) -> None:
    operator = checkpoint.metadata.operators["counts"]
    assert operator.find_inconsistency() is None
    broken = msgspec.structs.replace(runs_in(operator.subtasks[1])[0], runs=())
    damaged = msgspec.structs.replace(operator, subtasks={1: keyed_subtask(broken)})
    assert damaged.find_inconsistency() == "in subtask 1: no runs"
    beyond = msgspec.structs.replace(operator, max_parallelism=7)
    assert beyond.find_inconsistency() == "key groups 4 to 7 and max parallelism 7"


def test_cancelled_snapshot_discards_the_state(checkpoint: CompletedCheckpoint) -> None:
    state = checkpoint.metadata.operators["counts"].subtasks[0]
    streams = SnapshotStreams(memory_factory())
    streams.adopt(runs_in(state)[0])
    AsyncSnapshot.from_written(state, streams).cancel()
    assert [file.failure is None for file in verify(state.streams())] == [False, False]
