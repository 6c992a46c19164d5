"""Who is compared, and how their processes are started."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.keyed.flink import flink_command
from benchmarks.keyed.serving import Process
from benchmarks.state_files import flink_jars
from benchmarks.turns import LeftOutError, left_out_on_failure

CACHE_BYTES = 512 << 20
"""What RocksDB may use for blocks, and in Flink for what was just written, too."""

HOLDFAST = "holdfast"


@dataclass(frozen=True, slots=True)
class Setting:
    """What a process needs to know.

    Attributes:
        directory: Where its files go; its own.
        cache_bytes: For those that have a cache.
        jars: Flink's, if there are some.
        memory_bytes: What its process may use at most, with files that it maps; None for all there is.
    """

    directory: Path
    cache_bytes: int
    jars: Path | None
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class Side:
    """Somebody who keeps state.

    Attributes:
        title: The head of its column.
        command: What starts its process.
        parts: What it takes part in; the others it can't.
        stores_all: Whether each snapshot stores the whole state: there is one a turn then, not one a batch.
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
def started(
    names: list[str],
    part: str,
    directory: Path,
    jars: Path | None,
    *,
    cache_bytes: int = CACHE_BYTES,
    memory_bytes: int | None = None,
    wrapped: Callable[[str, list[str]], list[str]] = lambda _, command: command,
) -> Iterator[dict[str, Process]]:
    """Processes of those who take part, until the block is left; who fails is left out, and it is said why.

    Args:
        names: Who is to be compared.
        part: In what.
        directory: Where files go; each has a directory of its own there.
        jars: Flink's.
        cache_bytes: For those that have a cache.
        memory_bytes: What a process is to be set up for; None for no limit.
        wrapped: What becomes of a side's command.
    """
    processes: dict[str, Process] = {}
    begun: list[Process] = []
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
                begun.append(Process(side.title, command))
                processes[name] = begun[-1]
        yield processes
    finally:
        for process in begun:
            process.close()
