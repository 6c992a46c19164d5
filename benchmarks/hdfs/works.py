"""The workloads, and the interface of an engine."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from benchmarks.rounds import Cost

CHUNK_BYTES = 1 << 20

BLOCK_BYTES = 128 << 20
"""Hadoop's default. Engines that sync do so at the end of each block: hsync covers only the current block."""


@dataclass(frozen=True, slots=True)
class Work:
    """A workload: number and size of its files, and number of threads.

    Attributes:
        actions: Actions on the files, in order; `write` and `publish` create them.
    """

    name: str
    title: str
    files: int
    file_bytes: int
    threads: int
    actions: tuple[str, ...] = ("write", "read")

    def paths(self, directory: str) -> list[str]:
        """Paths of its files."""
        return [f"{directory}/{number}" for number in range(self.files)]


WORKS = [
    Work("small", "200 x 4 KiB, 8 threads", 200, 4 << 10, 8),
    Work("publish", "50 x 4 KiB, 1 thread", 50, 4 << 10, 1, ("publish",)),
    Work("files", "64 x 1 MiB, 8 threads", 64, 1 << 20, 8),
    Work("stream", "1 x 256 MiB", 1, 256 << 20, 1),
]


class Engine(Protocol):
    """One way to write, read and publish files in HDFS."""

    def run(self, action: str, work: Work, directory: str) -> Cost:
        """Run one action of a workload in an existing directory, empty before the first action.

        Raises:
            LeftOutError: The engine does not support the action, or read other bytes than it wrote.
        """
        ...


def content(data: bytes) -> list[bytes]:
    """Cut data into chunks, once: hdfs-native takes any buffer but `bytes` byte by byte."""
    return [data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)]


def chunks(content: list[bytes], file_bytes: int) -> Iterator[bytes]:
    """Yield the chunks of a file: the content, repeated."""
    for number, begin in enumerate(range(0, file_bytes, CHUNK_BYTES)):
        yield content[number % len(content)][: file_bytes - begin]
