"""One subtask of an operator: its function, and the states that it is restored from and that its snapshot stores.

Spark's tasks call `OperatorStateHandler`; it calls the user's function and the backends. `ManagedKeyedState` opens keyed
state when it is needed.

Source:
    Flink, StreamOperatorStateHandler.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.backends.functions import (
    BatchTimes,
    CheckpointedFunction,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    SideOutput,
    unwrap_function,
)
from holdfast.backends.keyed import ColumnarStateTables, KeyedStateBackend, StateTables
from holdfast.backends.keys import KeyGroupRange
from holdfast.backends.operator import OperatorStateBackend
from holdfast.backends.snapshot import (
    AsyncSnapshot,
    Compression,
    WrittenStates,
    raw_key_groups,
    raw_operator_partitions,
)
from holdfast.errors import CheckpointDeclinedError, UnsupportedFormatError
from holdfast.locations.handles import KeyedStateHandle, SegmentsStateHandle
from holdfast.locations.metadata import StoredSubtask
from holdfast.locations.storages import CheckpointStreamFactory

OpenTables = Callable[[KeyGroupRange, Sequence[SegmentsStateHandle]], StateTables]
"""Opens the tables of a subtask, given its key groups and the stored state."""


@dataclass(frozen=True, slots=True)
class OperatorKey:
    """The key of an operator: its columns, with Arrow types, and the number of the operator's key groups."""

    columns: pa.Schema
    max_parallelism: int


class ManagedKeyedState:
    """The keyed states of a subtask, from the restore to the snapshot.

    The states are opened when the function first uses them, or if there is stored state to restore. Raises
    `UnsupportedFormatError` if some of it is not stored as tables. `now_ms` is the time of the batch, since 1970.
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
        """Open the states if some are stored. Raises what `open` does."""
        if self._handles:
            self.open()

    def open(self) -> KeyedStateBackend:
        """Return the states; the same object each time.

        Raises `StateMigrationError` if they were stored with another key, and errors of missing or damaged manifests.
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
        """The times of the earliest remaining timers, of event time and of processing time."""
        return (None, None) if self._backend is None else self._backend.next_timers()

    def snapshot(
        self, checkpoint_id: int, factory: CheckpointStreamFactory
    ) -> AsyncSnapshot | None:
        """Capture the states; None if they were not opened. Raises what the backend's `snapshot` does."""
        return None if self._backend is None else self._backend.snapshot(checkpoint_id, factory)

    def close(self) -> None:
        """Release memory and files."""
        if self._backend is not None:
            self._backend.close()


def _segments(handle: KeyedStateHandle) -> SegmentsStateHandle:
    if isinstance(handle, SegmentsStateHandle):
        return handle
    raise UnsupportedFormatError(
        f"managed keyed state is stored as {type(handle).__name__}, and this version reads only tables in "
        "segments; give the operator a new uid, or restore another checkpoint"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorStateHandler:
    """Connects a function with its backends and with the store.

    Attributes:
        uid: The operator, for errors.
        function: The user's code.
        backend: The subtask's operator states.
        key_groups: The subtask's key groups; None if the operator has no keys.
        keyed_state: The subtask's managed keyed state; None if the operator has no keys.
    """

    uid: str
    function: CheckpointedFunction
    backend: OperatorStateBackend
    key_groups: KeyGroupRange | None = None
    keyed_state: ManagedKeyedState | None = None

    @classmethod
    def restore(
        cls,
        function: Any,
        state: StoredSubtask,
        *,
        uid: str,
        key_groups: KeyGroupRange | None = None,
        keyed_state: ManagedKeyedState | None = None,
        written: WrittenStates | None = None,
    ) -> "OperatorStateHandler":
        """Restore the backends. Raises what `OperatorStateBackend.restore` and `ManagedKeyedState.open` raise.

        The function may be a wrapper around the user's code. `written` is the managed operator state of `state` if it is in
        memory, so that it is not read from storage.
        """
        if written is None:
            backend = OperatorStateBackend.restore(state.managed_operator)
        else:
            backend = OperatorStateBackend.from_written(written)
        if keyed_state is not None:
            keyed_state.restore()
        return cls(
            uid=uid,
            function=unwrap_function(function),
            backend=backend,
            key_groups=key_groups,
            keyed_state=keyed_state,
        )

    def initialize_state(
        self,
        state: StoredSubtask,
        *,
        restored_checkpoint_id: int | None,
        subtask_index: int,
        parallelism: int,
        input_schema: pa.Schema,
        broadcast_schema: pa.Schema | None = None,
        output_schema: pa.Schema | None = None,
        times: BatchTimes = BatchTimes(0, 0, 0),  # noqa: B008  # frozen
        side_outputs: Mapping[str, SideOutput] | None = None,
    ) -> None:
        """Let the function declare its states. Raw inputs are closed afterwards, also after an error."""
        with (
            closing(raw_operator_partitions(state.raw_operator)) as operator_inputs,
            closing(raw_key_groups(state.raw_keyed)) as keyed_inputs,
        ):
            self.function.initialize_state(
                FunctionInitializationContext(
                    operator_state_store=self.backend,
                    restored_checkpoint_id=restored_checkpoint_id,
                    subtask_index=subtask_index,
                    parallelism=parallelism,
                    input_schema=input_schema,
                    raw_operator_state_inputs=operator_inputs,
                    raw_keyed_state_inputs=keyed_inputs,
                    key_groups=self.key_groups,
                    broadcast_schema=broadcast_schema,
                    output_schema=output_schema,
                    times=times,
                    open_keyed_state=None if self.keyed_state is None else self.keyed_state.open,
                    side_outputs=side_outputs or {},
                )
            )

    def snapshot_state(
        self,
        checkpoint_id: int,
        factory: CheckpointStreamFactory,
        *,
        compression: Compression | None = None,
    ) -> AsyncSnapshot:
        """Take the snapshot: the function updates its states and writes raw state, then managed state is captured.

        Raises `CheckpointDeclinedError` if one of these fails; nothing is left then.
        """
        context = FunctionSnapshotContext(checkpoint_id, factory, self.key_groups)
        snapshots: list[AsyncSnapshot] = []
        try:
            self.function.snapshot_state(context)
            snapshots.append(context.finish())
            if self.keyed_state is not None:
                keyed = self.keyed_state.snapshot(checkpoint_id, factory)
                snapshots += [] if keyed is None else [keyed]
            snapshots.append(
                self.backend.snapshot(factory, compression=compression, checkpoint_id=checkpoint_id)
            )
        except BaseException as error:
            for snapshot in snapshots:
                snapshot.cancel()
            if not isinstance(error, Exception):
                raise
            raise CheckpointDeclinedError(
                f"could not complete snapshot {checkpoint_id} of operator {self.uid!r}: "
                f"{type(error).__name__}: {error}"
            ) from error
        finally:
            context.close()
        return AsyncSnapshot.combine(snapshots)

    @property
    def next_timers(self) -> tuple[int | None, int | None]:
        """The times of the subtask's earliest remaining timers, of event time and of processing time."""
        return (None, None) if self.keyed_state is None else self.keyed_state.next_timers

    def close(self) -> None:
        """Release the memory and files of keyed state."""
        if self.keyed_state is not None:
            self.keyed_state.close()
