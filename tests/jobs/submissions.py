"""The input and the result of `submitted.py`, whichever cluster runs it."""

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from jobs.job import Job

from holdfast.backends import ListStateDescriptor, OperatorStateBackend

FILES = 2
ROWS = 10


def feed(job: Job) -> None:
    """Write the input, a file for each batch."""
    job.feed(files=FILES, rows=ROWS)


def check_numbers(job: Job) -> list[dict[str, Any]]:
    """Check that each row has its number in its subtask's state, and return the rows of the output."""
    files = job.output.glob("batch=*/*.parquet")
    rows: list[dict[str, Any]] = [row for file in files for row in pq.read_table(file).to_pylist()]
    assert sorted(row["id"] for row in rows) == list(range(FILES * ROWS))
    latest = job.latest()
    assert latest.metadata.checkpoint_id == FILES
    numbers: dict[int, int] = {}
    for state in latest.metadata.operators["numbers"].subtasks.values():
        backend = OperatorStateBackend.restore(state.managed_operator)
        seen = backend.get_list_state(ListStateDescriptor("seen", pa.int64()))
        numbers |= {row_id: number for number, row_id in enumerate(seen)}
    assert {row["id"]: row["number"] for row in rows} == numbers
    return rows
