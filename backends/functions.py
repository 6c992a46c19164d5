"""The interface of user code: the classes that functions implement, and the contexts that they are given.

`subtask` calls the functions.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

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
from holdfast.backends.serializers import ElementType
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

NO_WATERMARK = -(1 << 63)
"""The watermark of a query that has none, or whose rows have not advanced it yet; earlier than every time."""


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """The times of a micro-batch, in milliseconds since 1970. A repeated batch has the same times.

    Attributes:
        batch_time: When Spark planned the batch, by the driver's clock; never earlier than the last checkpoint's,
            even if the clock was set back.
        watermark: The watermark of the batch, or `NO_WATERMARK`.
        late_watermark: The watermark of the previous batch: rows whose event time is at or below it are late.
            `NO_WATERMARK` in the first batch, so that no row is late.
    """

    batch_time: int
    watermark: int
    late_watermark: int


class SideOutput(Protocol):
    """An output of an operator besides its main output.

    Source:
        Flink, OutputTag and Context.output.
    """

    def emit(self, row: tuple[Any, ...] | Mapping[str, Any] | pa.RecordBatch | pa.Table, /) -> None:
        """Emit a row, or rows of Arrow.

        Args:
            row: A tuple in the order of the columns, a mapping by their names, or a batch or table of rows.

        Raises:
            InvalidRequestError: The row does not have the columns of the side output.
        """
        ...


def _ttl(ttl: timedelta | None) -> StateTtlConfig | None:
    return None if ttl is None else StateTtlConfig(ttl)


@dataclass(frozen=True, slots=True)
class FunctionInitializationContext:
    """Given to `CheckpointedFunction.initialize_state`.

    Attributes:
        operator_state_store: The subtask's operator states.
        restored_checkpoint_id: The checkpoint that the states were restored from; None on a fresh start.
        subtask_index: This subtask, 0 <= subtask_index < parallelism.
        parallelism: Number of the operator's subtasks.
        input_schema: Arrow schema of the input rows.
        raw_operator_state_inputs: The partitions of raw operator state, each a file; valid only while
            `initialize_state` runs.
        raw_keyed_state_inputs: The key groups of raw keyed state; valid only while `initialize_state` runs.
        key_groups: The subtask's key groups: every key that the subtask sees is in one of them. None if
            rows are not partitioned by key.
        broadcast_schema: Arrow schema of the rows that all subtasks see; None without a broadcast input.
        output_schema: Arrow schema of the rows that the function must yield; None if it is unknown.
        times: The times of the batch.
        open_keyed_state: Opens the subtask's keyed states for `keyed_state_store`; None if the operator has
            no key.
        side_outputs: The side outputs by name; `side_output` returns one of them.
    """

    operator_state_store: OperatorStateBackend
    restored_checkpoint_id: int | None
    subtask_index: int
    parallelism: int
    input_schema: pa.Schema
    raw_operator_state_inputs: Iterator[StatePartitionStream] = field(
        default_factory=lambda: iter(())
    )
    raw_keyed_state_inputs: Iterator[KeyGroupStatePartitionStream] = field(
        default_factory=lambda: iter(())
    )
    key_groups: KeyGroupRange | None = None
    broadcast_schema: pa.Schema | None = None
    output_schema: pa.Schema | None = None
    times: BatchTimes = BatchTimes(0, 0, 0)  # frozen
    open_keyed_state: Callable[[], KeyedStateBackend] | None = None
    side_outputs: Mapping[str, SideOutput] = field(default_factory=dict)

    def side_output(self, name: str) -> SideOutput:
        """Return the side output of that name.

        Raises:
            InvalidRequestError: The operator declares no such side output.
        """
        output = self.side_outputs.get(name)
        if output is None:
            raise InvalidRequestError(
                f"the operator has side outputs {sorted(self.side_outputs)}, not {name!r}; declare it with its schema: "
                f"stateful(..., side_outputs={{{name!r}: schema}})"
            )
        return output

    @property
    def keyed_state_store(self) -> KeyedStateBackend:
        """The subtask's keyed states, at the time of the batch; the same object each time.

        The first access opens them, so an operator that uses no keyed state pays nothing for it.

        Raises:
            InvalidRequestError: The operator has no key.
            StateMigrationError: Its keyed state was stored with other key types.
            CheckpointNotFoundError: A state file is missing.
            CheckpointCorruptedError: A state file is corrupted.
        """
        if self.open_keyed_state is None:
            message = "keyed state requires a key; name the key columns: stateful(..., key=...)"
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
        """The time when Spark planned the batch, in milliseconds since 1970; a repeated batch has the same time."""
        return self.times.batch_time

    @property
    def watermark(self) -> int:
        """The watermark of the batch, in milliseconds since 1970, or `NO_WATERMARK`, which is earlier than every time."""
        return self.times.watermark

    @property
    def is_restored(self) -> bool:
        """Return whether the state was restored from a checkpoint."""
        return self.restored_checkpoint_id is not None


class FunctionSnapshotContext:
    """Given to `CheckpointedFunction.snapshot_state`.

    Args:
        checkpoint_id: The checkpoint that is being taken; also an attribute.
        factory: Creates the streams of raw state.
        key_groups: The subtask's key groups; None if the operator has no key.
    """

    def __init__(
        self,
        checkpoint_id: int,
        factory: CheckpointStreamFactory,
        key_groups: KeyGroupRange | None = None,
    ) -> None:
        self.checkpoint_id = checkpoint_id
        self._key_groups = key_groups
        self._operator: OperatorStateCheckpointOutputStream | None = None
        self._keyed: KeyedStateCheckpointOutputStream | None = None
        self._streams = SnapshotStreams(factory)

    def raw_operator_state_output(self) -> OperatorStateCheckpointOutputStream:
        """Return the output stream of operator state in a custom format; the same stream each time.

        Flush a buffer on top of the stream, such as a `BufferedWriter`, before the next partition begins and
        before `snapshot_state` returns; bytes that are still in the buffer are not stored.

        Raises:
            StorageUnavailableError: The store rejected the write.
        """
        if self._operator is None:
            self._operator = OperatorStateCheckpointOutputStream(self._stream())
        return self._operator

    def raw_keyed_state_output(self) -> KeyedStateCheckpointOutputStream:
        """Return the output stream of keyed state in a custom format; the same stream each time.

        Flush buffers on top of the stream, as for `raw_operator_state_output`.

        Raises:
            InvalidRequestError: The operator has no key.
            StorageUnavailableError: The store rejected the write.
        """
        if self._key_groups is None:
            raise InvalidRequestError(
                "raw keyed state requires a key; name the key columns: stateful(..., key=...)"
            )
        if self._keyed is None:
            self._keyed = KeyedStateCheckpointOutputStream(self._stream(), self._key_groups)
        return self._keyed

    def finish(self) -> AsyncSnapshot:
        """Close the streams that were opened, keyed state first, and return the snapshot of raw state."""
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
        """Discard the streams that were opened and not finished."""
        for output in (self._operator, self._keyed):
            if output is not None:
                output.end()
        self._streams.close()

    def _stream(self) -> CheckpointStateOutputStream:
        return self._streams.open(CheckpointedStateScope.EXCLUSIVE)


class CheckpointedFunction(ABC):
    """User code with operator state.

    Source:
        Flink, CheckpointedFunction.
    """

    @abstractmethod
    def initialize_state(self, context: FunctionInitializationContext) -> None:
        """Get the states from `context.operator_state_store`; called before the first input row."""

    def snapshot_state(  # noqa: B027  # most operators need none: their states are managed
        self, context: FunctionSnapshotContext
    ) -> None:
        """Update the states; needed only by functions that keep data outside of them."""


@runtime_checkable
class CheckpointListener(Protocol):
    """Notified on the driver when a checkpoint completes or is aborted. Notifications can be skipped.

    A notification for one id subsumes the lower ids. Implementations must be idempotent: a checkpoint can be
    notified more than once.

    Source:
        Flink, CheckpointListener.
    """

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Handle a completed checkpoint."""
        ...

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Handle an aborted checkpoint."""
        ...


def unwrap_function(function: Any) -> CheckpointedFunction:
    """Return the stateful function inside of wrappers, which have it as `__wrapped__` or `wrapped_function`.

    Raises:
        InvalidRequestError: Neither the function nor one that it wraps is a `CheckpointedFunction`.

    Source:
        Flink, StreamingFunctionUtils: unwraps in the same way.
    """
    seen: list[Any] = []
    while not isinstance(function, CheckpointedFunction):
        seen.append(function)
        inner = getattr(function, "wrapped_function", None) or getattr(
            function, "__wrapped__", None
        )
        if inner is None or any(inner is outer for outer in seen):
            names = ", which wraps ".join(type(outer).__name__ for outer in seen)
            raise InvalidRequestError(f"{names} is not a CheckpointedFunction")
        function = inner
    return function
