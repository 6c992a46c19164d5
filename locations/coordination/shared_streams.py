"""Shared streams of earlier checkpoints: the rules for referring to them, and the resolution of placeholders."""

from collections.abc import Container, Iterable, Mapping, Sequence

import msgspec

from holdfast.common import uripath
from holdfast.errors import CheckpointDeclinedError
from holdfast.locations.handles import (
    FileStateHandle,
    PlaceholderStreamStateHandle,
    StreamStateHandle,
)
from holdfast.locations.metadata import StoredOperator, StoredSubtask
from holdfast.locations.storages import SHARED, is_file_of


def owns_shared_files(
    restored: Iterable[StoredSubtask],
    job_directory: str,
    *,
    claimed: Container[str] = frozenset(),
) -> bool:
    """Return whether all shared files of a state belong to the job, so that it decides when they are deleted.

    If not, the state is from another job or a savepoint, whose files may be deleted at any time, or from
    files that are deleted with a checkpoint: the next checkpoint must not refer to them.

    Args:
        restored: The state.
        job_directory: The job's directory.
        claimed: URIs of files in other directories that the job has claimed.
    """
    return all(
        _is_job_file(stream.uri, job_directory, claimed)
        for subtask in restored
        for stream in subtask.shared_streams().values()
        if isinstance(stream, FileStateHandle)
    )


def outlives_checkpoint(
    state: StoredOperator, job_directory: str, *, claimed: Container[str] = frozenset()
) -> bool:
    """Return whether all state is inline or in the job's shared files, so that a later checkpoint may reuse it.

    Args:
        state: The state.
        job_directory: The job's directory.
        claimed: URIs of files in other directories that the job has claimed.
    """
    return all(
        _is_job_file(stream.uri, job_directory, claimed)
        for stream in state.streams()
        if isinstance(stream, FileStateHandle)
    )


def without_placeholders(
    uid: str, reported: StoredOperator, restored: Sequence[StoredSubtask], *, may_refer: bool
) -> StoredOperator:
    """Resolve the placeholders in the state of an operator.

    Args:
        uid: The operator, for errors.
        reported: The state that its subtasks have reported.
        restored: The state that each subtask was restored from.
        may_refer: Whether the checkpoint may refer to shared streams of the restored state.

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
        raise CheckpointDeclinedError(
            f"state that operator {uid!r} reported can't be right: {inconsistency}"
        )
    return operator


def _is_job_file(uri: str, job_directory: str, claimed: Container[str]) -> bool:
    """Return whether a file belongs to a job and not to one of its checkpoints."""
    return uri in claimed or is_file_of(uri, uripath.join(job_directory, SHARED))


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
