"""The demo's comparison finds all damage."""

from pathlib import Path

import pyarrow as pa
import pytest

from examples.demo.check import OutputFile, blind_spots, file_differences, row_differences

ROWS = pa.table({"a": [1, 1, 2, None], "b": ["x", "x", None, "y"]})


def test_equal_rows_in_any_order_do_not_differ() -> None:
    assert row_differences(ROWS, ROWS.take([3, 1, 0, 2])) == []


@pytest.mark.parametrize(
    ("output", "word"),
    [
        (ROWS.slice(1), "missing"),
        (pa.concat_tables([ROWS, ROWS.slice(0, 1)]), "too often"),
        (pa.concat_tables([ROWS.slice(1), ROWS.slice(2, 1)]), "missing"),
        (ROWS.set_column(1, "b", pa.array(["x", "x", "z", "y"])), "changed"),
        (ROWS.select(["a"]), "columns differ"),
    ],
    ids=["lost", "doubled", "replaced", "altered", "column gone"],
)
def test_damaged_rows_differ(output: pa.Table, word: str) -> None:
    assert word in " ".join(row_differences(ROWS, output))


@pytest.mark.parametrize(
    ("files", "wrong"),
    [
        ([(0, 0, 10), (1, 1, 10)], 0),
        ([(0, 0, 10), (9, 0, 3), (9, 1, 4)], 0),  # the rest, one file a subtask
        ([(0, 0, 9)], 1),
        ([(9, 0, 3), (9, 0, 4)], 2),
        ([(9, 0, 11)], 1),
        ([(9, 0, 0)], 1),
    ],
)
def test_files_of_another_size_differ(files: list[tuple[int, int, int]], wrong: int) -> None:
    output_files = [OutputFile(Path(f"{i}"), *output_file) for i, output_file in enumerate(files)]
    assert len(file_differences(output_files, rows_per_file=10, last_batch=9)) == wrong


def test_self_check_of_the_demo_passes() -> None:
    table = pa.table({"id": [1, 2, 3], "dep_delay": [1.0, 2.0, None]})
    assert blind_spots(table, "dep_delay") == []
