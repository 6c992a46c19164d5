"""A snapshot under way: taken at once, written when somebody runs it."""

import threading
from concurrent.futures import CancelledError
from dataclasses import dataclass

import pyarrow as pa

from holdfast.backends._sections import write_section
from holdfast.errors import CheckpointError, InvalidRequestError
from holdfast.locations import (
    CheckpointedStateScope,
    CheckpointStateOutputStream,
    CheckpointStreamFactory,
    OperatorStateHandle,
    OperatorStateMode,
    StatePartitions,
)


@dataclass(frozen=True, slots=True)
class SnapshotResult:
    """What a snapshot came to.

    Attributes:
        job_manager_owned: The part that the coordinator stores; None if there was no state.
        task_local: A copy that stays with the task; only together with the first.

    Raises:
        InvalidRequestError: A local part without the other one.
    """

    job_manager_owned: OperatorStateHandle | None = None
    task_local: OperatorStateHandle | None = None

    def __post_init__(self) -> None:
        if self.task_local is not None and self.job_manager_owned is None:
            raise InvalidRequestError("a snapshot with a local part needs the coordinator's part")

    @property
    def state_bytes(self) -> int:
        """Bytes in the coordinator's part."""
        return self.job_manager_owned.size if self.job_manager_owned else 0


@dataclass(frozen=True, slots=True)
class CapturedState:
    """One state as it was when the snapshot was taken; the chunks are shared, not copied."""

    mode: OperatorStateMode
    element_type: pa.DataType
    chunks: tuple[pa.Array, ...]


class OperatorStateSnapshot:
    """The asynchronous part of a snapshot: `run` it once, in any thread, or `cancel` it.

    Whatever happens, what was captured is released once, and a file that was begun is either
    in the result or gone.

    Source:
        Flink, SnapshotStrategyRunner and AsyncSnapshotCallable.
    """

    def __init__(
        self, captured: dict[str, CapturedState], factory: CheckpointStreamFactory
    ) -> None:
        self._captured = captured
        self._factory = factory
        self._lock = threading.Lock()
        self._started = False
        self._cancelled = False
        self._stream: CheckpointStateOutputStream | None = None

    def run(self) -> SnapshotResult:
        """Write what was captured.

        Raises:
            concurrent.futures.CancelledError: `cancel` came before or meanwhile.
            InvalidRequestError: It ran before.
            StorageUnavailableError: The store did not take it.
        """
        with self._lock:
            if self._started:
                raise InvalidRequestError("a snapshot runs once")
            if self._cancelled:
                raise CancelledError
            self._started = True
            captured, self._captured = self._captured, {}
            if not captured:
                return SnapshotResult()
            self._stream = self._factory.create_checkpoint_state_output_stream(
                CheckpointedStateScope.EXCLUSIVE
            )
        try:
            with self._stream as stream:
                return SnapshotResult(_write(captured, stream))
        except (CheckpointError, pa.ArrowException) as error:
            if self._cancelled:
                raise CancelledError from error
            raise

    def cancel(self) -> None:
        """Give up: release what was captured, discard what was written. Never raises."""
        with self._lock:
            self._cancelled = True
            self._captured = {}
            stream = self._stream
        if stream is not None:
            stream.close()  # does nothing if the snapshot was finished just now


def _write(
    captured: dict[str, CapturedState], stream: CheckpointStateOutputStream
) -> OperatorStateHandle | None:
    states = {}
    for name, state in captured.items():
        offset = stream.tell()
        length = write_section(stream, state.element_type, state.chunks)
        count = sum(map(len, state.chunks))
        states[name] = StatePartitions(state.mode, offset, length, first=0, count=count)
    handle = stream.close_and_get_handle()
    return OperatorStateHandle(states, handle) if handle else None
