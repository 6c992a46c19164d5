"""Shared streams that subtasks refer to by placeholders: what stands behind them, and whether they may."""

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


def are_own(
    restored: Iterable[StoredSubtask],
    job_directory: str,
    *,
    claimed: Container[str] = frozenset(),
) -> bool:
    """Whether all shared files of a state are among the job's own ones, so that it decides when they go.

    If not, the state comes from another job or a savepoint, whose files may be deleted at any time, or from
    files that go with a checkpoint: the next checkpoint must not refer to them.

    Args:
        restored: The state.
        job_directory: The job's directory.
        claimed: URIs of files elsewhere that the job has claimed.
    """
    return all(
        _decides(stream.uri, job_directory, claimed)
        for subtask in restored
        for stream in subtask.shared_streams().values()
        if isinstance(stream, FileStateHandle)
    )


def outlives_checkpoint(
    state: StoredOperator, job_directory: str, *, claimed: Container[str] = frozenset()
) -> bool:
    """Whether a state is all inline and in the job's shared files, so that a later checkpoint may have it as it is.

    Args:
        state: The state.
        job_directory: The job's directory.
        claimed: URIs of files elsewhere that the job has claimed.
    """
    return all(
        _decides(stream.uri, job_directory, claimed)
        for stream in state.streams()
        if isinstance(stream, FileStateHandle)
    )


def without_placeholders(
    uid: str, reported: StoredOperator, restored: Sequence[StoredSubtask], *, may_refer: bool
) -> StoredOperator:
    """The state of an operator, with the streams that its placeholders stand for.

    Args:
        uid: The operator, for errors.
        reported: The state that its subtasks have reported.
        restored: The state that each of them was restored from.
        may_refer: Whether the checkpoint may refer to shared streams of that.

    Raises:
        CheckpointDeclinedError: A subtask refers to a stream that it wasn't given, or must not refer to, or
            its handles contradict themselves.
    """
    subtasks = {
        index: _resolved(
            state,
            restored[index].shared_streams() if may_refer else {},
            whose=f"subtask {index} of operator {uid!r}",
        )
        for index, state in reported.subtasks.items()
    }
    operator = msgspec.structs.replace(reported, subtasks=subtasks)
    flaw = operator.find_inconsistency()
    if flaw is not None:
        raise CheckpointDeclinedError(
            f"state that operator {uid!r} reported can't be right: {flaw}"
        )
    return operator


def _decides(uri: str, job_directory: str, claimed: Container[str]) -> bool:
    """Whether a job decides when a file goes, and no single checkpoint of it does."""
    return uri in claimed or is_file_of(uri, uripath.join(job_directory, SHARED))


def _resolved(
    state: StoredSubtask, known: Mapping[str, StreamStateHandle], *, whose: str
) -> StoredSubtask:
    def resolve(stream: StreamStateHandle) -> StreamStateHandle:
        if not isinstance(stream, PlaceholderStreamStateHandle):
            return stream
        resolved = known.get(stream.name)
        if resolved is None or resolved.size != stream.size:
            message = (
                f"{whose} refers to shared stream {stream.name!r} of {stream.size} bytes, and was "
                "restored from no checkpoint that has it and lets it be used again"
            )
            raise CheckpointDeclinedError(message)
        return resolved

    return state.with_streams(resolve)
