"""RocksDB files, written block by block, with a choice of restarts, shared bytes and damage."""

from collections.abc import Sequence
from dataclasses import dataclass

from contracts.flink_kinds import varint

VALUE, DELETION = 1, 0
Pair = tuple[bytes, bytes]


@dataclass(frozen=True)
class Entry:
    """An entry of a file: a version of a key."""

    key: bytes
    value: bytes
    sequence: int = 1
    kind: int = VALUE


@dataclass(frozen=True)
class Layout:
    """Layout of entries.

    Attributes:
        block_entries: Number of entries in a block.
        restart_interval: Number of entries from one restart to the next.
        max_shared: Maximum number of bytes shared with the previous key.
        restarts: Restart offsets to write into each block instead of the correct ones.
    """

    block_entries: int = 100
    restart_interval: int = 16
    max_shared: int = 127
    restarts: Sequence[int] | None = None


def sorted_file(
    family: str, entries: Sequence[Entry], layout: Layout, damage: Sequence[tuple[int, int]] = ()
) -> bytes:
    """Encode a file without checksums; `damage` replaces bytes at offsets in its data blocks."""
    data, index = b"", []
    ordered = sorted(entries, key=lambda entry: (entry.key, -entry.sequence))
    for start in range(0, len(ordered), layout.block_entries):
        part = [
            (entry.key + (entry.sequence << 8 | entry.kind).to_bytes(8, "little"), entry.value)
            for entry in ordered[start : start + layout.block_entries]
        ]
        content = block(part, layout)
        index.append((part[-1][0], varint(len(data)) + varint(len(content))))
        data += content + bytes(5)
    damaged = bytearray(data)
    for place, byte in damage:
        damaged[place % len(damaged)] = byte
    data = bytes(damaged)

    def append(pairs: Sequence[Pair]) -> bytes:
        nonlocal data
        content = block(pairs, Layout())
        handle = varint(len(data)) + varint(len(content))
        data += content + bytes(5)
        return handle

    properties = append([(b"rocksdb.column.family.name", family.encode())])
    metaindex = append([(b"rocksdb.properties", properties)])
    footer = (b"\0" + metaindex + append(index)).ljust(41, b"\0")
    return data + footer + (5).to_bytes(4, "little") + 0x88E241B785F4CFF7.to_bytes(8, "little")


def block(pairs: Sequence[Pair], layout: Layout) -> bytes:
    data, restarts, before = b"", [], b""
    for number, (key, value) in enumerate(pairs):
        shared = 0
        if number % layout.restart_interval:
            limit = min(len(key), len(before), layout.max_shared)
            shared = next((at for at in range(limit) if key[at] != before[at]), limit)
        else:
            restarts.append(len(data))
        data += varint(shared) + varint(len(key) - shared) + varint(len(value))
        data += key[shared:] + value
        before = key
    if layout.restarts is not None:
        restarts = list(layout.restarts)
    numbers = [*restarts, len(restarts)]
    return data + b"".join(number.to_bytes(4, "little") for number in numbers)
