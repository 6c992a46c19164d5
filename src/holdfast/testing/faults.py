"""Faults for a store, and the steps at which they happen."""

import copy
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, Protocol

from holdfast.errors import (
    InvalidRequestError,
    OutcomeUnknownError,
    StorageFullError,
    StorageUnavailableError,
)
from holdfast.testing.forwarding import CALLS

Action = BaseException | Callable[[], object]
"""Something to raise, or to do."""

Nth = int | Literal["next", "every"]
"""Which of several calls."""

ANY_CALL = "any call"
"""Stands for the name of every call but `abort`, which never fails; the n-th of them all."""

LONGEST_S = 300.0
"""A test that stands still for longer is stuck."""


class Abortable(Protocol):
    """Something that can be given up."""

    def abort(self) -> None: ...


@dataclass(slots=True)
class _Planned:
    """The faults planned for one step; there may be several."""

    before: list[Action] = field(default_factory=list)
    after: list[Action] = field(default_factory=list)
    kept_bytes: int | None = None
    flipped_bits: list[tuple[int, int]] = field(default_factory=list)

    def cut(self, data: bytes) -> bytes:
        return data if self.kept_bytes is None else data[: self.kept_bytes]


@dataclass(slots=True)
class Faults:
    """Which calls go wrong, and what was called so far.

    A call is named by its method: one of `FileSystem`, `publish`, one of `FileOutputStream`, `read`
    for each read of an open file, or `ANY_CALL`. `nth` picks which of the calls of that name: the
    `"next"` one, `"every"` one, or the one with that number, counted from 1 since the beginning or
    the last `calls.clear()`. Several plans for a call add up.

    Attributes:
        directory: URI of a directory whose file system obeys.
        behind: URI of the same directory, without faults.
        calls: Names of the calls, in order; those that failed too.
    """

    directory: str
    behind: str
    calls: list[str] = field(default_factory=list)
    _plans: dict[tuple[str, Nth], _Planned] = field(default_factory=dict, repr=False)
    _room_bytes: int | None = field(default=None, repr=False)
    _is_full: bool = field(default=False, repr=False)
    _blocked: list[threading.Event] = field(default_factory=list, repr=False)
    _orphans: list[Abortable] = field(default_factory=list, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def before(self, call: str, action: Action, nth: Nth = "next") -> None:
        """Raise, or do something, before the call takes effect."""
        self._plan(call, nth).before.append(action)

    def after(self, call: str, action: Action, nth: Nth = "next") -> None:
        """Raise, or do something, after the call took effect."""
        self._plan(call, nth).after.append(action)

    def lose_answer(self, call: str, nth: Nth = "next") -> None:
        """Let the call take effect, and its caller not learn of it.

        The caller gets `OutcomeUnknownError` from `publish` and `commit`, else `StorageUnavailableError`.
        Use `after` for another error.
        """
        kind = OutcomeUnknownError if call in ("publish", "commit") else StorageUnavailableError
        self.after(call, kind("answer was lost, as planned"), nth)

    def truncate(self, call: str, kept_bytes: int, nth: Nth = "next") -> None:
        """Lose what is behind the first bytes, without an error.

        Args:
            call: `write` keeps so much of its argument; `commit` and `publish` of the whole file;
                `open` shows so much of the file, which itself stays as it is.
            kept_bytes: How many bytes are kept.
            nth: Which of the calls.
        """
        self._plan(
            call, nth, allowed=("write", "commit", "publish", "open")
        ).kept_bytes = kept_bytes

    def flip_bit(self, offset: int, *, bit: int = 0, nth: Nth = "next") -> None:
        """Show a file with one bit wrong; the file itself stays as it is.

        Args:
            offset: Which byte; no bit is flipped in a file that ends before it.
            bit: Which bit of the byte, 0 for the lowest, to 7.
            nth: Which of the calls of `open` gets to see it.
        """
        self._plan("open", nth).flipped_bits.append((offset, bit))

    def delay(
        self, call: str, until: threading.Event | Callable[[], object], nth: Nth = "next"
    ) -> None:
        """Hold the call up before it takes effect, until the event is set or the callable returns.

        Nothing here sleeps: time passes as the test wants it to.
        """
        if isinstance(until, threading.Event):
            self._blocked.append(until)
            until = _waiting_for(until)
        self.before(call, until, nth)

    def blocking(self, call: str, nth: Nth = "next") -> tuple[threading.Event, threading.Event]:
        """Let a call stand still: it sets the first event and waits for the other."""
        reached, go_on = threading.Event(), threading.Event()
        self.before(call, reached.set, nth)
        self.delay(call, go_on, nth)
        return reached, go_on

    def run_out_of_space(self, after_bytes: int) -> None:
        """Leave room for so many bytes, counted from now over all files.

        The `write` or `publish` that needs more raises `StorageFullError`, and its file is gone. So does every such call until `make_room`; deleting files
        makes no room.
        """
        with self._lock:
            self._room_bytes, self._is_full = after_bytes, False

    def make_room(self) -> None:
        """Let writes succeed again."""
        with self._lock:
            self._room_bytes, self._is_full = None, False

    def clear(self) -> None:
        """Forget all that was planned, and let calls that stand still go on."""
        with self._lock:
            self._plans.clear()
        self.make_room()
        for event in self._blocked:
            event.set()

    def close(self) -> None:
        """`clear`, and give up the files in the making that nobody knows of."""
        self.clear()
        for orphan in self._orphans:
            orphan.abort()

    @contextmanager
    def around(self, call: str) -> Iterator[_Planned]:
        """For the file system: note a call, and do what is planned for it.

        Yields what is planned for the call's data.
        """
        with self._lock:
            self.calls.append(call)
            planned = [(nth, plan) for nth, plan in self._planned_for(call) if plan is not None]
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
        """For the file system: account for bytes that are about to be stored."""
        with self._lock:
            if self._room_bytes is None:
                return
            if self._is_full or count > self._room_bytes:
                self._is_full = True
                raise StorageFullError("no space left, as planned", self.directory)
            self._room_bytes -= count

    def adopt(self, stream: Abortable) -> None:
        """For the file system: keep a file that was begun, and never reached its caller, until `close`."""
        with self._lock:
            self._orphans.append(stream)

    def _planned_for(self, call: str) -> Iterator[tuple[Nth, _Planned | None]]:
        """The plans for the last of `calls`."""
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
            raise InvalidRequestError(f"no call {call!r} here; there are {', '.join(allowed)}")
        with self._lock:
            return self._plans.setdefault((call, nth), _Planned())


def _do(actions: list[Action], *, again: bool) -> None:
    for action in actions:
        if isinstance(action, BaseException):
            # Raising the same one twice would add to its traceback and its causes.
            raise copy.copy(action) if again else action
        action()


def _waiting_for(event: threading.Event) -> Callable[[], None]:
    def wait() -> None:
        assert event.wait(LONGEST_S), f"stood still for {LONGEST_S} s, and nobody let it go on"

    return wait
