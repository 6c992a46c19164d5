"""Handles of Flink's metadata: small values that lead to bytes of state.

    stream handle     the bytes: in the metadata, in a file, in a part of a file
    operator handle   a stream, and where in it the elements of each operator state begin
    keyed handle      a stream, and where in it each key group begins; or the files of RocksDB

Source:
    Flink, MetadataV2V3SerializerBase (2.3.0).
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from holdfast.errors import UnsupportedFormatError
from holdfast.flink.binary import DataInput, damaged

MOST_NESTED = 8
MODES = ("list", "union", "broadcast")


@dataclass(frozen=True, slots=True)
class InlineStream:
    """Bytes that stand in the metadata itself."""

    data: bytes


@dataclass(frozen=True, slots=True)
class FileStream:
    """A file, or a part of it.

    Attributes:
        uri: Where it is; a plain name if it is relative.
        is_relative: Whether it lies beside the metadata.
        start: Where the part begins.
        size: Length of the part, in bytes.
    """

    uri: str
    is_relative: bool
    start: int
    size: int


StreamHandle = InlineStream | FileStream


@dataclass(frozen=True, slots=True)
class OperatorHandle:
    """Operator state of a subtask.

    Attributes:
        states: The mode of each state, an index of `MODES`, and where its elements begin.
        stream: What they are offsets of.
    """

    states: dict[str, tuple[int, tuple[int, ...]]]
    stream: StreamHandle


@dataclass(frozen=True, slots=True)
class KeyGroupsHandle:
    """Key groups of a subtask in one stream.

    Attributes:
        first: The first key group.
        offsets: Where each of them begins; not positive if it is empty, or not there.
        stream: What they are offsets of.
        is_canonical: Whether they are surely in the form that all backends have in common.
    """

    first: int
    offsets: tuple[int, ...]
    stream: StreamHandle
    is_canonical: bool = False

    def extents(self, size: int, *, least: int) -> list[tuple[int, int, int]]:
        """Each key group that is there, where it begins and where it ends.

        Args:
            size: Length of the stream, in bytes.
            least: The least offset that a group can begin at; lower ones say that it is not there.

        Raises:
            CheckpointCorruptedError: A key group begins behind the end of the stream.
        """
        there = [
            (group, offset)
            for group, offset in enumerate(self.offsets, self.first)
            if offset >= least
        ]
        edges = sorted({*(offset for _, offset in there), size})
        if edges[-1] != size:
            raise damaged("a key group begins behind the end of its stream")
        behind = {**dict(itertools.pairwise(edges)), size: size}
        return [(group, offset, behind[offset]) for group, offset in there]


@dataclass(frozen=True, slots=True)
class IncrementalHandle:
    """Key groups of a subtask in files of RocksDB.

    Attributes:
        first: The first key group.
        count: How many key groups there are.
        meta: The descriptions of the states.
        files: Name and content of each file.
    """

    first: int
    count: int
    meta: StreamHandle
    files: tuple[tuple[str, StreamHandle], ...]


@dataclass(frozen=True, slots=True)
class ChangelogHandle:
    """Key groups of a subtask as they once were, and what has changed since.

    Attributes:
        bases: What they were.
        changes: How many streams of changes follow.
    """

    bases: "tuple[KeyedHandle, ...]"
    changes: int


@dataclass(frozen=True, slots=True)
class ChangesHandle:
    """A stream of changes, which says nothing about its states by itself."""


KeyedHandle = KeyGroupsHandle | IncrementalHandle | ChangelogHandle | ChangesHandle


def stream_handle(source: DataInput, depth: int = 0) -> StreamHandle | None:
    """Read a stream handle.

    Raises:
        CheckpointCorruptedError: It is damaged.
        UnsupportedFormatError: It is of an unknown kind.
    """
    _check_depth(depth)
    match source.byte():
        case 0:
            return None
        case 1:
            source.utf()
            return InlineStream(source.take(source.count()))
        case 2:
            size = _size(source)
            return FileStream(source.utf(), is_relative=False, start=0, size=size)
        case 3:
            key_groups = _key_groups(source, depth + 1)
            return None if key_groups is None else key_groups.stream
        case 6:
            name = source.utf()
            return FileStream(name, is_relative=True, start=0, size=_size(source))
        case 15:
            start, size = _size(source), _size(source)
            source.read_int()  # who the file is shared by
            uri = source.utf()
            source.utf()
            return FileStream(uri, is_relative=False, start=start, size=size)
        case 16:
            return InlineStream(b"")
        case kind:
            raise _unknown("stream", kind)


def needed_stream(source: DataInput, depth: int = 0) -> StreamHandle:
    """Read a stream handle that can't be missing. Raises as `stream_handle`."""
    handle = stream_handle(source, depth)
    if handle is None:
        raise damaged("a handle leads nowhere")
    return handle


