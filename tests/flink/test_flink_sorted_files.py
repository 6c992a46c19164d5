"""Entries of RocksDB's files that are equally long, which are read many at a time, however they are laid out."""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from contracts.flink_kinds import (
    INT,
    LONG,
    NO_NAMESPACE,
    STRING,
    TIMER,
    Kind,
    composite,
    list_of,
    tuple_of,
)
from contracts.flink_savepoints import (
    Subtask,
    entry_key,
    incremental,
    info,
    inline,
    keyed_description,
    keyed_info,
    metadata,
)
from contracts.flink_sorted_files import DELETION, VALUE, Entry, Layout, sorted_file
from hypothesis import given
from hypothesis import strategies as st

from holdfast import flink
from holdfast.errors import CheckpointError

GROUPS = 3
LAYOUTS = st.builds(
    Layout,
    block_entries=st.sampled_from([1, 7, 50, 1000]),
    restart_interval=st.one_of(st.integers(1, 16), st.just(100)),
    max_shared=st.sampled_from([0, 3, 127]),
)
GROUP = st.integers(0, GROUPS - 1)
# Adjacent numbers share most of their bytes, and others few; keys may end in zeros.
NUMBERS = st.one_of(st.integers(0, 300), st.sampled_from([1 << 40, 256 << 40, (1 << 63) - 1]))
KEYS = [
    pytest.param(LONG, lambda number: number, id="longs"),
    # More than the 127 bytes whose number takes a byte.
    pytest.param(
        tuple_of(*[LONG] * 16),
        lambda number: {f"f{at}": number for at in range(16)},
        id="long keys",
    ),
    pytest.param(STRING, str, id="texts"),
]


def open_job(directory: Path, files: Sequence[bytes], description: bytes) -> flink.FlinkSavepoint:
    streams = {f"{number}.sst": inline(data) for number, data in enumerate(files)}
    handle = incremental(0, GROUPS, inline(description), streams)
    directory.mkdir(exist_ok=True)
    (directory / "_metadata").write_bytes(metadata({"job": {0: Subtask(keyed=handle)}}))
    return flink.open_savepoint(directory)


def read(
    directory: Path, files: Sequence[bytes], key: Kind, value: Kind, kind: str = "VALUE"
) -> list[tuple[int, Any, Any]] | None:
    """Return groups, keys and values, or None for corrupted files."""
    description = keyed_description(key.snapshot, [keyed_info("state", kind, value.snapshot)])
    try:
        table = open_job(directory, files, description).read_state("job", "state")
    except CheckpointError:
        return None
    return list(zip(*(table.column(name).to_pylist() for name in table.column_names), strict=True))


def key_of(group: int, key: Kind, content: Any) -> bytes:
    return entry_key(group, key, content, NO_NAMESPACE, None)


def numbered_entries(count: int) -> list[Entry]:
    return [Entry(key_of(0, LONG, number), LONG.encode(-number)) for number in range(count)]


@pytest.mark.parametrize(("key", "content"), KEYS)
@given(
    files=st.lists(
        st.tuples(
            st.dictionaries(
                st.tuples(GROUP, NUMBERS),
                st.tuples(st.sampled_from([VALUE] * 9 + [DELETION]), LONG.values),
                min_size=1,
                max_size=60,
            ),
            LAYOUTS,
        ),
        min_size=1,
        max_size=3,
    )
)
def test_the_newest_values_are_read_of_files_of_any_layout(
    key: Kind, content: Any, files: list[Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    expected: dict[tuple[int, int], int] = {}
    written = []
    for sequence, (changes, layout) in enumerate(files, 1):
        entries = []
        for (group, number), (kind, value) in changes.items():
            data = LONG.encode(value) if kind == VALUE else b""
            entries.append(Entry(key_of(group, key, content(number)), data, sequence, kind))
            if kind == VALUE:
                expected[group, number] = value
            else:
                expected.pop((group, number), None)
        written.append(sorted_file("state", entries, layout))
    directory = tmp_path_factory.mktemp("files")
    rows = read(directory, written, key, LONG)
    assert rows is not None
    values = {
        key_of(group, key, content(number)): value for (group, number), value in expected.items()
    }
    assert [value for _, _, value in rows] == [values[name] for name in sorted(values)]
    names = [key_of(group, key, name) for group, name, _ in rows]
    assert names == sorted(values)


@given(numbers=st.sets(NUMBERS, min_size=1, max_size=40), layout=LAYOUTS, other=st.integers(0, 39))
def test_a_key_of_another_length_among_others_is_damage(
    numbers: set[int], layout: Layout, other: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    entries = [Entry(key_of(0, LONG, number), LONG.encode(number)) for number in numbers]
    odd = entries[other % len(entries)]
    entries[other % len(entries)] = Entry(odd.key + b"\0", odd.value)
    data = sorted_file("state", entries, layout)
    assert read(tmp_path_factory.mktemp("file"), [data], LONG, LONG) is None


@given(
    layout=LAYOUTS,
    damage=st.lists(
        st.tuples(st.integers(0, 1 << 12), st.integers(0, 255)), min_size=1, max_size=3
    ),
)
def test_corrupted_bytes_raise_errors_or_match_single_reads(
    layout: Layout, damage: list[tuple[int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = sorted_file("state", numbered_entries(60), layout, damage)
    directory = tmp_path_factory.mktemp("file")
    rows = read(directory, [data], LONG, LONG)
    # Values of lists aren't equally long by their description: they are read entry by entry.
    lists = read(directory, [data], LONG, list_of(LONG), "LIST")
    if rows is not None:
        assert lists == [(group, key, [value]) for group, key, value in rows]
    else:
        # A key of a later group hides the rest, so that further corruption isn't found entry by entry.
        assert lists is None or len(lists) < 60 or any(len(values) != 1 for *_, values in lists)


def test_values_of_other_lengths_than_described_are_damage(tmp_path: Path) -> None:
    data = sorted_file("state", numbered_entries(100), Layout())
    assert read(tmp_path, [data], LONG, LONG) is not None
    assert read(tmp_path, [data], LONG, INT) is None


@pytest.mark.parametrize(
    "restarts", [[], [1], [0], [0, 0], [5, 0], [0, 1 << 31], [0, (1 << 32) - 1]]
)
def test_misplaced_restarts_change_nothing(restarts: list[int], tmp_path: Path) -> None:
    right = sorted_file("state", numbered_entries(30), Layout(restart_interval=5))
    wrong = sorted_file(
        "state", numbered_entries(30), Layout(restart_interval=5, restarts=restarts)
    )
    assert read(tmp_path, [wrong], LONG, LONG) == read(tmp_path, [right], LONG, LONG) is not None


def test_timers_without_values_are_read(tmp_path: Path) -> None:
    name, times = "_timer_state/event_timers", range(100)
    value = composite(TIMER, LONG.snapshot, NO_NAMESPACE.snapshot)
    timers = info(name, 3, serializers={"VALUE_SERIALIZER": value})
    entries = [
        Entry(b"\1" + struct.pack(">Q", time + (1 << 63)) + LONG.encode(7) + b"\0", b"")
        for time in times
    ]
    description = keyed_description(LONG.snapshot, [timers])
    table = open_job(tmp_path, [sorted_file(name, entries, Layout())], description).timers("job")
    assert table.column("timestamp").to_pylist() == list(times)
    assert set(table.column("key").to_pylist()) == {7}
    assert set(table.column("key_group").to_pylist()) == {1}
