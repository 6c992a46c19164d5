"""The classes that user code implements to run as an operator with state."""

import copyreg
import dataclasses
from abc import abstractmethod
from collections.abc import Iterator
from typing import Literal

import pyarrow as pa

from holdfast.backends.functions import CheckpointedFunction

# Classes of the main script are pickled by value. A dataclass marks fields without a default with this object;
# with a copy of the object, all fields would seem to have a default.
copyreg.pickle(type(dataclasses.MISSING), lambda _: "MISSING")


class StatefulFunction(CheckpointedFunction):
    """An operator with state. One fresh copy runs in each subtask for each micro-batch.

    Attributes:
        time_mode: The time that fires the function's timers. Spark has to plan batches without rows for them:
            `none` without timers, `processing` for the time of batches, `event` for the watermark. In
            event time the function gets no late rows.
        keeps_late_rows: Whether the function gets late rows in event time, too, and compares times with
            `context.times.late_watermark` itself.
        late_rows: Number of late rows of the batch that the function has dropped itself.
    """

    time_mode: Literal["none", "processing", "event"] = "none"
    keeps_late_rows: bool = False
    late_rows: int = 0

    @abstractmethod
    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Turn the subtask's rows of one micro-batch into the rows for the sink.

        Called once a micro-batch, also when the subtask has no rows. It must read `batches` to the end.
        The checkpoint holds the state as it is when this method returns.

        Args:
            batches: The rows, with the schema `context.input_schema`; there may be no batch, one or many.

        Yields:
            Batches of the output schema, which is the schema of the input unless `stateful` was given another.
        """


class BroadcastProcessFunction(StatefulFunction):
    """An operator with a second, small stream, whose rows all go to every subtask.

    Use it for rules that change while the job runs. All subtasks must process these rows in the same way,
    so that a broadcast state is the same in all of them.

    Source:
        Flink, BroadcastProcessFunction.
    """

    @abstractmethod
    def process_broadcast(self, rows: pa.Table) -> None:
        """Process the broadcast rows of one micro-batch; called before `process`.

        Args:
            rows: The rows, with the columns of `context.broadcast_schema`; may be empty.
        """
