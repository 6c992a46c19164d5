"""Does a snapshot on RocksDB take longer where there is more state, and the change is the same?

    python -m benchmarks.keyed.snapshots --keys 1000,10000,100000,1000000,10000000 --changed 1000

A state with the given number of keys is loaded, then each batch changes random keys and takes a snapshot. Prints the
bytes of the state, and of a snapshot: CPU time, wall-clock time, and the files and bytes written; medians and means
of all batches. The means include the files merged in the meantime.
"""

import argparse
import os
import statistics
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.keyed.holdfast_backend import Holdfast
from benchmarks.rounds import in_fresh_process, time_action
from holdfast.backends.descriptors import ValueStateDescriptor

_VALUES = ValueStateDescriptor("values", pa.int64())
_LOADED_AT_ONCE = 250_000

Measures = list[tuple[float, float, int, int]]
"""A snapshot has processor and clock seconds, and numbers of new files and of new bytes."""


def measure(directory: str, keys: int, changed: int, batches: int) -> tuple[int, Measures]:
    """Return the bytes of the state before the first batch, and the costs of its snapshots."""
    engine = Holdfast("rocksdb", "value", Path(directory))
    engine.begin("integers")
    engine.reopen(1)
    random = np.random.default_rng(1)

    def put(numbers: np.ndarray) -> None:
        keyed = engine.only_backend
        columns = keyed.get_state(_VALUES).columns
        columns.put(keyed.keys([pa.array(numbers)]), pa.array(numbers))

    for begin in range(0, keys, _LOADED_AT_ONCE):
        put(np.arange(begin, min(keys, begin + _LOADED_AT_ONCE)))
        engine.snapshot()
        engine.delete_unused()
    before = _files(directory)
    size = sum(before.values())
    measures: Measures = []
    for _ in range(batches):
        put(random.choice(keys, changed, replace=False))
        cost, _ = time_action(engine.snapshot)
        after = _files(directory)
        new = [count for path, count in after.items() if path not in before]
        measures.append((cost.cpu_s, cost.wall_s, len(new), sum(new)))
        engine.delete_unused()
        before = _files(directory)
    return size, measures


def _files(directory: str) -> dict[str, int]:
    """The bytes of each file of a checkpoint."""
    root = os.path.join(directory, "checkpoints")
    return {str(path): path.stat().st_size for path in Path(root).rglob("*") if path.is_file()}


def main() -> None:
    """Measure each size in a separate process and print the figures."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.keyed.snapshots",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--keys",
        type=lambda text: [int(word) for word in text.split(",")],
        default=[1_000, 10_000, 100_000, 1_000_000, 10_000_000],
    )
    parser.add_argument("--changed", type=int, default=1_000, help="keys of a batch")
    parser.add_argument("--batches", type=int, default=40)
    options = parser.parse_args()
    print(f"{options.changed} keys changed in each of {options.batches} batches; median (mean)")
    print("      keys  state, MB       CPU ms        wall-clock ms    new files        new KB")
    for keys in options.keys:
        with tempfile.TemporaryDirectory() as directory:
            size, measures = in_fresh_process(
                measure, directory, keys, options.changed, options.batches
            )
        shown = []
        for column, unit in zip(zip(*measures, strict=True), (1e3, 1e3, 1, 1e-3), strict=True):
            values = [value * unit for value in column]
            shown.append(f"{statistics.median(values):.1f} ({statistics.fmean(values):.1f})")
        print(f"{keys:10} {size / 1e6:10.1f}  " + "  ".join(f"{text:>15}" for text in shown))


if __name__ == "__main__":
    main()
