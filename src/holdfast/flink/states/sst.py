"""A reader of RocksDB and ForSt files (`*.sst`).

    file    data blocks, other blocks, properties, metaindex, index, footer
    footer  byte checksum kind, metaindex and index { varint offset, varint size }, padding to 41 bytes,
            u4 version, u8 88e241b785f4cff7 (little-endian)
    block   entries, u4 * restart, u4 restarts; byte compression, 4 bytes checksum
    entry   varint shared, varint rest, varint value length, rest of the key, value
    key     user's key, u8 little-endian sequence << 8 | kind

Source:
    RocksDB, table/format.h, table/block_based/block.h, db/dbformat.h (8.10).
"""

import bisect
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.common import raise_shortage
from holdfast.errors import UnsupportedFormatError
from holdfast.flink.binary import corrupted_error, decompress_block, masked_crc32c
from holdfast.flink.serializers import Rows, not_readable
from holdfast.flink.state_files import StateStream

_FOOTER_BYTES, _MAGIC, _VERSIONS = 53, 0x88E241B785F4CFF7, range(2, 6)
_TRAILER_BYTES = 5
_MAX_BLOCK_BYTES = 1 << 28
# Bytes of fixed-width entries read at once from each file; small enough for several hundred files.
_PART_BYTES = 1 << 18
_CRC32C = 1
_TWO_LEVELS, _WITH_FIRST_KEY = 2, 3

_HEAD_BYTES, _MAX_SINGLE_BYTE = 3, 0x7F
# More entries per restart are read faster one by one, unless there are many restarts.
_MAX_ENTRIES_PER_RESTART = 64

_Numbers = npt.NDArray[np.int64]

DELETION, VALUE, MERGE, SINGLE_DELETION = 0, 1, 2, 7
_IS_KIND = np.isin(np.arange(256), (DELETION, VALUE, MERGE, SINGLE_DELETION))


@dataclass(frozen=True, slots=True)
class Run:
    """Entries in order of their keys, the newest of a key first.

    Attributes:
        keys: User keys: byte strings, or rows of bytes if all have the same length.
        sequences: Sequence numbers.
        kinds: Types of the entries, such as `VALUE`.
        values: Values, which are rows if the keys are.
    """

    keys: list[bytes] | Rows
    sequences: npt.NDArray[np.int64]
    kinds: npt.NDArray[np.uint8]
    values: list[bytes] | Rows

    def __getitem__(self, part: slice) -> "Run":
        return Run(self.keys[part], self.sequences[part], self.kinds[part], self.values[part])


@dataclass(frozen=True, slots=True)
class _Block:
    offset: int
    size: int


