"""What user code implements to run as an operator with state."""

from abc import abstractmethod
from collections.abc import Iterator

import pyarrow as pa

from holdfast.backends import CheckpointedFunction


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
            Batches of the output schema: that of the input, unless `stateful` was told another.
        """
