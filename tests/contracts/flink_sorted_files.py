"""Files of RocksDB, written block by block: with restarts, shared bytes and damage as tests want them."""

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
    """How entries are laid out.

    Attributes:
        in_a_block: How many a block has.
        to_a_restart: How many stand behind a restart.
        most_shared: How many bytes at most are shared with the key before.
        restarts: Where a block says that restarts are, instead of where they are.
    """

    in_a_block: int = 100
    to_a_restart: int = 16
    most_shared: int = 127
    restarts: Sequence[int] | None = None


def sorted_file(
    family: str, entries: Sequence[Entry], layout: Layout, damage: Sequence[tuple[int, int]] = ()
) -> bytes:
    """A file without checksums; `damage` are places in its data blocks, and what stands there instead."""
    data, index = b"", []
    ordered = sorted(entries, key=lambda entry: (entry.key, -entry.sequence))
    for start in range(0, len(ordered), layout.in_a_block):
        part = [
            (entry.key + (entry.sequence << 8 | entry.kind).to_bytes(8, "little"), entry.value)
            for entry in ordered[start : start + layout.in_a_block]
        ]
        content = block(part, layout)
        index.append((part[-1][0], varint(len(data)) + varint(len(content))))
        data += content + bytes(5)
    damaged = bytearray(data)
    for place, byte in damage:
        damaged[place % len(damaged)] = byte
    data = bytes(damaged)

    def appended(pairs: Sequence[Pair]) -> bytes:
        nonlocal data
        content = block(pairs, Layout())
        handle = varint(len(data)) + varint(len(content))
        data += content + bytes(5)
        return handle

    properties = appended([(b"rocksdb.column.family.name", family.encode())])
    metaindex = appended([(b"rocksdb.properties", properties)])
    footer = (b"\0" + metaindex + appended(index)).ljust(41, b"\0")
    return data + footer + (5).to_bytes(4, "little") + 0x88E241B785F4CFF7.to_bytes(8, "little")


def block(pairs: Sequence[Pair], layout: Layout) -> bytes:
    data, restarts, before = b"", [], b""
    for number, (key, value) in enumerate(pairs):
        shared = 0
        if number % layout.to_a_restart:
            most = min(len(key), len(before), layout.most_shared)
            shared = next((at for at in range(most) if key[at] != before[at]), most)
        else:
            restarts.append(len(data))
        data += varint(shared) + varint(len(key) - shared) + varint(len(value))
        data += key[shared:] + value
        before = key
    if layout.restarts is not None:
        restarts = list(layout.restarts)
    numbers = [*restarts, len(restarts)]
    return data + b"".join(number.to_bytes(4, "little") for number in numbers)
