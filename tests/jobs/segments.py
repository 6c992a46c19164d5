"""Subtasks whose keyed state is in segments of arbitrary bytes, and their driver.

The state of a subtask is a mapping from the names of segments to their bytes, which contain no rows.
"""

import uuid
from collections.abc import Callable, Iterable, Sequence

import msgspec
from contracts.files import write
from contracts.values import EXCLUSIVE, read
from jobs.coordinator import acknowledge, progress
from msgspec.structs import replace

from holdfast.backends.keys import key_group_range
from holdfast.locations import CompletedCheckpoint, StoredSubtask
from holdfast.locations.adapters import (
    CheckpointedStateScope,
    CheckpointStreamFactory,
    FileStateHandle,
    StreamStateHandle,
    file_system_for,
)
from holdfast.locations.handles import PlaceholderStreamStateHandle, SegmentsStateHandle
from holdfast.locations.metadata import CheckpointMetadata
from holdfast.spark.query import CheckpointCoordinator, PendingCheckpoint
from holdfast.spark.subtask import Acknowledgement

UID = "operator"
MAX_PARALLELISM = 128


class Backend:
    """The keyed state of one subtask, from being restored to its snapshot.

    Args:
        restored: The state to start from.
        may_refer: Whether its snapshot may refer to the restored segments.
    """

    def __init__(self, restored: StoredSubtask, *, may_refer: bool = True) -> None:
        streams = restored.shared_streams()
        for handle in restored.managed_keyed:
            assert isinstance(handle, SegmentsStateHandle)
            assert msgspec.msgpack.decode(read(handle.manifest), type=list[str]) == sorted(
                handle.segments
            )
        self.segments = {name: read(stream) for name, stream in streams.items()}
        self._confirmed = set(self.segments) if may_refer else set()

    def add(self, content: bytes) -> str:
        """Add a segment, and return its name."""
        name = uuid.uuid4().hex
        self.segments[name] = content
        return name

    def confirm_all(self) -> None:
        """Treat all segments as confirmed, right or wrong."""
        self._confirmed = set(self.segments)

    def snapshot(
        self, factory: CheckpointStreamFactory, key_groups: tuple[int, int]
    ) -> StoredSubtask:
        """Write the segments that the last confirmed checkpoint doesn't have."""
        segments: dict[str, StreamStateHandle] = {
            name: PlaceholderStreamStateHandle(name, len(content))
            if name in self._confirmed
            else write_stream(factory, content, CheckpointedStateScope.SHARED)
            for name, content in self.segments.items()
        }
        manifest = write_stream(factory, msgspec.msgpack.encode(sorted(segments)), EXCLUSIVE)
        return StoredSubtask(managed_keyed=(SegmentsStateHandle(key_groups, segments, manifest),))


def write_stream(
    factory: CheckpointStreamFactory, content: bytes, scope: CheckpointedStateScope
) -> StreamStateHandle:
    with factory.create_checkpoint_state_output_stream(scope) as stream:
        stream.write(content)
        handle = stream.close_and_get_handle()
    assert handle is not None
    return handle


Change = Callable[[int, Backend], object]
"""The change that a batch makes to the state of a subtask, which is given by its number."""


def add_segment(content: bytes = b"rows") -> Change:
    """Return a change that adds a segment."""
    return lambda subtask, backend: backend.add(b"%s of %d" % (content, subtask))


def merge_segments(_: int, backend: Backend) -> None:
    """Merge all segments into one."""
    merged = b"".join(backend.segments.values())
    backend.segments.clear()
    if merged:
        backend.add(merged)


def change_nothing(_: int, __: Backend) -> None:
    """Change nothing."""


def latest_checkpoint(driver: CheckpointCoordinator) -> CompletedCheckpoint:
    """Return the latest checkpoint of a driver that has one."""
    assert driver.latest is not None
    return driver.latest


def run_subtasks(
    pending: PendingCheckpoint, change: Change, *, subtasks: Iterable[int] | None = None
) -> dict[str, list[Acknowledgement]]:
    """Restore, change and store each subtask, and return their reports."""
    assigned = pending.assigned[UID]
    parallelism = len(assigned.subtasks)
    acknowledgements = []
    for index in range(parallelism) if subtasks is None else subtasks:
        backend = Backend(assigned.subtasks[index], may_refer=pending.may_refer[UID])
        change(index, backend)
        groups = key_group_range(MAX_PARALLELISM, parallelism, index)
        state = backend.snapshot(pending.location, (groups.start_key_group, groups.end_key_group))
        acknowledgements.append(Acknowledgement(index, index, state, pending.checkpoint_id))
    return {UID: acknowledgements}


def run_subtasks_with_lists(
    pending: PendingCheckpoint, change: Change
) -> dict[str, list[Acknowledgement]]:
    """Do the same for two subtasks that also have operator state: a list with the id of the batch's checkpoint."""
    lists = acknowledge(pending, state_of=lambda subtask: list_of(pending.checkpoint_id, subtask))[
        UID
    ]
    return {
        UID: [
            replace(
                keyed, state=replace(keyed.state, managed_operator=other.state.managed_operator)
            )
            for keyed, other in zip(run_subtasks(pending, change)[UID], lists, strict=True)
        ]
    }


def list_of(checkpoint_id: int, subtask: int) -> bytes:
    """Return the operator state of a subtask in a checkpoint."""
    return b"checkpoint %d of %d" % (checkpoint_id, subtask)


def run_batch(
    driver: CheckpointCoordinator,
    batch_id: int,
    change: Change,
    *,
    report: Callable[[PendingCheckpoint, Change], dict[str, list[Acknowledgement]]] = run_subtasks,
) -> bool:
    """Complete the checkpoint of a batch, or abort it. Return False if it is completed already."""
    pending = driver.begin(batch_id)
    if pending is None:
        return False
    try:
        driver.complete(pending, report(pending, change), progress(batch_id))
    except Exception:
        driver.abort(pending)
        raise
    return True


def contents(subtasks: Sequence[StoredSubtask]) -> list[dict[str, bytes]]:
    """Return the segments of each subtask; every byte is read and verified."""
    return [Backend(subtask).segments for subtask in subtasks]


def overwrite(uri: str, content: bytes | bytearray) -> None:
    """Replace the content of a file."""
    file_system_for(uri).delete([uri])
    write(file_system_for(uri), uri, content)


def shared_files(directory: str, job_id: str = "job") -> set[str]:
    """Return the URIs of the job's shared files."""
    shared = f"{directory}/{job_id}/shared"
    return {entry.uri for entry in file_system_for(shared).list(shared)}


def shared_in(*checkpoints: CheckpointMetadata) -> set[str]:
    """Return the URIs of the shared files that checkpoints refer to."""
    return {
        stream.uri
        for metadata in checkpoints
        for stream in metadata.shared_streams()
        if isinstance(stream, FileStateHandle)
    }
