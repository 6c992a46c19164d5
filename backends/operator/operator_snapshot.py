"""The strategy for snapshots of operator state, and the states that it captures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from holdfast.backends.snapshot import (
    Compression,
    SnapshotResult,
    SnapshotStreams,
    WrittenState,
    WrittenStates,
)
from holdfast.locations.handles import OperatorStateHandle, OperatorStateMode
from holdfast.locations.metadata import StoredSubtask
from holdfast.locations.storages import CheckpointedStateScope


@dataclass(frozen=True, slots=True)
class CapturedState:
    """One state at the time of the snapshot; the chunks of its columns are shared, or made when they are written."""

    mode: OperatorStateMode
    schema: pa.Schema
    columns: Callable[[], Sequence[Sequence[pa.Array]]]

    def rows(self) -> pa.Table:
        chunks = zip(self.columns(), self.schema, strict=True)
        arrays = [pa.chunked_array(column, field.type) for column, field in chunks]
        return pa.table(arrays, self.schema)


class CapturedStates:
    """All states of a backend, by name: a part for each form in which a state is stored."""

    def __init__(self, states: dict[str, list[CapturedState]]) -> None:
        self.states = states

    def release(self) -> None:
        self.states = {}


@dataclass(frozen=True, slots=True)
class OperatorStateSnapshotStrategy:
    """Writes all states into one stream, one section each.

    If a state is stored in several forms, because not all subtasks have declared its new type, the first form is in the
    first stream, the second one in a second stream, and so on.
    """

    capture: Callable[[], dict[str, list[CapturedState]]]
    compression: Compression | None = None

    def sync_prepare_resources(self, checkpoint_id: int) -> CapturedStates:  # noqa: ARG002  # the port's
        return CapturedStates(self.capture())

    def async_snapshot(self, resources: CapturedStates, streams: SnapshotStreams) -> SnapshotResult:
        handles: list[OperatorStateHandle] = []
        written = None
        for number in range(max(map(len, resources.states.values()), default=0)):
            written = WrittenStates(
                {
                    name: WrittenState(forms[number].mode, forms[number].rows())
                    for name, forms in resources.states.items()
                    if number < len(forms)
                }
            )
            with streams.open(CheckpointedStateScope.EXCLUSIVE) as stream:
                states = written.write(stream, self.compression)
                handle = streams.finish(stream)
            if handle is not None:
                handles.append(OperatorStateHandle(states, handle))
        # Compressed state could only be compared with a file by compressing it again.
        is_comparable = len(handles) == 1 and self.compression is None
        state = StoredSubtask(managed_operator=tuple(handles))
        return SnapshotResult(state, written if is_comparable else None)
