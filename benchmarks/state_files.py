"""Speed of checkpoints on a local disk, compared with bare system calls and with Flink.

    python benchmarks/state_files.py --rounds 5 --directory /data

In each round Holdfast, Flink and the bare calls run every workload once, in one directory, starting with a
different one. All use their defaults: Flink syncs its files but not their directory, Holdfast syncs both.
The figures are medians; a ratio is the median of the rounds' ratios, above 1 where Holdfast is faster.
All are warmed up first. Leave some minutes between two runs on ext4 (see `PHASES`).

Flink's jars are in a Python package, and a JDK 17 has to be on the path:

    pip install --no-deps --target flink-libraries apache-flink-libraries
    python benchmarks/state_files.py --flink-jars flink-libraries
"""

import argparse
import importlib.util
import multiprocessing
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, Protocol, Self

from holdfast.locations import (
    CheckpointMetadata,
    FileSystemCheckpointStorage,
    StoredOperator,
    StoredSubtask,
    complete_checkpoint,
    load_checkpoint,
)
from holdfast.locations.adapters import (
    ByteStreamStateHandle,
    CheckpointedStateScope,
    CheckpointStorageLocation,
    Checksum,
    FileStateHandle,
)
from holdfast.locations.handles import OperatorStateHandle, OperatorStateMode, StatePartitions

CHUNK_BYTES = 1 << 20
FILES = 1000
FILE_BYTES = 32 << 10
INLINE_BYTES = 1 << 10
THREADS = 8
REPEATS = 10
"""Runs per round of workloads that take milliseconds; their median is the round's figure."""
WARM_UP = 3

Durations = list[float]
"""Seconds, one figure for each part of a work."""


class Work(NamedTuple):
    """A workload that every side runs.

    Attributes:
        name: Its name on all sides.
        parts: Titles of its parts.
        numbers: Arguments of the run.
        repeats: Runs per round.
    """

    name: str
    parts: list[str]
    numbers: list[int]
    repeats: int


PHASES = [
    [
        Work("stream", ["stream 1 GiB"], [1024, CHUNK_BYTES], 1),
        Work("files", ["1,000 files of 32 KiB, 1 thread"], [FILES, FILE_BYTES, 1], 1),
        Work("files", [f"the same, {THREADS} threads"], [FILES, FILE_BYTES, THREADS], 1),
        Work("metadata", ["finalise 1,000 handles", "load them"], [FILES, FILE_BYTES], REPEATS),
        Work("inline", ["1,000 x 1 KiB inline"], [FILES, INLINE_BYTES], REPEATS),
    ],
    [Work("empty", ["an empty checkpoint"], [], REPEATS)],
    [Work("dispose", ["dispose of 1,000 files"], [], 2)],
]
"""All rounds of one phase come before the next. Workloads that delete come last: whenever ext4 creates a file
it looks at each inode deleted in the last minutes, half a millisecond for a thousand."""


class Side(Protocol):
    """An implementation of the workloads."""

    def run(self, work: str, numbers: list[int], /) -> Durations | None:
        """Run a workload once; None if this side does not support it."""
        ...


