"""State of any size goes through the memory that a key group takes: what is measured is Arrow's memory and Python's."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from contracts.flink_kinds import LONG, NO_NAMESPACE, SIMPLE, STRING, i2, i4
from contracts.flink_savepoints import (
    Subtask,
    canonical_group,
    entry_key,
    key_groups,
    keyed_description,
    keyed_info,
    list_states,
    metadata,
    relative,
)
from hypothesis import given
from hypothesis import strategies as st

from holdfast import flink
from holdfast.backends.keys import flink_key_groups
from holdfast.flink.serializers import hash_codes
from holdfast.flink.spilled_rows import SpilledRows, SpillFile

BINARY = next(kind for kind in SIMPLE if kind.type == pa.binary())
TEXT = "x" * 8000
KEYS = 6000
BYTES = KEYS * len(TEXT)
"""The bytes of all values, 48 MB; a key group has some 375 KB."""


def savepoint(directory: Path, form: str) -> flink.FlinkSavepoint:
    """A text for each of many keys, or as many elements of a list."""
    value = STRING.encode(TEXT)
    if form == "list":
        states = list_states({"v": (BINARY, [TEXT.encode() * 25] * (KEYS // 60))})
        (directory / "_metadata").write_bytes(metadata({"job": {0: Subtask(operator=states)}}))
        return flink.open_savepoint(directory)
    codes = hash_codes.of_longs(pa.array(range(KEYS), pa.int64()))
    of_keys = flink_key_groups(codes, 128).tolist()
    data = keyed_description(LONG.snapshot, [keyed_info("v", "VALUE", STRING.snapshot)])
    offsets = []
    with (directory / "keyed").open("wb") as file:
        file.write(data)
        for group in range(128):
            offsets.append(file.tell())
            own = [key for key, of_key in enumerate(of_keys) if of_key == group]
            if form == "heap":
                rows = b"".join(b"\0" + LONG.encode(key) + value for key in own)
                file.write(i4(group) + i2(0) + i4(len(own)) + rows)
            else:
                entries = [(entry_key(group, LONG, key, NO_NAMESPACE, None), value) for key in own]
                file.write(canonical_group({0: entries}))
        stream = relative("keyed", file.tell())
    handle = key_groups(3, 0, offsets, stream)
    (directory / "_metadata").write_bytes(metadata({"job": {0: Subtask(keyed=handle)}}))
    return flink.open_savepoint(directory)


def peak_of(work: Callable[[], object]) -> int:
    """The most memory that a work has at a time besides what there was before, in objects of Python and of Arrow."""
    own = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(own)
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1] + (pool.max_memory() or 0)
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(own)


@pytest.mark.parametrize(
    ("form", "limit"), [("canonical", BYTES // 8), ("heap", BYTES // 8), ("list", BYTES // 2)]
)
def test_a_state_is_read_a_key_group_or_a_block_at_a_time(
    form: str, limit: int, tmp_path: Path
) -> None:
    open_job = savepoint(tmp_path, form)
    open_job.states()
    counts: list[int] = []

    def read() -> None:
        counts.extend(map(len, open_job.iter_state("job", "v")))

    assert peak_of(read) < limit
    assert sum(counts) == (KEYS // 60 if form == "list" else KEYS)
    assert len(counts) > 1


def test_state_is_imported_and_exported_in_less_memory_than_it_takes(tmp_path: Path) -> None:
    open_job = savepoint(tmp_path, "canonical")
    open_job.states()
    pointers: list[str] = []
    ours, back_to = f"file://{tmp_path}/ours", f"file://{tmp_path}/back"
    assert peak_of(lambda: pointers.append(flink.import_savepoint(open_job, ours))) < BYTES
    # Besides there are the steps in which our own state is read: 128 MB, which is more than there is here.
    step = 3 * BYTES
    exported = peak_of(lambda: pointers.append(flink.export_savepoint(pointers[0], back_to)))
    assert exported < step + BYTES // 2
    back = flink.open_savepoint(pointers[1], uids=["job"])
    assert sum(map(len, back.iter_state("job", "v", check_keys=True))) == KEYS


ROWS = pa.schema([("number", pa.int64()), ("text", pa.string())])


@given(data=st.data())
def test_spilled_rows_come_in_the_order_of_their_groups(data: st.DataObject) -> None:
    groups = data.draw(st.integers(1, 9))
    file = SpillFile()
    spilled = SpilledRows(ROWS, groups, file, run_bytes=data.draw(st.integers(1, 200)))
    expected: list[list[int]] = [[] for _ in range(groups)]
    number = 0
    for batch in data.draw(st.lists(st.lists(st.integers(0, groups - 1)), max_size=5)):
        numbers = range(number, number + len(batch))
        number += len(batch)
        for row, group in zip(numbers, batch, strict=True):
            expected[group].append(row)
        columns = [pa.array(numbers, pa.int64()), pa.array([f"{row}" for row in numbers])]
        spilled.add(pa.record_batch(columns, schema=ROWS), np.array(batch, np.int64))
    spilled.finish()
    assert spilled.count == number
    middle = data.draw(st.integers(0, groups))
    for _ in range(2):  # reading from the start returns all rows again
        read: list[list[int]] = [[] for _ in range(groups)]
        for first, end in ((0, middle), (middle, groups)):
            for group, rows in spilled.by_group(first, end):
                assert first <= group < end
                read[group] += rows.column("number").to_pylist()
                assert rows.column("text").to_pylist() == [f"{row}" for row in read[group]]
        assert read == expected
