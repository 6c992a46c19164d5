"""Streams by key: Holdfast against Spark's own state in RocksDB. All keep a count and a sum of each key.

    python -m benchmarks.spark.keyed [--keys 1000 100000] [--rows 200000] [--batches 6] [--rounds 3] [--only aggregates]

The queries take turns in one Spark over the same files: the first has each key once, then keys are uniform. The figure
is the median period of a micro-batch in a round (Spark's own `triggerExecution`), the first three left out. Ratios are to
Spark's query in the same round. Beside it stands the CPU time of a batch, of the driver, the JVM and all workers, which other
work on the machine changes less. Of the class that takes frames it says, too, what its own code takes for a batch, without state and
Spark: pandas makes and adds up frames there, which no side can make faster.
"""

import argparse
import itertools
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pyarrow as pa
import pyarrow.parquet
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from benchmarks.spark.__main__ import measure, session
from benchmarks.spark.queries import PARALLELISM, Start
from holdfast.spark import aggregates, keyed

_WARM_UP = 3
_RESULT = "key long, n long, total double"
_STATE = "n long, total double"


class _Total(StatefulProcessor):
    """What both flavours share."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._total: Any = handle.getValueState("total", _STATE)

    def close(self) -> None:
        """There is nothing to close."""

    def _add(self, key: tuple[int], n: int, amount: float) -> tuple[int, int, float]:
        before = self._total.get() or (0, 0.0)
        after = (before[0] + n, before[1] + amount)
        self._total.update(after)
        return (key[0], *after)


class TotalOfRows(_Total):
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


class TotalOfFrames(_Total):
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


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keys", type=int, nargs="+", default=[1000, 100_000], help="how many")
    parser.add_argument("--rows", type=int, default=200_000, help="rows of a batch")
    parser.add_argument("--batches", type=int, default=6, help="counted batches of a turn")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each query")
    parser.add_argument("--only", choices=list(_GROUPS), nargs="+", default=list(_GROUPS))
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="holdfast-benchmark-"))
    spark = session(directory)
    try:
        for keys in options.keys:
            source = directory / f"{keys}-keys"
            feed(source, keys=keys, files=options.batches + 3, rows=options.rows)

            cpu = CpuOfBatches()

            def queries() -> dict[str, Start]:
                return {
                    name: partial(cpu.counted, name, side)  # noqa: B023  # called in this turn
                    for pair in options.only
                    for name, side in _GROUPS[pair].items()
                }

            periods = measure(spark, directory, source, queries, options.rounds)
            report(periods, cpu, keys=keys, rows=options.rows, pairs=options.only)
    finally:
        spark.stop()
        shutil.rmtree(directory)


class CpuOfBatches:
    """CPU time of this process and all below it, batch by batch: that of the JVM and its workers, too."""

    def __init__(self) -> None:
        self._used_s: dict[str, list[list[float]]] = {}

    def counted(self, name: str, start: Start, stream: DataFrame, checkpoint: str) -> Any:
        """Start a query, and note from now on what is used up when its batches are written."""
        used_s: list[float] = []
        self._used_s.setdefault(name, []).append(used_s)
        _BATCH_WRITTEN[:] = [lambda: used_s.append(_cpu_s())]
        return start(stream, checkpoint)

    def ms(self, name: str) -> list[float]:
        """The median of a batch by round."""
        return [
            1000 * statistics.median(b - a for a, b in itertools.pairwise(used_s[_WARM_UP:]))
            for used_s in self._used_s[name]
        ]


_BATCH_WRITTEN: list[Any] = []


def _cpu_s() -> float:
    this = psutil.Process()
    used_s = 0.0
    for process in (this, *this.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        used_s += times.user + times.system + times.children_user + times.children_system
    return used_s


def feed(source: Path, *, keys: int, files: int, rows: int) -> None:
    """Write the source: one file a micro-batch, the first with each key once."""
    source.mkdir(parents=True)
    random = np.random.default_rng(7)
    for number in range(files):
        batch = random.permutation(keys) if number == 0 else random.integers(0, keys, rows)
        table = pa.table({"key": batch, "value": random.random(len(batch))})
        pa.parquet.write_table(table, source / f"{number:05}.parquet")


class _NoState:
    """State that is never there."""

    def get(self) -> None:
        """There is none."""

    def update(self, total: tuple[int, float]) -> None:
        """Forget it."""


def own_ms(keys: int, rows: int) -> float:
    """CPU time of what `TotalOfFrames` itself does in a batch, by a thousand keys with frames that are ready, milliseconds."""
    random = np.random.default_rng(7)
    rows_by_key = np.bincount(random.integers(0, keys, rows), minlength=keys)
    rows_by_key = rows_by_key[rows_by_key > 0]
    frames = [
        pd.DataFrame({"key": np.full(n, key), "value": random.random(n)})
        for key, n in enumerate(rows_by_key[:1000].tolist())
    ]
    processor = TotalOfFrames()
    processor._total = _NoState()  # noqa: SLF001  # instead of a handle's
    before_s = time.process_time()
    for key, frame in enumerate(frames):
        list(processor.handleInputRows((key,), iter([frame]), None))
    used_s = time.process_time() - before_s
    return 1000 * used_s * len(rows_by_key) / len(frames)


def report(
    periods: dict[str, list[float]], cpu: CpuOfBatches, *, keys: int, rows: int, pairs: list[str]
) -> None:
    """Period of a micro-batch, events a second and CPU time of each query, and the ratios to Spark's."""
    print(
        f"\n{keys:,} keys, batches of {rows:,} rows: ms, thousand events a second, and ms of CPU, by round"
    )
    for pair in pairs:
        base, *_ = _GROUPS[pair]
        for name in _GROUPS[pair]:
            if name not in periods:
                continue
            cpu_ms = cpu.ms(name)
            rounds = "  ".join(
                f"{ms:5.0f} ms {rows / ms:6.1f} ({used:5.0f})"
                for ms, used in zip(periods[name], cpu_ms, strict=True)
            )
            ratio = ""
            if name != base and base in periods:
                both = zip(periods[base], periods[name], strict=True)
                ratio = f"   ratio {statistics.median(a / b for a, b in both):.2f}"
                both = zip(cpu.ms(base), cpu_ms, strict=True)
                ratio += f", of CPU {statistics.median(a / b for a, b in both):.2f}"
            print(f"{name:44}{rounds}{ratio}", flush=True)
        if pair == "frames":
            own = statistics.median(own_ms(keys, rows) for _ in range(5))
            print(f"{'of it the own code of the class':62}({own:5.0f})", flush=True)


