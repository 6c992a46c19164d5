"""What is done, and what an engine has to be able to do."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from benchmarks.turns import Cost

CHUNK_BYTES = 1 << 20

BLOCK_BYTES = 128 << 20
"""Hadoop's default. Who syncs does it at the end of each block: only the current one is synced."""


@dataclass(frozen=True, slots=True)
class Work:
    """So many files of so many bytes, by so many threads.

    Attributes:
        actions: What is done with them, in order; `write` and `publish` make them.
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
        """Do one action of a work in a directory that is there, and was empty before the first.

        Raises:
            LeftOutError: It can't, or has read something else than what it had written.
        """
        ...


def content(data: bytes) -> list[bytes]:
    """Cut data into chunks, once: hdfs-native takes any buffer but `bytes` byte by byte."""
    return [data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)]


def chunks(content: list[bytes], file_bytes: int) -> Iterator[bytes]:
    """What a file consists of: the content, over and over."""
    for number, begin in enumerate(range(0, file_bytes, CHUNK_BYTES)):
        yield content[number % len(content)][: file_bytes - begin]
