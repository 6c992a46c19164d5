"""What a snapshot of operator states holds, and how it is written."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from holdfast.backends.sections import Compression, WrittenState, WrittenStates
from holdfast.backends.snapshot import SnapshotResult, SnapshotStreams
from holdfast.locations.handles import OperatorStateHandle, OperatorStateMode


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

    def rows(self) -> pa.Table:
        """Its elements or entries."""
        chunks = zip(self.columns(), self.schema, strict=True)
        arrays = [pa.chunked_array(column, field.type) for column, field in chunks]
        return pa.table(arrays, self.schema)


class CapturedStates:
    """All states of a backend, by name; several parts of one that is stored in several ways."""

    def __init__(self, states: dict[str, list[CapturedState]]) -> None:
        self.states = states

    def release(self) -> None:
        """Let go of the chunks."""
        self.states = {}


@dataclass(frozen=True, slots=True)
class OperatorStateSnapshotStrategy:
    """Writes all states into one stream, one section each.

    A state that is stored in several ways has a section for the first of them; the second ones of all
    such states go into a second stream, and so on.

    Attributes:
        capture: Takes the states as they are.
        compression: How sections are compressed.
    """

    capture: Callable[[], dict[str, list[CapturedState]]]
    compression: Compression | None = None

    def sync_prepare_resources(self, checkpoint_id: int) -> CapturedStates:  # noqa: ARG002  # the port's
        return CapturedStates(self.capture())

    def async_snapshot(self, resources: CapturedStates, streams: SnapshotStreams) -> SnapshotResult:
        number = max(map(len, resources.states.values()), default=0)
        results = [
            self._written(
                {name: parts[i] for name, parts in resources.states.items() if i < len(parts)},
                streams,
            )
            for i in range(number)
        ]
        if len(results) < 2:
            return results[0] if results else SnapshotResult()
        return replace(results[0], written=None, further=tuple(results[1:]))

    def _written(
        self, captured: dict[str, CapturedState], streams: SnapshotStreams
    ) -> SnapshotResult:
        with streams.open() as stream:
            written = WrittenStates(
                {name: WrittenState(one.mode, one.rows()) for name, one in captured.items()}
            )
            states = written.write(stream, self.compression)
            handle, local = streams.finish(stream)
        if handle is None:
            return SnapshotResult()
        return SnapshotResult(
            OperatorStateHandle(states, handle),
            OperatorStateHandle(states, local) if local else None,
            # Compressed, nobody could tell them from others without compressing them again.
            written=written if self.compression is None else None,
        )
