"""Rows of a micro-batch that are more than Arrow holds in one array."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from holdfast.backends.arrow import gather, take_rows

BOUND = "holdfast.backends.arrow.batches.MAX_BATCH_BYTES"


def batch(first: int, count: int) -> pa.RecordBatch:
    numbers = list(range(first, first + count))
    texts = pa.array([f"text {n}" for n in numbers], pa.string())
    return pa.record_batch({"n": pa.array(numbers, pa.int64()), "text": texts})


def test_gathered_batches_stay_below_the_bounds(monkeypatch: Any) -> None:
    batches = [batch(0, 3), batch(3, 0), batch(3, 4), batch(7, 1)]
    (whole,) = gather(batches)
    assert whole["n"].to_pylist() == list(range(8))
    assert [part.num_rows for part in gather(batches, max_rows=7)] == [7, 1]
    monkeypatch.setattr(BOUND, batches[2].nbytes + 1)
    assert [part.num_rows for part in gather(batches)] == [3, 4, 1]
    assert list(gather([batches[1]])) == []


@pytest.mark.parametrize("bound", [1, 100, 1 << 30])
def test_rows_are_taken_in_order_from_all_parts(monkeypatch: Any, bound: int) -> None:
    monkeypatch.setattr(BOUND, bound)
    choose = np.random.default_rng(0)
    for lengths in ([10], [3, 0, 4, 3], [0, 10]):
        ends = np.cumsum(lengths)
        parts = [
            batch(int(end) - length, length) for end, length in zip(ends, lengths, strict=True)
        ]
        for rows in (choose.integers(0, 10, 25), np.arange(10), np.empty(0, np.int64)):
            batches = list(take_rows(parts, rows))
            assert pa.Table.from_batches(batches)["n"].to_pylist() == rows.tolist()
            assert len(batches) == 1 or bound < 1 << 30


# It takes 4 GB of memory.
@pytest.mark.exhaustive
def test_rows_beyond_one_batch_become_several() -> None:
    texts = ["x" * (100 << 20), *["y"] * 1000]  # of an average row there is room for all
    rows = pa.record_batch({"text": texts})
    lengths = [batch.num_rows for batch in take_rows([rows], np.zeros(25, np.int64))]
    assert len(lengths) > 1
    assert sum(lengths) == 25
