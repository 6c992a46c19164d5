"""Time until a restarted job has its keyed state back on hosts without its files.

With `--backend columnar`, see `benchmarks.cold_keyed`: the time until some keys are read and updated. Otherwise, state in
RocksDB's files is compared with downloading these files.

    python -m benchmarks.restore_keyed --keys 10000000 --value-bytes 100
    python -m benchmarks.restore_keyed --keys 10000000 --server minio
    python -m benchmarks.restore_keyed --keys 1000000 --server minio --delay-ms 50 --threads 1,4,16
    python -m benchmarks.restore_keyed --backend columnar --server minio --keys 131072 --value-bytes 8192 \
        --delay-ms 40 --megabytes-a-second 125 --rescale 2:2,2:3 --touch 1,1000

State with the given number of keys is written once, with one checkpoint, to a directory or to one of the servers of
`infra/s3`. Each round then opens it on a host without its files, until the first value is read, and downloads the same
files to the same disk: with boto3 from a server, else by reading and writing them, with the same concurrency as the
state. Each runs in a new process, and another one starts each round. With `--delay-ms` a proxy in a separate process
delays each request by that time, like a distant store. Figures are medians, ratios are the median of the rounds'
ratios: above 1 where opening is slower.
"""

import argparse
import os
import pickle
import tempfile
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa

from benchmarks import cold_keyed
from benchmarks.rounds import Cost, in_fresh_process, measure_rounds, print_times, time_action
from benchmarks.s3.peers import client_of
from benchmarks.s3.server import delay_requests, run_server, use_bucket
from benchmarks.s3.works import Bucket
from holdfast.backends.descriptors import ValueStateDescriptor
from holdfast.backends.keyed import KeyedStateBackend, RocksDBSettings, open_tables
from holdfast.backends.keys import KeyGroupRange
from holdfast.locations import FileSystemCheckpointStorage
from holdfast.locations.handles import FileStateHandle, SegmentsStateHandle

_GROUPS = KeyGroupRange(0, 127)
_KEY = pa.schema([("k", pa.int64())])
_VALUES = ValueStateDescriptor("values", pa.binary())
_STEP_ROWS = 250_000
_COPY_BYTES = 1 << 20
_ACTION = "restore"
_TITLES = {"plain": "plain download", "holdfast": "Holdfast on RocksDB"}


def write(root: str, bucket: Bucket | None, handle_path: str, keys: int, value_bytes: int) -> int:
    """Leave the handle of a state of random values; the number of bytes of its sorted files."""
    use_bucket(bucket)
    access = FileSystemCheckpointStorage(root, inline_threshold=0).create_checkpoint_storage("job")
    access.initialize_base_locations_for_checkpoint()
    with tempfile.TemporaryDirectory(dir=Path(handle_path).parent) as local:
        backend = _open_backend([], local, RocksDBSettings())
        values = backend.get_state(_VALUES).columns
        random = np.random.default_rng(1)
        for begin in range(0, keys, _STEP_ROWS):
            numbers = np.arange(begin, min(keys, begin + _STEP_ROWS))
            distinct = backend.keys([pa.array(numbers)])
            content = pa.py_buffer(random.bytes(len(numbers) * value_bytes))
            fixed = pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(value_bytes), len(numbers), [None, content]
            )
            values.put(distinct, fixed.cast(pa.binary()))
        location = access.initialize_location_for_checkpoint(1)
        (handle,) = backend.snapshot(1, location).run().state.managed_keyed
        backend.close()
    assert isinstance(handle, SegmentsStateHandle)
    Path(handle_path).write_bytes(pickle.dumps(handle))
    return sum(stream.size for stream in handle.segments.values())


def holdfast(bucket: Bucket | None, handle_path: str, threads: int) -> Cost:
    """Open the state on a host without its files, and look up a key."""
    use_bucket(bucket)
    handle = _handle(handle_path)
    with handle.manifest.open_input_stream() as stream:
        stream.read(1)  # imports and connects

    with tempfile.TemporaryDirectory(dir=Path(handle_path).parent) as directory:
        # a worker has loaded all these modules before
        empty = _open_backend([], directory, RocksDBSettings())
        empty.get_state(_VALUES).columns.get(empty.keys([pa.array([0])]))
        empty.close()

    def restore(directory: str) -> Any:
        backend = _open_backend([handle], directory, RocksDBSettings(transfer_threads=threads))
        value = backend.get_state(_VALUES).columns.get(backend.keys([pa.array([0])]))
        return backend, value

    with tempfile.TemporaryDirectory(dir=Path(handle_path).parent) as directory:
        cost, (backend, value) = time_action(partial(restore, directory))
        if value.null_count:
            raise ValueError("the key is lost")
        backend.close()
    return cost


