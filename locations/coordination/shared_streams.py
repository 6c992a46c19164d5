"""Shared streams of earlier checkpoints: the rules for referring to them, and the resolution of placeholders."""

from collections.abc import Container, Iterable, Mapping, Sequence

import msgspec

from holdfast.common import uripath
from holdfast.errors import CheckpointDeclinedError
from holdfast.locations.handles import (
    PlaceholderStreamStateHandle,
    StreamStateHandle,
    files_of,
)
from holdfast.locations.metadata import StoredOperator, StoredSubtask
from holdfast.locations.storages import SHARED, is_file_of


def has_only_job_files(
    streams: Iterable[StreamStateHandle],
    job_directory: str,
    *,
    claimed: Container[str] = frozenset(),
) -> bool:
    """Return whether all files among streams are shared files of a job, so that it decides when they are deleted.

    If not, some are of another job or a savepoint, and may be deleted at any time, or are deleted with their
    checkpoint: the next checkpoint must not refer to them.

    Args:
        streams: Streams of the state.
        job_directory: The job's directory.
        claimed: URIs of files in other directories that the job has claimed.
    """
    shared = uripath.join(job_directory, SHARED)
    return all(file.uri in claimed or is_file_of(file.uri, shared) for file in files_of(streams))


def without_placeholders(
    uid: str, reported: StoredOperator, restored: Sequence[StoredSubtask], *, may_refer: bool
) -> StoredOperator:
    """Resolve the placeholders in the state that the subtasks of an operator have reported.

    Args:
        uid: The operator, for errors.
        reported: The state.
        restored: The state that each subtask was restored from.
        may_refer: Whether the checkpoint may refer to shared streams of it.

    Raises:
        CheckpointDeclinedError: A subtask refers to a stream that it was not restored from or must not refer to, or
            its handles are inconsistent.
    """
    subtasks = {
        index: _resolve(
            state,
            restored[index].shared_streams() if may_refer else {},
            subtask=f"subtask {index} of operator {uid!r}",
        )
        for index, state in reported.subtasks.items()
    }
    operator = msgspec.structs.replace(reported, subtasks=subtasks)
    inconsistency = operator.find_inconsistency()
    if inconsistency is not None:
        message = f"state that operator {uid!r} reported can't be right: {inconsistency}"
        raise CheckpointDeclinedError(message)
    return operator


def _resolve(
    state: StoredSubtask, known: Mapping[str, StreamStateHandle], *, subtask: str
) -> StoredSubtask:
    def resolve(stream: StreamStateHandle) -> StreamStateHandle:
        if not isinstance(stream, PlaceholderStreamStateHandle):
            return stream
        resolved = known.get(stream.name)
        if resolved is None or resolved.size != stream.size:
            message = (
                f"{subtask} refers to shared stream {stream.name!r} of {stream.size} bytes, but the checkpoint "
                "that it was restored from does not have it or can't share it"
            )
            raise CheckpointDeclinedError(message)
        return resolved

    return state.with_streams(resolve)
