"""A file system that fails on demand: planned faults, and the calls at which they occur."""

import copy
import io
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import BinaryIO, Literal, Protocol

from holdfast.errors import (
    InvalidRequestError,
    OutcomeUnknownError,
    StorageFullError,
    StorageUnavailableError,
)
from holdfast.locations.file_systems import (
    BytesLike,
    ExclusiveFileSystem,
    FileOutputStream,
    FileSystem,
    RetryPolicy,
)
from holdfast.testing.forwarding import (
    CALLS,
    WITHOUT_RETRIES,
    ForwardingFileSystem,
    ForwardingOutputStream,
    Mirror,
    register_scheme,
)

Action = BaseException | Callable[[], object]
"""An exception to raise, or a function to call."""

Nth = int | Literal["next", "every"]
"""The selected call of several."""

ANY_CALL = "any call"
"""Matches every call except `abort`, which never fails; `nth` counts all of them."""

MAX_WAIT_S = 300.0
"""A test that blocks for longer is stuck."""


class Abortable(Protocol):
    """An object that can be aborted."""

    def abort(self) -> None: ...


@dataclass(slots=True)
class _Planned:
    """The faults planned for one call; there may be several."""

    before: list[Action] = field(default_factory=list)
    after: list[Action] = field(default_factory=list)
    kept_bytes: int | None = None
    flipped_bits: list[tuple[int, int]] = field(default_factory=list)

    def cut(self, data: bytes) -> bytes:
        return data if self.kept_bytes is None else data[: self.kept_bytes]