class SstFile:
    """A file of sorted entries.

    Args:
        stream: Bytes of the file; must be open as long as this object is used.

    Raises:
        CheckpointCorruptedError: It is corrupted.
        UnsupportedFormatError: Its version or type of index is unknown.
    """

    def __init__(self, stream: StateStream) -> None:
        self._stream = stream
        if stream.size < _FOOTER_BYTES:
            raise corrupted_error(f"a RocksDB file has only {stream.size} bytes")
        footer = stream.read(stream.size - _FOOTER_BYTES, stream.size)
        if int.from_bytes(footer[-8:], "little") != _MAGIC:
            raise corrupted_error("a RocksDB file has an unexpected end")
        version = int.from_bytes(footer[-12:-8], "little")
        if version not in _VERSIONS:
            message = (
                f"a RocksDB file has version {version}; Holdfast reads {_VERSIONS[0]} to {_VERSIONS[-1]}; "
                "take a canonical savepoint"
            )
            raise UnsupportedFormatError(message)
        self._checksum = footer[0]
        metaindex, position = _handle(footer, 1)
        self._index, _ = _handle(footer, position)
        self._meta = {
            name: _handle(value, 0)[0]
            for name, value in zip(*_entries(self._block(metaindex)), strict=True)
        }
        self._properties: dict[bytes, bytes] = {}
        if (properties := self._meta.get(b"rocksdb.properties")) is not None:
            self._properties = dict(zip(*_entries(self._block(properties)), strict=True))

    @property
    def column_family(self) -> str:
        """Name of the state whose entries it has."""
        return self._properties.get(b"rocksdb.column.family.name", b"").decode("utf-8", "replace")

    def range_deletions(self) -> list[tuple[bytes, bytes, int]]:
        """Return deleted ranges: start key, exclusive end key, and the sequence number before which entries are deleted."""
        block = self._meta.get(b"rocksdb.range_del")
        if block is None:
            return []
        keys, ends = _entries(self._block(block))
        sequences, _ = _trailers([key[-8:] for key in keys])
        return [
            (key[:-8], end, sequence)
            for key, end, sequence in zip(keys, ends, sequences.tolist(), strict=True)
        ]

    def runs(self, start: bytes, key_width: int = 0, value_width: int = -1) -> Iterator[Run]:
        """Read the entries from a key in order, one or several blocks at a time.

        Args:
            start: The first key.
            key_width: Expected number of bytes of every key, or 0 if they differ.
            value_width: Expected number of bytes of every value, or -1 if they differ. Entries with these widths are
                returned as rows.

        Raises:
            CheckpointCorruptedError: They are corrupted.
            UnreadableStateError: An entry has an unknown type.
        """
        last_keys = [key for key, _ in self._data_blocks]
        blocks = self._data_blocks[bisect.bisect_left(last_keys, start) :]
        is_fixed_width = key_width > 0 and value_width >= 0
        for part in self._parts(blocks, _PART_BYTES if is_fixed_width else 1):
            rows = _rows(part, key_width, value_width) if is_fixed_width else None
            for run in [rows] if rows is not None else (_run(*_entries(data)) for data in part):
                if not _IS_KIND[run.kinds].all():
                    kind = run.kinds[~_IS_KIND[run.kinds]][0]
                    raise not_readable(f"a RocksDB entry of type {kind}")
                yield run[bisect.bisect_left(run.keys, start, key=bytes) :]

    def _parts(self, blocks: list[tuple[bytes, _Block]], size: int) -> Iterator[list[bytes]]:
        """Read blocks in groups of about `size` bytes."""
        part: list[bytes] = []
        length = 0
        for _, handle in blocks:
            part.append(self._block(handle))
            length += len(part[-1])
            if length >= size:
                yield part
                part, length = [], 0
        if part:
            yield part

    @cached_property
    def _data_blocks(self) -> list[tuple[bytes, _Block]]:
        """Return an upper bound of the keys of each block, and the block's position."""
        kind = int.from_bytes(
            self._properties.get(b"rocksdb.block.based.table.index.type", b""), "little"
        )
        if kind >= _WITH_FIRST_KEY:
            message = (
                f"a RocksDB file has an index of unknown type {kind}; take a canonical savepoint"
            )
            raise UnsupportedFormatError(message)
        blocks = self._index_entries(self._index)
        if kind == _TWO_LEVELS:
            blocks = [entry for _, part in blocks for entry in self._index_entries(part)]
        return blocks

    def _index_entries(self, handle: _Block) -> list[tuple[bytes, _Block]]:
        data = self._block(handle)
        is_user_key = self._flag(b"rocksdb.index.key.is.user.key")
        if not self._flag(b"rocksdb.index.value.is.delta.encoded"):
            entries = [
                (key, _handle(value, 0)[0]) for key, value in zip(*_entries(data), strict=True)
            ]
        else:
            entries = list(_delta_entries(data))
        return [(key if is_user_key else key[:-8], block) for key, block in entries]

    def _flag(self, name: bytes) -> bool:
        return self._properties.get(name, b"\0") != b"\0"

    def _block(self, handle: _Block) -> bytes:
        data = self._stream.read(handle.offset, handle.offset + handle.size + _TRAILER_BYTES)
        content, kind = data[: handle.size], data[handle.size]
        checksum = int.from_bytes(data[-4:], "little")
        if self._checksum == _CRC32C and masked_crc32c(data[:-4]) != checksum:
            raise corrupted_error("a RocksDB block differs from its checksum")
        return content if kind == 0 else _decompress(content, kind)


