"""Batches with chosen times: Spark's log has them as begun, and the next start of the query runs them."""

import json
import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jobs.session import ROCKSDB

_PINNED = {"spark.sql.shuffle.partitions": "2", **ROCKSDB}


class LoggedBatches:
    """The source of a query and its checkpointLocation, with the batches that it will run.

    Spark logs the time of a batch before the batch runs. A query that starts runs the last logged batch again, with the
    logged time, if it was not committed. So batches that have never run are logged here, with times of the test, and each
    batch is a start of the query.
    """

    def __init__(self, directory: Path) -> None:
        self.source = directory / "source"
        self.checkpoint = directory / "checkpoint"
        self._count = 0
        for folder in (self.source, self.checkpoint / "offsets", self.checkpoint / "sources" / "0"):
            folder.mkdir(parents=True)
        (self.checkpoint / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))

    def begin(self, rows: Sequence[Mapping[str, Any]], at_ms: int) -> int:
        """Log a batch of rows that was begun at a time, milliseconds since 1970. Return its watermark."""
        number, self._count = self._count, self._count + 1
        file = self.source / f"{number}.json"
        file.write_text("\n".join(map(json.dumps, rows)))
        file_ms = int(os.stat(file).st_mtime * 1000)
        entry = {"path": file.as_uri(), "timestamp": file_ms, "batchId": number}
        watermark = 0
        if number:
            done = (self.checkpoint / "commits" / str(number - 1)).read_text()
            watermark = json.loads(done.splitlines()[-1])["nextBatchWatermarkMs"]
        times = {"batchWatermarkMs": watermark, "batchTimestampMs": at_ms, "conf": _PINNED}
        self._log("sources/0", number, entry)
        self._log("offsets", number, times, {"logOffset": number})
        return watermark

    def _log(self, log: str, number: int, *lines: Mapping[str, Any]) -> None:
        text = "\n".join(["v1", *map(json.dumps, lines)])
        (self.checkpoint / log / str(number)).write_text(text)
