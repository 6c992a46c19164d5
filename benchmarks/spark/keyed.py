"""Streams by key: Holdfast against Spark's own state in RocksDB. Most keep a count and a sum of each key.

The others drop duplicates: half of the rows of a batch are of keys with state, and half are of new keys.

    python -m benchmarks.spark.keyed [--keys 1000 100000] [--only aggregates] [--rounds 3]

In each round every query runs once over the same files in one Spark session: the first file has each key once, then keys
are uniform. The figure is the median period of a micro-batch in a round (Spark's `triggerExecution`), without the first
ones. Ratios are to Spark's query in the same round. The CPU time of a batch, of the driver, the JVM and all workers, is
printed as well, since other load on the machine affects it less; and the same without the JVM's compilers, which use much
of the time of such short queries, and none once a query has run for some minutes. For the class that processes frames the
CPU time of its code is printed, too, without state and Spark: pandas builds and sums frames there, at the same cost for
every side.

Spark's processors need a third of a millisecond to one millisecond per key, so their batches are smaller where there are
many keys. The last output is the table of README.
"""

import argparse
import itertools
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pyarrow as pa
import pyarrow.parquet
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState

import holdfast as hf
from benchmarks.spark.__main__ import measure, session
from benchmarks.spark.queries import PARALLELISM, Start, for_each_batch, shuffle
from holdfast import StatefulProcessor, StatefulProcessorHandle, keyed

_RESULT = "key long, n long, total double"
_STATE = "n long, total double"
_PARTITIONS = "spark.sql.shuffle.partitions"
_MANY = 200