def _drop(rows: DataFrame, _batch_id: int) -> None:
    rows.write.format("noop").mode("overwrite").save()
    for note in _BATCH_WRITTEN:
        note()


def _start(output: Any, checkpoint: str) -> Any:
    writer = output.writeStream.outputMode("update").foreachBatch(_drop)
    return writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()


def _ours(stream: DataFrame) -> Any:
    return keyed(stream, "key", uid="totals", parallelism=PARALLELISM)


def _native_aggregates(stream: DataFrame, checkpoint: str) -> Any:
    totals = stream.groupBy("key").agg(F.count("*").alias("n"), F.sum("value").alias("total"))
    return _start(totals, checkpoint)


def _our_aggregates(stream: DataFrame, checkpoint: str) -> Any:
    totals = _ours(stream).agg(n=aggregates.count(), total=aggregates.sum("value"))
    return _start(totals, checkpoint)


def _our_single_rows(stream: DataFrame, checkpoint: str) -> Any:
    totals = _ours(stream).agg(combine=False, n=aggregates.count(), total=aggregates.sum("value"))
    return _start(totals, checkpoint)


def _native_rows(stream: DataFrame, checkpoint: str) -> Any:
    grouped = stream.groupBy("key")
    return _start(grouped.transformWithState(TotalOfRows(), _RESULT, "update", "none"), checkpoint)


def _our_rows(stream: DataFrame, checkpoint: str) -> Any:
    grouped = _ours(stream)
    return _start(grouped.transformWithState(TotalOfRows(), _RESULT, "update", "none"), checkpoint)


def _native_frames(stream: DataFrame, checkpoint: str) -> Any:
    grouped = stream.groupBy("key")
    totals = grouped.transformWithStateInPandas(TotalOfFrames(), _RESULT, "update", "none")
    return _start(totals, checkpoint)


def _our_frames(stream: DataFrame, checkpoint: str) -> Any:
    grouped = _ours(stream)
    totals = grouped.transformWithStateInPandas(TotalOfFrames(), _RESULT, "update", "none")
    return _start(totals, checkpoint)


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
}

if __name__ == "__main__":
    main()