@dataclass(slots=True)
class Faults:
    """Planned faults of a file system, and its calls so far.

    A call has the name of its method: one of `FileSystem`, `publish`, one of `FileOutputStream`, `read`
    for each read of an open file, or `ANY_CALL`. `nth` selects calls with that name: the `"next"` one,
    `"every"` one, or the one with that number, counted from 1 since the start or the last
    `calls.clear()`. Several plans for a call add up.

    Attributes:
        directory: URI of a directory with faults.
        inner_directory: URI of the same directory without faults.
        calls: Names of all calls in order, including failed ones.
    """

    directory: str
    inner_directory: str
    calls: list[str] = field(default_factory=list)
    _plans: dict[tuple[str, Nth], _Planned] = field(default_factory=dict, repr=False)
    _room_bytes: int | None = field(default=None, repr=False)
    _is_full: bool = field(default=False, repr=False)
    _blocked: list[threading.Event] = field(default_factory=list, repr=False)
    _orphans: list[Abortable] = field(default_factory=list, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def before(self, call: str, action: Action, nth: Nth = "next") -> None:
        """Raise an exception, or run a function, before the call takes effect."""
        self._plan(call, nth).before.append(action)

    def after(self, call: str, action: Action, nth: Nth = "next") -> None:
        """Raise an exception, or run a function, after the call took effect."""
        self._plan(call, nth).after.append(action)

    def lose_answer(self, call: str, nth: Nth = "next") -> None:
        """Lose the answer of a call that takes effect.

        The caller gets `OutcomeUnknownError` from `publish` and `commit`, otherwise
        `StorageUnavailableError`. Use `after` for another error.
        """
        kind = OutcomeUnknownError if call in ("publish", "commit") else StorageUnavailableError
        self.after(call, kind("answer was lost, as planned"), nth)

    def truncate(self, call: str, kept_bytes: int, nth: Nth = "next") -> None:
        """Keep only the first bytes, without an error.

        Args:
            call: `write` truncates its argument; `commit` and `publish` truncate the file; `open` returns
                a truncated view of the file, which itself is unchanged.
            kept_bytes: Number of bytes to keep.
            nth: The selected calls.
        """
        self._plan(
            call, nth, allowed=("write", "commit", "publish", "open")
        ).kept_bytes = kept_bytes

    def flip_bit(self, offset: int, *, bit: int = 0, nth: Nth = "next") -> None:
        """Open a file with one bit flipped; the file itself is unchanged.

        Args:
            offset: Position of the byte; no bit is flipped in a shorter file.
            bit: Position of the bit in the byte, from 0 for the lowest to 7.
            nth: The selected calls of `open`.
        """
        self._plan("open", nth).flipped_bits.append((offset, bit))

    def delay(
        self, call: str, until: threading.Event | Callable[[], object], nth: Nth = "next"
    ) -> None:
        """Delay the call before it takes effect, until the event is set or the callable returns.

        It does not sleep, so the test controls the time.
        """
        self.before(call, waiting_for(until, self._blocked), nth)

    def blocking(self, call: str, nth: Nth = "next") -> tuple[threading.Event, threading.Event]:
        """Block a call: it sets the first event and waits for the second."""
        reached, released = threading.Event(), threading.Event()
        self.before(call, reached.set, nth)
        self.delay(call, released, nth)
        return reached, released

    def run_out_of_space(self, after_bytes: int) -> None:
        """Limit the space to a number of bytes, counted from now over all files.

        A `write` or `publish` beyond it raises `StorageFullError`, and its file is deleted. So does every such
        call until `make_room`; deleting files does not free space.
        """
        with self._lock:
            self._room_bytes, self._is_full = after_bytes, False

    def make_room(self) -> None:
        """Remove the limit, so that writes succeed again."""
        with self._lock:
            self._room_bytes, self._is_full = None, False

    def clear(self) -> None:
        """Remove all plans, and release blocked calls."""
        with self._lock:
            self._plans.clear()
        self.make_room()
        for event in self._blocked:
            event.set()

    def close(self) -> None:
        """Call `clear`, and abort unfinished files that never reached their caller."""
        self.clear()
        for orphan in self._orphans:
            orphan.abort()

    @contextmanager
    def around(self, call: str) -> Iterator[_Planned]:
        """Record a call and apply its faults; called by the file system.

        Yields the faults of the call's data.
        """
        with self._lock:
            self.calls.append(call)
            planned = [(nth, plan) for nth, plan in self._find_plans(call) if plan is not None]
        for nth, plan in planned:
            _do(plan.before, again=nth == "every")
        yield _Planned(
            kept_bytes=min(
                (plan.kept_bytes for _, plan in planned if plan.kept_bytes is not None),
                default=None,
            ),
            flipped_bits=[bit for _, plan in planned for bit in plan.flipped_bits],
        )
        for nth, plan in planned:
            _do(plan.after, again=nth == "every")

    def take_room(self, count: int) -> None:
        """Account for bytes that are about to be stored; called by the file system."""
        with self._lock:
            if self._room_bytes is None:
                return
            if self._is_full or count > self._room_bytes:
                self._is_full = True
                raise StorageFullError("no space left, as planned", self.directory)
            self._room_bytes -= count

    def adopt(self, stream: Abortable) -> None:
        """Keep a started file that did not reach its caller until `close`; called by the file system."""
        with self._lock:
            self._orphans.append(stream)

    def _find_plans(self, call: str) -> Iterator[tuple[Nth, _Planned | None]]:
        """Yield the plans for the last of `calls`."""
        numbers = {call: self.calls.count(call)}
        if call != "abort":
            numbers[ANY_CALL] = len(self.calls) - self.calls.count("abort")
        for name, number in numbers.items():
            yield "next", self._plans.pop((name, "next"), None)
            yield number, self._plans.pop((name, number), None)
            yield "every", self._plans.get((name, "every"))

    def _plan(
        self, call: str, nth: Nth, *, allowed: tuple[str, ...] = (*CALLS, ANY_CALL)
    ) -> _Planned:
        if call not in allowed:
            raise InvalidRequestError(f"call must be one of {', '.join(allowed)}, got {call!r}")
        with self._lock:
            return self._plans.setdefault((call, nth), _Planned())


def _do(actions: list[Action], *, again: bool) -> None:
    for action in actions:
        if isinstance(action, BaseException):
            # Raising the same exception twice would extend its traceback and causes.
            raise copy.copy(action) if again else action
        action()


def waiting_for(
    until: threading.Event | Callable[[], object], blocked: list[threading.Event]
) -> Callable[[], object]:
    """Return a function that waits for the event, which is added to `blocked`, or calls the callable."""
    if not isinstance(until, threading.Event):
        return until
    blocked.append(until)

    def wait() -> None:
        assert until.wait(MAX_WAIT_S), f"blocked for {MAX_WAIT_S} s without being released"

    return wait


class FaultyFileSystem(ForwardingFileSystem):
    """Forwards calls to another file system, with planned faults.

    Args:
        inner: The other file system.
        faults: The planned faults, with both URIs of the directory.
    """

    def __init__(self, inner: FileSystem, faults: Faults) -> None:
        super().__init__(inner, Mirror(faults.directory, faults.inner_directory))
        self.faults = faults

    def around(self, call: str) -> AbstractContextManager[object]:
        return self.faults.around(call)

    def create(self, uri: str, /) -> FileOutputStream:
        def begin() -> FileOutputStream:
            with self.mirror.rename_errors():
                return self.inner.create(self.mirror.to_inner(uri))

        stream: FileOutputStream | None = None
        try:
            with self.faults.around("create"):
                stream = begin()
        except BaseException:
            if stream is not None:  # the answer was lost
                self.faults.adopt(stream)
            raise
        return _FaultyOutputStream(stream, begin, self)

    def open(self, uri: str, /) -> BinaryIO:
        opened: BinaryIO | None = None
        try:
            with self.faults.around("open") as planned:
                with self.mirror.rename_errors():
                    opened = self.inner.open(self.mirror.to_inner(uri))
                if planned.kept_bytes is not None or planned.flipped_bits:
                    opened = _damage(opened, planned.kept_bytes, planned.flipped_bits)
        except BaseException:
            if opened is not None:
                opened.close()
            raise
        return self.reader(opened)


class FaultyExclusiveFileSystem(FaultyFileSystem):
    """Applies faults to a store that can publish."""

    inner: ExclusiveFileSystem

    def publish(self, uri: str, data: bytes, /) -> None:
        with self.faults.around("publish") as planned:
            self.faults.take_room(len(data))
            with self.mirror.rename_errors():
                self.inner.publish(self.mirror.to_inner(uri), planned.cut(data))


class _FaultyOutputStream(ForwardingOutputStream):
    """A file in progress.

    Args:
        inner: The file of the other file system.
        begin: Starts the file again.
        file_system: The file system of the file.
    """

    def __init__(
        self,
        inner: FileOutputStream,
        begin: Callable[[], FileOutputStream],
        file_system: FaultyFileSystem,
    ) -> None:
        super().__init__(inner, file_system.calling)
        self._begin = begin
        self._faults = file_system.faults
        self._renaming_errors = file_system.mirror.rename_errors
        self._written = bytearray()

    def write(self, data: BytesLike, /) -> None:
        with self._faults.around("write") as planned:
            content = bytes(memoryview(data).cast("B"))
            try:
                self._faults.take_room(len(content))
            except StorageFullError:
                self._inner.abort()
                raise
            kept = planned.cut(content)
            with self._renaming_errors():
                self._inner.write(kept)
            self._written += kept

    def commit(self, *, durable_name: bool = True) -> None:
        with self._faults.around("commit") as planned:
            if planned.kept_bytes is not None:
                # The inner file already has more bytes; it never becomes visible.
                self._inner.abort()
                self._inner = self._begin()
                self._inner.write(planned.cut(bytes(self._written)))
            with self._renaming_errors():
                self._inner.commit(durable_name=durable_name)


def _damage(
    stream: BinaryIO, kept_bytes: int | None, flipped_bits: list[tuple[int, int]]
) -> BinaryIO:
    """Return the file's bytes, truncated and with flipped bits."""
    with stream:
        content = bytearray(stream.read())
    if kept_bytes is not None:
        del content[kept_bytes:]
    for offset, bit in flipped_bits:
        if offset < len(content):
            content[offset] ^= 1 << bit
    return io.BytesIO(content)


@contextmanager
def faulty_file_system(
    directory: str, *, retries: RetryPolicy = WITHOUT_RETRIES
) -> Iterator[Faults]:
    """Register a scheme for a directory that fails on demand until the block ends.

        with faulty_file_system("memory:///x") as faults:
            storage = checkpoint_storage(faults.directory)
            faults.lose_answer("publish")
            ...

    Several can be used at a time. Calls are forwarded to the store's adapter without retries.

    Args:
        directory: Normalized URI of the directory.
        retries: How long failing calls are retried; not at all by default, so that each fault is visible.
    """
    mirror = Mirror.under_new_scheme("faulty", directory)
    faults = Faults(mirror.directory, mirror.inner_directory)
    with register_scheme(
        mirror,
        lambda inner: FaultyFileSystem(inner, faults),
        lambda inner: FaultyExclusiveFileSystem(inner, faults),
        retries,
    ):
        try:
            yield faults
        finally:
            faults.close()
