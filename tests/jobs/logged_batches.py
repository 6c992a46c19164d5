"""Batches of a query of files whose times are chosen: Spark's log says that one was begun, and the next start runs it anew."""

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

    Spark reads the time of a batch from its clock, and notes it before the batch runs. A batch that is noted, but not as done,
    is run again with that time by a query that starts. So one that has never run is noted here: its time is that of a test,
    and each batch is a run of the query.

    Args:
        directory: An empty directory.
    """

    def __init__(self, directory: Path) -> None:
        self.source = directory / "source"
        self.checkpoint = directory / "checkpoint"
        self._count = 0
        for folder in (self.source, self.checkpoint / "offsets", self.checkpoint / "sources" / "0"):
            folder.mkdir(parents=True)
        (self.checkpoint / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))

    def begin(self, rows: Sequence[Mapping[str, Any]], at_ms: int) -> int:
        """Note a batch of rows that was begun at a time, milliseconds since 1970; gives its watermark."""
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
        self._note("sources/0", number, entry)
        self._note("offsets", number, times, {"logOffset": number})
        return watermark

    def _note(self, log: str, number: int, *lines: Mapping[str, Any]) -> None:
        text = "\n".join(["v1", *map(json.dumps, lines)])
        (self.checkpoint / log / str(number)).write_text(text)
