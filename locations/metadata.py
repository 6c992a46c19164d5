"""The file `_metadata`, whose existence makes a directory a checkpoint: its values and its bytes. Pure, no I/O.

    CheckpointMetadata
    ├─ operators: StoredOperator, by uid
    │  └─ subtasks: StoredSubtask, by index
    │     ├─ managed_operator, raw_operator, managed_keyed, raw_keyed: handles to state
    │     └─ statistics: SubtaskStatistics
    └─ coordinator_states: bytes, by the name of their writer

Every level returns the streams of all levels below it and copies itself with other streams, whatever the type of state.

The bytes are a `Frame` with the magic HOLDFAST. `READERS` has a reader for each version that ever existed. The body of
version 1:

    offset  length  meaning
    12      8       length m of the map, unsigned, big-endian
    20      m       CheckpointMetadata as a MessagePack map by field names

Version 2 has the same map compressed by zlib from offset 20 on. Larger maps are written so: subtasks repeat each other's
schemas and names.

Readers skip map keys that they don't know. A change that a reader must not skip gets a new version number: the present
reader stays in the table for the records as they were, and converts them to the present records.

Files near `_metadata` have relative URIs, so that directories can be moved:

    name                 a file next to `_metadata`
    ../savepoint-x/name  a file of another savepoint in the same directory as this one
    s3://bucket/name     any other file
"""

import struct
import sys
import uuid
import zlib
from collections.abc import Callable, Sequence
from typing import Self

import msgspec

from holdfast.common import (
    Count,
    DurationMs,
    Frame,
    KeyGroup,
    Parallelism,
    TimeMs,
    message_pack_decoder,
    uripath,
)
from holdfast.errors import (
    CheckpointCorruptedError,
    InvalidRequestError,
    UnsupportedFormatError,
)
from holdfast.locations.handles import (
    FileStateHandle,
    KeyedStateHandle,
    KeyGroupsStateHandle,
    ManagedKeyedStateHandle,
    OperatorStateHandle,
    PlaceholderStreamStateHandle,
    RawOperatorStateHandle,
    StateHandle,
    StreamChange,
    StreamStateHandle,
)
from holdfast.redaction import redact


def new_commit_token() -> str:
    """Return a random token."""
    return uuid.uuid4().hex


class SubtaskStatistics(msgspec.Struct, frozen=True, omit_defaults=True):
    """Counts and times of a subtask's work between the last checkpoint and this one.

    Attributes:
        rows_in: Rows given to the operator.
        rows_out: Rows that it emitted.
        state_bytes: Bytes of state written, in files and inline.
        restore_ms: Time to read the restored state, milliseconds.
        process_ms: Time in the operator's own code and in reading its input, milliseconds.
        sync_ms: Time of the snapshot's synchronous part, milliseconds.
        async_ms: Time of the snapshot's asynchronous part, milliseconds.
        restored_from: Source of the files of its restored state: the memory of its `worker`, `local` copies on the
            disk of its host, or `storage` if at least one was only there. Segments of keyed state count, their
            manifest does not. Empty if there were no files, or if it was not recorded.
        rows_late: Rows that were dropped before the operator because they were late; not in `rows_in`.
        backend_metrics: Metrics of the backend of keyed state, by the backend's names; empty unless a setting
            enables them.
        fetched_bytes: Bytes of segments that were read from storage.
        fetch_requests: Requests for these bytes.
        fetch_ms: Time in which at least one of these requests was in progress, milliseconds.
    """

    rows_in: Count
    rows_out: Count
    state_bytes: Count
    restore_ms: DurationMs
    process_ms: DurationMs
    sync_ms: DurationMs
    async_ms: DurationMs
    restored_from: str = ""
    rows_late: Count = 0
    backend_metrics: dict[str, Count] = msgspec.field(default_factory=dict)
    fetched_bytes: Count = 0
    fetch_requests: Count = 0
    fetch_ms: DurationMs = 0


_HANDLES = ("managed_operator", "raw_operator", "managed_keyed", "raw_keyed")
"""The fields of `StoredSubtask` that have handles to state."""


