"""Handles in Flink's metadata: small values that refer to bytes of state.

    stream handle     bytes in the metadata, in a file, or in a part of a file
    operator handle   a stream with the offsets of the elements of each operator state
    keyed handle      a stream with the offset of each key group, or the files of RocksDB

Source:
    Flink, MetadataV2V3SerializerBase (2.3.0).
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from holdfast.errors import UnsupportedFormatError
from holdfast.flink.binary import DataInput, corrupted_error

MAX_NESTING = 8
_MODES = ("list", "union", "broadcast")


@dataclass(frozen=True, slots=True)
class InlineStream:
    data: bytes


@dataclass(frozen=True, slots=True)
class FileStream:
    """A file, or `size` bytes of it; `uri` is only a name if the file is in the metadata's directory."""

    uri: str
    size: int
    start: int = 0
    is_relative: bool = False


StreamHandle = InlineStream | FileStream


@dataclass(frozen=True, slots=True)
class OperatorHandle:
    """Operator state of a subtask: the mode of each state, and the offsets of its elements."""

    states: dict[str, tuple[str, tuple[int, ...]]]
    stream: StreamHandle


@dataclass(frozen=True, slots=True)
class KeyGroupsHandle:
    """Key groups of a subtask in one stream.

    Attributes:
        first: First key group.
        offsets: Offset of each group in the stream; not positive if it is empty or missing.
        is_canonical: Whether they are known to be in the format that all backends share.
    """

    first: int
    offsets: tuple[int, ...]
    stream: StreamHandle
    is_canonical: bool = False

    def extents(self, size: int, *, min_offset: int) -> list[tuple[int, int, int]]:
        """Return each existing key group with its start and end in a stream of `size` bytes.

        A group with an offset below `min_offset` is missing.
        """
        there = [
            (group, offset)
            for group, offset in enumerate(self.offsets, self.first)
            if offset >= min_offset
        ]
        edges = sorted({*(offset for _, offset in there), size})
        if edges[-1] != size:
            raise corrupted_error("a key group starts after the end of its stream")
        next_edge = {**dict(itertools.pairwise(edges)), size: size}
        return [(group, offset, next_edge[offset]) for group, offset in there]


@dataclass(frozen=True, slots=True)
class IncrementalHandle:
    """`count` key groups of a subtask from `first` in files of RocksDB: descriptions of the states, and files by name."""

    first: int
    count: int
    meta: StreamHandle
    files: tuple[tuple[str, StreamHandle], ...]


@dataclass(frozen=True, slots=True)
class ChangelogHandle:
    """Key groups of a subtask as of an earlier time, and the number of streams with changes since then."""

    bases: "tuple[KeyedHandle, ...]"
    changes: int


KeyedHandle = KeyGroupsHandle | IncrementalHandle | ChangelogHandle
_CHANGES = ChangelogHandle((), changes=1)
"""A stream of changes, which does not describe its states."""


def stream_handle(source: DataInput, depth: int = 0) -> StreamHandle | None:
    """Read a stream handle. Raises `CheckpointCorruptedError`, and `UnsupportedFormatError` for an unknown type."""
    _check_depth(depth)
    match source.byte():
        case 0:
            return None
        case 1:
            source.utf()
            return InlineStream(source.take(source.count()))
        case 2:
            size = _size(source)
            return FileStream(source.utf(), size)
        case 3:
            key_groups = _key_groups(source, depth + 1)
            return None if key_groups is None else key_groups.stream
        case 6:
            return FileStream(source.utf(), _size(source), is_relative=True)
        case 15:
            start, size = _size(source), _size(source)
            source.read_int()  # scope of sharing
            uri = source.utf()
            source.utf()
            return FileStream(uri, size, start)
        case 16:
            return InlineStream(b"")
        case kind:
            raise _unknown("stream", kind)


def needed_stream(source: DataInput, depth: int = 0) -> StreamHandle:
    handle = stream_handle(source, depth)
    if handle is None:
        raise corrupted_error("a stream handle is missing")
    return handle


def operator_handle(source: DataInput) -> OperatorHandle | None:
    kind = source.byte()
    if kind == 0:
        return None
    if kind not in {4, 17}:
        raise _unknown("operator state", kind)
    states = {}
    for _ in range(source.count(7)):
        name, mode = source.utf(), source.byte()
        if mode >= len(_MODES):
            raise corrupted_error(f"an operator state has the unknown mode {mode}")
        states[name] = _MODES[mode], source.longs(source.count(8))
    if kind == 17:  # merged files: directories of the task, which the stream has as well
        source.utf()
        source.utf()
        source.byte()
    return OperatorHandle(states, needed_stream(source))


def keyed_handle(source: DataInput, depth: int = 0) -> KeyedHandle | None:
    _check_depth(depth)
    kind = source.byte()
    if kind == 0:
        return None
    if kind not in _KEYED:
        raise _unknown("keyed state", kind)
    return _KEYED[kind](source, depth)


def channel_bytes(source: DataInput, *, has_kind: bool) -> int:
    """Read a handle of in-flight data; returns its number of bytes."""
    kind = source.byte() if has_kind else 1
    source.read_int()
    if kind not in {1, 2, 3, 4}:
        raise _unknown("channel", kind)
    is_merged = kind >= 3
    if not is_merged:
        source.take(8)
        source.longs(source.count(8))
    size = source.read_long()
    stream_handle(source)
    if is_merged:
        source.take(source.count())
    return size


def _key_groups(
    source: DataInput, depth: int, *, is_canonical: bool = False
) -> KeyGroupsHandle | None:
    first, count = _range(source)
    if 8 * count > source.left:
        raise corrupted_error(f"{count} key groups can't fit into {source.left} bytes")
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
        for _ in range(2)  # shared files, then private ones
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
    return ChangelogHandle(
        tuple(base for base in bases if base is not None), len(changes) - changes.count(None)
    )


def _changes_inline(source: DataInput, _depth: int) -> ChangelogHandle:
    source.take(24)
    for _ in range(source.count(8)):
        source.read_int()
        source.take(source.count())
    source.utf()
    return _CHANGES


def _changes_in_files(source: DataInput, depth: int, *, is_new: bool) -> ChangelogHandle:
    source.take(8)
    for _ in range(source.count(9)):
        source.read_long()
        stream_handle(source, depth + 1)
    source.take(16)
    source.utf()
    if is_new:
        source.utf()
    return _CHANGES


def _range(source: DataInput) -> tuple[int, int]:
    first, count = source.read_int(), source.read_int()
    if not (0 <= first <= 1 << 15 and 0 <= count <= (1 << 15) - first):
        raise corrupted_error(f"{count} key groups from {first} are too many")
    return first, count


def _size(source: DataInput) -> int:
    size = source.read_long()
    if size < 0:
        raise corrupted_error("a file's length is negative")
    return size


def _check_depth(depth: int) -> None:
    if depth > MAX_NESTING:
        raise corrupted_error("handles are nested too deeply")


def _unknown(subject: str, kind: int) -> UnsupportedFormatError:
    message = (
        f"the metadata has a {subject} handle of type {kind}, which this version of Holdfast does not "
        "support; take a canonical savepoint with Flink 1.8 to 2.3"
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
"""Readers of keyed handles by their type."""