def _decompress(data: bytes, kind: int) -> bytes:
    if kind == 1:
        return decompress_block(data, _MAX_BLOCK_BYTES)
    size, start = _varint(data, 0)
    if size > _MAX_BLOCK_BYTES:
        raise corrupted_error(f"a RocksDB block has an invalid size of {size} bytes")
    data = data[start:]
    try:
        match kind:
            case 2:
                whole = zlib.decompressobj(-14).decompress(data, size)
            case 4 | 5:
                whole = pa.decompress(data, size, codec="lz4_raw", asbytes=True)
            case 7:
                whole = pa.decompress(data, size, codec="zstd", asbytes=True)
            case _:
                message = f"a RocksDB block has the unknown compression {kind}"
                raise UnsupportedFormatError(message)
    except (pa.ArrowException, OSError, zlib.error) as error:
        raise_shortage(error)
        raise corrupted_error("a RocksDB block can't be decompressed") from error
    if len(whole) != size:
        raise corrupted_error(f"a RocksDB block has {len(whole)} bytes instead of {size}")
    return bytes(whole)


def _entries(data: bytes) -> tuple[list[bytes], list[bytes]]:
    keys: list[bytes] = []
    values: list[bytes] = []
    position, end = 0, _end(data)
    key = b""
    while position < end:
        shared, rest, length = data[position : position + 3]
        if (shared | rest | length) < 0x80:
            position += 3
        else:
            shared, position = _varint(data, position)
            rest, position = _varint(data, position)
            length, position = _varint(data, position)
        rest_end = position + rest
        if shared > len(key) or rest_end + length > end:
            raise corrupted_error("a RocksDB entry ends after its block")
        key = key[:shared] + data[position:rest_end]
        position = rest_end + length
        keys.append(key)
        values.append(data[rest_end:position])
    return keys, values


def _run(internal: list[bytes], values: list[bytes]) -> Run:
    sequences, kinds = _trailers([key[-8:] for key in internal])
    return Run([key[:-8] for key in internal], sequences, kinds, values)


def _rows(blocks: list[bytes], key_width: int, value_width: int) -> Run | None:
    """Return the entries of blocks as rows, or None if they must be read one by one."""
    parts = [(data[: (end := _end(data))], data[end:-4]) for data in blocks]
    rows = _fixed_width_entries(parts, key_width + 8, value_width)
    if rows is None:
        return None
    internal, values = rows
    keys = np.ascontiguousarray(internal[:, :-8])
    names = as_byte_strings(keys)
    if (
        names[:-1] > names[1:]
    ).any():  # otherwise the result of a search would depend on the way of reading
        return None
    sequences, kinds = _unpack(np.ascontiguousarray(internal[:, -8:]))
    return Run(keys, sequences, kinds, values)


def as_byte_strings(keys: Rows) -> npt.NDArray[np.bytes_]:
    """Return keys of one length as NumPy byte strings, whose order ignores trailing zeros without a change for one length."""
    return keys.view(f"S{keys.shape[1]}")[:, 0]


