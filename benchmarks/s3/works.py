"""The workloads, and the interface of an engine."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

CHUNK_BYTES = 1 << 20
PART_BYTES = 8 << 20
CONCURRENCY = 4
"""Parts of one file in flight at a time."""


@dataclass(frozen=True, slots=True)
class Work:
    """A workload: number and size of its files, and number of threads."""

    name: str
    title: str
    files: int
    file_bytes: int
    threads: int


WORKS = [
    Work("small", "2,000 x 4 KiB", 2000, 4 << 10, 16),
    Work("files", "64 x 1 MiB", 64, 1 << 20, 8),
    Work("stream", "1 x 1 GiB", 1, 1 << 30, 1),
]


@dataclass(frozen=True, slots=True)
class Bucket:
    """The bucket of one engine, with its endpoint and keys."""

    name: str
    endpoint: str
    region: str
    access_key: str
    secret_key: str


class Engine(Protocol):
    """One way to write, read and delete objects of a bucket.

    `begin` comes first; then the files of one work are written and read, by many threads; `delete`
    comes last.
    """

    def begin(self, prefix: str) -> None:
        """Use a new prefix for the files of the following calls."""
        ...

    def write(self, number: int, file_bytes: int) -> Any:
        """Store a file of zeros and return its reference for `read`."""
        ...

    def read(self, written: Any, file_bytes: int) -> int:
        """Read a file in pieces with bounded memory and return the number of bytes."""
        ...

    def delete(self) -> None:
        """Delete all files of the work, as many as there turn out to be."""
        ...


def chunks(file_bytes: int) -> Iterator[bytes]:
    """The content of a file, as a producer makes it.

    Each chunk has separate memory: obstore keeps a reference instead of a copy.
    """
    for begin in range(0, file_bytes, CHUNK_BYTES):
        yield zeros(min(CHUNK_BYTES, file_bytes - begin))


def zeros(count: int) -> bytes:
    """Return zeros in resident memory; that of `bytes(count)` is not resident before it is written to."""
    return b"\0" * count
