"""A file system in front of another one that repeats what fails."""

import io
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import BinaryIO, TypeVar, cast

from holdfast.common import SYSTEM_CLOCK, Clock
from holdfast.errors import (
    CheckpointError,
    InvalidRequestError,
    StorageUnavailableError,
    StreamClosedError,
)
from holdfast.locations.file_systems.port import (
    BytesLike,
    ExclusiveFileSystem,
    FileOutputStream,
    FileStatus,
    FileSystem,
)
from holdfast.locations.file_systems.positioned import PositionedInputStream
from holdfast.locations.file_systems.retries import Retrier, RetryPolicy

_Result = TypeVar("_Result")


@dataclass(eq=False)
class RetryingFileSystem:
    """Repeats the calls of another file system that provably changed nothing, or may be repeated.

    Streams are passed through: a part of a stream is its adapter's to repeat, and a whole stream
    can't be. What is read goes on behind the last byte that arrived.

    Args:
        inner: The store's adapter, which must not repeat anything itself.
        policy: When to give up.
        clock: Tells how much time is left, and waits.
    """

    inner: FileSystem
    policy: InitVar[RetryPolicy]
    _: KW_ONLY
    clock: InitVar[Clock] = SYSTEM_CLOCK
    retrier: Retrier = field(init=False)

    def __post_init__(self, policy: RetryPolicy, clock: Clock) -> None:
        self.retrier = Retrier(policy, clock=clock)

    @property
    def retries(self) -> Counter[str]:
        """How often each method was repeated since the process began."""
        return self.retrier.counts

    def prepare_directory(self, uri: str, /) -> None:
        self.retrier.call("prepare_directory", lambda: self.inner.prepare_directory(uri))

    def create(self, uri: str, /) -> FileOutputStream:
        return self.retrier.call("create", lambda: self.inner.create(uri))

    def open(self, uri: str, /) -> BinaryIO:
        return cast("BinaryIO", _RetryingInputStream(self, uri))

    def list(self, uri: str, /) -> Iterable[FileStatus]:
        return self.retrier.call("list", lambda: list(self.inner.list(uri)))

    def delete(self, uris: Iterable[str], /) -> None:
        files = list(uris)
        if files:
            self.retrier.call("delete", lambda: self.inner.delete(files))

    def delete_empty_directory(self, uri: str, /) -> None:
        self.retrier.call("delete_empty_directory", lambda: self.inner.delete_empty_directory(uri))

    def delete_tree(self, uri: str, /) -> None:
        self.retrier.call("delete_tree", lambda: self.inner.delete_tree(uri))


@dataclass(eq=False)
class RetryingExclusiveFileSystem(RetryingFileSystem):
    """Repeats the calls of a store that can publish.

    Attributes:
        found_exclusive: Directories in which that was tried, and found to be so.
    """

    inner: ExclusiveFileSystem
    found_exclusive: set[str] = field(default_factory=set, init=False)

    def publish(self, uri: str, data: bytes, /) -> None:
        self.retrier.publish(lambda: self.inner.publish(uri, data))


class _RetryingInputStream(PositionedInputStream):
    """A file that is opened anew where it stood when a read fails."""

    def __init__(self, file_system: RetryingFileSystem, uri: str) -> None:
        self._file_system = file_system
        self._uri = uri
        self._raw: BinaryIO | None = None
        self._read(lambda _raw: None)  # a missing file is noticed at once

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        def move(raw: BinaryIO) -> int:
            if whence == io.SEEK_END:
                base = raw.seek(0, io.SEEK_END)
            else:
                base = self._position if whence == io.SEEK_CUR else 0
            if base + offset < 0:
                raise InvalidRequestError(f"position {base + offset} is negative", self._uri)
            self._position = raw.seek(base + offset)
            return self._position

        return self._read(move)

    def readinto(self, buffer: BytesLike, /) -> int:  # type: ignore[override]  # 3.11 has no Buffer
        def fill(raw: BinaryIO) -> int:
            count = int(raw.readinto(buffer))  # type: ignore[attr-defined]  # every raw stream has it
            self._position += count
            return count

        return self._read(fill)

    def close(self) -> None:
        self._forget()
        super().close()

    def _read(self, action: Callable[[BinaryIO], _Result]) -> _Result:
        if self.closed:
            raise StreamClosedError("stream is closed", self._uri)

        def attempt() -> _Result:
            try:
                if self._raw is None:
                    self._raw = self._file_system.inner.open(self._uri)
                    self._raw.seek(self._position)
                return action(self._raw)
            except BaseException as error:
                self._forget()  # it may be ahead of the position, after an interrupt too
                if isinstance(error, OSError):
                    message = f"file can't be read ({error.strerror or error})"
                    raise StorageUnavailableError(message, self._uri) from error
                raise

        return self._file_system.retrier.call("open", attempt)

    def _forget(self) -> None:
        raw, self._raw = self._raw, None
        if raw is not None:
            with suppress(OSError, CheckpointError):  # it was only read
                raw.close()
