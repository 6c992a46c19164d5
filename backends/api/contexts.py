"""The contexts through which user code gets its states."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from holdfast.backends.api.batch_times import BatchTimes
from holdfast.backends.keyed import KeyedStateBackend
from holdfast.backends.keys import KeyGroupRange
from holdfast.backends.operator import OperatorStateBackend
from holdfast.backends.snapshot import (
    AsyncSnapshot,
    KeyedStateCheckpointOutputStream,
    KeyGroupStatePartitionStream,
    OperatorStateCheckpointOutputStream,
    SnapshotStreams,
    StatePartitionStream,
)
from holdfast.errors import InvalidRequestError
from holdfast.locations.metadata import StoredSubtask
from holdfast.locations.storages import (
    CheckpointedStateScope,
    CheckpointStateOutputStream,
    CheckpointStreamFactory,
)


def _nothing() -> Iterator[Any]:
    return iter(())


@dataclass(frozen=True, slots=True)
class FunctionInitializationContext:
    """Given to `CheckpointedFunction.initialize_state`.

    Attributes:
        operator_state_store: The subtask's operator states.
        restored_checkpoint_id: The checkpoint that the states come from; None on a fresh start.
        subtask_index: This subtask, 0 <= subtask_index < parallelism.
        parallelism: Number of the operator's subtasks.
        input_schema: Arrow schema of the rows that the function will be given.
        raw_operator_state_inputs: The partitions of raw operator state, each a file; only while
            `initialize_state` runs.
        raw_keyed_state_inputs: The key groups of raw keyed state, likewise.
        key_groups: The subtask's key groups: every key that the subtask sees is in one of them. None if
            rows are not dealt by key.
        broadcast_schema: Arrow schema of the rows that all subtasks see, if there are such rows.
        output_schema: Arrow schema of the rows that the function is to yield; None if it is not known.
        times: The times of the batch.
        open_keyed_state: Opens the subtask's keyed states for `keyed_state_store`; None if the operator has
            no key.
    """

    operator_state_store: OperatorStateBackend
    restored_checkpoint_id: int | None
    subtask_index: int
    parallelism: int
    input_schema: pa.Schema
    raw_operator_state_inputs: Iterator[StatePartitionStream] = field(default_factory=_nothing)
    raw_keyed_state_inputs: Iterator[KeyGroupStatePartitionStream] = field(default_factory=_nothing)
    key_groups: KeyGroupRange | None = None
    broadcast_schema: pa.Schema | None = None
    output_schema: pa.Schema | None = None
    times: BatchTimes = BatchTimes(0, 0, 0)  # noqa: RUF009  # frozen
    open_keyed_state: Callable[[], KeyedStateBackend] | None = None

    @property
    def keyed_state_store(self) -> KeyedStateBackend:
        """The subtask's keyed states, at the time of the batch; the same object each time.

        The first access opens them: an operator that never asks for keyed state has no costs from it.

        Raises:
            InvalidRequestError: The operator has no key.
            StateMigrationError: Its keyed state was stored with a key of other types.
            CheckpointNotFoundError: A file of the state is gone.
            CheckpointCorruptedError: A file of the state is damaged.
        """
        if self.open_keyed_state is None:
            message = (
                "keyed state is for operators with a key; name its columns: stateful(..., key=...)"
            )
            raise InvalidRequestError(message)
        return self.open_keyed_state()

    @property
    def batch_time(self) -> int:
        """When Spark planned the batch, in milliseconds since 1970; the same when it is repeated."""
        return self.times.batch_time

    @property
    def watermark(self) -> int:
        """The watermark of the batch, in milliseconds since 1970; `NO_WATERMARK`, before every time, while there is none."""
        return self.times.watermark

    @property
    def is_restored(self) -> bool:
        """Return whether the state comes from a checkpoint."""
        return self.restored_checkpoint_id is not None


class FunctionSnapshotContext:
    """Given to `CheckpointedFunction.snapshot_state`.

    Args:
        checkpoint_id: The checkpoint that is being taken.
        factory: Where raw state goes.
        key_groups: The subtask's key groups; None if the operator has no keys.
    """

    def __init__(
        self,
        checkpoint_id: int,
        factory: CheckpointStreamFactory,
        key_groups: KeyGroupRange | None = None,
    ) -> None:
        self._checkpoint_id = checkpoint_id
        self._key_groups = key_groups
        self._operator: OperatorStateCheckpointOutputStream | None = None
        self._keyed: KeyedStateCheckpointOutputStream | None = None
        self._streams = SnapshotStreams(factory)

    @property
    def checkpoint_id(self) -> int:
        """The checkpoint that is being taken."""
        return self._checkpoint_id

    def raw_operator_state_output(self) -> OperatorStateCheckpointOutputStream:
        """Where operator state of the user's own format goes; the same stream each time.

        A buffer in front of the stream, such as a `BufferedWriter`, has to be flushed before the next
        partition begins and before `snapshot_state` returns; bytes that are still in the buffer are not stored.

        Raises:
            StorageUnavailableError: The store did not take it.
        """
        if self._operator is None:
            self._operator = OperatorStateCheckpointOutputStream(self._stream())
        return self._operator

    def raw_keyed_state_output(self) -> KeyedStateCheckpointOutputStream:
        """Where keyed state of the user's own format goes; the same stream each time.

        A buffer in front of the stream has to be flushed, as for `raw_operator_state_output`.

        Raises:
            InvalidRequestError: The operator has no keys.
            StorageUnavailableError: The store did not take it.
        """
        if self._key_groups is None:
            raise InvalidRequestError("raw keyed state is for operators with keys")
        if self._keyed is None:
            self._keyed = KeyedStateCheckpointOutputStream(self._stream(), self._key_groups)
        return self._keyed

    def finish(self) -> AsyncSnapshot:
        """Close the streams that were asked for, keyed state first. Returns the snapshot of raw state."""
        streams = self._streams
        try:
            keyed = self._keyed.close_and_get_handle() if self._keyed else None
            streams.adopt(keyed)
            operator = self._operator.close_and_get_handle() if self._operator else None
            streams.adopt(operator)
        except BaseException:
            streams.discard()
            raise
        state = StoredSubtask(
            raw_operator=(operator,) if operator else (), raw_keyed=(keyed,) if keyed else ()
        )
        return AsyncSnapshot.from_written(state, streams)

    def close(self) -> None:
        """Discard the streams that were asked for and not finished."""
        for output in (self._operator, self._keyed):
            if output is not None:
                output.end()
        self._streams.close()

    def _stream(self) -> CheckpointStateOutputStream:
        return self._streams.open(CheckpointedStateScope.EXCLUSIVE)
