"""The job, which kills itself with SIGKILL at a point in the second batch of its run.

python -m examples.orders.killed_job [options of the job] --point POINT
"""

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame

from examples.orders.job import ALERTS, Settings, parser_of, session, sinks_of, start
from holdfast.spark.operators import Sink
from holdfast.spark.sinks.kafka import KafkaSink

POINTS = {
    "nothing of the batch is in Delta": ("orders", "before"),
    "Delta has the orders, there is no checkpoint": ("orders", "after"),
    "Iceberg has the late rows, there is no checkpoint": ("late", "after"),
    "the alerts are in the outbox, there is no checkpoint": ("alerts", "after"),
    "there is a checkpoint, Kafka has no alerts": ("alerts", "complete"),
}
"""A sink, and the moment before or after it has written the batch, or when the checkpoint is complete."""

_BATCH = 2


class _Kill:
    """Kills this process in the second batch.

    Attributes:
        moment: The moment in the batch.
    """

    def __init__(self, moment: str) -> None:
        self.moment = moment
        self._batches = 0

    def reach(self, moment: str) -> None:
        """Kill the process if this is the moment."""
        self._batches += moment == "before"
        if self._batches == _BATCH and moment == self.moment:
            os.kill(os.getpid(), signal.SIGKILL)


class _KilledKafkaSink(KafkaSink):
    """The sink of alerts."""

    kill: _Kill

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        self.kill.reach("before")
        super().__call__(rows, batch_id)
        self.kill.reach("after")

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.kill.reach("complete")
        super().notify_checkpoint_complete(checkpoint_id)


def _killed_sink(sink: Sink, kill: _Kill) -> Sink:
    def write(rows: DataFrame, batch_id: int) -> None:
        kill.reach("before")
        sink(rows, batch_id)
        kill.reach("after")

    return write


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job until it is killed."""
    parser = parser_of("examples.orders.killed_job", __doc__)
    parser.add_argument("--point", choices=POINTS, required=True)
    options = vars(parser.parse_args(arguments))
    name, moment = POINTS[options.pop("point")]
    settings = Settings(**options)
    kill = _Kill(moment)
    sinks = sinks_of(settings)
    killed: Any
    if name == "alerts":
        killed = _KilledKafkaSink({"bootstrap.servers": settings.bootstrap}, ALERTS)
        killed.kill = kill
    else:
        killed = _killed_sink(getattr(sinks, name), kill)
    sinks = replace(sinks, **{name: killed})
    start(session(settings), settings, sinks).awaitTermination()
    return 0


if __name__ == "__main__":
    sys.exit(main())