class Raw:
    """The system calls that state of the same size needs at least."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._written: deque[list[Path]] = deque()

    def run(self, work: str, numbers: list[int], /) -> Durations | None:
        works: dict[str, Callable[..., Durations]] = {
            "stream": self._stream,
            "files": self._files,
            "dispose": self._dispose,
        }
        return works[work](*numbers) if work in works else None

    def _stream(self, chunks: int, chunk_bytes: int) -> Durations:
        chunk = os.urandom(chunk_bytes)
        path = self._new_directory() / "state"
        start = time.perf_counter()
        write_and_sync(path, [chunk] * chunks)
        end = time.perf_counter()
        shutil.rmtree(path.parent)
        return [end - start]

    def _files(self, count: int, size: int, threads: int) -> Durations:
        data = [os.urandom(size)]
        directory = self._new_directory()
        paths = [directory / str(number) for number in range(count)]
        self._written.append(paths)
        return [in_threads(threads, lambda number: write_and_sync(paths[number], data), count)]

    def _dispose(self) -> Durations:
        paths = self._written.popleft()
        start = time.perf_counter()
        for path in paths:
            os.unlink(path)
        os.rmdir(paths[0].parent)
        return [time.perf_counter() - start]

    def _new_directory(self) -> Path:
        directory = self._directory / uuid.uuid4().hex
        directory.mkdir()
        return directory


class Holdfast:
    """Our own storage at its defaults."""

    def __init__(self, directory: Path) -> None:
        storage = FileSystemCheckpointStorage(f"file://{directory}")
        self._access = storage.create_checkpoint_storage("benchmark")
        self._access.initialize_base_locations_for_checkpoint()
        self._checkpoint_id = 0
        self._written: deque[CheckpointStorageLocation] = deque()

    def run(self, work: str, numbers: list[int], /) -> Durations | None:
        works: dict[str, Callable[..., Durations]] = {
            "stream": self._stream,
            "files": self._files,
            "metadata": self._metadata,
            "inline": self._inline,
            "empty": self._empty,
            "dispose": self._dispose,
        }
        return works[work](*numbers)

    def _stream(self, chunks: int, chunk_bytes: int) -> Durations:
        chunk = os.urandom(chunk_bytes)
        location = self._begin()
        start = time.perf_counter()
        write_state(location, [chunk] * chunks)
        end = time.perf_counter()
        location.dispose_on_failure()
        return [end - start]

    def _files(self, count: int, size: int, threads: int) -> Durations:
        data = [os.urandom(size)]
        location = self._begin()
        self._written.append(location)
        return [in_threads(threads, lambda _: write_state(location, data), count)]

    def _dispose(self) -> Durations:
        location = self._written.popleft()
        start = time.perf_counter()
        location.dispose_on_failure()
        return [time.perf_counter() - start]

    def _metadata(self, subtasks: int, size: int) -> Durations:
        location = self._begin()
        partitions = StatePartitions(OperatorStateMode.SPLIT_DISTRIBUTE, 0, size, 0, 100)
        states = {}
        for index in range(subtasks):
            uri = f"{location.external_pointer}/{uuid.uuid4().hex}"
            file = FileStateHandle(uri, size, Checksum("crc32c", CHUNK_BYTES, os.urandom(4)))
            states[index] = StoredSubtask((OperatorStateHandle({"rows": partitions}, file),))
        metadata = self._metadata_of({"rows": StoredOperator(subtasks, subtasks, states)})
        start = time.perf_counter()
        completed = complete_checkpoint(location, metadata)
        stored = time.perf_counter()
        loaded = load_checkpoint(completed.location)
        end = time.perf_counter()
        if loaded.metadata != metadata:
            raise ValueError("what was loaded is not what was stored")
        return [stored - start, end - stored]

    def _empty(self) -> Durations:
        start = time.perf_counter()
        location = self._begin()
        complete_checkpoint(location, self._metadata_of({})).discard()
        return [time.perf_counter() - start]

    def _inline(self, count: int, size: int) -> Durations:
        data = [os.urandom(size)]
        location = self._begin()
        start = time.perf_counter()
        handles = [write_state(location, data) for _ in range(count)]
        end = time.perf_counter()
        if not all(isinstance(handle, ByteStreamStateHandle) for handle in handles):
            raise ValueError("a state became a file")
        return [end - start]

    def _begin(self) -> CheckpointStorageLocation:
        self._checkpoint_id += 1
        return self._access.initialize_location_for_checkpoint(self._checkpoint_id)

    def _metadata_of(self, operators: dict[str, StoredOperator]) -> CheckpointMetadata:
        return CheckpointMetadata(
            job_id="benchmark",
            checkpoint_id=self._checkpoint_id,
            commit_token=uuid.uuid4().hex,
            created_ms=time.time_ns() // 1_000_000,
            duration_ms=0.0,
            writer="benchmark",
            operators=operators,
        )


class Flink:
    """A JVM that does the works with Flink's classes, one at a time, on demand."""

    def __init__(self, directory: Path, jars: Path) -> None:
        self.version = flink_version(jars)
        source = Path(__file__).parent / "flink" / "StateFiles.java"
        command = ["java", "-Xms2g", "-Xmx2g", "-cp", f"{jars}/*", str(source), str(directory)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def run(self, work: str, numbers: list[int], /) -> Durations | None:
        if self._process.stdin is None or self._process.stdout is None:
            raise ValueError("process has no pipes")
        print(work, *numbers, file=self._process.stdin, flush=True)
        for line in self._process.stdout:
            if line.startswith("ns "):  # anything else is a logger's
                return [int(word) / 1e9 for word in line.split()[1:]]
        message = "Flink's part has ended; the reason is printed above"
        raise RuntimeError(message)


def main() -> None:
    """Measure all rounds and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="counted rounds")
    parser.add_argument("--directory", type=Path, help="where to write; default: the system's own")
    parser.add_argument(
        "--flink-jars", type=Path, help="a folder with flink-dist-*.jar in or below it"
    )
    options = parser.parse_args()
    jars = flink_jars(options.flink_jars)
    directory = Path(
        tempfile.mkdtemp(prefix="holdfast-benchmark-", dir=options.directory)
    ).resolve()
    try:
        with ExitStack() as stack:
            sides: dict[str, Side] = {
                "raw": Raw(new_directory(directory, "raw")),
                "Holdfast": Holdfast(new_directory(directory, "holdfast")),
            }
            if jars is None:
                print("no Flink here (see --help): only Holdfast and the bare calls are measured\n")
            else:
                flink = stack.enter_context(Flink(new_directory(directory, "flink"), jars))
                sides["Flink"] = flink
                print(f"Flink {flink.version}\n")
            print_header(list(sides), options.rounds)
            for works in PHASES:
                for number in range(-WARM_UP, 0):
                    measure(sides, works, number)
                print_rows(
                    list(sides),
                    works,
                    [measure(sides, works, number) for number in range(options.rounds)],
                )
        print("\npeak memory while one state is streamed, in a fresh process")
        for mebibytes in (64, 1024):
            growth = peak_growth_bytes(directory, mebibytes) / (1 << 20)
            print(f"{mebibytes:8} MiB state: {growth:6.1f} MiB")
    finally:
        shutil.rmtree(directory)


def measure(sides: dict[str, Side], works: list[Work], number: int) -> list[dict[str, Durations]]:
    """Run one round: return the seconds of each workload's parts by side. Rounds start with different sides."""
    names = list(sides)
    first = number % len(names)
    rounds = []
    for work in works:
        row: dict[str, Durations] = {}
        for name in names[first:] + names[:first]:
            os.sync()  # no side pays for the writes of another
            runs = [sides[name].run(work.name, work.numbers) for _ in range(work.repeats)]
            parts = zip(*(run for run in runs if run), strict=True)
            row[name] = [statistics.median(part) for part in parts]
        rounds.append(row)
    return rounds


def print_header(names: list[str], rounds: int) -> None:
    """The titles of the columns."""
    titles = [f"{name}, ms" for name in names] + [f"vs {name}" for name in others(names)]
    print(f"{f'median of {rounds} rounds':34}" + "".join(f"{title:>14}" for title in titles))


def print_rows(
    names: list[str], works: list[Work], rounds: list[list[dict[str, Durations]]]
) -> None:
    """Medians in milliseconds, and how much faster we are."""
    for index, work in enumerate(works):
        pairs = [pairs_of_round[index] for pairs_of_round in rounds]
        for part, title in enumerate(work.parts):
            cells = []
            for name in names:
                if pairs[0][name]:
                    cells.append(
                        f"{statistics.median(pair[name][part] for pair in pairs) * 1e3:.2f}"
                    )
                else:
                    cells.append("")
            for name in others(names):
                if pairs[0][name]:
                    ratios = [pair[name][part] / pair["Holdfast"][part] for pair in pairs]
                    cells.append(f"{statistics.median(ratios):.2f}")
                else:
                    cells.append("")
            print(f"{title:34}" + "".join(f"{cell:>14}" for cell in cells), flush=True)


def others(names: list[str]) -> list[str]:
    """Names of what Holdfast is compared with."""
    return [name for name in names if name != "Holdfast"]


def write_state(location: CheckpointStorageLocation, chunks: Iterable[bytes]) -> object:
    """Write one state with Holdfast and return its handle."""
    stream = location.create_checkpoint_state_output_stream(CheckpointedStateScope.EXCLUSIVE)
    with stream:
        for chunk in chunks:
            stream.write(chunk)
        return stream.close_and_get_handle()


def write_and_sync(path: Path, chunks: Iterable[bytes]) -> None:
    """Write a file with nothing but system calls."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    for chunk in chunks:
        os.write(descriptor, chunk)
    os.fsync(descriptor)
    os.close(descriptor)


def in_threads(threads: int, work: Callable[[int], object], count: int) -> float:
    """Seconds that it takes to do the work this many times, each thread its share."""

    def share(first: int) -> None:
        for number in range(first, count, threads):
            work(number)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(time.sleep, [0.01] * threads))  # all threads run
        start = time.perf_counter()
        list(pool.map(share, range(threads)))
        return time.perf_counter() - start


def peak_growth_bytes(directory: Path, mebibytes: int) -> int:
    """By how much the resident memory of a process grows while it streams a state."""
    spawn = multiprocessing.get_context("spawn")
    receiver, sender = spawn.Pipe(duplex=False)
    process = spawn.Process(target=send_peak_growth, args=(directory, mebibytes, sender.send_bytes))
    process.start()
    growth = int(receiver.recv_bytes())
    process.join()
    return growth


def send_peak_growth(directory: Path, mebibytes: int, send: Callable[[bytes], None]) -> None:
    """Stream a state in this process, and tell by how much its memory grew."""
    side = Holdfast(directory / uuid.uuid4().hex)
    side.run("stream", [0, CHUNK_BYTES])
    before = peak_bytes()
    side.run("stream", [mebibytes, CHUNK_BYTES])
    send(str(peak_bytes() - before).encode())


def peak_bytes() -> int:
    """The process's most resident memory so far; not getrusage's, which begins with the parent's."""
    (kibibytes,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(kibibytes) << 10


def new_directory(parent: Path, name: str) -> Path:
    """A directory of one side."""
    (parent / name).mkdir()
    return parent / name


def flink_jars(given: Path | None) -> Path | None:
    """The folder with Flink's jars: below the one given, or in an installed package."""
    package = importlib.util.find_spec("pyflink")
    places = [given] if given else list(package.submodule_search_locations or []) if package else []
    for place in places:
        for jar in Path(place).rglob("flink-dist-*.jar"):
            return jar.parent.resolve()
    if given:
        sys.exit(f"no flink-dist-*.jar in or below {given}")
    return None


def flink_version(jars: Path) -> str:
    """Flink's version, from the name of its jar."""
    return next(jars.glob("flink-dist-*.jar")).stem.removeprefix("flink-dist-")


if __name__ == "__main__":
    main()
