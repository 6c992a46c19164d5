"""One operator's subtask: what it is restored from, and how its snapshot is taken.

Source:
    Flink, StreamOperatorStateHandler.
"""

import threading
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.backends.functions import (
    BatchTimes,
    CheckpointedFunction,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    unwrap_function,
)
from holdfast.backends.keys import KeyGroupRange
from holdfast.backends.operator import OperatorStateBackend, OperatorStatePart
from holdfast.backends.raw import raw_key_groups, raw_operator_partitions
from holdfast.backends.sections import Compression, WrittenStates
from holdfast.backends.snapshot import SnapshotPart, WrittenPart, discard
from holdfast.backends.subtask.managed_keyed_state import ManagedKeyedState
from holdfast.errors import CheckpointDeclinedError, InvalidRequestError
from holdfast.locations.metadata import StoredSubtask
from holdfast.locations.storages import CheckpointStreamFactory


class OperatorSnapshot:
    """A subtask's snapshot, captured and still to be written. `run` it once, or `cancel` it.

    Args:
        others: The raw state, and the managed keyed state.
        operator_state: The managed operator state.
    """

    def __init__(self, others: Iterable[SnapshotPart], operator_state: OperatorStatePart) -> None:
        self._operator_state = operator_state
        self._parts: tuple[SnapshotPart, ...] = (*others, operator_state)
        self._lock = threading.Lock()
        self._started = False

    @property
    def written(self) -> WrittenStates | None:
        """After `run`, the managed operator state in memory, as it was written.

        None if there is none, or if it could not be compared with the files later.
        """
        return self._operator_state.written

    def run(self) -> StoredSubtask:
        """Write every part. Returns the state that the coordinator stores. If a part fails, nothing is left behind.

        Raises:
            concurrent.futures.CancelledError: `cancel` came before or meanwhile.
            InvalidRequestError: The snapshot ran before.
            StorageUnavailableError: The store did not take it.
        """
        with self._lock:
            if self._started:
                raise InvalidRequestError("a snapshot runs once")
            self._started = True
        state = StoredSubtask()
        try:
            for part in self._parts:
                state = state.together_with(part.run())
        except BaseException:
            self.cancel()
            discard(state)
            raise
        return state

    def cancel(self) -> None:
        """Give the snapshot up and delete what was written. Does nothing once `run` has returned. Never raises."""
        for part in self._parts:
            part.cancel()


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
        """A handler whose backends have the state.

        Raises what `OperatorStateBackend.restore` and `ManagedKeyedState.open` raise.

        Args:
            function: The user's code, or what wraps it.
            state: The state that the subtask is restored from.
            uid: The operator, for errors.
            key_groups: The subtask's key groups; None if the operator has no keys.
            keyed_state: The subtask's managed keyed state; None if the operator has no keys.
            written: The managed operator state of `state`, if it is in memory: then it is not read
                from storage.
        """
        if written is None:
            backend = OperatorStateBackend.restore(state.managed_operator)
        else:
            backend = OperatorStateBackend.of_written(written)
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
    ) -> None:
        """Let the function get its states. Raw inputs are closed afterwards, whatever happens."""
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
                )
            )

    def snapshot_state(
        self,
        checkpoint_id: int,
        factory: CheckpointStreamFactory,
        *,
        compression: Compression | None = None,
    ) -> OperatorSnapshot:
        """Take the snapshot: the function brings its states up to date, raw state is written, managed state captured.

        Raises:
            CheckpointDeclinedError: Any of that failed; nothing is left behind.
        """
        context = FunctionSnapshotContext(checkpoint_id, factory, self.key_groups)
        others: list[SnapshotPart] = []
        try:
            self.function.snapshot_state(context)
            others.append(WrittenPart(context.finish()))
            if self.keyed_state is not None:
                others += self.keyed_state.snapshot(checkpoint_id, factory)
            managed = self.backend.snapshot(
                factory,
                compression=compression,
                checkpoint_id=checkpoint_id,
            )
        except BaseException as error:
            for part in others:
                part.cancel()
            if not isinstance(error, Exception):
                raise
            message = (
                f"could not complete snapshot {checkpoint_id} of operator {self.uid!r}: "
                f"{type(error).__name__}: {error}"
            )
            raise CheckpointDeclinedError(message) from error
        finally:
            context.close()
        return OperatorSnapshot(others, OperatorStatePart(managed))

    @property
    def next_timers(self) -> tuple[int | None, int | None]:
        """The times of the subtask's earliest timers of event and of processing time that are left."""
        return (None, None) if self.keyed_state is None else self.keyed_state.next_timers

    def close(self) -> None:
        """Release the memory and files of keyed state."""
        if self.keyed_state is not None:
            self.keyed_state.close()