class StoredSubtask(msgspec.Struct, frozen=True, omit_defaults=True):
    """All state that one subtask of an operator has in a checkpoint.

    Attributes:
        managed_operator: List, union and broadcast states.
        statistics: Counts and times of the subtask's work; None if they were not recorded.
        raw_operator: Bytes that the user wrote into the operator's stream.
        managed_keyed: States by key.
        raw_keyed: Bytes that the user wrote into the keyed stream, by key group.
    """

    # msgspec writes a default that a factory makes: files always had these two keys.
    managed_operator: tuple[OperatorStateHandle, ...] = msgspec.field(default_factory=lambda: ())
    statistics: SubtaskStatistics | None = msgspec.field(default_factory=lambda: None)
    raw_operator: tuple[RawOperatorStateHandle, ...] = ()
    managed_keyed: tuple[ManagedKeyedStateHandle, ...] = ()
    raw_keyed: tuple[KeyGroupsStateHandle, ...] = ()

    def keyed_handles(self) -> tuple[KeyedStateHandle, ...]:
        """Return every handle to keyed state, managed and raw."""
        return (*self.managed_keyed, *self.raw_keyed)

    def handles(self) -> tuple[StateHandle, ...]:
        """Return every handle to state."""
        return tuple(handle for name in _HANDLES for handle in getattr(self, name))

    def streams(self) -> list[StreamStateHandle]:
        """Return every handle to bytes of state, in files and inline."""
        return [stream for handle in self.handles() for stream in handle.streams()]

    @property
    def written_bytes(self) -> int:
        """Bytes that a task wrote for the state it reports; streams of placeholders were written before."""
        return sum(
            stream.size
            for stream in self.streams()
            if not isinstance(stream, PlaceholderStreamStateHandle)
        )

    @property
    def stored_bytes(self) -> int:
        """Length of the state, in files and inline; a file with several handles counts once."""
        return _total_size(self.streams())

    def with_streams(self, change: StreamChange, /) -> Self:
        """Return a copy in which `change` replaced every handle to bytes of state."""
        changed = {
            name: tuple(handle.with_streams(change) for handle in getattr(self, name))
            for name in _HANDLES
        }
        return msgspec.structs.replace(self, **changed)

    def shared_streams(self) -> dict[str, StreamStateHandle]:
        """Return every stream that later checkpoints may refer to, by its name."""
        return {
            name: stream
            for handle in self.handles()
            for name, stream in handle.shared_streams().items()
        }

    def together_with(self, other: "StoredSubtask") -> Self:
        """Return the union of both states, with the statistics of this one."""
        union = {name: getattr(self, name) + getattr(other, name) for name in _HANDLES}
        return msgspec.structs.replace(self, **union)


class StoredOperator(msgspec.Struct, frozen=True, omit_defaults=True):
    """All state of one operator.

    Attributes:
        parallelism: Number of its subtasks.
        max_parallelism: Number of key groups, the highest parallelism it can be restored with.
        subtasks: State by subtask index, 0 <= index < parallelism. Subtasks without state are absent.
        key: Columns that rows were partitioned by; empty if they were distributed evenly.
        key_hash: Name of the function from the values of these columns to key groups.
        key_types: Types of the columns, as that function distinguishes them.
    """

    parallelism: Parallelism
    max_parallelism: Parallelism
    subtasks: dict[KeyGroup, StoredSubtask]
    key: tuple[str, ...] = ()
    key_hash: str = ""
    key_types: tuple[str, ...] = ()

    def streams(self) -> list[StreamStateHandle]:
        """Return every handle to bytes of state, in files and inline."""
        return [stream for subtask in self.subtasks.values() for stream in subtask.streams()]

    def with_streams(self, change: StreamChange, /) -> Self:
        """Return a copy in which `change` replaced every handle to bytes of state."""
        subtasks = {index: state.with_streams(change) for index, state in self.subtasks.items()}
        return msgspec.structs.replace(self, subtasks=subtasks)

    def find_inconsistency(self) -> str | None:
        """Describe numbers that contradict each other or the streams of state; None if they are consistent."""
        if self.parallelism > self.max_parallelism:
            return f"parallelism {self.parallelism} and max parallelism {self.max_parallelism}"
        for index, subtask in self.subtasks.items():
            if index >= self.parallelism:
                return f"state of subtask {index} and parallelism {self.parallelism}"
            for handle in subtask.handles():
                inconsistency = handle.find_inconsistency()
                if inconsistency is not None:
                    return f"in subtask {index}: {inconsistency}"
            for keyed in subtask.keyed_handles():
                first, last = keyed.key_groups
                if last >= self.max_parallelism:
                    groups = f"key groups {first} to {last}"
                    return f"{groups} and max parallelism {self.max_parallelism}"
        return None


class ClaimedCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint or savepoint that a job was started from and owns until it has deleted it.

    Attributes:
        pointer: URI of its directory.
        commit_token: The token of its `_metadata`, which distinguishes it from another one in that directory.
        files: URIs of all its files.
    """

    pointer: str
    commit_token: str
    files: tuple[str, ...]


class CheckpointMetadata(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that a job needs to resume from a checkpoint.

    Attributes:
        job_id: The job that the checkpoint belongs to.
        checkpoint_id: The checkpoint's number; a job completes each number only once.
        commit_token: Random, so that a committer recognises its own write.
        created_ms: Time of completion by the driver's clock, milliseconds since 1970 UTC.
        duration_ms: From the beginning of the checkpoint to its completion, milliseconds.
        writer: Name and version of the program that wrote it.
        epoch: Epoch of the driver that committed it; 0 if that driver owned no job.
        operators: State by operator uid.
        coordinator_states: State of the driver, by the name of its writer.
        claimed: Checkpoints and savepoints that the job has claimed and not deleted yet.
    """

    job_id: str
    checkpoint_id: Count
    commit_token: str = msgspec.field(default_factory=new_commit_token)
    created_ms: TimeMs
    duration_ms: DurationMs
    writer: str
    operators: dict[str, StoredOperator]
    coordinator_states: dict[str, bytes] = {}
    epoch: Count = 0
    claimed: tuple[ClaimedCheckpoint, ...] = ()

    @property
    def state_bytes(self) -> int:
        """Length of all state, in files and inline; a file with several handles counts once."""
        return _total_size(self.streams())

    def streams(self) -> list[StreamStateHandle]:
        """Return every handle to bytes of state, in files and inline."""
        return [stream for operator in self.operators.values() for stream in operator.streams()]

    def shared_streams(self) -> list[StreamStateHandle]:
        """Return every handle to bytes of state that later checkpoints may refer to."""
        return [
            stream
            for operator in self.operators.values()
            for subtask in operator.subtasks.values()
            for stream in subtask.shared_streams().values()
        ]

    def with_streams(self, change: StreamChange, /) -> Self:
        """Return a copy in which `change` replaced every handle to bytes of state."""
        operators = {uid: state.with_streams(change) for uid, state in self.operators.items()}
        return msgspec.structs.replace(self, operators=operators)


def _total_size(streams: Sequence[StreamStateHandle]) -> int:
    files = {file.uri: file.size for file in streams if isinstance(file, FileStateHandle)}
    inline = (stream.size for stream in streams if not isinstance(stream, FileStateHandle))
    return sum(files.values()) + sum(inline)


_FRAME = Frame(b"HOLDFAST", version=1, name="holdfast metadata file")
_COMPRESSED = Frame(b"HOLDFAST", version=2, name="holdfast metadata file")
_MAX_PLAIN_BYTES = 32 << 10
_LEVEL = 1
"""The fastest level: 582,591 bytes of 200 subtasks become 73,407, and 55,924 at level 6."""

_LENGTH = struct.Struct(">Q")

_PARENT = "../"
_SAVEPOINT = "savepoint-"


def encode_metadata(metadata: CheckpointMetadata, directory: str) -> bytes:
    """Return the bytes of a `_metadata` file in `directory`.

    Raises:
        InvalidRequestError: The metadata has a placeholder, which leads to no bytes.
    """

    def relative(handle: StreamStateHandle) -> StreamStateHandle:
        if isinstance(handle, PlaceholderStreamStateHandle):
            message = (
                f"metadata can't be stored with a placeholder, of shared stream {handle.name!r}"
            )
            raise InvalidRequestError(message, directory)
        if isinstance(handle, FileStateHandle):
            return msgspec.structs.replace(handle, uri=relative_uri(handle.uri, directory))
        return handle

    body = msgspec.msgpack.encode(metadata.with_streams(relative))
    length = _LENGTH.pack(len(body))
    if len(body) <= _MAX_PLAIN_BYTES:
        return _FRAME.encode(length + body)
    return _COMPRESSED.encode(length + zlib.compress(body, _LEVEL))


