"""Jobs over Spark Connect: their functions and sinks are pickled to the server."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from contracts.patience import HANGS_S
from jobs.job import Job
from jobs.session import session_with
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from holdfast import BroadcastProcessFunction
from holdfast.backends import FunctionInitializationContext, MapStateDescriptor
from holdfast.spark.operators import Sink

if TYPE_CHECKING:  # the server starts faster without what starts it
    from servers.connect import ConnectServer

_TOO_SLOW = "failed to connect back"


class ConnectJob(Job):
    """A job whose query runs on a Spark Connect server. Its sinks are pickled there."""

    def __init__(self, server: "ConnectServer", directory: Path) -> None:
        super().__init__(server.new_session(), directory)  # type: ignore[arg-type]
        self.location: str | None = str(self.spark_checkpoint)
        self.name: str | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "spark": None}

    def start(
        self, function: Sink, rows: DataFrame | None = None, mode: str = "append", **trigger: object
    ) -> Any:
        """Start the query, by default over the rows of the source.

        The server gives the process of its batches ten seconds to start, which no setting
        changes: on a busy machine that takes several tries.
        """
        writer = (
            (self.stream() if rows is None else rows)
            .writeStream.foreachBatch(function)  # type: ignore[arg-type]
            .outputMode(mode)
            .trigger(**(trigger or {"availableNow": True}))  # type: ignore[call-overload]
        )
        if self.location is not None:
            writer = writer.option("checkpointLocation", self.location)
        if self.name is not None:
            writer = writer.queryName(self.name)
        with session_with(self.spark, self.settings):
            deadline = time.monotonic() + HANGS_S
            while True:
                try:
                    return writer.start()
                except PySparkException as error:
                    if _TOO_SLOW not in str(error) or time.monotonic() > deadline:
                        raise


class Marks(BroadcastProcessFunction):
    """Gives each row the last mark that was broadcast so far."""

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        descriptor = MapStateDescriptor("marks", pa.string(), pa.int64())
        self.marks = context.operator_state_store.get_broadcast_state(descriptor)

    def process_broadcast(self, rows: pa.Table) -> None:
        for mark in rows["mark"].to_pylist():
            self.marks.put("last", mark)

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            marks = pa.array([self.marks.get("last")] * len(batch), pa.int64())
            yield batch.append_column("mark", marks)


@dataclass(frozen=True, slots=True)
class Gate:
    """A named pipe at which a sink on the server waits for the test."""

    path: Path

    @classmethod
    def create(cls, directory: Path) -> "Gate":
        """Make a closed gate in a directory."""
        os.mkfifo(directory / "gate")
        return cls(directory / "gate")

    def pass_through(self) -> None:
        """Wait, in the sink."""
        self.path.read_bytes()

    def await_sink(self) -> None:
        """Wait until a sink is there, and let it through."""
        self.path.write_bytes(b"")
