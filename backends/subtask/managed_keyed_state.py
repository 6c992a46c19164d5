"""The managed keyed state of a subtask, which is opened when somebody needs it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from holdfast.backends.keyed import ColumnarStateTables, KeyedStateBackend, StateTables
from holdfast.backends.keys import KeyGroupRange
from holdfast.backends.snapshot import SnapshotPart
from holdfast.errors import UnsupportedFormatError
from holdfast.locations.handles import KeyedStateHandle, SegmentsStateHandle
from holdfast.locations.storages import CheckpointStreamFactory

OpenTables = Callable[[KeyGroupRange, Sequence[SegmentsStateHandle]], StateTables]
"""Opens the tables of a subtask, given its key groups and the stored state."""


@dataclass(frozen=True, slots=True)
class OperatorKey:
    """The key of an operator.

    Attributes:
        columns: The key's columns, as Arrow has them.
        max_parallelism: Number of the operator's key groups.
    """

    columns: pa.Schema
    max_parallelism: int


class ManagedKeyedState:
    """The keyed states of a subtask, from being restored to its snapshot.

    The states are opened when the function asks for them, or if there is stored state to restore.

    Args:
        key: The operator's key.
        key_groups: The subtask's key groups.
        handles: The stored state.
        now_ms: The time of the batch, milliseconds since 1970.
        open_tables: Opens the tables in which rows are kept.

    Raises:
        UnsupportedFormatError: Some of the state is not stored as tables.
    """

    def __init__(
        self,
        key: OperatorKey,
        key_groups: KeyGroupRange,
        handles: Sequence[KeyedStateHandle] = (),
        *,
        now_ms: int = 0,
        open_tables: OpenTables = ColumnarStateTables,
    ) -> None:
        self._key = key
        self._key_groups = key_groups
        self._handles = [_segments(handle) for handle in handles]
        self._now_ms = now_ms
        self._open_tables = open_tables
        self._backend: KeyedStateBackend | None = None

    def restore(self) -> None:
        """Open the states if there are some. Raises what `open` does."""
        if self._handles:
            self.open()

    def open(self) -> KeyedStateBackend:
        """The states; the same object each time.

        Raises:
            StateMigrationError: The states were stored with another key.
            CheckpointNotFoundError: A manifest is gone.
            CheckpointCorruptedError: A manifest is damaged.
        """
        if self._backend is None:
            backend = KeyedStateBackend(
                self._open_tables(self._key_groups, self._handles),
                self._key.columns,
                self._key.max_parallelism,
                self._key_groups,
            )
            backend.advance_time(self._now_ms)
            self._backend = backend
        return self._backend

    @property
    def next_timers(self) -> tuple[int | None, int | None]:
        """The times of the earliest timers of event and of processing time that are left."""
        return (None, None) if self._backend is None else self._backend.next_timers()

    def snapshot(
        self, checkpoint_id: int, factory: CheckpointStreamFactory
    ) -> tuple[SnapshotPart, ...]:
        """The parts of a snapshot; none if the states were not opened. Raises what the backend's `snapshot` does."""
        return () if self._backend is None else (self._backend.snapshot(checkpoint_id, factory),)

    def close(self) -> None:
        """Release memory and files."""
        if self._backend is not None:
            self._backend.close()


def _segments(handle: KeyedStateHandle) -> SegmentsStateHandle:
    if isinstance(handle, SegmentsStateHandle):
        return handle
    message = (
        f"managed keyed state is stored as {type(handle).__name__}, and this version reads tables in "
        "segments; begin the operator with a new uid, or restore another checkpoint"
    )
    raise UnsupportedFormatError(message)
