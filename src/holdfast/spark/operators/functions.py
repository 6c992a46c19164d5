"""The classes that user code implements to run as an operator with state."""

import copyreg
import dataclasses
from abc import abstractmethod
from collections.abc import Iterator
from typing import Literal

import pyarrow as pa

from holdfast.backends.functions import CheckpointedFunction

# Classes of the started script travel by value. By this object a dataclass knows fields without a default;
# with a copy of the object, all fields would look as if they had a default.
copyreg.pickle(type(dataclasses.MISSING), lambda _: "MISSING")


class StatefulFunction(CheckpointedFunction):
    """An operator with state. One fresh copy runs in each subtask for each micro-batch.

    Attributes:
        time_mode: The time by which the function's timers fire, so that Spark has to plan batches without rows:
            `none` without timers, `processing` for the time of batches, `event` for the watermark. In
            event time the function gets no late rows.
        keeps_late_rows: Whether the function gets late rows in event time, too, and recognises them by
            `context.times.late_watermark` itself.
        late_rows: How many rows of the batch the function has dropped itself, because they were late.
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
            batches: The rows, as `context.input_schema` says; none, some or many batches.

        Yields:
            Batches of the output schema, which is the schema of the input unless `stateful` was given another.
        """


class BroadcastProcessFunction(StatefulFunction):
    """An operator that also sees a second, small stream, of which every subtask gets all rows.

    Use it for rules that change while the job runs. All subtasks must do the same with these rows,
    so that a broadcast state is the same in all of them.

    Source:
        Flink, BroadcastProcessFunction.
    """

    @abstractmethod
    def process_broadcast(self, rows: pa.Table) -> None:
        """Process the rows of one micro-batch that go to every subtask; called before `process`.

        Args:
            rows: The rows, with the columns of `context.broadcast_schema`; may be empty.
        """
