"""Savepoints with damaged bytes: errors of Holdfast or other values, but nothing else, and in little memory."""

import struct
import tracemalloc
from pathlib import Path

import pytest
from contracts.flink_savepoints import (
    LONG,
    STRING,
    Subtask,
    canonical_group,
    each,
    i2,
    i4,
    i8,
    keyed_description,
    keyed_info,
    keyed_stream,
    list_of,
    list_states,
    map_of,
    metadata,
    pojo_of,
    row_of,
    snappy,
    string,
    tuple_of,
)
from hypothesis import given
from hypothesis import strategies as st

from holdfast import flink
from holdfast.errors import CheckpointError

NESTED = tuple_of(list_of(STRING), map_of(STRING, pojo_of(LONG, row_of(STRING, LONG))))
CONTENT = {
    "f0": ["a", "é"],
    "f1": [("k", {"f0": 1, "f1": {"kind": "+I", "f0": None, "f1": 2}}), ("l", None)],
}
INFOS = [
    keyed_info("nested", "VALUE", NESTED.snapshot),
    keyed_info("list", "LIST", list_of(LONG).snapshot),
    keyed_info("map", "MAP", map_of(STRING, LONG).snapshot),
]
KEY = b"\0" + i8(3) + b"\0"
CANONICAL = canonical_group(
    {
        0: [(KEY, NESTED.encode(CONTENT))],
        1: [(KEY, i8(1) + b"," + i8(2))],
        2: [(KEY + string("a"), b"\0" + i8(7))],
    }
)
HEAP = (
    i4(0)
    + i2(0)
    + each([b"\0" + i8(3) + NESTED.encode(CONTENT)])
    + i2(1)
    + each([b"\0" + i8(3) + each([i8(1), i8(2)])])
    + i2(2)
    + each([b"\0" + i8(3) + each([string("a") + b"\0" + i8(7)])])
)


def whole(form: str) -> bytes:
    compressed = form == "snappy"
    description = keyed_description(LONG.snapshot, INFOS, is_compressed=compressed)
    groups = [HEAP, i4(1)] if form == "heap" else [CANONICAL, b""]
    if compressed:
        groups = [snappy(CANONICAL), b""]
    states = list_states(
        {"texts": (STRING, ["a", "b"]), "n": (NESTED, [CONTENT])}, compressed=compressed
    )
    return metadata({"job": {0: Subtask(operator=states, keyed=keyed_stream(description, groups))}})


WHOLE = {form: whole(form) for form in ("canonical", "heap", "snappy")}


def read_all(directory: Path, content: bytes) -> int:
    """Read all that can be read; returns how many states could."""
    (directory / "_metadata").write_bytes(content)
    readable = 0
    try:
        savepoint = flink.open(directory)
        rows = [row for row in savepoint.states().to_pylist() if row["state"] is not None]
        savepoint.warnings()
    except CheckpointError:
        return 0
    for row in rows:
        try:
            savepoint.read_state(row["operator"], row["state"], kind=row["kind"])
            readable += 1
        except CheckpointError:
            continue
    return readable


@pytest.mark.parametrize("form", WHOLE)
def test_all_states_are_read_from_what_is_whole(form: str, tmp_path: Path) -> None:
    assert read_all(tmp_path, WHOLE[form]) == 5


@given(form=st.sampled_from(sorted(WHOLE)), data=st.data())
def test_other_bytes_give_errors_of_holdfast_alone(
    form: str, data: st.DataObject, tmp_path: Path
) -> None:
    content = bytearray(WHOLE[form])
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(content) - 1))
        content[position] = data.draw(st.integers(0, 255))
    read_all(tmp_path, bytes(content))


@given(form=st.sampled_from(sorted(WHOLE)), part=st.floats(0, 1, exclude_max=True))
def test_a_file_that_ends_early_gives_errors_of_holdfast_alone(
    form: str, part: float, tmp_path: Path
) -> None:
    read_all(tmp_path, WHOLE[form][: int(part * len(WHOLE[form]))])


@given(
    form=st.sampled_from(sorted(WHOLE)),
    position=st.floats(0, 1, exclude_max=True),
    number=st.sampled_from([-1, 0, 1, 1 << 16, 0x7FFFFFFF, -(1 << 31)]),
)
def test_counts_that_are_too_large_take_no_memory(
    form: str, position: float, number: int, tmp_path: Path
) -> None:
    at = int(position * (len(WHOLE[form]) - 4))
    content = WHOLE[form][:at] + struct.pack(">i", number) + WHOLE[form][at + 4 :]
    tracemalloc.start()
    try:
        read_all(tmp_path, content)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_serializers_in_each_other_without_end_are_refused(tmp_path: Path) -> None:
    kind = LONG
    for _ in range(100):
        kind = list_of(kind)
    states = list_states({"deep": (kind, []), "flat": (LONG, [1])})
    (tmp_path / "_metadata").write_bytes(metadata({"job": {0: Subtask(operator=states)}}))
    failures = flink.open(tmp_path).states().column("failure").to_pylist()
    assert "without end" in failures[0]


def test_handles_in_each_other_without_end_are_refused(tmp_path: Path) -> None:
    head = b"\x0e" + i4(0) + i4(2) + i8(0) + i4(1)
    content = metadata({"job": {0: Subtask(keyed=head * 5000)}})
    (tmp_path / "_metadata").write_bytes(content)
    with pytest.raises(CheckpointError, match="without end"):
        flink.open(tmp_path)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_lists_of_nothing_are_no_way_to_much_memory(size: int, tmp_path: Path) -> None:
    """An element of no bytes could be there any number of times."""
    empty = tuple_of()
    nested = list_of(list_of(empty))
    states = list_states({"v": (nested, [[[{}] * size] * size])})
    (tmp_path / "_metadata").write_bytes(metadata({"job": {0: Subtask(operator=states)}}))
    table = flink.open(tmp_path).read_state("job", "v")
    assert table.column("value").to_pylist() == [nested.encode([[{}] * size] * size)]
