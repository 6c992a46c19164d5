"""Retried calls, their number and their time; with a clock that only the test moves."""

import io
import logging
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import (
    CheckpointConflictError,
    CheckpointCorruptedError,
    CheckpointError,
    CheckpointNotFoundError,
    InvalidRequestError,
    OutcomeUnknownError,
    StorageFullError,
    StorageUnavailableError,
)
from holdfast.locations.adapters import FileStatus, MemoryFileSystem, RetryPolicy, file_system_for
from holdfast.locations.file_systems import (
    Retrier,
    RetryingExclusiveFileSystem,
    RetryingFileSystem,
    publish,
    publishing,
)
from holdfast.testing import Faults, ManualClock, faulty_file_system

POLICY = RetryPolicy(deadline_s=60, first_wait_s=1, max_wait_s=8)


@pytest.fixture
def passing() -> ManualClock:
    return ManualClock()


@pytest.fixture
def retrying(passing: ManualClock) -> RetryingFileSystem:
    return over(MemoryFileSystem(), passing)


def over(
    inner: MemoryFileSystem, passing: ManualClock, policy: RetryPolicy = POLICY
) -> RetryingExclusiveFileSystem:
    return RetryingExclusiveFileSystem(inner, policy, clock=passing)


class Failing:
    """A call that fails a number of times, then succeeds; each attempt takes some seconds."""

    def __init__(
        self,
        passing: ManualClock,
        failures: int,
        error: Callable[[], Exception] = lambda: StorageUnavailableError("as planned"),
        takes_s: float = 0,
    ) -> None:
        self._passing = passing
        self._failures = failures
        self._error = error
        self._takes_s = takes_s
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        self._passing.advance(self._takes_s)
        if self.calls <= self._failures:
            raise self._error()
        return "done"


class TestPolicy:
    @pytest.mark.parametrize(
        "values",
        [
            {"deadline_s": -1},
            {"deadline_s": math.nan},
            {"first_wait_s": 0},
            {"first_wait_s": -1},
            {"first_wait_s": math.nan},
            {"max_wait_s": 0.01},
            {"max_wait_s": math.nan},
        ],
    )
    def test_invalid_values_are_refused(self, values: dict[str, float]) -> None:
        with pytest.raises(InvalidRequestError, match="deadline_s must be"):
            RetryPolicy(**values)

    def test_deadline_of_zero_repeats_nothing(self, passing: ManualClock) -> None:
        failing = Failing(passing, 1)
        retrying = over(MemoryFileSystem(), passing, RetryPolicy(deadline_s=0))
        with pytest.raises(StorageUnavailableError):
            retrying.retrier.call("list", failing)
        assert (failing.calls, passing.sleeps) == (1, [])


