"""Subtasks with keyed state in segments of invented bytes, and their driver: what a backend does with files.

The state of a subtask is a mapping from the names of segments to their bytes. No row is in them.
"""

import uuid
from collections.abc import Callable, Iterable, Sequence

import msgspec
from contracts.values import EXCLUSIVE, read
from jobs.coordinated import acknowledged, progress
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
        restored: What it goes on with.
        may_refer: Whether its snapshot may refer to what that has.
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
        """A new segment; returns its name."""
        name = uuid.uuid4().hex
        self.segments[name] = content
        return name

    def confirm_all(self) -> None:
        """Take all that it has for confirmed, right or wrong."""
        self._confirmed = set(self.segments)

    def snapshot(
        self, factory: CheckpointStreamFactory, key_groups: tuple[int, int]
    ) -> StoredSubtask:
        """Write what the last confirmed checkpoint doesn't have."""
        segments: dict[str, StreamStateHandle] = {
            name: PlaceholderStreamStateHandle(name, len(content))
            if name in self._confirmed
            else written(factory, content, CheckpointedStateScope.SHARED)
            for name, content in self.segments.items()
        }
        manifest = written(factory, msgspec.msgpack.encode(sorted(segments)), EXCLUSIVE)
        return StoredSubtask(managed_keyed=(SegmentsStateHandle(key_groups, segments, manifest),))


def written(
    factory: CheckpointStreamFactory, content: bytes, scope: CheckpointedStateScope
) -> StreamStateHandle:
    with factory.create_checkpoint_state_output_stream(scope) as stream:
        stream.write(content)
        handle = stream.close_and_get_handle()
    assert handle is not None
    return handle


Change = Callable[[int, Backend], object]
"""What a batch does to the state of a subtask, which is given by its number."""


def adds(content: bytes = b"rows") -> Change:
    """A batch that adds a segment to each subtask."""
    return lambda subtask, backend: backend.add(b"%s of %d" % (content, subtask))


def merges(_: int, backend: Backend) -> None:
    """A batch that makes a single segment of all."""
    merged = b"".join(backend.segments.values())
    backend.segments.clear()
    if merged:
        backend.add(merged)


def nothing(_: int, __: Backend) -> None:
    """A batch that changes nothing."""


def latest(driver: CheckpointCoordinator) -> CompletedCheckpoint:
    """The checkpoint that a driver is at; it has made some."""
    assert driver.latest is not None
    return driver.latest


def reports(
    pending: PendingCheckpoint, change: Change, *, subtasks: Iterable[int] | None = None
) -> dict[str, list[Acknowledgement]]:
    """What subtasks report after they were restored, changed and stored."""
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


def reports_with_lists(
    pending: PendingCheckpoint, change: Change
) -> dict[str, list[Acknowledgement]]:
    """The same of two subtasks that have operator state beside: each a list with the number of the batch's checkpoint."""
    lists = acknowledged(pending, state_of=lambda subtask: listed(pending.checkpoint_id, subtask))[
        UID
    ]
    return {
        UID: [
            replace(
                keyed, state=replace(keyed.state, managed_operator=other.state.managed_operator)
            )
            for keyed, other in zip(reports(pending, change)[UID], lists, strict=True)
        ]
    }


def listed(checkpoint_id: int, subtask: int) -> bytes:
    """The operator state of a subtask in a checkpoint."""
    return b"checkpoint %d of %d" % (checkpoint_id, subtask)


def run_batch(
    driver: CheckpointCoordinator,
    batch_id: int,
    change: Change,
    *,
    report: Callable[[PendingCheckpoint, Change], dict[str, list[Acknowledgement]]] = reports,
) -> bool:
    """Complete the checkpoint of a batch, or give it up; False if it is completed already."""
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
    """What each subtask has: every byte is read and verified."""
    return [Backend(subtask).segments for subtask in subtasks]


def shared_files(directory: str, job_id: str = "job") -> set[str]:
    """URIs of the job's shared files."""
    shared = f"{directory}/{job_id}/shared"
    return {entry.uri for entry in file_system_for(shared).list(shared)}


def shared_in(*checkpoints: CheckpointMetadata) -> set[str]:
    """URIs of the shared files that checkpoints lead to."""
    return {
        stream.uri
        for metadata in checkpoints
        for stream in metadata.shared_streams()
        if isinstance(stream, FileStateHandle)
    }
