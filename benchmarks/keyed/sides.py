"""The compared engines, and the command lines of their processes."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.keyed.flink import flink_command
from benchmarks.keyed.serving import Process
from benchmarks.rounds import LeftOutError, left_out_on_failure
from benchmarks.state_files import flink_jars

CACHE_BYTES = 512 << 20
"""Size of RocksDB's block cache; in Flink it includes the write buffers."""

HOLDFAST = "holdfast"


@dataclass(frozen=True, slots=True)
class Setting:
    """Settings of one process.

    Attributes:
        directory: Directory for its files, used by no other process.
        cache_bytes: Size of the cache, for engines with a cache.
        jars: Directory of Flink's jars, if available.
        memory_bytes: Memory limit of the process, including its mapped files; None for no limit.
    """

    directory: Path
    cache_bytes: int
    jars: Path | None
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class Side:
    """An engine that keeps state.

    Attributes:
        title: Header of its column.
        command: Builds the command line of its process.
        parts: Parts of the benchmark that it supports.
        stores_all: Whether each snapshot stores the whole state; then one is taken per round, not per batch.
    """

    title: str
    command: Callable[[Setting], list[str]]
    parts: tuple[str, ...]
    stores_all: bool = False


def _python(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", f"benchmarks.keyed.{module}", *arguments]


def _holdfast(tables: str, state: str, setting: Setting, *, reopened: str = "") -> list[str]:
    last = [reopened] if reopened else []
    return _python("holdfast_backend", tables, state, str(setting.directory), *last)


def _rocksdb(snapshots: str, setting: Setting) -> list[str]:
    memory = [] if setting.memory_bytes is None else [str(setting.memory_bytes)]
    return _python("rocksdb", snapshots, str(setting.directory), str(setting.cache_bytes), *memory)


def _flink(backend: str, setting: Setting) -> list[str]:
    jars = flink_jars(setting.jars)
    if jars is None:
        raise LeftOutError("its jars aren't here; `make bench-keyed` brings them")
    return flink_command(backend, setting.directory, jars, setting.cache_bytes)


SIDES = {
    HOLDFAST: Side(
        "Holdfast",
        partial(_holdfast, "columnar", "value"),
        ("batches", "worst", "access", "maps", "timers", "rescale", "limit"),
    ),
    "holdfast-reopened": Side(
        "Holdfast, reopened",
        partial(_holdfast, "columnar", "value", reopened="reopened"),
        ("batches", "worst"),
    ),
    "holdfast-reducing": Side(
        "Holdfast, reducing", partial(_holdfast, "columnar", "reducing"), ("batches",)
    ),
    "holdfast-heap": Side(
        "Holdfast's heap",
        partial(_holdfast, "heap", "value"),
        ("batches", "access", "maps", "timers", "rescale"),
        stores_all=True,
    ),
    "holdfast-rocksdb": Side(
        "Holdfast on RocksDB",
        partial(_holdfast, "rocksdb", "value"),
        ("batches", "worst", "access", "maps", "timers", "rescale"),
    ),
    "rocksdb": Side(
        "RocksDB", partial(_rocksdb, "flushed"), ("batches", "worst", "access", "limit")
    ),
    "rocksdb-checkpointed": Side(
        "RocksDB, checkpoints", partial(_rocksdb, "checkpointed"), ("batches", "worst", "access")
    ),
    "rocksdb-shuffled": Side(
        "RocksDB, shuffled", partial(_rocksdb, "shuffled"), ("batches", "worst", "access")
    ),
    "rocksdb-hashed": Side(
        "RocksDB, hashed", partial(_rocksdb, "hashed"), ("batches", "worst", "access")
    ),
    "dict": Side(
        "a dict", lambda _: _python("dictionary"), ("batches", "access", "maps", "timers")
    ),
    "flink-heap": Side(
        "Flink's heap",
        partial(_flink, "heap"),
        ("batches", "access", "maps", "timers", "rescale"),
        stores_all=True,
    ),
    "flink-rocksdb": Side(
        "Flink's RocksDB",
        partial(_flink, "rocksdb"),
        ("batches", "worst", "access", "maps", "timers", "rescale"),
    ),
}
"""By name; the first that takes part is what the others are compared with."""


@contextmanager
def run_processes(
    names: list[str],
    part: str,
    directory: Path,
    jars: Path | None,
    *,
    cache_bytes: int = CACHE_BYTES,
    memory_bytes: int | None = None,
    wrapped: Callable[[str, list[str]], list[str]] = lambda _, command: command,
) -> Iterator[dict[str, Process]]:
    """Run the processes of the engines that support a part, until the block is left.

    An engine that fails is left out, and the reason is printed.

    Args:
        names: Names of the compared engines.
        part: Name of the part.
        directory: Parent of the engines' directories.
        jars: Directory of Flink's jars.
        cache_bytes: Size of the cache, for engines with a cache.
        memory_bytes: Memory limit that the engines are configured for; None for no limit.
        wrapped: Wraps the command line of an engine, given its name.
    """
    processes: dict[str, Process] = {}
    running: list[Process] = []
    try:
        for name in names:
            side = SIDES[name]
            if part not in side.parts:
                continue
            with left_out_on_failure(side.title, name, processes):
                own = directory / name
                own.mkdir(parents=True, exist_ok=True)
                setting = Setting(own, cache_bytes, jars, memory_bytes)
                command = wrapped(name, side.command(setting))
                running.append(Process(side.title, command))
                processes[name] = running[-1]
        yield processes
    finally:
        for process in running:
            process.close()
