"""The upload of a subtask's state, while its task runs the next subtasks.

    Uploads.add       takes a subtask whose state is captured
    Uploads.start     before the next subtask: its upload begins, in another thread
    Uploads.finish    after the last subtask: waits for all uploads

On a distant store, a task would otherwise wait for each of its subtasks. A task that runs one subtask uploads in its own
thread: it has no work left, because Spark ends the task, and with it the sink's writer, only after its acknowledgement.
"""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple, Self

import msgspec

from holdfast.backends.snapshot import AsyncSnapshot, SnapshotResult
from holdfast.backends.subtask import OperatorStateHandler
from holdfast.common import CancellingPool, Clock
from holdfast.locations.file_systems import StoreCalls, store_calls_of_process
from holdfast.locations.metadata import StoredSubtask, SubtaskStatistics
from holdfast.spark.subtask.local_state import LocalState

_MAX_UPLOADS = 4
"""Subtasks of a task whose states are uploaded at a time. Captured state can be in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedSubtask:
    """A subtask that has processed its rows, and whose state is captured.

    Attributes:
        statistics: The statistics without those of the upload.
        captured_s: The monotonic time of the capture.
    """

    subtask: int
    snapshot: AsyncSnapshot
    handler: OperatorStateHandler
    local: LocalState
    clock: Clock
    statistics: SubtaskStatistics
    next_timers: tuple[int | None, int | None]
    start_ms: int
    captured_s: float

    def upload(self) -> "_Upload":
        """Write the state, in any thread. Raises what the store raises; then no file of the state remains there."""
        result = self.snapshot.run()
        return _Upload(result, 1000 * (self.clock.monotonic_s() - self.captured_s))

    def close(self, upload: "_Upload") -> StoredSubtask:
        """Release the subtask, and leave its state to the next task of the process; return what is stored of it."""
        # Before local files are counted: a database has hard links to them.
        self.handler.close()
        state = upload.result.state
        self.local.keep(state, upload.result.task_local)
        statistics = msgspec.structs.replace(
            self.statistics,
            state_bytes=state.written_bytes,
            async_ms=upload.duration_ms,
            restored_from=self.local.source,
            fetched_bytes=self.local.fetches.bytes,
            fetch_requests=self.local.fetches.requests,
            fetch_ms=1000 * self.local.fetches.seconds,
        )
        return msgspec.structs.replace(state, statistics=statistics)


class _Upload(NamedTuple):
    result: SnapshotResult
    duration_ms: float


class WrittenSubtask(NamedTuple):
    """A subtask whose state is written.

    Attributes:
        calls: The calls of stores since the subtask before it was written.
    """

    captured: CapturedSubtask
    state: StoredSubtask
    calls: StoreCalls


class Uploads:
    """The uploads of a task, in a `with` block. If it ends before them, they are cancelled, and no thread is left."""

    def __init__(self) -> None:
        self._pool = CancellingPool(_MAX_UPLOADS)
        self._captured: CapturedSubtask | None = None
        self._running: deque[tuple[CapturedSubtask, Future[_Upload]]] = deque()
        self._counted = store_calls_of_process()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        unfinished = [captured for captured, _ in self._running]
        unfinished += [] if self._captured is None else [self._captured]
        with ExitStack() as cleanup:
            for captured in unfinished:
                cleanup.callback(captured.handler.close)
            cleanup.enter_context(self._pool)
            for captured in unfinished:
                captured.snapshot.cancel()

    def add(self, captured: CapturedSubtask) -> None:
        """Take a subtask; `start` or `finish` follows before the next one."""
        self._captured = captured

    def start(self) -> Iterator[WrittenSubtask]:
        """Start the upload of the subtask that was added, if any; yield subtasks that are written, in order.

        Raises what the oldest upload raises.
        """
        if self._captured is None:
            return
        self._running.append((self._captured, self._pool.submit(self._captured.upload)))
        self._captured = None
        while self._running and (len(self._running) > _MAX_UPLOADS or self._running[0][1].done()):
            yield self._finish_oldest()

    def finish(self) -> Iterator[WrittenSubtask]:
        """Upload the subtask that was added last, wait for the others, and yield all. Raises what an upload raises."""
        last = self._captured
        upload = None if last is None else last.upload()
        while self._running:
            yield self._finish_oldest()
        if last is not None and upload is not None:
            self._captured = None
            yield self._close(last, upload)

    def _finish_oldest(self) -> WrittenSubtask:
        captured, future = self._running[0]
        upload = future.result()
        self._running.popleft()
        return self._close(captured, upload)

    def _close(self, captured: CapturedSubtask, upload: _Upload) -> WrittenSubtask:
        state = captured.close(upload)
        counted, self._counted = self._counted, store_calls_of_process()
        return WrittenSubtask(captured, state, self._counted - counted)
