"""The metadata format, version 1: what `_metadata` holds, as bytes. Pure, no I/O.

    offset  length  meaning
    0       8       magic, "HOLDFAST" in ASCII
    8       4       format version, unsigned, big-endian
    12      8       length n of the body, unsigned, big-endian
    20      n       body: CheckpointMetadata as a MessagePack map by field names
    20+n    4       CRC-32C of all bytes before it, big-endian

Every version will begin with magic and version and end with this checksum, so that a damaged
file can be told from a newer one. Readers skip map keys that they don't know; a change that a
reader must not skip gets a new version number.
"""

import struct
import uuid
from collections.abc import Callable

import msgspec

from holdfast.common import Count, DurationMs, KeyGroup, Parallelism, TimeMs, crc32c, uripath
from holdfast.errors import CheckpointCorruptedError, UnsupportedFormatError
from holdfast.locations.handles import (
    FileStateHandle,
    KeyGroupsStateHandle,
    OperatorStateHandle,
    RawOperatorStateHandle,
    StreamStateHandle,
    flaw_in,
)

MAGIC = b"HOLDFAST"
VERSION = 1

_HEADER = struct.Struct(">8sIQ")
_TRAILER = struct.Struct(">I")

_BESIDE = ".."
_SAVEPOINT = "savepoint-"


def new_commit_token() -> str:
    """A token that nobody else has."""
    return uuid.uuid4().hex


