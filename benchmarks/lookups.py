"""Look-ups by key in keyed state of a checkpoint: time of one, and look-ups a second.

    python -m benchmarks.lookups --keys 10000000
    python -m benchmarks.lookups --keys 10000000 --server minio --delay-ms 30

A state with the given number of keys, int64 to two columns of 8 bytes, is written once, by a columnar backend in several
checkpoints, to a directory or to a server of `infra/s3`. Another process opens it and looks up random keys: one at a time,
with blocks that were never read and with all blocks of these keys in memory, by 8 threads, and 1,000 with one call. With
`--delay-ms` a proxy in a separate process delays each request by that time, like a distant store. With `--endpoint` the
server is one that runs already, and has the keys `test`.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.rounds import in_fresh_process
from benchmarks.s3.server import Server, delay_requests, run_server, use_bucket
from benchmarks.s3.works import Bucket
from holdfast import open_state
from holdfast.backends.descriptors import ValueStateDescriptor
from holdfast.backends.keyed import ColumnarStateTables, KeyedStateBackend, Keys
from holdfast.backends.keys import key_group_range
from holdfast.locations import (
    CheckpointMetadata,
    FileSystemCheckpointStorage,
    StoredOperator,
    StoredSubtask,
    complete_checkpoint,
)
from holdfast.locations.coordination import without_placeholders

_GROUPS = 128
_SUBTASKS = 4
_KEY = pa.schema([("k", pa.int64())])
_VALUES = ValueStateDescriptor("values", pa.struct([("n", pa.int64()), ("total", pa.float64())]))
_STEP_ROWS = 1 << 20
_THREADS = 8
_MANY = 1000


def write(root: str, bucket: Bucket | None, keys: int) -> int:
    """Complete checkpoints of a state; returns the size of the last one's files."""
    use_bucket(bucket)
    access = FileSystemCheckpointStorage(root).create_checkpoint_storage("job")
    access.initialize_base_locations_for_checkpoint()
    backends = [
        KeyedStateBackend(ColumnarStateTables(groups), _KEY, _GROUPS, groups)
        for groups in (key_group_range(_GROUPS, _SUBTASKS, index) for index in range(_SUBTASKS))
    ]
    random = np.random.default_rng(1)
    size = 0
    restored = [StoredSubtask()] * _SUBTASKS
    for number, begin in enumerate(range(0, keys, _STEP_ROWS), 1):
        column = pa.array(np.arange(begin, min(keys, begin + _STEP_ROWS)))
        every = Keys.of([column], _GROUPS)
        groups = every.key_groups[every.codes]
        location = access.initialize_location_for_checkpoint(number)
        subtasks = {}
        for index, backend in enumerate(backends):
            is_own = (groups >= index * _GROUPS // _SUBTASKS) & (
                groups < (index + 1) * _GROUPS // _SUBTASKS
            )
            mine = backend.keys([column.filter(pa.array(is_own))])
            totals = pa.StructArray.from_arrays(
                [mine.columns[0], pa.array(random.random(len(mine)))], ["n", "total"]
            )
            backend.get_state(_VALUES).columns.put(mine, totals)
            subtasks[index] = backend.snapshot(number, location).run().state
            backend.notify_checkpoint_complete(number)
        operator = StoredOperator(_SUBTASKS, _GROUPS, subtasks, key=("k",))
        operator = without_placeholders("op", operator, restored, may_refer=True)
        restored = [operator.subtasks[index] for index in range(_SUBTASKS)]
        metadata = CheckpointMetadata(
            job_id="job",
            checkpoint_id=number,
            created_ms=0,
            duration_ms=0.0,
            writer="benchmark",
            operators={"op": operator},
        )
        complete_checkpoint(location, metadata)
        size = metadata.state_bytes
    return size


def look_up(root: str, bucket: Bucket | None, keys: int, lookups: int) -> dict[str, list[float]]:
    """Return the seconds of each look-up, by the way in which keys are looked up."""
    use_bucket(bucket)
    random = np.random.default_rng(2)
    wanted = random.integers(0, keys, lookups).tolist()
    times: dict[str, list[float]] = {}
    start_s = time.perf_counter()
    with open_state(f"{root}/job", "op", "values", max_cached_bytes=1 << 30) as state:
        times["open"] = [time.perf_counter() - start_s]

        def check(key: int) -> None:
            (row,) = state.get(key).rows.to_pylist()
            if row["value"]["n"] != key:
                raise ValueError(row)

        times["one, first read of its blocks"] = [_seconds(check, key) for key in wanted]
        times["one, blocks in memory"] = [_seconds(check, key) for key in wanted]
        start_s = time.perf_counter()
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(check, wanted))
        times[f"{_THREADS} threads, blocks in memory"] = [
            (time.perf_counter() - start_s) / lookups
        ] * lookups
        many = random.integers(0, keys, _MANY).tolist()
        start_s = time.perf_counter()
        if state.get_many(many).rows.num_rows != len(set(many)):
            raise ValueError("keys are lost")
        times[f"{_MANY} keys with one call"] = [(time.perf_counter() - start_s) / _MANY] * _MANY
    return times


def main() -> None:
    """Write the state, look up keys in another process, and print a table."""
    options = _options()
    with ExitStack() as block:
        bucket: Bucket | None = None
        if options.endpoint:
            server = Server(options.endpoint, "test", "test")
            bucket = block.enter_context(server.new_bucket())
        elif options.server:
            bucket = block.enter_context(
                block.enter_context(run_server(options.server)).new_bucket()
            )
        directory = block.enter_context(tempfile.TemporaryDirectory(dir=options.directory))
        root = f"s3://{bucket.name}/state" if bucket else f"file://{directory}/state"
        size = in_fresh_process(write, root, bucket, options.keys)
        print(f"{options.keys} keys, {size >> 20} MiB in {_SUBTASKS} subtasks")
        far = block.enter_context(delay_requests(bucket, options.delay_ms))
        times = in_fresh_process(look_up, root, far, options.keys, options.lookups)
    print(f"opened in {1e3 * times.pop('open')[0]:.0f} ms")
    for name, seconds in times.items():
        p50, p99 = np.percentile(seconds, [50, 99]) * 1e3
        rate = len(seconds) / sum(seconds)
        print(f"{name}: {rate:.0f}/s, p50 {p50:.2f} ms, p99 {p99:.2f} ms")


def _seconds(action: Callable[[int], None], key: int) -> float:
    start_s = time.perf_counter()
    action(key)
    return time.perf_counter() - start_s


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.lookups",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--lookups", type=int, default=1000)
    parser.add_argument("--server", choices=["minio", "versitygw"], help="one to start")
    parser.add_argument("--endpoint", help="URL of a server that runs already")
    parser.add_argument("--delay-ms", type=float, default=0, help="for each request")
    parser.add_argument("--directory", type=Path, help="default: the system's temporary directory")
    return parser.parse_args()


if __name__ == "__main__":
    main()
