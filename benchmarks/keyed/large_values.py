"""Cost of batches that change a few of many large values, in columns and on RocksDB.

    python -m benchmarks.keyed.large_values --keys 4000 --value-bytes 10000 --changed 100

Prints CPU milliseconds and bytes written per batch with its snapshot, and bytes of the last checkpoint.
"""

import argparse
import statistics
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.keyed.holdfast_backend import Holdfast
from benchmarks.rounds import in_fresh_process, time_action
from holdfast.backends.descriptors import ValueStateDescriptor
from holdfast.backends.keyed import BackendName
from holdfast.backends.keyed.states import ValueColumns

_VALUES = ValueStateDescriptor("values", pa.binary())
_BACKENDS: tuple[BackendName, ...] = ("columnar", "rocksdb")


def measure_backend(
    backend: BackendName, directory: str, *, keys: int, value_bytes: int, changed: int, batches: int
) -> tuple[float, float, int]:
    """Return CPU seconds and bytes written per batch, and bytes of the last checkpoint."""
    engine = Holdfast(backend, "value", Path(directory))
    engine.begin("integers")
    engine.reopen(1)
    random = np.random.default_rng(1)

    def put(numbers: np.ndarray) -> None:
        keyed = engine.only_backend
        columns: ValueColumns = keyed.get_state(_VALUES).columns
        values = pa.array([random.bytes(value_bytes) for _ in numbers], pa.binary())
        columns.put(keyed.keys([pa.array(numbers)]), values)
        engine.snapshot()
        engine.delete_unused()

    put(np.arange(keys))
    before = _written_bytes()
    chosen = [random.choice(keys, changed, replace=False) for _ in range(batches)]
    costs = [time_action(partial(put, np.sort(numbers)))[0].cpu_s for numbers in chosen]
    files = (Path(directory) / "checkpoints").rglob("*")
    size = sum(path.stat().st_size for path in files if path.is_file())
    return statistics.fmean(costs), (_written_bytes() - before) / batches, size


def _written_bytes() -> int:
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["wchar"])


def main() -> None:
    """Measure each backend in a separate process and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--keys", type=int, default=4000)
    parser.add_argument("--value-bytes", type=int, default=10_000)
    parser.add_argument("--changed", type=int, default=100, help="changed keys per batch")
    parser.add_argument("--batches", type=int, default=40)
    options = parser.parse_args()
    print("backend   CPU ms / batch  MB written / batch  MB of a checkpoint")
    for backend in _BACKENDS:
        with tempfile.TemporaryDirectory() as directory:
            measure = partial(
                measure_backend,
                keys=options.keys,
                value_bytes=options.value_bytes,
                changed=options.changed,
                batches=options.batches,
            )
            cpu_s, written, size = in_fresh_process(measure, backend, directory)
        print(f"{backend:9} {cpu_s * 1e3:14.1f} {written / 1e6:19.2f} {size / 1e6:19.1f}")


if __name__ == "__main__":
    main()
