"""Requests of a checkpoint on a distant S3 server, and the time until it is committed.

    python -m benchmarks.commits --server minio --delay-ms 40 --megabytes-a-second 125

Subtasks write their state at the same time, and the driver commits the checkpoint and deletes the one before it. State up to
20 KiB is in `_metadata`. Requests are means of all rounds by their methods: a listing is a GET, and a deletion in bulk a POST. Times are
medians, with the least in parentheses.
"""

import argparse
import statistics
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from benchmarks.s3.server import run_link, run_server, use_bucket
from holdfast.locations import FileSystemCheckpointStorage, complete_checkpoint
from holdfast.locations.coordination import CheckpointsCleaner, CompletedCheckpointStore
from holdfast.locations.handles import StreamStateHandle
from holdfast.locations.storages import CheckpointedStateScope, CheckpointStreamFactory
from holdfast.testing import metadata_of

_WARM_UP = 3


def main() -> None:
    """Measure each size of state, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--server", default="minio")
    parser.add_argument("--delay-ms", type=float, default=40.0)
    parser.add_argument("--megabytes-a-second", type=float, default=125.0)
    parser.add_argument("--subtasks", type=int, default=2)
    parser.add_argument("--state-bytes", default="4000,100000")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    print("| state of a subtask | requests | state, ms | commit, ms |")
    print("|---|---|---|---|")
    with (
        run_server(options.server) as server,
        server.new_bucket() as bucket,
        run_link(bucket, options.delay_ms, options.megabytes_a_second) as link,
    ):
        use_bucket(link.bucket)
        for size in map(int, options.state_bytes.split(",")):
            job = _Job(f"s3://{bucket.name}/{size}", size, options.subtasks)
            for _ in range(_WARM_UP):
                job.complete_checkpoint()
            link.reset()
            times = [job.complete_checkpoint() for _ in range(options.rounds)]
            counts = {
                name: round(count / options.rounds, 1)
                for name, count in sorted(link.requests().items())
            }
            requests = ", ".join(f"{count:g} {name}" for name, count in counts.items())
            written, committed = zip(*times, strict=True)
            print(f"| {size:,} B | {requests} | {_format(written)} | {_format(committed)} |")


class _Job:
    """A job whose driver and subtasks are in this process."""

    def __init__(self, directory: str, state_bytes: int, subtasks: int) -> None:
        self._access = FileSystemCheckpointStorage(directory).create_checkpoint_storage("job")
        self._access.initialize_base_locations_for_checkpoint()
        self._ownership = self._access.claim_job()
        self._cleaner = CheckpointsCleaner()
        self._store = CompletedCheckpointStore(1, self._cleaner)
        self._state = bytes(state_bytes)
        self._tasks = ThreadPoolExecutor(subtasks)
        self._subtasks = subtasks
        self._number = 0

    def complete_checkpoint(self) -> tuple[float, float]:
        """Return the seconds until all state is written, and from then until the commit."""
        self._number += 1
        location = self._access.initialize_location_for_checkpoint(self._number)
        begin_s = time.monotonic()
        write = partial(_write, location, self._state)
        streams = list(self._tasks.map(lambda _: write(), range(self._subtasks)))
        written_s = time.monotonic()
        metadata = metadata_of(*streams, checkpoint_id=self._number, commit_token=uuid.uuid4().hex)
        completed = complete_checkpoint(location, metadata, self._ownership)
        committed_s = time.monotonic()
        self._store.add(completed, has_readers=self._ownership.has_readers)
        self._cleaner.wait()
        return written_s - begin_s, committed_s - written_s


def _write(factory: CheckpointStreamFactory, state: bytes) -> StreamStateHandle:
    with factory.create_checkpoint_state_output_stream(CheckpointedStateScope.EXCLUSIVE) as stream:
        stream.write(state)
        handle = stream.close_and_get_handle()
    assert handle is not None
    return handle


def _format(seconds: Sequence[float]) -> str:
    return f"{1000 * statistics.median(seconds):.0f} ({1000 * min(seconds):.0f})"


if __name__ == "__main__":
    main()