def operator_handle(source: DataInput) -> OperatorHandle | None:
    """Read an operator handle. Raises as `stream_handle`."""
    kind = source.byte()
    if kind == 0:
        return None
    if kind not in {4, 17}:
        raise _unknown("operator state", kind)
    states = {}
    for _ in range(source.count(7)):
        name, mode = source.utf(), source.byte()
        if mode >= len(MODES):
            raise damaged(f"an operator state is spread in mode {mode}")
        states[name] = mode, source.longs(source.count(8))
    if kind == 17:  # of merged files: where those of the task are, which its stream says, too
        source.utf()
        source.utf()
        source.byte()
    return OperatorHandle(states, needed_stream(source))


def keyed_handle(source: DataInput, depth: int = 0) -> KeyedHandle | None:
    """Read a keyed handle. Raises as `stream_handle`."""
    _check_depth(depth)
    kind = source.byte()
    if kind == 0:
        return None
    if kind not in _KEYED:
        raise _unknown("keyed state", kind)
    return _KEYED[kind](source, depth)


def channel_bytes(source: DataInput, *, has_kind: bool) -> int:
    """Read a handle of data in flight, and return how many bytes of them there are."""
    kind = source.byte() if has_kind else 1
    source.read_int()
    if kind in {1, 2}:
        source.take(8)
        source.longs(source.count(8))
        size = source.read_long()
        stream_handle(source)
    elif kind in {3, 4}:
        size = source.read_long()
        stream_handle(source)
        source.take(source.count())
    else:
        raise _unknown("channel", kind)
    return size


def _key_groups(
    source: DataInput, depth: int, *, is_canonical: bool = False
) -> KeyGroupsHandle | None:
    first, count = _range(source)
    if 8 * count > source.left:
        raise damaged(f"{count} key groups are to follow, and {source.left} bytes are left")
    offsets = source.longs(count)
    stream = stream_handle(source, depth + 1)
    return None if stream is None else KeyGroupsHandle(first, offsets, stream, is_canonical)


def _key_groups_with_id(source: DataInput, depth: int) -> KeyGroupsHandle | None:
    handle = _key_groups(source, depth)
    source.utf()
    return handle


def _incremental(source: DataInput, depth: int, *, is_new: bool) -> IncrementalHandle:
    source.read_long()
    source.utf()
    first, count = _range(source)
    if is_new:
        source.read_long()
    meta = needed_stream(source, depth + 1)
    files = tuple(
        (source.utf(), needed_stream(source, depth + 1))
        for _ in range(2)  # those that checkpoints share, and the others
        for _ in range(source.count(3))
    )
    if is_new:
        source.utf()
    return IncrementalHandle(first, count, meta, files)


def _changelog(source: DataInput, depth: int, *, is_new: bool) -> ChangelogHandle:
    _range(source)
    source.read_long()
    bases = [keyed_handle(source, depth + 1) for _ in range(source.count())]
    changes = [keyed_handle(source, depth + 1) for _ in range(source.count())]
    source.take(16 if is_new else 8)
    source.utf()
    there = tuple(handle for handle in bases if handle is not None)
    return ChangelogHandle(there, sum(handle is not None for handle in changes))


def _changes_inline(source: DataInput, _depth: int) -> ChangesHandle:
    source.take(24)
    for _ in range(source.count(8)):
        source.read_int()
        source.take(source.count())
    source.utf()
    return ChangesHandle()


def _changes_in_files(source: DataInput, depth: int, *, is_new: bool) -> ChangesHandle:
    source.take(8)
    for _ in range(source.count(9)):
        source.read_long()
        stream_handle(source, depth + 1)
    source.take(16)
    source.utf()
    if is_new:
        source.utf()
    return ChangesHandle()


def _range(source: DataInput) -> tuple[int, int]:
    first, count = source.read_int(), source.read_int()
    if not (0 <= first <= 1 << 15 and 0 <= count <= (1 << 15) - first):
        raise damaged(f"{count} key groups from {first} on are more than there can be")
    return first, count


def _size(source: DataInput) -> int:
    size = source.read_long()
    if size < 0:
        raise damaged("a file's length is negative")
    return size


def _check_depth(depth: int) -> None:
    if depth > MOST_NESTED:
        raise damaged("handles stand in each other without end")


def _unknown(what: str, kind: int) -> UnsupportedFormatError:
    message = (
        f"the metadata has a {what} handle of kind {kind}, which this version of Holdfast doesn't "
        "know; take a canonical savepoint with a Flink from 1.8 to 2.3"
    )
    return UnsupportedFormatError(message)


_KEYED: dict[int, Callable[[DataInput, int], KeyedHandle | None]] = {
    3: _key_groups,
    5: partial(_incremental, is_new=False),
    7: partial(_key_groups, is_canonical=True),
    8: partial(_changelog, is_new=False),
    9: _changes_inline,
    10: partial(_changes_in_files, is_new=False),
    11: partial(_incremental, is_new=True),
    12: _key_groups_with_id,
    13: partial(_changes_in_files, is_new=True),
    14: partial(_changelog, is_new=True),
}
"""What reads a keyed handle, by its kind."""