class TestRepeating:
    def test_success_is_not_retried(
        self, retrying: RetryingFileSystem, passing: ManualClock
    ) -> None:
        assert retrying.retrier.call("list", Failing(passing, 0)) == "done"
        assert passing.sleeps == []
        assert not retrying.retries

    @given(failures=st.integers(1, 9), takes_s=st.sampled_from([0, 0.5]))
    def test_each_wait_is_below_a_doubling_bound(self, failures: int, takes_s: float) -> None:
        passing = ManualClock()
        retrying = over(
            MemoryFileSystem(),
            passing,
            RetryPolicy(deadline_s=1e9, first_wait_s=1, max_wait_s=8),
        )
        failing = Failing(passing, failures, takes_s=takes_s)
        assert retrying.retrier.call("list", failing) == "done"
        assert failing.calls == failures + 1
        bounds = [min(8, 2**number) for number in range(failures)]
        assert all(0 <= wait <= bound for wait, bound in zip(passing.sleeps, bounds, strict=True))

    def test_waits_are_random(self, retrying: RetryingFileSystem, passing: ManualClock) -> None:
        for _ in range(20):
            retrying.retrier.call("list", Failing(passing, 1))
        assert len(set(passing.sleeps)) > 10

    @given(takes_s=st.floats(0, 100), deadline_s=st.floats(0.1, 200))
    def test_no_attempt_begins_after_the_deadline(self, takes_s: float, deadline_s: float) -> None:
        passing = ManualClock()
        policy = RetryPolicy(deadline_s=deadline_s, first_wait_s=0.1, max_wait_s=5)
        began: list[float] = []

        def attempt() -> None:
            began.append(passing.monotonic_s())
            assert len(began) < 10_000
            passing.advance(max(takes_s, 0.01))
            raise StorageUnavailableError("as planned")

        with pytest.raises(StorageUnavailableError):
            over(MemoryFileSystem(), passing, policy).retrier.call("list", attempt)
        assert began[-1] < 1000 + deadline_s
        assert passing.monotonic_s() <= deadline_s + max(takes_s, 0.01)
        if takes_s >= deadline_s:
            assert len(began) == 1

    def test_last_error_is_raised_unchanged(
        self, retrying: RetryingFileSystem, passing: ManualClock
    ) -> None:
        raised: list[Exception] = []

        def error() -> Exception:
            raised.append(StorageUnavailableError(f"attempt {len(raised)}", "memory:///x"))
            return raised[-1]

        with pytest.raises(StorageUnavailableError) as caught:
            retrying.retrier.call("list", Failing(passing, 10**6, error))
        assert caught.value is raised[-1]
        assert len(raised) > 3

    @pytest.mark.parametrize(
        "kind",
        [
            StorageFullError,
            CheckpointConflictError,
            CheckpointNotFoundError,
            InvalidRequestError,
            OutcomeUnknownError,
            CheckpointCorruptedError,
            ValueError,
            KeyboardInterrupt,
        ],
    )
    def test_permanent_error_is_not_retried(
        self, retrying: RetryingFileSystem, passing: ManualClock, kind: type[Exception]
    ) -> None:
        failing = Failing(passing, 1, lambda: kind("as planned"))
        with pytest.raises(kind):
            retrying.retrier.call("list", failing)
        assert (failing.calls, passing.sleeps) == (1, [])

    def test_retries_stop_at_a_permanent_error(
        self, retrying: RetryingFileSystem, passing: ManualClock
    ) -> None:
        errors: Iterator[Exception] = iter(
            [StorageUnavailableError("1"), StorageUnavailableError("2"), StorageFullError("3")]
        )
        failing = Failing(passing, 9, lambda: next(errors))
        with pytest.raises(StorageFullError):
            retrying.retrier.call("list", failing)
        assert failing.calls == 3

    def test_every_repetition_is_counted_and_logged(
        self, retrying: RetryingFileSystem, passing: ManualClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.WARNING):
            retrying.retrier.call("delete", Failing(passing, 3))
            retrying.retrier.call("list", Failing(passing, 1))
        assert retrying.retries == {"delete": 3, "list": 1}
        messages = [record.getMessage() for record in caplog.records]
        assert [message.partition(" ")[0] for message in messages] == ["delete"] * 3 + ["list"]
        assert all("as planned" in message and "retrying in" in message for message in messages)
        retrying.retries.clear()  # a copy
        assert retrying.retries == {"delete": 3, "list": 1}


class Flaky(MemoryFileSystem):
    """A store that fails some calls, and returns streams and listings that fail half way."""

    def __init__(self) -> None:
        super().__init__()
        self.opens = 0
        self.failing_opens: set[int] = set()
        self.read_fails_at: list[int] = []
        self.error: Callable[[], Exception] = lambda: StorageUnavailableError("as planned")
        self.close_error: Exception | None = None
        self.failing_listings = 0
        self.interrupted = ""

    def open(self, uri: str, /) -> BinaryIO:
        self.opens += 1
        if self.opens in self.failing_opens:
            raise self.error()
        return cast("BinaryIO", _FlakyStream(super().open(uri), self))

    def list(self, uri: str, /) -> Iterable[FileStatus]:
        entries = list(super().list(uri))
        if self.failing_listings:
            self.failing_listings -= 1
            return _half_of(entries, self.error())
        return entries


