"""What user code implements to run as an operator with state."""

import copyreg
import dataclasses
from abc import abstractmethod
from collections.abc import Iterator

import pyarrow as pa

from holdfast.backends.api import CheckpointedFunction

# Classes of the started script travel by value. By this object a dataclass knows fields without a default;
# with a copy of the object, all fields would look as if they had a default.
copyreg.pickle(type(dataclasses.MISSING), lambda _: "MISSING")


class StatefulFunction(CheckpointedFunction):
    """An operator with state. One fresh copy runs in each subtask for each micro-batch."""

    @abstractmethod
    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Turn the subtask's rows of one micro-batch into the rows for the sink.

        It is called once a micro-batch, also when the subtask has no rows, and must read
        `batches` to the end. The state as it is when it returns is what is checkpointed.

        Args:
            batches: The rows, as `context.input_schema` says; none, some or many batches.

        Yields:
            Batches of the output schema, which is the input's unless `stateful` was told another.
        """


class BroadcastProcessFunction(StatefulFunction):
    """An operator that also sees a second, small stream, of which every subtask gets all rows.

    It is of use for rules that change while the job runs. All subtasks must do the same with these rows,
    so that a broadcast state is the same in all of them.

    Source:
        Flink, BroadcastProcessFunction.
    """

    @abstractmethod
    def process_broadcast(self, rows: pa.Table) -> None:
        """Take in the rows of one micro-batch that go to every subtask; called before `process`.

        Args:
            rows: As `context.broadcast_schema` says; maybe none.
        """