class _Total(StatefulProcessor):
    """The common code of both processors."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._total: Any = handle.getValueState("total", _STATE)

    def close(self) -> None:
        """There is nothing to close."""

    def _add(self, key: tuple[int], n: int, amount: float) -> tuple[int, int, float]:
        before = self._total.get() or (0, 0.0)
        after = (before[0] + n, before[1] + amount)
        self._total.update(after)
        return (key[0], *after)


class RowTotal(_Total):
    """Takes rows one by one."""

    def handleInputRows(  # noqa: N802  # Spark's names
        self,
        key: tuple[int],
        rows: Iterator[Row],
        timerValues: object,  # noqa: ARG002, N803
    ) -> Iterator[Row]:
        n, amount = 0, 0.0
        for row in rows:
            n += 1
            amount += row.value
        key_, n, amount = self._add(key, n, amount)
        yield Row(key=key_, n=n, total=amount)


class FrameTotal(_Total):
    """Takes frames of pandas."""

    def handleInputRows(  # noqa: N802  # Spark's names
        self,
        key: tuple[int],
        rows: Iterator[pd.DataFrame],
        timerValues: object,  # noqa: ARG002, N803
    ) -> Iterator[pd.DataFrame]:
        n, amount = 0, 0.0
        for frame in rows:
            n += len(frame)
            amount += float(frame["value"].sum())
        key_, n, amount = self._add(key, n, amount)
        yield pd.DataFrame({"key": [key_], "n": [n], "total": [amount]})


def group_total(
    key: tuple[int], frames: Iterable[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    """Do the same as `FrameTotal`, in a function for `applyInPandasWithState`."""
    n, total = state.getOption or (0, 0.0)
    for frame in frames:
        n += len(frame)
        total += float(frame["value"].sum())
    state.update((n, total))
    yield pd.DataFrame({"key": [key[0]], "n": [n], "total": [total]})


@dataclass(frozen=True)
class Part:
    """A group of queries measured together.

    Attributes:
        group: The queries.
        keys: How many keys have state.
        rows: Rows of a batch.
        batches: Counted batches per round.
        rounds: Counted rounds.
        warm_up: Batches per round that are not counted; the first has each key once.
        first_rounds: Rounds that are not counted, in which the JVM compiles the code that all of them use.
        new_share: The share of rows with a new key.
    """

    group: str
    keys: int
    rows: int = 200_000
    batches: int = 6
    rounds: int = 3
    warm_up: int = 3
    first_rounds: int = 0
    new_share: float = 0.0

    @property
    def title(self) -> str:
        return f"{self.keys:,} keys, batches of {self.rows:,} rows"


_PARTS = [
    Part("aggregates", 1000, first_rounds=1),
    Part("rows", 1000, first_rounds=1),
    Part("frames", 1000, first_rounds=1),
    Part("functions", 1000, first_rounds=1),
    Part("aggregates", 100_000),
    Part("rows", 100_000, rows=20_000, batches=3, rounds=2, warm_up=2),
    Part("frames", 100_000, rows=20_000, batches=2, rounds=2, warm_up=2),
    Part("functions", 100_000, rows=20_000, batches=2, rounds=2, warm_up=2),
    Part("aggregates", 1_000_000, batches=4, rounds=2),
    Part("rows", 1_000_000, rows=1000, batches=20, rounds=1, warm_up=5),
    Part("small", 1000, rows=1000, batches=40, rounds=4, warm_up=10, first_rounds=1),
    Part("subtasks", 1000, rows=1000, batches=8, rounds=2, warm_up=4),
    Part("duplicates", 100_000, new_share=0.5, first_rounds=1),
    Part("duplicates", 1_000_000, new_share=0.5, rounds=2),
]


def main() -> None:
    """Measure and print."""
    sizes = sorted({part.keys for part in _PARTS})
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keys", type=int, choices=sizes, nargs="+", default=sizes)
    parser.add_argument("--only", choices=list(_GROUPS), nargs="+", default=list(_GROUPS))
    parser.add_argument("--rounds", type=int, help="counted rounds; default: depends on the size")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="holdfast-benchmark-"))
    spark = session(directory)
    table: list[str] = []
    try:
        for number, part in enumerate(_PARTS):
            if part.keys in options.keys and part.group in options.only:
                source = directory / f"source-{number}"
                feed(source, part)
                cpu = BatchCpu(part.warm_up)
                rounds = part.first_rounds + (options.rounds or part.rounds)
                queries = partial(_record_cpu, cpu, _GROUPS[part.group])
                periods = measure(spark, directory, source, queries, rounds, warm_up=part.warm_up)
                table += report(part, periods, cpu)
                shutil.rmtree(source)
    finally:
        spark.stop()
        shutil.rmtree(directory)
    print(
        "\n| | | events per second, ratio | CPU time, Spark / Holdfast | without the JVM's compilers |"
        "\n|---|---|---|---|---|"
    )
    print("\n".join(table))


def _record_cpu(cpu: "BatchCpu", group: dict[str, Start]) -> dict[str, Start]:
    return {name: partial(cpu.start, name, start) for name, start in group.items()}


class BatchCpu:
    """CPU time of this process and its descendants, the JVM and its workers included, batch by batch.

    Args:
        warm_up: How many batches of a query are not counted.
    """

    def __init__(self, warm_up: int) -> None:
        self._warm_up = warm_up
        self._used: dict[str, list[list[Used]]] = {}

    def start(self, name: str, start: Start, stream: DataFrame, checkpoint: str) -> Any:
        """Start a query, and record the CPU time so far whenever one of its batches is written."""
        used: list[Used] = []
        self._used.setdefault(name, []).append(used)
        _BATCH_WRITTEN[:] = [lambda: used.append(_read_usage())]
        return start(stream, checkpoint)

    def ms(self, name: str) -> list[float]:
        """The median of a batch by round."""
        return self._medians(name, lambda used: used.all_s)

    def ms_without_compilers(self, name: str) -> list[float]:
        """Return the medians without the JVM's compilers."""
        return self._medians(name, lambda used: used.all_s - used.compilers_s)

    def _medians(self, name: str, seconds: Callable[["Used"], float]) -> list[float]:
        return [
            1000 * statistics.median(seconds(b) - seconds(a) for a, b in itertools.pairwise(used))
            for used in (usages[self._warm_up - 1 :] for usages in self._used[name])
        ]


_BATCH_WRITTEN: list[Any] = []


@dataclass(frozen=True)
class Used:
    """CPU time of all processes up to now, and how much of it the JVM's compilers took."""

    all_s: float
    compilers_s: float