def decode_metadata(content: bytes, directory: str, *, uri: str) -> CheckpointMetadata:
    """Decode the bytes of a `_metadata` file of any version.

    Args:
        content: The whole file.
        directory: The file's directory, which relative names are resolved against.
        uri: The file, for errors.

    Raises:
        CheckpointCorruptedError: The file is of another format, was cut off or changed, or has invalid numbers.
        UnsupportedFormatError: The file is intact and of a newer version.
    """
    version, body = _FRAME.open(content, uri)
    if version not in READERS:
        raise _version_error(version, uri)
    try:
        metadata = READERS[version](body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, struct.error) as error:
        raise CheckpointCorruptedError(f"metadata can't be decoded ({error})", uri) from error
    for uid, operator in metadata.operators.items():
        inconsistency = operator.find_inconsistency()
        if inconsistency is not None:
            message = f"metadata is inconsistent: operator {uid!r} has {inconsistency}"
            raise CheckpointCorruptedError(message, uri)

    def absolute(handle: StreamStateHandle) -> StreamStateHandle:
        if isinstance(handle, PlaceholderStreamStateHandle):
            message = f"metadata is inconsistent: it has a placeholder, of {handle.name!r}"
            raise CheckpointCorruptedError(message, uri)
        if isinstance(handle, FileStateHandle):
            return msgspec.structs.replace(handle, uri=absolute_uri(handle.uri, directory))
        return handle

    return metadata.with_streams(absolute)


def relative_uri(uri: str, directory: str) -> str:
    """Return a file's URI as the `_metadata` of a directory has it."""
    parent = uripath.parent(uri)
    if parent == directory:
        return uripath.name(uri)
    siblings = (uripath.name(parent), uripath.name(directory))
    if uripath.parent(parent) == uripath.parent(directory) and all(
        name.startswith(_SAVEPOINT) for name in siblings
    ):
        return f"{_PARENT}{uripath.name(parent)}/{uripath.name(uri)}"
    return uri


def absolute_uri(uri: str, directory: str) -> str:
    """Resolve the URI of a file in the `_metadata` of a directory.

    Raises:
        CheckpointCorruptedError: The URI has another form than `relative_uri` writes, such as one with `..` in the
            middle, which would lead elsewhere.
    """
    parent, _, name = uri.removeprefix(_PARENT).rpartition("/")
    if uri == name:
        resolved = uripath.join(directory, name)
    elif uri.startswith(f"{_PARENT}{_SAVEPOINT}") and "/" not in parent:
        resolved = uripath.join(uripath.parent(directory), parent, name)
    else:
        resolved = uri
    if not name or not uripath.is_normalized(resolved):
        message = f"metadata names a file {redact(uri)!a}, which is not a valid location of a file"
        raise CheckpointCorruptedError(message, directory)
    return resolved


def _read_version_1(body: memoryview) -> CheckpointMetadata:
    (length,) = _LENGTH.unpack_from(body)
    records = body[_LENGTH.size :]
    if length != len(records):
        raise msgspec.DecodeError(f"body of {len(records)} bytes, expected {length}")
    return _DECODER.decode(records)


def _read_version_2(body: memoryview) -> CheckpointMetadata:
    (length,) = _LENGTH.unpack_from(body)
    decompressor = zlib.decompressobj()
    try:
        records = decompressor.decompress(body[_LENGTH.size :], min(max(length, 1), sys.maxsize))
    except zlib.error as error:
        raise msgspec.DecodeError(str(error)) from error
    if len(records) != length or not decompressor.eof or decompressor.unused_data:
        raise msgspec.DecodeError(f"compressed body is not one of {length} bytes")
    return _DECODER.decode(records)


def _version_error(version: int, uri: str) -> UnsupportedFormatError:
    oldest, newest = min(READERS), max(READERS)
    readable = f"versions {oldest} to {newest}" if oldest < newest else f"version {newest}"
    message = f"written in format version {version}; this Holdfast reads {readable}"
    way_out = ": upgrade Holdfast" if version > newest else ""
    return UnsupportedFormatError(message + way_out, uri)


READERS: dict[int, Callable[[memoryview], CheckpointMetadata]] = {
    1: _read_version_1,
    2: _read_version_2,
}
"""Reader of the body by format version. It leaves URIs relative, and raises the errors of msgspec or struct if the body
is invalid."""

_DECODER = message_pack_decoder(CheckpointMetadata)
