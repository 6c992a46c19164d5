"""Damage of RocksDB's files, on the host and in storage: an error that names the file, and rows that count or none."""

import os
from pathlib import Path

import msgspec
import pytest
from contracts.keyed.checkpoints import KeyedCheckpoints, parts_of
from jobs.quick_disk import QUICK_DISK
from jobs.rocksdb_rows import (
    ALL,
    HALVES,
    NUMBER,
    keys_of,
    multiples,
    put,
    read_rows,
    snapshot_and_complete,
    store_numbers,
)

from holdfast.backends.keyed import read_tables
from holdfast.backends.keyed.rocksdb_tables import RocksDBStateTables
from holdfast.errors import CheckpointCorruptedError, UnsupportedFormatError
from holdfast.locations.handles import (
    ByteStreamStateHandle,
    FileStateHandle,
    SegmentsStateHandle,
    StreamStateHandle,
)


def content_of(stream: StreamStateHandle) -> bytes:
    with stream.open_input_stream() as source:
        return source.read()


def flip_bit(content: bytes, at: int) -> bytes:
    """The content with a bit of a byte turned over."""
    damaged = bytearray(content)
    damaged[at] ^= 1
    return bytes(damaged)


def in_file(
    handle: SegmentsStateHandle, name: str, content: bytes, path: Path
) -> SegmentsStateHandle:
    """The handle with a segment whose stored file is this one, of another content perhaps."""
    path.write_bytes(content)
    stream = handle.segments[name]
    assert isinstance(stream, FileStateHandle)
    moved = msgspec.structs.replace(stream, uri=path.as_uri())
    return msgspec.structs.replace(handle, segments=handle.segments | {name: moved})


def restore_rows(handle: SegmentsStateHandle, host: Path) -> dict[int, int]:
    """The rows that a task on the host has."""
    tables = RocksDBStateTables(ALL, [handle], directory=str(host))
    try:
        return read_rows(tables.table(NUMBER))
    finally:
        tables.close()


def test_damaged_file_is_named_in_the_error(tmp_path: Path, checkpoints: KeyedCheckpoints) -> None:
    whole = store_numbers(checkpoints, range(5000))
    ((name, stream),) = whole.segments.items()
    content = content_of(stream)
    damaged = flip_bit(content, len(content) // 3)
    handle = in_file(whole, name, damaged, tmp_path / "damaged")
    with pytest.raises(CheckpointCorruptedError, match="damaged"):
        RocksDBStateTables(ALL, [handle])
    # A copy on this host is verified where it is read, block by block.
    (tmp_path / name).write_bytes(damaged)
    tables = RocksDBStateTables(ALL, [whole], directory=str(tmp_path))
    with pytest.raises(CheckpointCorruptedError, match=r"\.sst"):
        read_rows(tables.table(NUMBER))
    with pytest.raises(CheckpointCorruptedError, match=r"\.sst"):
        tables.table(NUMBER).get(keys_of(range(5000)).identities)
    tables.close()


@pytest.mark.parametrize("part", ["a block", "the index", "the end"])
def test_damaged_copy_is_deleted_and_fetched_again(
    tmp_path: Path, checkpoints: KeyedCheckpoints, part: str
) -> None:
    whole = store_numbers(checkpoints, range(5000))
    ((name, stream),) = whole.segments.items()
    content = content_of(stream)
    at = {"a block": len(content) // 3, "the index": -60, "the end": -5}[part]
    copy = tmp_path / name
    copy.write_bytes(flip_bit(content, at))
    unrelated = tmp_path / ("0" * 32)
    unrelated.write_bytes(flip_bit(content, at))  # another file, which no error names
    with pytest.raises(CheckpointCorruptedError, match=rf"\.sst.* deleted the host.s copy {copy}"):
        restore_rows(whole, tmp_path)
    assert os.listdir(tmp_path) == [unrelated.name]
    assert restore_rows(whole, tmp_path) == multiples(range(5000))
    assert copy.read_bytes() == content


def test_all_copies_of_a_database_are_fetched_again_if_one_is_damaged(
    tmp_path: Path, checkpoints: KeyedCheckpoints
) -> None:
    tables = RocksDBStateTables(ALL, directory=QUICK_DISK)
    for number in range(3):  # too few files to be merged
        put(tables.table(NUMBER), range(number, 3000, 3))
        _, completed = snapshot_and_complete(tables, checkpoints, number + 1)
        tables.notify_checkpoint_complete(number + 1)
    tables.close()
    assert len(completed.segments) == 3
    for name, stream in completed.segments.items():
        content = content_of(stream)
        (tmp_path / name).write_bytes(flip_bit(content, len(content) // 3))
    with pytest.raises(CheckpointCorruptedError, match="and 2 others of this database: try again"):
        restore_rows(completed, tmp_path)
    assert os.listdir(tmp_path) == []
    assert restore_rows(completed, tmp_path) == multiples(range(3000))


@pytest.mark.parametrize("damaged", [0, 1])
def test_damage_in_storage_too_names_the_stored_file(
    tmp_path: Path, checkpoints: KeyedCheckpoints, damaged: int
) -> None:
    whole = store_numbers(checkpoints, range(1000))
    host = tmp_path / "host"
    host.mkdir()
    handles = []
    for number, groups in enumerate(HALVES):
        tables = RocksDBStateTables(groups, parts_of([whole], groups), may_refer=False)
        _, part = snapshot_and_complete(tables, checkpoints, 2)
        tables.close()
        name, stream = max(part.segments.items(), key=lambda segment: segment[1].size)
        content = content_of(stream)
        if number == damaged:
            content = flip_bit(content, (1 + 4 * number) * len(content) // 8)  # a row of that half
        stored = tmp_path / f"stored-{number}"
        handles.append(in_file(part, name, content, stored))
        (host / name).hardlink_to(stored)  # as it is where storage is on the host's disk
    with pytest.raises(CheckpointCorruptedError, match=f"stored-{damaged}"):
        read_rows(RocksDBStateTables(ALL, handles, directory=str(host)).table(NUMBER))


def test_damage_is_not_copied_from_a_savepoint_into_a_checkpoint(
    tmp_path: Path, checkpoints: KeyedCheckpoints
) -> None:
    whole = store_numbers(checkpoints, range(1000))
    ((name, stream),) = whole.segments.items()
    content = content_of(stream)
    (tmp_path / name).write_bytes(flip_bit(content, len(content) // 3))  # not read yet
    tables = RocksDBStateTables(ALL, [whole], directory=str(tmp_path), may_refer=False)
    _, copied = snapshot_and_complete(tables, checkpoints, 2)
    tables.close()
    assert restore_rows(copied, Path(QUICK_DISK)) == multiples(range(1000))


def test_invalid_or_newer_manifest_is_refused(checkpoints: KeyedCheckpoints) -> None:
    whole = store_numbers(checkpoints, range(10))
    content = content_of(whole.manifest)
    for damaged in (content[:12], content[:-1], content[:40] + b"x" + content[41:]):
        handle = msgspec.structs.replace(whole, manifest=ByteStreamStateHandle(damaged))
        with pytest.raises(CheckpointCorruptedError, match="manifest"):
            RocksDBStateTables(ALL, [handle], directory=QUICK_DISK)
    lacking = msgspec.structs.replace(whole, segments={})
    with pytest.raises(CheckpointCorruptedError, match="which its handle doesn't have"):
        RocksDBStateTables(ALL, [lacking], directory=QUICK_DISK)
    with pytest.raises(UnsupportedFormatError, match="RocksDB"):
        read_tables([whole], ALL)
