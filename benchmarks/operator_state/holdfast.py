"""Holdfast's part."""

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.operator_state.works import TARGETS, Measured, Reading, Work, elements_of
from benchmarks.rounds import Cost, LeftOutError, peak_growth_bytes, time_action
from holdfast.backends import (
    BroadcastState,
    ListState,
    ListStateDescriptor,
    MapStateDescriptor,
    OperatorStateBackend,
)
from holdfast.backends.snapshot import SnapshotResult
from holdfast.locations import (
    CheckpointMetadata,
    CheckpointStorage,
    CompletedCheckpoint,
    FileSystemCheckpointStorage,
    MemoryCheckpointStorage,
    StoredOperator,
    StoredSubtask,
    complete_checkpoint,
    load_checkpoint,
)
from holdfast.locations.adapters import CheckpointStorageLocation
from holdfast.locations.handles import OperatorStateHandle

_MAX_STATE_BYTES = 1 << 31
"""The limit of memory storage; its default of 5 MiB is for less state than this."""


class Holdfast:
    """An engine: our own backend and storages, at their defaults.

    Args:
        directory: Where checkpoints on disk go.
    """

    def __init__(self, directory: Path) -> None:
        storages: dict[str, CheckpointStorage] = {
            "disk": FileSystemCheckpointStorage(f"file://{directory}"),
            "memory": MemoryCheckpointStorage(_MAX_STATE_BYTES),
        }
        self._accesses = {
            target: storage.create_checkpoint_storage("benchmark")
            for target, storage in storages.items()
        }
        for access in self._accesses.values():
            access.initialize_base_locations_for_checkpoint()
        self._checkpoint_id = 0

    def measure(self, work: Work, target: str) -> Measured:
        elements = elements_of(work.kind, work.count)
        state = _STATES[work.kind]
        costs: dict[str, Cost] = {}
        backend = OperatorStateBackend()
        costs["fill"], _ = time_action(lambda: state.fill(state.of(backend), elements))
        if work.in_arrow:
            other = state.of(OperatorStateBackend())
            columns = pa.array(elements, other.type)
            costs["fill_arrow"], _ = time_action(lambda: state.fill(other, columns))
        location = self._begin(target)
        costs["sync"], snapshot = time_action(lambda: backend.snapshot(location))
        costs["async"], result = time_action(snapshot.run)
        handle = _operator_handle(result)
        sizes = {"stored": handle.size}
        completed = None
        if target == "disk":
            costs["commit"], completed = time_action(partial(self._commit, location, handle))
            sizes["metadata"] = completed.metadata_bytes
            costs["load"], handle = time_action(partial(_load_handle, completed))
        costs["restore"], restored = time_action(partial(state.restore, handle))
        del restored  # no other action holds two copies
        costs["objects"], objects = time_action(lambda: state.objects(state.restore(handle)))
        if objects != elements:
            raise LeftOutError("what was restored is not what was stored")
        if completed is not None:
            completed.discard()
        return Measured(costs, sizes)

    def growth_bytes(self, work: Work, target: str) -> int:
        """By how much this process grows at most during a snapshot, both parts of it."""
        state = _STATES[work.kind]

        def snapshot(backend: OperatorStateBackend) -> OperatorStateHandle:
            return _operator_handle(backend.snapshot(self._begin(target)).run())

        small, large = OperatorStateBackend(), OperatorStateBackend()
        for backend, count in ((small, 100_000), (large, work.count)):
            state.fill(state.of(backend), pa.array(range(count), pa.int64()))
        snapshot(small)
        growth, handle = peak_growth_bytes(partial(snapshot, large))
        handle.discard_state()
        return growth

    def _begin(self, target: str) -> CheckpointStorageLocation:
        self._checkpoint_id += 1
        return self._accesses[target].initialize_location_for_checkpoint(self._checkpoint_id)

    def _commit(
        self, location: CheckpointStorageLocation, handle: OperatorStateHandle
    ) -> CompletedCheckpoint:
        metadata = CheckpointMetadata(
            job_id="benchmark",
            checkpoint_id=self._checkpoint_id,
            commit_token=uuid.uuid4().hex,
            created_ms=time.time_ns() // 1_000_000,
            duration_ms=0.0,
            writer="benchmark",
            operators={"rows": StoredOperator(1, 128, {0: StoredSubtask((handle,))})},
        )
        return complete_checkpoint(location, metadata)


def growth_bytes_of(work: Work, directory: Path) -> dict[str, int]:
    """By how much this process grows at most during a snapshot, by target."""
    directory.mkdir()
    engine = Holdfast(directory)
    return {target: engine.growth_bytes(work, target) for target in TARGETS}


@dataclass(frozen=True, slots=True)
class _State:
    """The functions that get a type of state, fill it, and read it as Python objects."""

    of: Callable[[OperatorStateBackend], Any]
    fill: Callable[[Any, Any], None]
    objects: Callable[[Any], Any]

    def restore(self, handle: OperatorStateHandle) -> Any:
        """Restore the state of a handle."""
        return self.of(OperatorStateBackend.restore([handle]))


def _list_of(type: type) -> _State:
    return _State(
        lambda backend: backend.get_list_state(ListStateDescriptor("rows", type)),
        ListState.add_all,
        ListState.get,
    )


_STATES = {
    "longs": _list_of(int),
    "strings": _list_of(str),
    "records": _list_of(Reading),
    "broadcast": _State(
        lambda backend: backend.get_broadcast_state(MapStateDescriptor("rules", str, bytes)),
        BroadcastState.put_all,
        lambda state: dict(state.entries()),
    ),
}


def _operator_handle(result: SnapshotResult) -> OperatorStateHandle:
    if not result.state.managed_operator:
        raise LeftOutError("it has stored nothing")
    return result.state.managed_operator[0]


def _load_handle(completed: CompletedCheckpoint) -> OperatorStateHandle:
    (subtask,) = load_checkpoint(completed.location).metadata.operators["rows"].subtasks.values()
    (handle,) = subtask.managed_operator
    return handle
