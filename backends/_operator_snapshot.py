"""What a snapshot of operator states holds, and how it is written."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from holdfast.backends._sections import Compression, write_section
from holdfast.backends._snapshots import SnapshotResult, SnapshotStreams
from holdfast.locations import OperatorStateHandle, OperatorStateMode, StatePartitions


@dataclass(frozen=True, slots=True)
class CapturedState:
    """One state as it was when the snapshot was taken; the chunks are shared, not copied.

    Attributes:
        mode: How its elements are spread.
        schema: How its columns are stored.
        columns: Gives their chunks; may make them first.
    """

    mode: OperatorStateMode
    schema: pa.Schema
    columns: Callable[[], Sequence[Sequence[pa.Array]]]


class CapturedStates:
    """All states of a backend, by name."""

    def __init__(self, states: dict[str, CapturedState]) -> None:
        self.states = states

    def release(self) -> None:
        """Let go of the chunks."""
        self.states = {}


@dataclass(frozen=True, slots=True)
class OperatorStateSnapshotStrategy:
    """Writes all states into one stream, one section each.

    Attributes:
        capture: Takes the states as they are.
        compression: How sections are compressed.
    """

    capture: Callable[[], dict[str, CapturedState]]
    compression: Compression | None = None

    def sync_prepare_resources(self, checkpoint_id: int) -> CapturedStates:  # noqa: ARG002  # the port's
        return CapturedStates(self.capture())

    def async_snapshot(self, resources: CapturedStates, streams: SnapshotStreams) -> SnapshotResult:
        captured = resources.states
        if not captured:
            return SnapshotResult()
        states = {}
        with streams.open() as stream:
            for name, state in captured.items():
                offset = stream.tell()
                columns = state.columns()
                length = write_section(stream, state.schema, columns, self.compression)
                count = sum(map(len, columns[0]))
                states[name] = StatePartitions(state.mode, offset, length, first=0, count=count)
            handle, local = streams.finish(stream)
        if handle is None:
            return SnapshotResult()
        return SnapshotResult(
            OperatorStateHandle(states, handle),
            OperatorStateHandle(states, local) if local else None,
        )
