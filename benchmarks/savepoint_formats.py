"""Cost of a row of keyed state in a canonical savepoint, compared with a native one.

    python -m benchmarks.savepoint_formats --rows 1000000

A backend counts and adds up by key: all keys are written at once, then 100,000 of them in each batch.
Each round then copies its state like a native savepoint and writes it in the canonical format, each in a new
process, on local disk. Figures are the CPU time of all threads per key, and the peak memory of the write.
"""

import argparse
import pickle
import resource
import statistics
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.rounds import in_fresh_process, time_action
from holdfast.backends import ReducingStateDescriptor
from holdfast.backends.keyed import (
    BACKEND_NAMES,
    BackendName,
    KeyedStateBackend,
    open_tables,
    write_canonical,
)
from holdfast.backends.keys import KeyGroupRange
from holdfast.locations import FileSystemCheckpointStorage
from holdfast.locations.coordination import copy_stream
from holdfast.locations.handles import (
    ByteStreamStateHandle,
    SegmentsStateHandle,
    StreamStateHandle,
)
from holdfast.locations.storages import CheckpointStorageLocation

_GROUPS = KeyGroupRange(0, 127)
_BATCH_ROWS = 100_000
_KEY = pa.schema([("k", pa.int64())])
_TOTALS = pa.schema([("n", pa.int64()), ("total", pa.int64())])
_FORMATS = ("native", "canonical")


def write(directory: str, backend: BackendName, rows: int, batches: int) -> None:
    """Leave the newest handle of a state in the directory."""
    tables = open_tables(_GROUPS, backend=backend, directory=f"{directory}/{backend}")
    keyed = KeyedStateBackend(tables, _KEY, len(_GROUPS))
    state = keyed.get_reducing_state(
        ReducingStateDescriptor("totals", {"n": "count", "total": "sum"}, _TOTALS)
    )
    random = np.random.default_rng(1)
    newest = SegmentsStateHandle((0, 127), {}, ByteStreamStateHandle(b""))
    for number in range(1, batches + 2):
        keyed.advance_time(number)
        numbers = np.arange(rows) if number == 1 else random.integers(0, rows, _BATCH_ROWS)
        keys = keyed.keys([pa.array(numbers)])
        state.columns.add(keys, {"total": pa.array(numbers)})
        (handle,) = keyed.snapshot(number, _location(directory, number)).run().state.managed_keyed
        keyed.notify_checkpoint_complete(number)
        assert isinstance(handle, SegmentsStateHandle)
        streams: dict[str, StreamStateHandle] = {
            name: newest.segments.get(name, stream) for name, stream in handle.segments.items()
        }
        newest = SegmentsStateHandle(handle.key_groups, streams, handle.manifest)
    keyed.close()
    Path(directory, f"{backend}.handle").write_bytes(pickle.dumps(newest))


def save(directory: str, backend: BackendName, format: str, number: int) -> tuple[float, int, int]:
    """Seconds of CPU, KiB of memory beyond what was there before, and bytes written."""
    handle = pickle.loads(Path(directory, f"{backend}.handle").read_bytes())  # noqa: S301  # our own
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def native(location: CheckpointStorageLocation) -> SegmentsStateHandle:
        copied: SegmentsStateHandle = handle.with_streams(
            lambda stream: copy_stream(stream.open_input_stream, location)
        )
        return copied

    def canonical(location: CheckpointStorageLocation) -> SegmentsStateHandle:
        return write_canonical(handle, location, now_ms=0)

    action = native if format == "native" else canonical
    action(_location(directory, number))  # what is loaded with the first savepoint doesn't count
    cost, written = time_action(partial(action, _location(directory, number + 1)))
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return cost.cpu_s, after - before, written.size


def main() -> None:
    """Write the state, measure both formats in each round and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="number of keys")
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--backends", nargs="*", default=BACKEND_NAMES)
    parser.add_argument("--directory", type=Path, help="directory for files")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        print("backend   format   ns per key  MiB of memory  MiB written")
        for backend in arguments.backends:
            in_fresh_process(
                partial(write, rows=arguments.rows, batches=arguments.batches), directory, backend
            )
            figures: dict[str, list[tuple[float, int, int]]] = {name: [] for name in _FORMATS}
            for round_ in range(arguments.rounds):
                for place, format in enumerate(_FORMATS):
                    number = 1_000 + 4 * round_ + 2 * place
                    figures[format].append(
                        in_fresh_process(save, directory, backend, format, number)
                    )
            for format, of_format in figures.items():
                cpu_s, memory, size = (
                    statistics.median(each) for each in zip(*of_format, strict=True)
                )
                ns = 1e9 * cpu_s / arguments.rows
                print(
                    f"{backend:9} {format:9} {ns:9.0f} {memory / 1024:14.0f} {size / (1 << 20):12.1f}"
                )


def _location(directory: str, number: int) -> CheckpointStorageLocation:
    storage = FileSystemCheckpointStorage(f"file://{directory}", inline_threshold=0)
    access = storage.create_checkpoint_storage("benchmark")
    access.initialize_base_locations_for_checkpoint()
    return access.initialize_location_for_checkpoint(number)


if __name__ == "__main__":
    main()
