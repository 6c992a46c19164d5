"""A file system that fails on demand, before or after a call took effect."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import BinaryIO

from holdfast.locations import (
    BytesLike,
    FileOutputStream,
    FileStatus,
    FileSystem,
    file_system_for,
    register_file_system,
)
from holdfast.locations import _file_system as registry

SCHEME = "faulty"


@dataclass
class Faults:
    """Which calls fail, and what was called so far.

    Attributes:
        directory: URI of a directory whose file system obeys.
        behind: URI of the same directory, without faults.
        calls: Names of the calls, in order.
    """

    directory: str
    behind: str
    calls: list[str] = field(default_factory=list)
    _before: dict[tuple[str, int], Callable[[], object]] = field(default_factory=dict)
    _after: dict[tuple[str, int], Callable[[], object]] = field(default_factory=dict)

    def before(self, call: str, action: BaseException | Callable[[], object], nth: int = 1) -> None:
        """Raise, or do something, before the n-th call of that name takes effect."""
        self._before[call, nth] = _as_action(action)

    def after(self, call: str, action: BaseException | Callable[[], object], nth: int = 1) -> None:
        """Raise, or do something, after the n-th call of that name took effect."""
        self._after[call, nth] = _as_action(action)

    def blocking(self, call: str) -> tuple[threading.Event, threading.Event]:
        """Make the first such call stand still: it sets the first event and waits for the other."""
        reached, go_on = threading.Event(), threading.Event()

        def stand_still() -> None:
            reached.set()
            assert go_on.wait(60)

        self.before(call, stand_still)
        return reached, go_on

    @contextmanager
    def around(self, call: str) -> Iterator[None]:
        self.calls.append(call)
        step = (call, self.calls.count(call))
        if action := self._before.get(step):
            action()
        yield
        if action := self._after.get(step):
            action()


def _as_action(action: BaseException | Callable[[], object]) -> Callable[[], object]:
    if not isinstance(action, BaseException):
        return action

    def fail() -> None:
        raise action

    return fail


class FaultyFileSystem:
    """Passes calls on to the file system behind it, under another scheme."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._inner: FileSystem = file_system_for(faults.behind)

    def _behind(self, uri: str) -> str:
        assert uri.startswith(self._faults.directory)
        return self._faults.behind + uri.removeprefix(self._faults.directory)

    def prepare_directory(self, uri: str, /) -> None:
        with self._faults.around("prepare_directory"):
            self._inner.prepare_directory(self._behind(uri))

    def create(self, uri: str, /) -> FileOutputStream:
        with self._faults.around("create"):
            return _FaultyStream(self._inner.create(self._behind(uri)), self._faults)

    def publish(self, uri: str, data: bytes, /) -> None:
        with self._faults.around("publish"):
            self._inner.publish(self._behind(uri), data)

    def open(self, uri: str, /) -> BinaryIO:
        with self._faults.around("open"):
            return self._inner.open(self._behind(uri))

    def list(self, uri: str, /) -> Iterable[FileStatus]:
        with self._faults.around("list"):
            return [
                replace(
                    entry,
                    uri=self._faults.directory + entry.uri.removeprefix(self._faults.behind),
                )
                for entry in self._inner.list(self._behind(uri))
            ]

    def delete(self, uris: Iterable[str], /) -> None:
        with self._faults.around("delete"):
            self._inner.delete([self._behind(uri) for uri in uris])

    def delete_empty_directory(self, uri: str, /) -> None:
        with self._faults.around("delete_empty_directory"):
            self._inner.delete_empty_directory(self._behind(uri))

    def delete_tree(self, uri: str, /) -> None:
        with self._faults.around("delete_tree"):
            self._inner.delete_tree(self._behind(uri))


class _FaultyStream:
    def __init__(self, inner: FileOutputStream, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults

    def write(self, data: BytesLike, /) -> None:
        with self._faults.around("write"):
            self._inner.write(data)

    def commit(self) -> None:
        with self._faults.around("commit"):
            self._inner.commit()

    def abort(self) -> None:
        with self._faults.around("abort"):
            self._inner.abort()


@contextmanager
def faulty_scheme(behind: str) -> Iterator[Faults]:
    """Reach a directory through `faulty://` too, until the block is left."""
    faults = Faults(f"{SCHEME}:///{behind.rpartition('/')[2]}", behind)
    register_file_system(SCHEME, lambda: FaultyFileSystem(faults))
    try:
        yield faults
    finally:
        # No public way back: a scheme is registered for the life of a process.
        del registry._FACTORIES[SCHEME]