def _trailers(ends: list[bytes]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Return sequence numbers and types from the last eight bytes of internal keys."""
    if min(map(len, ends), default=8) < 8:
        raise corrupted_error("a RocksDB key is too short")
    return _unpack(np.frombuffer(b"".join(ends), np.uint8))


def _unpack(ends: Rows) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    packed = ends.reshape(-1).view("<u8")
    return (packed >> 8).astype(np.int64), (packed & 0xFF).astype(np.uint8)


def _delta_entries(data: bytes) -> Iterator[tuple[bytes, _Block]]:
    """Return keys and blocks of an index that stores differences of sizes."""
    position, end = 0, _end(data)
    key, block = b"", _Block(0, 0)
    while position < end:
        shared, position = _varint(data, position)
        rest, position = _varint(data, position)
        if shared > len(key) or position + rest > end:
            raise corrupted_error("a RocksDB entry ends after its block")
        key = key[:shared] + data[position : position + rest]
        position += rest
        if shared:
            zigzag, position = _varint(data, position)
            size = block.size + (zigzag >> 1 ^ -(zigzag & 1))
            block = _Block(block.offset + block.size + _TRAILER_BYTES, size)
        else:
            block, position = _handle(data, position)
        if block.size < 0:
            raise corrupted_error("a RocksDB block has no size")
        yield key, block


def _end(data: bytes) -> int:
    """Return the end of the entries, which is the start of the restarts."""
    restarts = int.from_bytes(data[-4:], "little")
    end = len(data) - 4 * (restarts + 1)
    if end < 0:
        raise corrupted_error("a RocksDB block is shorter than its restarts, or has a hash index")
    return end


def _handle(data: bytes, position: int) -> tuple[_Block, int]:
    offset, position = _varint(data, position)
    size, position = _varint(data, position)
    return _Block(offset, size), position


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise corrupted_error("a RocksDB number has no end")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def _fixed_width_entries(
    blocks: Sequence[tuple[bytes, bytes]], width: int, value_width: int
) -> tuple[Rows, Rows] | None:
    """Return keys and values of blocks, given by their entries and restarts, in order, as rows.

    A key is complete at each restart and shares a prefix with the previous key elsewhere. So the first entries after
    all restarts are read at once, then the second ones, and so on. Returns None if an entry has other lengths than
    `width`, with RocksDB's suffix, and `value_width`, a length takes more than a byte, or a restart isn't the start of
    an entry. Then the entries must be read one by one, which also reports corruption.
    """
    if max(width, value_width) > _MAX_SINGLE_BYTE:
        return None
    # The shared prefix of a key may be longer than the bytes before its first own byte.
    data = np.frombuffer(b"".join([bytes(width), *(entries for entries, _ in blocks)]), np.uint8)
    starts = _starts(blocks)
    if starts is None:
        return None
    at = starts + width
    ends = np.append(at[1:], len(data))
    active = np.arange(len(at))
    counts = np.zeros(len(at), np.int64)
    columns = np.arange(width, dtype=np.uint8)
    keys: Rows = np.empty((0, width), np.uint8)
    steps: list[tuple[_Numbers, Rows, _Numbers]] = []
    while len(active):
        if len(steps) == _MAX_ENTRIES_PER_RESTART or (at + _HEAD_BYTES > ends).any():
            return None
        shared = data[at]
        # Their sum is less than 128, so each of them is and takes a byte.
        if (shared.astype(np.int64) + data[at + 1] != width).any():
            return None
        if (data[at + 2] != value_width).any() or (not steps and shared.any()):
            return None
        first_byte = at + _HEAD_BYTES - shared
        value_at = first_byte + width
        at = value_at + value_width
        if (at > ends).any():
            return None
        rows = _windows(data, first_byte, width)
        if steps:
            np.copyto(rows, keys, where=columns < shared[:, None])
        steps.append((active, rows, value_at))
        counts[active] += 1
        keys = rows
        has_more = at < ends
        if not has_more.all():
            active, at, ends, keys = active[has_more], at[has_more], ends[has_more], keys[has_more]
    return _in_order(data, counts, steps, value_width)


def _starts(blocks: Sequence[tuple[bytes, bytes]]) -> _Numbers | None:
    """Return the starts of entries with complete keys in all blocks, or None if they are not in order."""
    lengths = np.array([len(entries) for entries, _ in blocks])
    counts = np.array([len(restarts) // 4 for _, restarts in blocks])
    if not counts.all():
        return None
    ends = np.cumsum(lengths)
    places = np.frombuffer(b"".join([restarts for _, restarts in blocks]), "<u4")
    starts: _Numbers = places.astype(np.int64) + np.repeat(ends - lengths, counts)
    is_whole = not places[np.cumsum(counts) - counts].any()
    if not is_whole or starts[-1] >= ends[-1] or (np.diff(starts) <= 0).any():
        return None
    return starts


def _in_order(
    data: Rows, counts: _Numbers, steps: list[tuple[_Numbers, Rows, _Numbers]], value_width: int
) -> tuple[Rows, Rows]:
    """Return keys and values in the order of the file; `counts` has their number per restart."""
    firsts = np.cumsum(counts) - counts
    keys = np.empty((counts.sum(), steps[0][1].shape[1]), np.uint8)
    values_at = np.empty(len(keys), np.int64)
    for step, (active, rows, value_at) in enumerate(steps):
        places = firsts[active] + step
        keys[places] = rows
        values_at[places] = value_at
    return keys, _windows(data, values_at, value_width)


def _windows(data: Rows, starts: _Numbers, width: int) -> Rows:
    if not width:
        return np.empty((len(starts), 0), np.uint8)
    windows = np.ndarray(len(data) - width + 1, f"V{width}", data, strides=(1,))
    return windows[starts].view(np.uint8).reshape(-1, width)
