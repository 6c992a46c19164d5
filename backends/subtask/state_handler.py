"""One operator's subtask: what it is restored from, and how its snapshot is taken.

Source:
    Flink, StreamOperatorStateHandler.
"""

import threading
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.backends.api import (
    CheckpointedFunction,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    RawState,
    checkpointed_function,
)
from holdfast.backends.keys import KeyGroupRange
from holdfast.backends.operator import CapturedStates, OperatorStateBackend
from holdfast.backends.raw import raw_key_groups, raw_operator_partitions
from holdfast.backends.sections import Compression, WrittenStates
from holdfast.backends.snapshot import AsyncSnapshot
from holdfast.errors import CheckpointDeclinedError
from holdfast.locations.metadata import SubtaskState
from holdfast.locations.storages import CheckpointStreamFactory


class OperatorSnapshot:
    """All of a subtask's snapshot that is still to be written. `run` it once, or `cancel` it.

    Attributes:
        written: After `run`, the managed states in memory, as they were written; None if there are
            none, or if nobody could tell later whether it is so.
    """

    def __init__(self, raw: RawState, managed: AsyncSnapshot[CapturedStates]) -> None:
        self._raw = raw
        self._managed = managed
        self.written: WrittenStates | None = None
        self._lock = threading.Lock()

    def run(self) -> tuple[SubtaskState, SubtaskState]:
        """Write it: the state that the coordinator stores, and the copy that stays with the task.

        Raises:
            concurrent.futures.CancelledError: `cancel` came before or meanwhile.
            StorageUnavailableError: The store did not take it.
        """
        raw = self._taken()
        try:
            result = self._managed.run()
        except BaseException:
            raw.discard_state()
            raise
        self.written = result.written
        return (
            SubtaskState(
                managed_operator=result.handles,
                raw_operator=raw.operator,
                raw_keyed=raw.keyed,
            ),
            SubtaskState(managed_operator=result.local_handles),
        )

    def cancel(self) -> None:
        """Give up, and discard what was written. Never raises."""
        self._managed.cancel()
        self._taken().discard_state()

    def _taken(self) -> RawState:
        """The raw state, for whoever comes first: `run` returns or discards it, `cancel` discards.

        `cancel` comes here behind the managed part's `cancel`: if it is first, that part won't run.
        """
        with self._lock:
            raw, self._raw = self._raw, RawState()
        return raw


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorStateHandler:
    """Brings a function, its backend and the store together.

    Attributes:
        uid: The operator, for errors.
        function: The user's code.
        backend: The subtask's states.
        key_groups: Those of a keyed operator's subtask.
    """

    uid: str
    function: CheckpointedFunction
    backend: OperatorStateBackend
    key_groups: KeyGroupRange | None = None

    @classmethod
    def restore(
        cls,
        function: Any,
        state: SubtaskState,
        *,
        uid: str,
        key_groups: KeyGroupRange | None = None,
        written: WrittenStates | None = None,
    ) -> "OperatorStateHandler":
        """A handler whose backend has the state; `OperatorStateBackend.restore` says what it raises.

        Args:
            function: The user's code, or what wraps it.
            state: What its subtask is restored from.
            uid: The operator, for errors.
            key_groups: Those of a keyed operator's subtask.
            written: What the managed operator state of `state` leads to, if it is in memory: nothing
                of that is read then.
        """
        if written is None:
            backend = OperatorStateBackend.restore(state.managed_operator)
        else:
            backend = OperatorStateBackend.of_written(written)
        return cls(
            uid=uid,
            function=checkpointed_function(function),
            backend=backend,
            key_groups=key_groups,
        )

    def initialize_state(
        self,
        state: SubtaskState,
        *,
        restored_checkpoint_id: int | None,
        subtask_index: int,
        parallelism: int,
        input_schema: pa.Schema,
        broadcast_schema: pa.Schema | None = None,
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
                )
            )

    def snapshot_state(
        self,
        checkpoint_id: int,
        factory: CheckpointStreamFactory,
        *,
        local_factory: CheckpointStreamFactory | None = None,
        compression: Compression | None = None,
    ) -> OperatorSnapshot:
        """The synchronous part: the function's own, then raw state, then managed state.

        Raises:
            CheckpointDeclinedError: Any of that failed; nothing is left behind.
        """
        context = FunctionSnapshotContext(checkpoint_id, factory, self.key_groups)
        raw = RawState()
        try:
            self.function.snapshot_state(context)
            raw = context.finish()
            managed = self.backend.snapshot(
                factory,
                local_factory=local_factory,
                compression=compression,
                checkpoint_id=checkpoint_id,
            )
        except BaseException as error:
            raw.discard_state()
            if not isinstance(error, Exception):
                raise
            message = (
                f"could not complete snapshot {checkpoint_id} of operator {self.uid!r}: "
                f"{type(error).__name__}: {error}"
            )
            raise CheckpointDeclinedError(message) from error
        finally:
            context.close()
        return OperatorSnapshot(raw, managed)
