"""Time until `holdfast serve` answers, and its memory.

    python -m benchmarks.live_page --checkpoints 1000 --subtasks 200 --jobs 100

One directory has a job with many checkpoints of many subtasks, the other many jobs with ten checkpoints of ten subtasks.
Each is served by its own process. The first answer is that of a server that has read nothing; the others are
medians of 20. Memory is the resident set of the process after all older checkpoints were read.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import msgspec
import psutil

from holdfast.locations import (
    CheckpointMetadata,
    FileSystemCheckpointStorage,
    SubtaskStatistics,
    complete_checkpoint,
)
from holdfast.locations.adapters import FileStateHandle
from holdfast.locations.checksums import Checksum
from holdfast.spark_progress import next_history
from holdfast.testing import metadata_of

_ROUNDS = 20


def write_job(directory: Path, job_id: str, *, checkpoints: int, subtasks: int) -> None:
    """Complete checkpoints whose metadata has the size and the history of those of a real job, without state files."""
    storage = FileSystemCheckpointStorage(f"file://{directory}")
    access = storage.create_checkpoint_storage(job_id)
    access.initialize_base_locations_for_checkpoint()
    now_ms = time.time_ns() // 1_000_000
    latest = None
    for number in range(1, checkpoints + 1):
        metadata = _metadata(f"file://{directory}/{job_id}/shared", job_id, number, subtasks)
        metadata = msgspec.structs.replace(
            metadata,
            created_ms=now_ms - 1000 * (checkpoints - number),
            coordinator_states=next_history(latest, ()),
        )
        latest = complete_checkpoint(access.initialize_location_for_checkpoint(number), metadata)


def _metadata(shared: str, job_id: str, number: int, subtasks: int) -> CheckpointMetadata:
    handles = [
        FileStateHandle(
            f"{shared}/{uuid.uuid4().hex}", 100_000, Checksum("crc32c", 1 << 20, bytes(4))
        )
        for _ in range(subtasks)
    ]
    metadata = metadata_of(*handles, checkpoint_id=number, job_id=job_id)
    [(uid, operator)] = metadata.operators.items()
    statistics_of = SubtaskStatistics(
        rows_in=1000,
        rows_out=1000,
        state_bytes=1000,
        restore_ms=1.0,
        process_ms=20.0,
        sync_ms=5.0,
        async_ms=5.0,
        restored_from="worker",
    )
    measured = {
        index: msgspec.structs.replace(subtask, statistics=statistics_of)
        for index, subtask in operator.subtasks.items()
    }
    operators = {uid: msgspec.structs.replace(operator, subtasks=measured)}
    return msgspec.structs.replace(metadata, operators=operators)


@contextmanager
def _serve(directory: Path) -> Iterator[tuple[str, psutil.Process]]:
    """Serve a directory; yields the address and the process."""
    command = [sys.executable, "-m", "holdfast", "serve", f"file://{directory}", "--port", "0"]
    command += ["--interval", "1s"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), psutil.Process(process.pid)
        finally:
            process.terminate()


def _seconds(uri: str) -> float:
    started = time.perf_counter()
    with urlopen(uri) as answer:  # noqa: S310  # the address that the server printed
        json.load(answer)
    return time.perf_counter() - started


def _print_figure(name: str, value: float, unit: str) -> None:
    print(f"  {name:52} {value:8.1f} {unit}")


def _print_times(address: str, paths: list[str]) -> None:
    _print_figure("first answer of /jobs", _seconds(f"{address}jobs") * 1000, "ms")
    for path in paths:
        times = [_seconds(f"{address}{path}") for _ in range(_ROUNDS)]
        _print_figure(f"/{path}", statistics.median(times) * 1000, "ms")


def _wait_until_read(address: str, process: psutil.Process) -> None:
    """Ask until a look at the storage has nothing left to read: the process is idle."""
    while True:
        before = process.cpu_times().user
        time.sleep(1.1)
        _seconds(f"{address}jobs")
        if process.cpu_times().user - before < 0.2:
            return


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__)
    for name, default in (("checkpoints", 1000), ("subtasks", 200), ("jobs", 100)):
        arguments.add_argument(f"--{name}", type=int, default=default)
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as root:
        large, many = Path(root, "large"), Path(root, "many")
        large.mkdir()
        many.mkdir()
        write_job(large, "job", checkpoints=options.checkpoints, subtasks=options.subtasks)
        for number in range(options.jobs):
            write_job(many, f"job-{number:03}", checkpoints=10, subtasks=10)
        print(f"1 job, {options.checkpoints} checkpoints of {options.subtasks} subtasks")
        newest = f"jobs/job/checkpoints/details/{options.checkpoints}"
        paths = ["jobs", "jobs/job", "jobs/job/checkpoints", newest, f"{newest}/subtasks/operator"]
        _measure(large, paths)
        print(f"{options.jobs} jobs, 10 checkpoints of 10 subtasks")
        _measure(many, ["jobs", "jobs/job-000"])


def _measure(directory: Path, paths: list[str]) -> None:
    with _serve(directory) as (address, process):
        idle = process.memory_info().rss
        _print_times(address, paths)
        _wait_until_read(address, process)
        _print_figure("memory at the start", idle / 2**20, "MiB")
        _print_figure("memory, all checkpoints read", process.memory_info().rss / 2**20, "MiB")


if __name__ == "__main__":
    main()
