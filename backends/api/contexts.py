"""The contexts through which user code gets its states."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pyarrow as pa

from holdfast.backends.api.batch_times import BatchTimes
from holdfast.backends.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReduceFunction,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from holdfast.backends.keyed import (
    KeyedListState,
    KeyedStateBackend,
    MapState,
    ReducingState,
    ValueState,
)
from holdfast.backends.keys import KeyGroupRange
from holdfast.backends.operator import BroadcastState, ListState, OperatorStateBackend
from holdfast.backends.raw import (
    KeyedStateCheckpointOutputStream,
    KeyGroupStatePartitionStream,
    OperatorStateCheckpointOutputStream,
    StatePartitionStream,
)
from holdfast.backends.serializers import ElementType
from holdfast.backends.snapshot import discard
from holdfast.errors import InvalidRequestError
from holdfast.locations.metadata import StoredSubtask
from holdfast.locations.storages import (
    CheckpointedStateScope,
    CheckpointStateOutputStream,
    CheckpointStreamFactory,
)


def _ttl(ttl: timedelta | None) -> StateTtlConfig | None:
    return None if ttl is None else StateTtlConfig(ttl)


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

    def value_state(
        self, name: str, type: ElementType, *, default: Any = None, ttl: timedelta | None = None
    ) -> ValueState:
        """Return the keyed state with one value for each key: `context.value_state("last", float)`.

        This and the other methods that return states are short for a descriptor, such as
        `ValueStateDescriptor`, given to `keyed_state_store` or `operator_state_store`. Descriptors have further
        options.

        Args:
            name: Unique among the operator's states.
            type: Type of the value: of Arrow or Python, as for `ListStateDescriptor`.
            default: The value of a key that has none.
            ttl: How long a value lives after it was written; None for no limit.
        """
        descriptor = ValueStateDescriptor(name, type, default=default, ttl=_ttl(ttl))
        return self.keyed_state_store.get_state(descriptor)

    def keyed_list_state(
        self, name: str, type: ElementType, *, ttl: timedelta | None = None
    ) -> KeyedListState:
        """Return the keyed state with a list for each key."""
        descriptor = ListStateDescriptor(name, type, ttl=_ttl(ttl))
        return self.keyed_state_store.get_list_state(descriptor)

    def map_state(
        self,
        name: str,
        key_type: ElementType,
        value_type: ElementType,
        *,
        ttl: timedelta | None = None,
    ) -> MapState:
        """Return the keyed state with a map for each key."""
        descriptor = MapStateDescriptor(name, key_type, value_type, ttl=_ttl(ttl))
        return self.keyed_state_store.get_map_state(descriptor)

    def reducing_state(
        self,
        name: str,
        function: ReduceFunction,
        type: ElementType,
        *,
        ttl: timedelta | None = None,
    ) -> ReducingState:
        """Return the keyed state that reduces the values of each key to one, such as their "sum"."""
        descriptor = ReducingStateDescriptor(name, function, type, ttl=_ttl(ttl))
        return self.keyed_state_store.get_reducing_state(descriptor)

    def list_state(self, name: str, type: ElementType) -> ListState:
        """Return the operator state with a list of elements for each subtask, split when the job is rescaled."""
        return self.operator_state_store.get_list_state(ListStateDescriptor(name, type))

    def union_list_state(self, name: str, type: ElementType) -> ListState:
        """Return the operator state whose elements all go to each subtask on restore."""
        return self.operator_state_store.get_union_list_state(ListStateDescriptor(name, type))

    def broadcast_state(
        self, name: str, key_type: ElementType, value_type: ElementType
    ) -> BroadcastState:
        """Return the operator state with a map that is the same in all subtasks."""
        descriptor = MapStateDescriptor(name, key_type, value_type)
        return self.operator_state_store.get_broadcast_state(descriptor)

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
        """Whether the state comes from a checkpoint."""
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
        factory: CheckpointStreamFactory | None = None,
        key_groups: KeyGroupRange | None = None,
    ) -> None:
        self._checkpoint_id = checkpoint_id
        self._factory = factory
        self._key_groups = key_groups
        self._operator: OperatorStateCheckpointOutputStream | None = None
        self._keyed: KeyedStateCheckpointOutputStream | None = None
        self._open = ExitStack()

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

    def finish(self) -> StoredSubtask:
        """Close the streams that were asked for, keyed state first. Returns the handles to raw state."""
        keyed = self._keyed.close_and_get_handle() if self._keyed else None
        state = StoredSubtask(raw_keyed=(keyed,) if keyed else ())
        try:
            operator = self._operator.close_and_get_handle() if self._operator else None
        except BaseException:
            discard(state)
            raise
        return state.together_with(StoredSubtask(raw_operator=(operator,) if operator else ()))

    def close(self) -> None:
        """Discard the streams that were asked for and not finished."""
        for output in (self._operator, self._keyed):
            if output is not None:
                output.end()
        self._open.close()

    def _stream(self) -> CheckpointStateOutputStream:
        if self._factory is None:
            raise InvalidRequestError("there is nowhere for raw state to go")
        stream = self._factory.create_checkpoint_state_output_stream(
            CheckpointedStateScope.EXCLUSIVE
        )
        self._open.callback(stream.close)
        return stream
