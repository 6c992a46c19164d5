"""Speed of writing and reading state files on HDFS, compared with other clients.

    python -m benchmarks.hdfs
    python -m benchmarks.hdfs --rounds 10 --works files,stream --engines holdfast,hdfs-native

It starts the servers of `infra/hdfs`, a NameNode and two DataNodes on this machine, and stops them.
In each round every engine runs once on the same data, starting with a different one. To warm up, each
engine runs the whole workload once, and another client reads and verifies the files.
Blocks of deleted files are removed before the next round.
Figures are medians; a ratio in brackets is the median of the rounds' ratios to the first engine,
above 1 where the first engine is faster or needs less.

Holdfast syncs each block of a file before it closes it; the others do so in the columns
`+hsync`. A published file is written under a temporary name, closed, and renamed to a name that must be free.
Holdfast and hdfs-native run in this process, Hadoop's client in a JVM that stays up; each times
itself. CPU seconds exclude the servers. Memory is measured in a fresh process for each engine.
An engine that is unavailable or fails is left out, and the reason is printed.
"""

import argparse
import os
import sys
import tempfile
import uuid
import zlib
from contextlib import ExitStack
from functools import partial
from importlib.metadata import version
from pathlib import Path

from hdfs_native import Client

from benchmarks.hdfs.engines import JVM, PYTHON, TITLES, growth_bytes_of
from benchmarks.hdfs.jvm import Jvm, jvm
from benchmarks.hdfs.python import Threads
from benchmarks.hdfs.server import Server, run_servers
from benchmarks.hdfs.works import BLOCK_BYTES, WORKS, Engine, Work, chunks, content
from benchmarks.rounds import (
    Cost,
    LeftOutError,
    in_fresh_process,
    left_out_on_failure,
    measure_rounds,
    print_header,
    print_row,
    print_times,
    some_of,
)

DATA_BYTES = 16 << 20
REPLICAS = 2

PARTS = ("times", "memory")


def main() -> None:
    """Measure all rounds and print the tables."""
    options = _options()
    with ExitStack() as stack:
        temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-benchmark-"))
        data = Path(temporary) / "data"
        data.write_bytes(os.urandom(DATA_BYTES))
        server = stack.enter_context(run_servers())
        engines = _engines(options.engines, server, data, stack)
        if "times" in options.parts:
            for work in options.works:
                _measure_rounds(work, engines, options.rounds, server, data)
        if "memory" in options.parts:
            _print_memory([name for name in engines if name in PYTHON], server.uri, data)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.hdfs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=5, help="counted rounds")
    works = {work.name: work for work in WORKS}
    parser.add_argument("--works", type=some_of(works), default=WORKS, help=", ".join(works))
    names = {name: name for name in TITLES}
    parser.add_argument(
        "--engines", type=some_of(names), default=list(names), help=", ".join(names)
    )
    parts = {name: name for name in PARTS}
    parser.add_argument("--parts", type=some_of(parts), default=PARTS, help=", ".join(parts))
    return parser.parse_args()


def _engines(names: list[str], server: Server, data: Path, stack: ExitStack) -> dict[str, Engine]:
    engines: dict[str, Engine] = {}
    process = None
    for name in names:
        with left_out_on_failure(TITLES[name], name, engines):
            if name in PYTHON:
                engines[name] = Threads(PYTHON[name](server.uri), data)
            else:
                if process is None:
                    process = stack.enter_context(jvm(server.uri, server.conf_dir, data))
                engines[name] = Jvm(process, hsync=JVM[name])
    print(
        f"hdfs-native {version('hdfs-native')}, Hadoop's client of PySpark {version('pyspark')},"
        f" Python {sys.version.split()[0]}, {os.cpu_count()} processors"
    )
    return engines


def _measure_rounds(
    work: Work, engines: dict[str, Engine], rounds: int, server: Server, data: Path
) -> None:
    client = Client(server.uri)
    directories: list[str] = []

    def costs_of(engine: Engine, *, verified: bool) -> dict[str, Cost]:
        directories.append(f"/{uuid.uuid4().hex}")
        client.mkdirs(directories[-1])
        costs = {action: engine.run(action, work, directories[-1]) for action in work.actions}
        if verified:
            _verify(client, work, directories[-1], data.read_bytes())
        return costs

    def clean_up() -> None:
        while directories:
            client.delete(directories.pop(), recursive=True)
        server.wait_until_empty()

    take = partial(measure_rounds, engines, titles=TITLES, after_round=clean_up)
    take(partial(costs_of, verified=True), rounds=1)
    if growths := take(partial(costs_of, verified=False), rounds=rounds):
        print_times(work.title, growths, work.actions, TITLES)


def _verify(client: Client, work: Work, directory: str, data: bytes) -> None:
    """Compare the content and the layout of the written files with the expected ones.

    Raises:
        LeftOutError: It differs.
    """
    expected = 0
    for chunk in chunks(content(data), work.file_bytes):
        expected = zlib.crc32(chunk, expected)
    layouts = set()
    names = set()
    for status in client.list_status(directory):
        checksum = 0
        for part in client.read(status.path).read_range_stream(0, status.length):
            checksum = zlib.crc32(part, checksum)
        if (status.length, checksum) != (work.file_bytes, expected):
            raise LeftOutError(f"it wrote something else to {status.path}")
        names.add(status.path)
        layouts.add((status.replication, status.blocksize))
    if names != set(work.paths(directory)):
        raise LeftOutError(f"it left {len(names)} files of {work.title}, or others")
    if layouts != {(REPLICAS, BLOCK_BYTES)}:
        raise LeftOutError(f"replicas and bytes of a block of its files are {layouts}")


def _print_memory(names: list[str], uri: str, data: Path) -> None:
    work = WORKS[-1]
    print_header(f"peak growth, {work.title}", [TITLES[name] for name in names])
    growths: dict[str, dict[str, int]] = {}
    for name in names:
        with left_out_on_failure(TITLES[name], name, {}):
            growths[name] = in_fresh_process(growth_bytes_of, name, uri, data, work)
    for action in work.actions:
        cells = [
            f"{growths[name][action] / (1 << 20):.1f}" if name in growths else "-" for name in names
        ]
        print_row(f"{action}, MiB", cells)


if __name__ == "__main__":
    main()