class SubtaskStatistics(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a subtask did between the last checkpoint and this one.

    Attributes:
        rows_in: Rows given to the operator.
        rows_out: Rows that it gave to the sink.
        state_bytes: Bytes of state written, in files and inline.
        restore_ms: Time to read the state that it began with, milliseconds.
        process_ms: Time in the operator's own code and in reading its input, milliseconds.
        sync_ms: Time of the snapshot's synchronous part, milliseconds.
        async_ms: Time of the snapshot's asynchronous part, milliseconds.
        restored_from: Where it found the files of its state: in the memory of its `worker`, in
            `local` copies on the disk of its host, or in `storage`, if any was only there. Empty if
            there were none, or nobody has noted it.
    """

    rows_in: Count
    rows_out: Count
    state_bytes: Count
    restore_ms: DurationMs
    process_ms: DurationMs
    sync_ms: DurationMs
    async_ms: DurationMs
    restored_from: str = ""


class SubtaskState(msgspec.Struct, frozen=True, omit_defaults=True):
    """All state that one subtask of an operator has in a checkpoint.

    Attributes:
        managed_operator: List, union and broadcast states.
        statistics: What it did; None if nobody counted.
        raw_operator: What the user wrote into a stream of his own.
        managed_keyed: States by key.
        raw_keyed: What the user wrote into a stream of his own, by key group.
    """

    # A default that is made is written all the same: files always had these two keys.
    managed_operator: tuple[OperatorStateHandle, ...] = msgspec.field(default_factory=lambda: ())
    statistics: SubtaskStatistics | None = msgspec.field(default_factory=lambda: None)
    raw_operator: tuple[RawOperatorStateHandle, ...] = ()
    managed_keyed: tuple[KeyGroupsStateHandle, ...] = ()
    raw_keyed: tuple[KeyGroupsStateHandle, ...] = ()

    def handles(
        self,
    ) -> list[OperatorStateHandle | RawOperatorStateHandle | KeyGroupsStateHandle]:
        """Every handle to state, of all kinds."""
        return [handle for kind in _KINDS_OF_STATE for handle in getattr(self, kind)]

    def streams(self) -> list[StreamStateHandle]:
        """Every handle to bytes of state, in files and inline."""
        return [handle.stream for handle in self.handles()]

    def with_streams(
        self, change: Callable[[StreamStateHandle], StreamStateHandle]
    ) -> "SubtaskState":
        """A copy in which every handle to bytes of state went through `change`."""
        changed = {
            kind: tuple(
                msgspec.structs.replace(handle, stream=change(handle.stream))
                for handle in getattr(self, kind)
            )
            for kind in _KINDS_OF_STATE
        }
        return msgspec.structs.replace(self, **changed)


_KINDS_OF_STATE = ("managed_operator", "raw_operator", "managed_keyed", "raw_keyed")


class OperatorState(msgspec.Struct, frozen=True, omit_defaults=True):
    """All state of one operator.

    Attributes:
        parallelism: Number of its subtasks.
        max_parallelism: Number of key groups, the highest parallelism it can be restored with.
        subtasks: State by subtask index, 0 <= index < parallelism; one without state is absent.
        key: The columns by which rows were dealt to subtasks; none if they were dealt evenly.
        key_hash: The name of the function that took the values of these columns to key groups.
        key_types: The columns' types, as that function goes by them.
    """

    parallelism: Parallelism
    max_parallelism: Parallelism
    subtasks: dict[KeyGroup, SubtaskState]
    key: tuple[str, ...] = ()
    key_hash: str = ""
    key_types: tuple[str, ...] = ()

    def streams(self) -> list[StreamStateHandle]:
        """Every handle to bytes of state, in files and inline; none if the operator has no state."""
        return [stream for subtask in self.subtasks.values() for stream in subtask.streams()]

    def flaw(self) -> str | None:
        """How its numbers contradict each other, or the streams of its state; None if they don't."""
        if self.parallelism > self.max_parallelism:
            return f"parallelism {self.parallelism} and max parallelism {self.max_parallelism}"
        for index, subtask in self.subtasks.items():
            if index >= self.parallelism:
                return f"state of subtask {index} and parallelism {self.parallelism}"
            for handle in subtask.handles():
                flaw = flaw_in(handle)
                if flaw is not None:
                    return f"in subtask {index}: {flaw}"
            for keyed in (*subtask.managed_keyed, *subtask.raw_keyed):
                if keyed.key_groups[1] >= self.max_parallelism:
                    first, last = keyed.key_groups
                    return (
                        f"key groups {first} to {last} and max parallelism {self.max_parallelism}"
                    )
        return None


class CheckpointMetadata(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that a job needs to go on from a checkpoint.

    Attributes:
        job_id: The job that it belongs to.
        checkpoint_id: Its number; a job completes each only once.
        commit_token: Random, so that a committer recognises its own write.
        created_ms: When it was completed by the driver's clock, milliseconds since 1970 UTC.
        duration_ms: From the beginning of the checkpoint to its completion, milliseconds.
        writer: Name and version of the program that wrote it.
        epoch: Number of the claim to the job under which it was committed; 0 if there was none.
        operators: State by operator uid.
        coordinator_states: What the driver itself needs to go on, by the name of who wrote it.
    """

    job_id: str
    checkpoint_id: Count
    commit_token: str = msgspec.field(default_factory=new_commit_token)
    created_ms: TimeMs
    duration_ms: DurationMs
    writer: str
    operators: dict[str, OperatorState]
    coordinator_states: dict[str, bytes] = {}
    epoch: Count = 0

    @property
    def state_bytes(self) -> int:
        """Bytes of all state in the checkpoint, in files and inline."""
        return sum(handle.size for handle in self.streams())

    def streams(self) -> list[StreamStateHandle]:
        """Every handle to bytes of state, in files and inline."""
        return [stream for operator in self.operators.values() for stream in operator.streams()]


def encode_metadata(metadata: CheckpointMetadata, directory: str) -> bytes:
    """The bytes of a `_metadata` file in `directory`; references into it become relative.

    So do those of a savepoint to savepoints beside it, to be moved together.
    """

    def relative(handle: StreamStateHandle) -> StreamStateHandle:
        if not isinstance(handle, FileStateHandle):
            return handle
        return msgspec.structs.replace(handle, uri=relative_uri(handle.uri, directory))

    body = msgspec.msgpack.encode(with_streams(metadata, relative))
    content = _HEADER.pack(MAGIC, VERSION, len(body)) + body
    return content + _TRAILER.pack(crc32c(content))


def decode_metadata(content: bytes, directory: str, *, uri: str) -> CheckpointMetadata:
    """Read the bytes of a `_metadata` file.

    Args:
        content: The whole file.
        directory: Where it was found; relative references are resolved against it.
        uri: The file, for errors.

    Raises:
        CheckpointCorruptedError: Another kind of file, one that was cut or changed, or one with
            numbers that can't be.
        UnsupportedFormatError: A whole file of a newer version.
    """
    if not content.startswith(MAGIC):
        raise CheckpointCorruptedError("not a holdfast metadata file", uri)
    if len(content) < _HEADER.size + _TRAILER.size:
        raise CheckpointCorruptedError(f"metadata file is cut off at {len(content)} bytes", uri)
    (expected,) = _TRAILER.unpack_from(content, len(content) - _TRAILER.size)
    found = crc32c(memoryview(content)[: -_TRAILER.size])
    if found != expected:
        message = (
            f"metadata file is damaged or cut off: its {len(content)} bytes have checksum "
            f"{found:08x}, expected {expected:08x} (crc32c)"
        )
        raise CheckpointCorruptedError(message, uri)
    _, version, length = _HEADER.unpack_from(content)
    if version != VERSION:
        message = f"metadata format version {version} is not known; this one reads up to {VERSION}"
        raise UnsupportedFormatError(message, uri)
    try:
        body = memoryview(content)[_HEADER.size : _HEADER.size + length]
        metadata = msgspec.msgpack.decode(body, type=CheckpointMetadata)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointCorruptedError(f"metadata can't be decoded ({error})", uri) from error
    for uid, operator in metadata.operators.items():
        flaw = operator.flaw()
        if flaw is not None:
            raise CheckpointCorruptedError(
                f"metadata can't be right: operator {uid!r} has {flaw}", uri
            )

    def absolute(handle: StreamStateHandle) -> StreamStateHandle:
        if isinstance(handle, FileStateHandle):
            return msgspec.structs.replace(handle, uri=absolute_uri(handle.uri, directory))
        return handle

    return with_streams(metadata, absolute)


def relative_uri(uri: str, directory: str) -> str:
    """A file's URI as it stands in the `_metadata` of a directory."""
    holder = uripath.parent(uri)
    if holder == directory:
        return uripath.name(uri)
    if _are_savepoints_side_by_side(holder, directory):
        return uripath.join(_BESIDE, uripath.name(holder), uripath.name(uri))
    return uri


def absolute_uri(uri: str, directory: str) -> str:
    """The URI of a file that the `_metadata` in a directory names."""
    if uri.startswith(f"{_BESIDE}/"):
        return uripath.join(uripath.parent(directory), uri.removeprefix(f"{_BESIDE}/"))
    return uri if "/" in uri else uripath.join(directory, uri)


def _are_savepoints_side_by_side(one: str, other: str) -> bool:
    names = (uripath.name(one), uripath.name(other))
    return uripath.parent(one) == uripath.parent(other) and all(
        name.startswith(_SAVEPOINT) for name in names
    )


def with_streams(
    metadata: CheckpointMetadata, change: Callable[[StreamStateHandle], StreamStateHandle]
) -> CheckpointMetadata:
    """A copy in which every stream handle went through `change`."""

    def operator(state: OperatorState) -> OperatorState:
        subtasks = {index: one.with_streams(change) for index, one in state.subtasks.items()}
        return msgspec.structs.replace(state, subtasks=subtasks)

    operators = {uid: operator(state) for uid, state in metadata.operators.items()}
    return msgspec.structs.replace(metadata, operators=operators)
