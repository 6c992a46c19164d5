"""Files that RocksDB itself has written, and what Flink keeps in them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import rocksdict
from contracts.flink_kinds import LONG, NO_NAMESPACE, STRING, i8, string
from contracts.flink_savepoints import (
    Subtask,
    entry_key,
    incremental,
    inline,
    keyed_description,
    keyed_info,
    metadata,
    relative,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import flink
from holdfast.errors import CheckpointCorruptedError

GROUPS = 4
COMPRESSIONS = ["none", "snappy", "zlib", "lz4", "zstd"]
LONG_VALUES = keyed_info("longs", "VALUE", LONG.snapshot)
TEXT_VALUES = keyed_info("texts", "VALUE", STRING.snapshot)
DESCRIPTION = keyed_description(LONG.snapshot, [LONG_VALUES, TEXT_VALUES])


def options(compression: str = "snappy", *, version: int = 5, index: str = "binary") -> Any:
    chosen = rocksdict.Options(raw_mode=True)
    chosen.create_if_missing(True)
    chosen.create_missing_column_families(True)
    chosen.set_disable_auto_compactions(True)
    chosen.set_compression_type(getattr(rocksdict.DBCompressionType, compression)())
    table = rocksdict.BlockBasedOptions()
    table.set_format_version(version)
    table.set_block_size(256)
    table.set_checksum_type(rocksdict.ChecksumType.crc32c())
    if index == "two levels":
        table.set_index_type(rocksdict.BlockBasedIndexType.two_level_index_search())
        table.set_metadata_block_size(64)
    chosen.set_block_based_table_factory(table)
    return chosen


class Database:
    """A database of two states, whose files become a checkpoint."""

    def __init__(self, directory: Path, **extra: Any) -> None:
        self.directory = directory
        families = {name: options(**extra) for name in ("longs", "texts")}
        self.database = rocksdict.Rdict(str(directory), options(**extra), families)
        self.longs = self.database.get_column_family("longs")
        self.texts = self.database.get_column_family("texts")

    def flush(self) -> None:
        for family in (self.longs, self.texts):
            family.flush()

    def close(self) -> dict[str, bytes]:
        """The files."""
        self.flush()
        self.longs.close()
        self.texts.close()
        self.database.close()
        return {file.name: file.read_bytes() for file in self.directory.glob("*.sst")}


def open_job(
    directory: Path, files: Mapping[str, bytes], *, first: int = 0, count: int = GROUPS
) -> flink.FlinkSavepoint:
    directory.mkdir(exist_ok=True)
    for name, data in files.items():
        (directory / name).write_bytes(data)
    streams = {name: relative(name, len(data)) for name, data in files.items()}
    others = {"MANIFEST-000004": inline(b"not looked at")}
    handle = incremental(first, count, inline(DESCRIPTION), streams | others)
    (directory / "_metadata").write_bytes(metadata({"job": {0: Subtask(keyed=handle)}}))
    return flink.open_savepoint(directory)


def key_of(group: int, number: int) -> bytes:
    return entry_key(group, LONG, number, NO_NAMESPACE, None)


STEP = st.one_of(
    st.tuples(st.just("put"), st.integers(0, GROUPS - 1), st.integers(0, 9), LONG.values),
    st.tuples(st.just("delete"), st.integers(0, GROUPS - 1), st.integers(0, 9), st.none()),
    st.tuples(st.just("delete range"), st.integers(0, GROUPS - 1), st.integers(0, 9), st.none()),
    st.tuples(st.just("flush"), st.none(), st.none(), st.none()),
)


@settings(max_examples=12)  # each makes a database
@given(
    steps=st.lists(STEP, max_size=30),
    compression=st.sampled_from(COMPRESSIONS),
    index=st.sampled_from(["binary", "two levels"]),
)
def test_the_newest_value_of_each_key_is_read(
    steps: list[Any], compression: str, index: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("rocksdb")
    database = Database(directory / "db", compression=compression, index=index)
    expected: dict[tuple[int, int], int] = {}
    for step, group, number, value in steps:
        if step == "put":
            database.longs[key_of(group, number)] = i8(value)
            expected[group, number] = value
        elif step == "delete":
            del database.longs[key_of(group, number)]
            expected.pop((group, number), None)
        elif step == "delete range":
            database.longs.delete_range(key_of(group, number), key_of(group, number + 3))
            for other in range(number, number + 3):
                expected.pop((group, other), None)
        else:
            database.flush()
    table = open_job(directory / "savepoint", database.close()).read_state("job", "longs")
    rows = [
        {"key_group": group, "key": number, "value": value}
        for (group, number), value in sorted(expected.items())
    ]
    assert table.to_pylist() == rows


@pytest.mark.parametrize("index", ["binary", "two levels"])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_states_of_many_blocks_are_read(compression: str, index: str, tmp_path: Path) -> None:
    database = Database(tmp_path / "db", compression=compression, index=index)
    for group in range(GROUPS):
        for number in range(200):
            database.longs[key_of(group, number)] = i8(group * 1000 + number)
            database.texts[key_of(group, number)] = string("text" * (number % 7))
    savepoint = open_job(tmp_path / "savepoint", database.close())
    longs = savepoint.read_state("job", "longs").to_pylist()
    assert [row["value"] for row in longs] == [
        group * 1000 + number for group in range(GROUPS) for number in range(200)
    ]
    texts = savepoint.read_state("job", "texts").column("value").to_pylist()
    assert texts == ["text" * (number % 7) for number in range(200)] * GROUPS


def test_keys_of_other_key_groups_are_left_out(tmp_path: Path) -> None:
    database = Database(tmp_path / "db")
    for group in range(GROUPS):
        database.longs[key_of(group, 1)] = i8(group)
    savepoint = open_job(tmp_path / "savepoint", database.close(), first=1, count=2)
    assert savepoint.read_state("job", "longs").column("key_group").to_pylist() == [1, 2]


def test_files_of_unknown_version_are_reported(tmp_path: Path) -> None:
    database = Database(tmp_path / "db", version=6)
    database.longs[key_of(0, 1)] = i8(1)
    [row] = open_job(tmp_path / "savepoint", database.close()).states().to_pylist()
    assert "version 6" in row["failure"]
    assert "canonical savepoint" in row["failure"]


def test_block_with_wrong_checksum_is_refused(tmp_path: Path) -> None:
    database = Database(tmp_path / "db", compression="none")
    database.longs[key_of(0, 1)] = i8(0x1122334455667788)
    [(name, data)] = database.close().items()
    damaged = data.replace(i8(0x1122334455667788), i8(0x1122334455667789))
    savepoint = open_job(tmp_path / "savepoint", {name: damaged})
    with pytest.raises(CheckpointCorruptedError, match="checksum"):
        savepoint.read_state("job", "longs")