def _read_usage() -> Used:
    this = psutil.Process()
    used_s = compilers_s = 0.0
    for process in (this, *this.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        used_s += times.user + times.system + times.children_user + times.children_system
        if process.name() == "java":
            compilers_s += _compilers_s(process.pid)
    return Used(used_s, compilers_s)


def _compilers_s(pid: int) -> float:
    """Return the CPU time of the compiler threads of a JVM."""
    used_s = 0.0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            if _compiles(thread):
                used_s += int((thread / "schedstat").read_text().split()[0]) / 1e9
        except OSError:
            continue  # it has ended
    return used_s


@cache
def _compiles(thread: Path) -> bool:
    """Return whether a thread compiles, by its name; cached, since reading the names of all threads is slow."""
    return "CompilerThre" in (thread / "comm").read_text()


def feed(source: Path, part: Part) -> None:
    """Write the source: one file a micro-batch, the first with each key once."""
    source.mkdir(parents=True)
    random = np.random.default_rng(7)
    for number in range(part.warm_up + part.batches):
        batch = random.integers(0, part.keys, part.rows)
        new = int(part.new_share * part.rows)
        batch[:new] = part.keys + number * new + np.arange(new)
        random.shuffle(batch)
        if number == 0:
            batch = random.permutation(part.keys)
        table = pa.table({"key": batch, "value": random.random(len(batch))})
        pa.parquet.write_table(table, source / f"{number:05}.parquet")


class _NoState:
    """A state that is always empty."""

    def get(self) -> None:
        """Return no value."""

    def update(self, total: tuple[int, float]) -> None:
        """Drop the value."""


def own_ms(keys: int, rows: int) -> float:
    """Return the CPU milliseconds of `FrameTotal` itself per batch, estimated from a thousand keys with prepared frames."""
    random = np.random.default_rng(7)
    rows_by_key = np.bincount(random.integers(0, keys, rows), minlength=keys)
    rows_by_key = rows_by_key[rows_by_key > 0]
    frames = [
        pd.DataFrame({"key": np.full(n, key), "value": random.random(n)})
        for key, n in enumerate(rows_by_key[:1000].tolist())
    ]
    processor = FrameTotal()
    processor._total = _NoState()  # noqa: SLF001  # instead of a handle's
    before_s = time.process_time()
    for key, frame in enumerate(frames):
        list(processor.handleInputRows((key,), iter([frame]), None))
    used_s = time.process_time() - before_s
    return 1000 * used_s * len(rows_by_key) / len(frames)


def report(part: Part, periods: dict[str, list[float]], cpu: BatchCpu) -> list[str]:
    """Print period of a micro-batch, events a second and CPU time of each query by round; the ratios as lines of a table."""
    print(
        f"\n{part.title}: ms, thousand events a second, ms of CPU, and of it without compilers, by round"
    )
    base, *_ = _GROUPS[part.group]
    lines = []
    for name, all_periods in periods.items():
        counted = slice(part.first_rounds, None)
        periods_ms, cpu_ms = all_periods[counted], cpu.ms(name)[counted]
        cpu_without_ms = cpu.ms_without_compilers(name)[counted]
        rounds = "  ".join(
            f"{ms:5.0f} ms {part.rows / ms:6.1f} ({used:5.0f}, {without:5.0f})"
            for ms, used, without in zip(periods_ms, cpu_ms, cpu_without_ms, strict=True)
        )
        print(f"{name:44}{rounds}", flush=True)
        if name != base and base in periods:
            faster = _ratio(periods[base][counted], periods_ms)
            less = _ratio(cpu.ms(base)[counted], cpu_ms)
            less_without = _ratio(cpu.ms_without_compilers(base)[counted], cpu_without_ms)
            print(
                f"{'':44}ratio {faster:.2f}, of CPU {less:.2f}, without compilers {less_without:.2f}",
                flush=True,
            )
            lines.append(
                f"| {part.title} | `{name}` | {faster:.2f} | {less:.2f} | {less_without:.2f} |"
            )
    if part.group in ("frames", "functions"):
        own = statistics.median(own_ms(part.keys, part.rows) for _ in range(5))
        print(f"{'of it the own code of the class':62}({own:5.0f})", flush=True)
    return lines


def _ratio(base: list[float], ours: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(base, ours, strict=True))


def _drop(rows: DataFrame, _batch_id: int) -> None:
    rows.write.format("noop").mode("overwrite").save()
    for note in _BATCH_WRITTEN:
        note()


def _start(output: Any, checkpoint: str) -> Any:
    writer = output.writeStream.outputMode("update").foreachBatch(_drop)
    return writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()


def _ours(stream: DataFrame, parallelism: int = PARALLELISM) -> Any:
    return keyed(stream, "key", uid="totals", parallelism=parallelism)


def _totals_by_key(rows: DataFrame) -> DataFrame:
    return rows.groupBy("key").agg(F.count("*").alias("n"), F.sum("value").alias("total"))


def _native_aggregates(stream: DataFrame, checkpoint: str) -> Any:
    return _start(_totals_by_key(stream), checkpoint)


def _aggregate_batch(rows: DataFrame, batch_id: int) -> None:
    _drop(_totals_by_key(rows), batch_id)


def _apply_to_batch(rows: DataFrame, batch_id: int) -> None:
    _drop(shuffle(rows).mapInArrow(_sum_batch, _RESULT), batch_id)


def _sum_batch(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        totals = pa.table(batch).group_by("key").aggregate([([], "count_all"), ("value", "sum")])
        yield from totals.rename_columns(["key", "n", "total"]).to_batches()


def _our_aggregates(stream: DataFrame, checkpoint: str, *, parallelism: int = PARALLELISM) -> Any:
    totals = _ours(stream, parallelism).agg(n=hf.count(), total=hf.sum("value"))
    return _start(totals, checkpoint)


def _native_aggregates_of_many_partitions(stream: DataFrame, checkpoint: str) -> Any:
    spark = stream.sparkSession
    partitions = str(spark.conf.get(_PARTITIONS))
    spark.conf.set(_PARTITIONS, str(_MANY))
    try:
        return _native_aggregates(stream, checkpoint)  # a query copies the settings when it starts
    finally:
        spark.conf.set(_PARTITIONS, partitions)


def _our_single_rows(stream: DataFrame, checkpoint: str) -> Any:
    totals = _ours(stream).agg(combine=False, n=hf.count(), total=hf.sum("value"))
    return _start(totals, checkpoint)


def _native_rows(stream: DataFrame, checkpoint: str) -> Any:
    grouped = stream.groupBy("key")
    return _start(grouped.transformWithState(RowTotal(), _RESULT, "update", "none"), checkpoint)


def _our_rows(stream: DataFrame, checkpoint: str) -> Any:
    grouped = _ours(stream)
    return _start(grouped.transformWithState(RowTotal(), _RESULT, "update", "none"), checkpoint)


def _native_frames(stream: DataFrame, checkpoint: str) -> Any:
    grouped = stream.groupBy("key")
    totals = grouped.transformWithStateInPandas(FrameTotal(), _RESULT, "update", "none")
    return _start(totals, checkpoint)


def _our_frames(stream: DataFrame, checkpoint: str) -> Any:
    grouped = _ours(stream)
    totals = grouped.transformWithStateInPandas(FrameTotal(), _RESULT, "update", "none")
    return _start(totals, checkpoint)


def _native_functions(stream: DataFrame, checkpoint: str) -> Any:
    grouped = stream.groupBy("key")
    totals = grouped.applyInPandasWithState(group_total, _RESULT, _STATE, "update", "NoTimeout")
    return _start(totals, checkpoint)


def _our_functions(stream: DataFrame, checkpoint: str) -> Any:
    grouped = _ours(stream)
    totals = grouped.applyInPandasWithState(group_total, _RESULT, _STATE, "update", "NoTimeout")
    return _start(totals, checkpoint)


def _native_duplicates(stream: DataFrame, checkpoint: str) -> Any:
    return _start(stream.dropDuplicates(["key"]), checkpoint)


def _our_duplicates(stream: DataFrame, checkpoint: str) -> Any:
    return _start(_ours(stream).deduplicate(), checkpoint)


_GROUPS: dict[str, dict[str, Start]] = {
    "aggregates": {
        "Spark: groupBy().agg()": _native_aggregates,
        "Holdfast: keyed().agg()": _our_aggregates,
        "Holdfast: keyed().agg(combine=False)": _our_single_rows,
    },
    "rows": {
        "Spark: transformWithState": _native_rows,
        "Holdfast: transformWithState": _our_rows,
    },
    "frames": {
        "Spark: transformWithStateInPandas": _native_frames,
        "Holdfast: transformWithStateInPandas": _our_frames,
    },
    "functions": {
        "Spark: applyInPandasWithState": _native_functions,
        "Holdfast: applyInPandasWithState": _our_functions,
    },
    "small": {
        "Spark: groupBy().agg(), no state": for_each_batch(_aggregate_batch),
        "Spark: shuffle, mapInArrow, no state": for_each_batch(_apply_to_batch),
        "Spark: groupBy().agg()": _native_aggregates,
        "Holdfast: keyed().agg()": _our_aggregates,
    },
    "subtasks": {
        "Spark: groupBy().agg(), 200 partitions": _native_aggregates_of_many_partitions,
        "Holdfast: keyed().agg(), 200 subtasks": partial(_our_aggregates, parallelism=_MANY),
    },
    "duplicates": {
        "Spark: dropDuplicates": _native_duplicates,
        "Holdfast: keyed().deduplicate()": _our_duplicates,
    },
}

if __name__ == "__main__":
    main()