def plain(bucket: Bucket | None, handle_path: str, threads: int) -> Cost:
    """Download the same files."""
    handle = _handle(handle_path)
    streams = [
        stream
        for stream in (*handle.segments.values(), handle.manifest)
        if isinstance(stream, FileStateHandle)
    ]
    client = None if bucket is None else client_of(bucket)
    if client is not None and bucket is not None:
        client.head_bucket(Bucket=bucket.name)

    def fetch(stream: FileStateHandle, directory: str) -> None:
        target = os.path.join(directory, uuid.uuid4().hex)
        if client is not None and bucket is not None:
            key = urlsplit(stream.uri).path.lstrip("/")
            body = client.get_object(Bucket=bucket.name, Key=key)["Body"]
            source: Any = nullcontext(body)
        else:
            source = open(stream.uri.removeprefix("file://"), "rb")  # noqa: SIM115  # the block below closes it
        with source as opened, open(target, "xb") as file:
            while data := opened.read(_COPY_BYTES):
                file.write(data)
        if os.stat(target).st_size != stream.size:
            raise ValueError(stream.uri)

    def download(directory: str) -> None:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(partial(fetch, directory=directory), streams))

    with tempfile.TemporaryDirectory(dir=Path(handle_path).parent) as directory:
        return time_action(partial(download, directory))[0]


def _open_backend(
    handles: list[SegmentsStateHandle], directory: str, settings: RocksDBSettings
) -> KeyedStateBackend:
    tables = open_tables(_GROUPS, handles, backend="rocksdb", directory=directory, rocksdb=settings)
    return KeyedStateBackend(tables, _KEY, len(_GROUPS))


def _handle(path: str) -> SegmentsStateHandle:
    handle: SegmentsStateHandle = pickle.loads(Path(path).read_bytes())  # noqa: S301  # our own
    return handle


def main() -> None:
    """Write the state, measure all rounds and print the table."""
    options = _options()
    if options.backend == "columnar":
        cold_keyed.measure(options)
        return
    with (
        tempfile.TemporaryDirectory(dir=options.directory) as directory,
        run_server(options.server) if options.server else nullcontext() as server,
        server.new_bucket() if server else nullcontext() as bucket,
    ):
        root = f"s3://{bucket.name}/state" if bucket else f"file://{directory}/state"
        handle_path = f"{directory}/handle"
        size = in_fresh_process(write, root, bucket, handle_path, options.keys, options.value_bytes)
        print(f"{options.keys} keys, values of {options.value_bytes} bytes: {size >> 20} MiB")
        with delay_requests(bucket, options.delay_ms) as far:
            for threads in options.threads:
                rounds = measure_rounds(
                    {"plain": plain, "holdfast": holdfast},
                    partial(_costs_of, far, handle_path, threads),
                    options.rounds,
                    _TITLES,
                )
                print_times(f"{threads} at a time", rounds, [_ACTION], _TITLES)


def _costs_of(
    bucket: Bucket | None, handle_path: str, threads: int, engine: Callable[..., Cost]
) -> dict[str, Cost]:
    return {_ACTION: in_fresh_process(engine, bucket, handle_path, threads)}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.restore_keyed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--backend", choices=["rocksdb", "columnar"], default="rocksdb")
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--server", choices=["minio", "versitygw"], help="one to start")
    parser.add_argument(
        "--delay-ms", type=float, default=0, help="for each request; for each way if columnar"
    )
    parser.add_argument(
        "--megabytes-a-second", type=float, default=125, help="of the link, if columnar"
    )
    parser.add_argument(
        "--rescale", default="2:2", help="subtasks that wrote and read the state, such as 2:2,2:3"
    )
    parser.add_argument("--touch", default="1,1000", help="numbers of keys to read and update")
    parser.add_argument(
        "--threads", type=lambda text: [int(word) for word in text.split(",")], default=[4]
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--directory",
        type=Path,
        help="directory for files; default: the system's temporary directory",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
