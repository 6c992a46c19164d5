"""Does the output hold the source, row by row, in files of the right size?"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from examples.demo.runs import Run

_TIMES = "times"


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A Parquet file that the sink has written.

    Attributes:
        path: Where it is.
        batch: The micro-batch that wrote it.
        subtask: The subtask that wrote it.
        rows: Number of its rows.
    """

    path: Path
    batch: int
    subtask: int
    rows: int


def output_files(directory: Path) -> list[OutputFile]:
    """All files of the output, in the order of their batches."""
    files = []
    for path in directory.glob("batch=*/subtask=*/*.parquet"):
        batch, subtask = (int(name.partition("=")[2]) for name in path.parts[-3:-1])
        rows = pyarrow.parquet.read_metadata(path).num_rows
        files.append(OutputFile(path, batch, subtask, rows))
    return sorted(files, key=lambda file: (file.batch, file.subtask, file.path))


def read_output(files: Sequence[OutputFile]) -> pa.Table:
    """The rows of all files."""
    tables = [pyarrow.parquet.ParquetFile(file.path).read() for file in files]
    return pa.concat_tables(tables) if tables else pa.table({})


def row_differences(source: pa.Table, output: pa.Table) -> list[str]:
    """Return the differences of two tables as sentences; empty if they are equal.

    Whole rows are compared, nulls included, and how often each is there. Their order is free.
    """
    try:
        output = output.cast(source.schema)  # Spark has other units of time than the CSV reader
    except ValueError as error:  # raised too if a value would change by it
        return [f"the columns differ: {error}"]
    both = pa.concat_tables(
        [
            source.append_column(_TIMES, pa.repeat(1, len(source))),
            output.append_column(_TIMES, pa.repeat(-1, len(output))),
        ]
    )
    balance = both.group_by(source.column_names).aggregate([(_TIMES, "sum")])
    times = balance[f"{_TIMES}_sum"]
    differences = []
    for problem, differs in (
        ("missing", pc.greater(times, 0)),
        ("there too often, or changed", pc.less(times, 0)),
    ):
        rows = balance.filter(differs)
        if len(rows):
            number = abs(pc.sum(rows[f"{_TIMES}_sum"]).as_py())
            example = rows.select(source.column_names).slice(0, 1).to_pylist()[0]
            differences.append(f"{number:,} rows are {problem}, such as {example}")
    return differences


def file_differences(
    files: Sequence[OutputFile], *, rows_per_file: int, last_batch: int
) -> list[str]:
    """Return the files with a wrong size, as sentences; empty if all are right.

    The rest of the rows may make one smaller file per subtask, in the last batch.
    """
    odd = [file for file in files if file.rows != rows_per_file]
    rests = Counter(
        file.subtask for file in odd if file.batch == last_batch and 0 < file.rows < rows_per_file
    )
    wrong = [
        file
        for file in odd
        if file.batch != last_batch or not 0 < file.rows < rows_per_file or rests[file.subtask] > 1
    ]
    return [f"{file.path} has {file.rows:,} rows, not {rows_per_file:,}" for file in wrong]


def run_differences(runs: Sequence[Run]) -> list[str]:
    """Return the runs that resumed from a wrong checkpoint after a kill, as sentences; empty if all were right."""
    differences = []
    for number, (before, after) in enumerate(pairwise(runs), start=2):
        if before.kill is None:
            continue
        if after.log.restored != before.kill.checkpoint:
            differences.append(
                f"run {number} resumed from checkpoint {after.log.restored}, "
                f"not from {before.kill.checkpoint}"
            )
        if after.log.skipped != before.kill.skipped:
            differences.append(
                f"run {number} skipped batches {after.log.skipped}, not {before.kill.skipped}"
            )
    hit = {run.kill.stage for run in runs if run.kill and run.kill.stage.in_batch}
    if len(hit) < 2:
        differences.append(
            f"{len(hit)} kill points were hit in the middle of a batch, at least 2 wanted"
        )
    return differences


def blind_spots(table: pa.Table, column: str) -> list[str]:
    """Damage that `row_differences` does not see, as sentences; it must see all of it.

    Args:
        table: It is damaged, or its first rows are.
        column: One that has values.
    """
    sample = table.slice(0, 1000)
    first, rest = sample.slice(0, 1), sample.slice(1)
    position = first.column_names.index(column)
    emptied = first.set_column(
        position, first.schema.field(position), pa.nulls(1, first.schema.field(position).type)
    )
    damaged = {
        "a lost row": rest,
        "a doubled row": pa.concat_tables([sample, first]),
        "a row in place of another": pa.concat_tables([rest, rest.slice(0, 1)]),
        "a value that became null": pa.concat_tables([emptied, rest]),
    }
    blind = [name for name, rows in damaged.items() if not row_differences(sample, rows)]
    if row_differences(sample, sample.take(list(reversed(range(len(sample)))))):
        blind.append("equal rows in another order")
    return [f"the comparison does not recognise {name}" for name in blind]