def _half_of(entries: list[FileStatus], error: Exception) -> Iterator[FileStatus]:
    yield from entries[: len(entries) // 2]
    raise error


class _FlakyStream(io.RawIOBase):
    def __init__(self, inner: BinaryIO, flaky: Flaky) -> None:
        self._inner = inner
        self._flaky = flaky

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        position = self._inner.seek(offset, whence)
        if whence == io.SEEK_END:
            self._interrupt("end")
        return position

    def tell(self) -> int:
        return self._inner.tell()

    def readinto(self, buffer: Any, /) -> int:
        position = self._inner.tell()
        planned = self._flaky.read_fails_at
        if planned and position <= planned[0] < position + len(buffer):
            planned.pop(0)
            # Some of the buffer is filled, and the file's position is after it.
            buffer[:1] = b"?"
            self._inner.read(1)
            raise self._flaky.error()
        data = self._inner.read(min(len(buffer), 7))  # short reads are allowed
        buffer[: len(data)] = data
        self._interrupt("read")
        return len(data)

    def _interrupt(self, call: str) -> None:
        if self._flaky.interrupted == call:
            self._flaky.interrupted = ""
            raise KeyboardInterrupt

    def close(self) -> None:
        super().close()
        error, self._flaky.close_error = self._flaky.close_error, None
        if error is not None:
            raise error


CONTENT = bytes(range(256)) * 2


class TestReading:
    @pytest.fixture
    def flaky(self) -> Flaky:
        return Flaky()

    @pytest.fixture
    def uri(self, memory_directory: str) -> str:
        stream = file_system_for(memory_directory).create(f"{memory_directory}/x")
        stream.write(CONTENT)
        stream.commit()
        return f"{memory_directory}/x"

    @pytest.mark.parametrize(
        "error",
        [
            lambda: StorageUnavailableError("as planned"),
            lambda: OSError(5, "as planned"),
            lambda: ConnectionResetError("as planned"),
            lambda: TimeoutError("as planned"),
        ],
        ids=["unavailable", "input/output", "reset", "timeout"],
    )
    def test_read_resumes_after_the_last_byte_received(
        self, flaky: Flaky, uri: str, passing: ManualClock, error: Callable[[], Exception]
    ) -> None:
        flaky.error = error
        flaky.read_fails_at = [0, 0, 100, 300, 511]
        with over(flaky, passing).open(uri) as stream:
            assert stream.read() == CONTENT
        assert flaky.read_fails_at == []
        assert len(passing.sleeps) == 5

    def test_read_resumes_after_a_failed_reopening(
        self, flaky: Flaky, uri: str, passing: ManualClock
    ) -> None:
        flaky.read_fails_at = [200]
        flaky.failing_opens = {2, 3, 4}
        retrying = over(flaky, passing)
        with retrying.open(uri) as stream:
            assert stream.read() == CONTENT
        assert flaky.opens == 5
        assert retrying.retries == {"read": 4}

    def test_read_resumes_although_the_broken_stream_can_not_be_closed(
        self, flaky: Flaky, uri: str, passing: ManualClock
    ) -> None:
        flaky.read_fails_at = [200]
        flaky.close_error = OSError(5, "connection is gone")
        with over(flaky, passing).open(uri) as stream:
            assert stream.read() == CONTENT

    @given(
        jumps=st.lists(st.tuples(st.integers(0, 600), st.integers(0, 50)), max_size=6),
        fails_at=st.lists(st.integers(0, 511), max_size=4),
    )
    def test_seek_moves_to_any_position(
        self, uri: str, jumps: list[tuple[int, int]], fails_at: list[int]
    ) -> None:
        flaky = Flaky()
        flaky.read_fails_at = fails_at
        with over(flaky, ManualClock()).open(uri) as stream, io.BytesIO(CONTENT) as plain:
            for position, size in jumps:
                assert stream.seek(position) == plain.seek(position)
                read = b""
                while len(read) < size and (part := stream.read(size - len(read))):
                    read += part
                assert read == plain.read(size)
                assert stream.tell() == max(position, plain.tell())
            assert stream.seek(-3, io.SEEK_END) == 509
            assert stream.seek(-9, io.SEEK_CUR) == 500

    @pytest.mark.parametrize("call", ["read", "end"])
    def test_interrupt_keeps_the_position(
        self, flaky: Flaky, uri: str, passing: ManualClock, call: str
    ) -> None:
        """The bytes were read, or the position was found, and the answer was lost."""
        with over(flaky, passing).open(uri) as stream:
            assert stream.read(7) == CONTENT[:7]
            flaky.interrupted = call
            with pytest.raises(KeyboardInterrupt):
                stream.read(7) if call == "read" else stream.seek(0, io.SEEK_END)
            assert stream.tell() == 7
            assert stream.read(7) == CONTENT[7:14]

    def test_seek_before_the_beginning_keeps_the_position(
        self, flaky: Flaky, uri: str, passing: ManualClock
    ) -> None:
        with over(flaky, passing).open(uri) as stream:
            assert stream.read(7) == CONTENT[:7]
            with pytest.raises(InvalidRequestError):
                stream.seek(-len(CONTENT) - 1, io.SEEK_END)
            assert stream.read(7) == CONTENT[7:14]

    def test_missing_store_is_unavailable_in_the_end(
        self, flaky: Flaky, uri: str, passing: ManualClock
    ) -> None:
        retrying = over(flaky, passing)
        with retrying.open(uri) as stream:
            flaky.read_fails_at = [0] * 10_000
            with pytest.raises(StorageUnavailableError):
                stream.read()
        assert sum(passing.sleeps) < POLICY.deadline_s

    def test_missing_file_is_reported_at_once(
        self, flaky: Flaky, uri: str, passing: ManualClock
    ) -> None:
        with pytest.raises(CheckpointNotFoundError):
            over(flaky, passing).open(f"{uri}.missing")
        assert (flaky.opens, passing.sleeps) == (1, [])

    def test_listing_failing_half_way_is_repeated(
        self, flaky: Flaky, uri: str, passing: ManualClock
    ) -> None:
        directory = uri.rpartition("/")[0]
        for number in range(5):
            file_system_for(uri).create(f"{directory}/{number}").commit()
        flaky.failing_listings = 2
        entries = list(over(flaky, passing).list(directory))
        assert sorted(entry.uri for entry in entries) == sorted(
            [uri, *(f"{directory}/{number}" for number in range(5))]
        )
        assert len(passing.sleeps) == 2


def test_unknown_outcome_is_not_its_own_cause() -> None:
    def attempt() -> None:
        raise OutcomeUnknownError("as planned")

    with pytest.raises(OutcomeUnknownError) as caught:
        Retrier(RetryPolicy(deadline_s=0)).publish(attempt)
    assert caught.value.__cause__ is None


class TestPublishing:
    @pytest.fixture
    def faults(
        self, memory_directory: str, passing: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[Faults]:
        """A store with faults and retries, whose time the test moves."""
        with faulty_file_system(memory_directory) as faults:
            inner = file_system_for(faults.directory).inner
            retrying = over(cast("MemoryFileSystem", inner), passing)
            monkeypatch.setattr(publishing, "file_system_for", lambda _: retrying)
            yield faults

    def content(self, faults: Faults) -> bytes | None:
        try:
            with file_system_for(faults.inner_directory).open(
                f"{faults.inner_directory}/x"
            ) as stream:
                return stream.read()
        except CheckpointNotFoundError:
            return None

    def test_lost_answer_is_recognised_as_a_success(
        self, faults: Faults, passing: ManualClock
    ) -> None:
        faults.lose_answer("publish")
        publish(f"{faults.directory}/x", b"mine", single_writer=False)
        assert self.content(faults) == b"mine"
        assert faults.calls.count("publish") == 2
        assert len(passing.sleeps) == 1

    def test_lost_request_is_repeated(self, faults: Faults) -> None:
        faults.before("publish", OutcomeUnknownError("as planned"))
        publish(f"{faults.directory}/x", b"mine", single_writer=False)
        assert self.content(faults) == b"mine"

    def test_another_writers_file_is_a_conflict_also_after_a_lost_answer(
        self, faults: Faults
    ) -> None:
        def lose_to_another() -> None:
            publish_with_faults(faults, b"theirs")
            raise OutcomeUnknownError("as planned")

        faults.before("publish", lose_to_another)
        with pytest.raises(CheckpointConflictError):
            publish(f"{faults.directory}/x", b"mine", single_writer=False)
        assert self.content(faults) == b"theirs"

    @pytest.mark.parametrize(
        "then",
        [
            StorageUnavailableError("as planned"),
            StorageFullError("as planned"),
            InvalidRequestError("as planned"),
            CheckpointNotFoundError("as planned"),
        ],
        ids=lambda error: type(error).__name__,
    )
    def test_possible_write_is_never_reported_as_failed(
        self, faults: Faults, then: CheckpointError
    ) -> None:
        faults.lose_answer("publish", nth=1)
        for number in range(2, 200):
            faults.before("publish", type(then)("as planned"), nth=number)
        with pytest.raises(OutcomeUnknownError):
            publish(f"{faults.directory}/x", b"mine", single_writer=False)
        assert self.content(faults) == b"mine"

    def test_write_without_an_effect_is_unavailable(
        self, faults: Faults, passing: ManualClock
    ) -> None:
        faults.before("publish", StorageUnavailableError("as planned"), nth="every")
        with pytest.raises(StorageUnavailableError):
            publish(f"{faults.directory}/x", b"mine", single_writer=False)
        assert self.content(faults) is None
        assert sum(passing.sleeps) < POLICY.deadline_s

    def test_conflict_with_an_unreadable_file_leaves_the_outcome_unknown(
        self, faults: Faults
    ) -> None:
        faults.lose_answer("publish")
        faults.before("open", StorageUnavailableError("as planned"), nth="every")
        with pytest.raises(OutcomeUnknownError):
            publish(f"{faults.directory}/x", b"mine", single_writer=False)
        assert self.content(faults) == b"mine"


def publish_with_faults(faults: Faults, data: bytes) -> None:
    stream = file_system_for(faults.inner_directory).create(f"{faults.inner_directory}/x")
    stream.write(data)
    stream.commit()
