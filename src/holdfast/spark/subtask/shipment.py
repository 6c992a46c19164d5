"""The data that the driver sends to the subtasks of an operator."""

from dataclasses import dataclass

import pyarrow as pa

from holdfast.backends.snapshot import Compression
from holdfast.common import Clock
from holdfast.locations.handles import ByteStreamStateHandle
from holdfast.locations.metadata import StoredSubtask
from holdfast.locations.storages import CheckpointStorage
from holdfast.spark.settings import Stores
from holdfast.spark.warm_state import WarmSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStorage:
    """Where a job's state is kept, and how.

    Attributes:
        job_id: The job.
        storage: Where checkpoints go.
        stores: How to reach what checkpoints are in.
        compression: How state is compressed.
        warm: How much state may stay on executors.
        clock: Tells tasks the time.
    """

    job_id: str
    storage: CheckpointStorage
    stores: Stores
    compression: Compression | None
    warm: WarmSettings
    clock: Clock


@dataclass(frozen=True, slots=True)
class Shipment:
    """The part of that data which can be large.

    Attributes:
        function: The user's function, pickled. Each subtask unpickles a copy: what it does to that, no
            other subtask sees.
        assigned: The state that each subtask is restored from.
        broadcast_rows: Rows that each subtask is to see; None if the operator takes no such rows.
    """

    function: bytes
    assigned: tuple[StoredSubtask, ...]
    broadcast_rows: pa.Table | None

    @property
    def size(self) -> int:
        """About how many bytes it has."""
        inline = sum(
            stream.size
            for state in self.assigned
            for stream in state.streams()
            if isinstance(stream, ByteStreamStateHandle)
        )
        rows = self.broadcast_rows.nbytes if self.broadcast_rows is not None else 0
        return len(self.function) + inline + rows
