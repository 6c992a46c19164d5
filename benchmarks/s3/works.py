"""What is done, and what an engine has to be able to do."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

CHUNK_BYTES = 1 << 20
PART_BYTES = 8 << 20
CONCURRENCY = 4
"""Parts of one file that are on their way at a time."""


@dataclass(frozen=True, slots=True)
class Work:
    """So many files of so many bytes, by so many threads."""

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
    """A bucket of an engine's own, and how to reach it."""

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
        """What follows is about files below a prefix, which nobody has used."""
        ...

    def write(self, number: int, file_bytes: int) -> Any:
        """Store a file of zeros; what is returned leads to it."""
        ...

    def read(self, written: Any, file_bytes: int) -> int:
        """Read all of it in pieces that take bounded memory; the number of bytes."""
        ...

    def delete(self) -> None:
        """Delete all files of the work, as many as there turn out to be."""
        ...


def chunks(file_bytes: int) -> Iterator[bytes]:
    """The content of a file, as a producer makes it.

    Each chunk is memory of its own: obstore keeps what it is given instead of copying it.
    """
    for begin in range(0, file_bytes, CHUNK_BYTES):
        yield zeros(min(CHUNK_BYTES, file_bytes - begin))


def zeros(count: int) -> bytes:
    """So many, in memory that is there; that of `bytes(count)` is not, until it is written to."""
    return b"\0" * count
