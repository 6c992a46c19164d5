"""Holdfast, and hdfs-native as one uses it without Holdfast."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Protocol

from hdfs_native import Client

from benchmarks.hdfs.works import BLOCK_BYTES, CHUNK_BYTES, Work, chunks, content
from benchmarks.rounds import Cost, LeftOutError, time_in_threads
from holdfast.locations.adapters import file_system_for


class Store(Protocol):
    """Writes and reads single files. Paths are absolute, without scheme and authority."""

    def write(self, path: str, data: Iterable[bytes]) -> None:
        """Make a file of these chunks."""
        ...

    def read(self, path: str, file_bytes: int) -> int:
        """Read all of it in pieces that take bounded memory; the number of bytes."""
        ...

    def publish(self, path: str, data: bytes) -> None:
        """Make a file that appears whole, and only if its name is free."""
        ...


class Threads:
    """An engine: a store, and threads of this process.

    Args:
        store: Destination of the files.
        data: Path of the file with the content to write.
    """

    def __init__(self, store: Store, data: Path) -> None:
        self._store = store
        self._content = content(data.read_bytes())

    def run(self, action: str, work: Work, directory: str) -> Cost:
        in_threads = partial(time_in_threads, work.threads)
        paths = work.paths(directory)
        match action:
            case "write":
                cost, _ = in_threads(
                    lambda path: self._store.write(path, chunks(self._content, work.file_bytes)),
                    paths,
                )
            case "publish":
                [data] = chunks(self._content, work.file_bytes)
                cost, _ = in_threads(lambda path: self._store.publish(path, data), paths)
            case "read":
                cost, sizes = in_threads(
                    lambda path: self._store.read(path, work.file_bytes), paths
                )
                if sizes != [work.file_bytes] * work.files:
                    raise LeftOutError(f"it read {sum(sizes)} bytes of {work.title}")
            case _:
                raise LeftOutError(f"it can't {action}")
        return cost


class Holdfast:
    """The streams that state files go through, without the checksums that are added above them.

    State is read as it is verified, into a buffer of at most a MiB.
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._file_system = file_system_for(uri)

    def write(self, path: str, data: Iterable[bytes]) -> None:
        stream = self._file_system.create(self._uri + path)
        try:
            for chunk in data:
                stream.write(chunk)
            stream.commit()
        except BaseException:
            stream.abort()
            raise

    def read(self, path: str, file_bytes: int) -> int:
        total = 0
        buffer = bytearray(min(CHUNK_BYTES, file_bytes))
        with self._file_system.open(self._uri + path) as stream:
            while count := stream.readinto(buffer):  # type: ignore[attr-defined]  # all have it
                total += count
        return total

    def publish(self, path: str, data: bytes) -> None:
        self._file_system.publish(self._uri + path, data)  # type: ignore[attr-defined]  # HDFS can


class HdfsNative:
    """The calls of hdfs-native's own client, in the fastest way that takes bounded memory.

    `read_range_stream` hands out pieces of 64 KiB without a copy; `read` of a MiB at a time, or of
    all, is slower.

    Args:
        uri: `hdfs://host:port`.
        hsync: Whether all blocks of a file are on disk before it is closed, as Holdfast's are.
    """

    def __init__(self, uri: str, *, hsync: bool) -> None:
        self._client = Client(uri)
        self._hsync = hsync

    def write(self, path: str, data: Iterable[bytes]) -> None:
        with self._client.create(path) as file:
            left = BLOCK_BYTES
            for chunk in data:
                file.write(chunk)
                left -= len(chunk)
                if left == 0 and self._hsync:
                    file.hsync()
                    left = BLOCK_BYTES
            if left < BLOCK_BYTES and self._hsync:
                file.hsync()

    def read(self, path: str, file_bytes: int) -> int:  # noqa: ARG002  # it asks the NameNode
        file = self._client.read(path)
        return sum(len(part) for part in file.read_range_stream(0, file.size))

    def publish(self, path: str, data: bytes) -> None:
        self.write(f"{path}.inprogress", [data])
        self._client.rename(f"{path}.inprogress", path, overwrite=False)
