"""The data that the driver sends to the tasks of an operator."""

from dataclasses import dataclass

import pyarrow as pa

from holdfast.backends.functions import BatchTimes
from holdfast.backends.keys import KeyGroupRange, key_group_range
from holdfast.backends.snapshot import Compression
from holdfast.backends.subtask import OperatorKey
from holdfast.common import Clock
from holdfast.locations.handles import ByteStreamStateHandle
from holdfast.locations.metadata import StoredSubtask
from holdfast.locations.storages import CheckpointStorage, CheckpointStorageLocationReference
from holdfast.spark.local_state import StateSettings
from holdfast.spark.settings import Stores


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStorage:
    """The storage of a job's state.

    Attributes:
        job_id: The job.
        storage: The storage of checkpoints.
        stores: The configuration of the stores that checkpoints are in.
        compression: The compression of state.
        state: The backends of keyed state, and the limits of task-local state.
        clock: The clock of tasks.
    """

    job_id: str
    storage: CheckpointStorage
    stores: Stores
    compression: Compression | None
    state: StateSettings
    clock: Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorInfo:
    """The properties of an operator that its subtasks need.

    Attributes:
        uid: The operator.
        parallelism: Number of its subtasks.
        key: Its key; None if rows are not partitioned by key.
        input_schema: Schema of its rows.
        output_schema: Schema of the rows that it yields.
        is_forwarded: Whether rows stay in Spark's partitions, so that a subtask may get no row at all.
    """

    uid: str
    parallelism: int
    key: OperatorKey | None
    input_schema: pa.Schema
    output_schema: pa.Schema
    is_forwarded: bool = False

    def key_groups(self, subtask: int) -> KeyGroupRange | None:
        """Return the key groups of a subtask; None without a key."""
        if self.key is None:
            return None
        return key_group_range(self.key.max_parallelism, self.parallelism, subtask)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointInfo:
    """The checkpoint that subtasks write.

    Attributes:
        checkpoint_id: The checkpoint.
        location_reference: The location of its files.
        restored_checkpoint_id: The checkpoint from which state is restored, or None.
        may_refer: Whether the checkpoint may refer to shared files of the restored state.
        times: The times of the batch.
    """

    checkpoint_id: int
    location_reference: CheckpointStorageLocationReference
    restored_checkpoint_id: int | None = None
    may_refer: bool = True
    times: BatchTimes = BatchTimes(0, 0, 0)  # noqa: RUF009  # frozen


@dataclass(frozen=True, slots=True)
class TaskPayload:
    """The part of the data that can be large.

    Attributes:
        function: The user's function, pickled. Each subtask unpickles its own copy.
        assigned: The state from which each subtask is restored.
        broadcast_rows: Rows for every subtask; None if the operator takes no such rows.
    """

    function: bytes
    assigned: tuple[StoredSubtask, ...]
    broadcast_rows: pa.Table | None

    @property
    def size(self) -> int:
        """The approximate number of bytes."""
        inline = sum(
            stream.size
            for state in self.assigned
            for stream in state.streams()
            if isinstance(stream, ByteStreamStateHandle)
        )
        rows = self.broadcast_rows.nbytes if self.broadcast_rows is not None else 0
        return len(self.function) + inline + rows
