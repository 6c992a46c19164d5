"""Many entries of a key group are decoded at once, and are what they would be one by one."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from contracts.flink_kinds import (
    LONG,
    NO_NAMESPACE,
    STRING,
    Kind,
    i8,
    list_of,
    map_of,
    string,
    tuple_of,
    with_last_access,
)
from contracts.flink_savepoints import (
    Subtask,
    canonical_group,
    entry_key,
    keyed_description,
    keyed_info,
    keyed_stream,
    metadata,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import flink
from holdfast.errors import CheckpointCorruptedError

GROUP = 1
TEXTS = st.one_of(
    st.text(st.characters(codec="ascii"), max_size=140),
    st.text(max_size=40),
    st.text(st.characters(min_codepoint=0x7F, max_codepoint=0x4100), max_size=3),
)


def read(
    directory: Path, key: Kind, type: str, value: Kind, entries: Sequence[tuple[bytes, bytes]]
) -> list[dict[str, Any]]:
    description = keyed_description(key.snapshot, [keyed_info("v", type, value.snapshot)])
    stream = keyed_stream(description, [b"", canonical_group({0: entries})])
    (directory / "_metadata").write_bytes(metadata({"job": {0: Subtask(keyed=stream)}}))
    rows: list[dict[str, Any]] = flink.open_savepoint(directory).read_state("job", "v").to_pylist()
    return rows


def key_of(kind: Kind, key: Any) -> bytes:
    return entry_key(GROUP, kind, key, NO_NAMESPACE, None)


def test_many_entries_of_one_length_are_read_as_columns(tmp_path: Path) -> None:
    keys = range(-5000, 5000)
    states: dict[int, Any] = {
        0: [(b"\1" + i8(key) + b"\0", i8(key * key)) for key in keys],
        1: [(b"\1" + i8(key) + b"\0", string(str(key))) for key in keys],
    }
    infos = [
        keyed_info("numbers", "VALUE", LONG.snapshot),
        keyed_info("texts", "VALUE", STRING.snapshot),
    ]
    description = keyed_description(LONG.snapshot, infos)
    stream = keyed_stream(description, [b"", canonical_group(states)])
    (tmp_path / "_metadata").write_bytes(metadata({"job": {0: Subtask(keyed=stream)}}))
    savepoint = flink.open_savepoint(tmp_path)
    numbers, texts = (
        savepoint.read_state("job", name).to_pydict() for name in ("numbers", "texts")
    )
    assert numbers["key"] == texts["key"] == list(keys)
    assert numbers["value"] == [key * key for key in keys]
    assert texts["value"] == list(map(str, keys))


@settings(max_examples=25)  # each draws many texts
@given(
    texts=st.lists(TEXTS, min_size=16, max_size=24),
    values=st.lists(st.one_of(st.none(), TEXTS), min_size=16, max_size=24),
    has_times=st.booleans(),
)
def test_many_texts_are_read_as_they_are(
    texts: list[str],
    values: list[str | None],
    has_times: bool,  # noqa: FBT001
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    kind = with_last_access(STRING) if has_times else STRING
    entries, expected = [], []
    for number, (text, value) in enumerate(zip(texts, values, strict=False)):
        data = i8(number) + string(value) if has_times else string(value)
        entries.append((key_of(STRING, text), data))
        expected.append((text, value))
    rows = read(tmp_path_factory.mktemp("texts"), STRING, "VALUE", kind, entries)
    shown = [row["value"]["value"] if has_times else row["value"] for row in rows]
    assert list(zip([row["key"] for row in rows], shown, strict=True)) == expected


@given(
    texts=st.lists(TEXTS.filter(bool), min_size=16, max_size=20),
    number=st.integers(0, 15),
    data=st.data(),
)
def test_corrupted_string_among_many_is_refused_or_differs(
    texts: list[str], number: int, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    entries = [(key_of(LONG, key), string(text)) for key, text in enumerate(texts)]
    key, value = entries[number]
    changed = bytearray(value)
    changed[data.draw(st.integers(0, len(value) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    only_entry = [(key, bytes(changed))]
    entries[number] = only_entry[0]
    directory = tmp_path_factory.mktemp("damaged")
    try:
        [row] = read(directory, LONG, "VALUE", STRING, only_entry)
    except CheckpointCorruptedError:
        with pytest.raises(CheckpointCorruptedError):
            read(directory, LONG, "VALUE", STRING, entries)
        return
    rows = read(directory, LONG, "VALUE", STRING, entries)
    texts[number] = row["value"]
    assert [each["value"] for each in rows] == texts


@given(lists=st.lists(st.lists(LONG.values, min_size=1, max_size=9), min_size=1, max_size=20))
def test_lists_of_numbers_are_read_whatever_bytes_they_have(
    lists: list[list[int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    entries = [(key_of(LONG, key), b",".join(map(i8, own))) for key, own in enumerate(lists)]
    rows = read(tmp_path_factory.mktemp("lists"), LONG, "LIST", list_of(LONG), entries)
    assert [row["value"] for row in rows] == lists


def test_list_with_misplaced_element_end_is_corruption(tmp_path: Path) -> None:
    entries = [(key_of(LONG, 1), i8(1) + b"." + i8(2))]
    with pytest.raises(CheckpointCorruptedError):
        read(tmp_path, LONG, "LIST", list_of(LONG), entries)


def test_tuples_of_numbers_are_keys_and_values(tmp_path: Path) -> None:
    pair = tuple_of(LONG, tuple_of(LONG, LONG))
    rows = [{"f0": n, "f1": {"f0": -n, "f1": n * n}} for n in range(50)]
    entries = [(key_of(pair, row), pair.encode(row)) for row in rows]
    table = read(tmp_path, pair, "VALUE", pair, entries)
    assert [(row["key"], row["value"]) for row in table] == [(row, row) for row in rows]


def test_many_entries_of_maps_are_read(tmp_path: Path) -> None:
    kind = map_of(STRING, LONG)
    entries = [
        (key_of(STRING, f"é{key}") + string(f"{number}ü"), b"\0" + i8(number))
        for key in range(20)
        for number in range(key + 1)
    ]
    rows = read(tmp_path, STRING, "MAP", kind, entries)
    assert [(row["key"], row["value"]) for row in rows] == [
        (f"é{key}", [(f"{number}ü", number) for number in range(key + 1)]) for key in range(20)
    ]
