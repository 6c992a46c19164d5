"""The keyed state of a savepoint in the canonical form: what Flink calls the format of a savepoint."""

from functools import partial
from typing import Literal, get_args

import msgspec

from holdfast.backends.keyed import write_canonical
from holdfast.common import map_in_parallel
from holdfast.errors import InvalidRequestError
from holdfast.locations.coordination import files_of
from holdfast.locations.handles import FileStateHandle, ManagedKeyedStateHandle, SegmentsStateHandle
from holdfast.locations.metadata import CheckpointMetadata, StoredSubtask
from holdfast.locations.storages import CheckpointStorageLocation

SavepointFormat = Literal["native", "canonical"]
"""How keyed state lies in a savepoint.

Source:
    Flink, SavepointFormatType.
"""

SAVEPOINT_FORMATS: tuple[SavepointFormat, ...] = get_args(SavepointFormat)

_SUBTASKS_AT_A_TIME = 2
"""Each has a step of rows in memory."""


def check_format(format: str, *, has_base: bool) -> None:
    """Refuse a format that there isn't, or that can't be. Raises `InvalidRequestError`."""
    if format not in SAVEPOINT_FORMATS:
        message = f"format={format!r} is no format of savepoints; it is 'native' or 'canonical'"
        raise InvalidRequestError(message)
    if format == "canonical" and has_base:
        message = (
            "a canonical savepoint has no base: all of its keyed state is written anew, so there is nothing to refer "
            "to; leave base out, or take a native savepoint"
        )
        raise InvalidRequestError(message)


def with_canonical_state(
    metadata: CheckpointMetadata, location: CheckpointStorageLocation, now_ms: int
) -> tuple[CheckpointMetadata, dict[str, FileStateHandle]]:
    """Write all managed keyed state anew, in the canonical form.

    Args:
        metadata: What leads to the state.
        location: Where it is written.
        now_ms: The time by which rows expire, milliseconds.

    Returns:
        Metadata that leads to what was written, and the files of that by URI.

    Raises:
        InvalidRequestError: There are RocksDB's files, and RocksDB is not installed.
        CheckpointNotFoundError: A file is gone.
        CheckpointCorruptedError: A file is damaged.
        StorageUnavailableError: Something could not be read or written.
    """
    subtasks = [
        subtask
        for operator in metadata.operators.values()
        for subtask in operator.subtasks.values()
    ]
    write = partial(_canonical_subtask, location=location, now_ms=now_ms)
    done = iter(map_in_parallel(write, subtasks, max_threads=_SUBTASKS_AT_A_TIME))
    operators = {
        uid: msgspec.structs.replace(
            operator, subtasks={index: next(done) for index in operator.subtasks}
        )
        for uid, operator in metadata.operators.items()
    }
    metadata = msgspec.structs.replace(metadata, operators=operators)
    written = files_of(
        stream
        for operator in operators.values()
        for subtask in operator.subtasks.values()
        for handle in subtask.managed_keyed
        if isinstance(handle, SegmentsStateHandle)
        for stream in handle.streams()
    )
    return metadata, {file.uri: file for file in written}


def _canonical_subtask(
    subtask: StoredSubtask, *, location: CheckpointStorageLocation, now_ms: int
) -> StoredSubtask:
    def canonical(handle: ManagedKeyedStateHandle) -> ManagedKeyedStateHandle:
        if not isinstance(handle, SegmentsStateHandle):
            return handle
        return write_canonical(handle, location, now_ms=now_ms)

    managed = tuple(map(canonical, subtask.managed_keyed))
    return msgspec.structs.replace(subtask, managed_keyed=managed)
