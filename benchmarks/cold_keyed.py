"""Time until keys of columnar state are read, updated and written on a host without copies of it.

    python -m benchmarks.restore_keyed --backend columnar --server minio --keys 131072 --value-bytes 8192 \
        --delay-ms 40 --megabytes-a-second 125 --rescale 2:2,2:3 --touch 1,1000

State is written by as many subtasks as `--rescale` names first, in 8 batches that bring all keys and 8 that update 1 of
100 keys. Then it is opened by as many subtasks as it names last, all of them at the same time, in new processes of one
host without local files, through a link with the given delay each way and bandwidth. Each reads its share of `--touch`
random keys. For more than one key it also updates them and writes a snapshot. Times are those of the slowest subtask,
from opening the state; each is the median of `--rounds`.
"""

import argparse
import multiprocessing
import pickle
import statistics
import tempfile
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.rounds import in_fresh_process
from benchmarks.s3.server import Link, Traffic, run_link, run_server, use_bucket
from benchmarks.s3.works import Bucket
from holdfast.backends.descriptors import ValueStateDescriptor
from holdfast.backends.keyed import ColumnarStateTables, KeyedStateBackend
from holdfast.backends.keys import KeyGroupRange, key_group_range
from holdfast.locations import FileSystemCheckpointStorage
from holdfast.locations.handles import SegmentsStateHandle, StreamStateHandle

_MAX_PARALLELISM = 128
_KEY = pa.schema([("k", pa.int64())])
_VALUES = ValueStateDescriptor("values", pa.binary())
_BATCHES = 8
_UPDATED = 100
_BARRIER_TIMEOUT_S = 300.0
_Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """Subtasks that open a state and touch some of its keys; `begin` is passed by all of them together."""

    bucket: Bucket
    state: str
    parallelism: int
    numbers: _Numbers
    value_bytes: int
    begin: Any


class _Times(NamedTuple):
    """Seconds from opening the state until all keys are read, and until the snapshot is written."""

    read_s: float
    written_s: float


def measure(options: argparse.Namespace) -> None:
    """Write the states, measure all rounds and print a table."""
    pairs = [tuple(map(int, pair.split(":"))) for pair in options.rescale.split(",")]
    touched = [int(count) for count in options.touch.split(",")]
    print("| subtasks | keys | read, s | written, s | MB down | MB up | requests |")
    print("|---|---|---|---|---|---|---|")
    with (
        tempfile.TemporaryDirectory(dir=options.directory) as directory,
        run_server(options.server or "minio") as server,
        server.new_bucket() as bucket,
        run_link(bucket, options.delay_ms, options.megabytes_a_second) as link,
    ):
        for writers in dict.fromkeys(writers for writers, _ in pairs):
            state = f"{directory}/{writers}"
            size = in_fresh_process(
                write, bucket, state, writers, options.keys, options.value_bytes
            )
            print(f"| {writers} | all | | | | {size / 1e6:.0f} | |", flush=True)
        for writers, readers in pairs:
            for count in touched:
                run = partial(
                    _Run,
                    bucket=link.bucket,
                    state=f"{directory}/{writers}",
                    parallelism=readers,
                    numbers=np.random.default_rng(7).integers(0, options.keys, count),
                    value_bytes=options.value_bytes,
                )
                barrier = partial(multiprocessing.get_context("spawn").Barrier, readers)
                rounds = [_run(link, run(begin=barrier(link.reset))) for _ in range(options.rounds)]
                _print_row(f"{writers} to {readers}", count, rounds)


def write(bucket: Bucket, state: str, parallelism: int, keys: int, value_bytes: int) -> int:
    """Write a state, and leave its handles in a file; return its bytes."""
    use_bucket(bucket)
    access = _storage(bucket)
    random = np.random.default_rng(1)
    batches = np.array_split(random.permutation(keys), _BATCHES)
    batches += [random.integers(0, keys, max(1, keys // _UPDATED)) for _ in range(_BATCHES)]
    handles: list[SegmentsStateHandle] = []
    for index in range(parallelism):
        groups = key_group_range(_MAX_PARALLELISM, parallelism, index)
        known: dict[str, StreamStateHandle] = {}
        with tempfile.TemporaryDirectory(dir=Path(state).parent) as local:
            backend = _open(groups, [], local)
            for number, batch in enumerate(batches, 1):
                _update(backend, _numbers_of(batch, groups), value_bytes, random)
                location = access.initialize_location_for_checkpoint(number)
                (handle,) = backend.snapshot(number, location).run().state.managed_keyed
                assert isinstance(handle, SegmentsStateHandle)
                known = {n: known.get(n, stream) for n, stream in handle.segments.items()}
                stored = SegmentsStateHandle(handle.key_groups, known, handle.manifest)
                backend.notify_checkpoint_complete(number)
            backend.close()
        handles.append(stored)
    Path(state).write_bytes(pickle.dumps(handles))
    return sum(stream.size for handle in handles for stream in handle.segments.values())


def touch(run: _Run, index: int) -> _Times:
    """Open the state of a subtask without local files, and read and update its part of the keys."""
    bucket, state, numbers, value_bytes = run.bucket, run.state, run.numbers, run.value_bytes
    use_bucket(bucket)
    access = _storage(bucket)
    handles: list[SegmentsStateHandle] = pickle.loads(Path(state).read_bytes())  # noqa: S301  # our own
    groups = key_group_range(_MAX_PARALLELISM, run.parallelism, index)
    random = np.random.default_rng(2)
    own = _numbers_of(numbers, groups)
    with (
        tempfile.TemporaryDirectory(dir=Path(state).parent) as warm_up,
        tempfile.TemporaryDirectory(dir=Path(state).parent) as local,
    ):
        backend = _open(groups, [], warm_up)  # a worker has loaded its code, and has a connection
        _update(backend, own[:1], 1, random)
        backend.snapshot(1, access.initialize_location_for_checkpoint(10**6 + index)).run()
        backend.close()
        run.begin.wait(_BARRIER_TIMEOUT_S)
        start = time.monotonic()
        parts = [
            part
            for handle in handles
            if (part := handle.intersection(groups.start_key_group, groups.end_key_group))
        ]
        backend = _open(groups, parts, local)
        if len(own):
            values = backend.get_state(_VALUES).columns.get(backend.keys([pa.array(own)]))
            if values.null_count:
                raise ValueError("a key is lost")
        read_s = time.monotonic() - start
        if len(numbers) > 1:
            _update(backend, own, value_bytes, random)
            location = access.initialize_location_for_checkpoint(10**6 + 1000 + index)
            backend.snapshot(2, location).run()
        written_s = time.monotonic() - start
        backend.close()
    return _Times(read_s, written_s)


def _run(link: Link, run: _Run) -> tuple[_Times, Traffic]:
    """Run all subtasks at the same time; return the times of the slowest, and the traffic."""
    with ThreadPoolExecutor(run.parallelism) as pool:
        subtasks = range(run.parallelism)
        times = list(pool.map(lambda index: in_fresh_process(touch, run, index), subtasks))
    return _Times(*map(max, zip(*times, strict=True))), link.traffic()


def _print_row(subtasks: str, count: int, rounds: Sequence[tuple[_Times, Traffic]]) -> None:
    read_s, written_s, down, up, requests = (
        statistics.median(values)
        for values in zip(
            *((*times, t.down_bytes / 1e6, t.up_bytes / 1e6, t.requests) for times, t in rounds),
            strict=True,
        )
    )
    written = f"{written_s:.2f}" if count > 1 else ""
    print(
        f"| {subtasks} | {count} | {read_s:.2f} | {written} | {down:.0f} | {up:.0f} | {requests:.0f} |",
        flush=True,
    )


def _storage(bucket: Bucket) -> Any:
    job = uuid.uuid4().hex
    # VersityGW doesn't create files exclusively; each process writes to its own job.
    storage = FileSystemCheckpointStorage(f"s3://{bucket.name}/state", single_writer=True)
    access = storage.create_checkpoint_storage(job)
    access.initialize_base_locations_for_checkpoint()
    return access


def _open(
    groups: KeyGroupRange, handles: Sequence[SegmentsStateHandle], directory: str
) -> KeyedStateBackend:
    tables = ColumnarStateTables(groups, handles, directory=directory)
    return KeyedStateBackend(tables, _KEY, _MAX_PARALLELISM, groups)


def _numbers_of(numbers: _Numbers, groups: KeyGroupRange) -> _Numbers:
    """Return the numbers whose keys belong to key groups."""
    every = KeyGroupRange(0, _MAX_PARALLELISM - 1)
    keys = _open(every, [], tempfile.gettempdir()).keys([pa.array(np.unique(numbers))])
    group = (keys.sort_keys >> np.uint64(48)).astype(np.int64)
    own = (group >= groups.start_key_group) & (group <= groups.end_key_group)
    return np.asarray(keys.columns[0])[own]


def _update(
    backend: KeyedStateBackend, numbers: _Numbers, value_bytes: int, random: np.random.Generator
) -> None:
    if not len(numbers):
        return
    keys = backend.keys([pa.array(numbers)])
    content = pa.py_buffer(random.bytes(len(keys) * value_bytes))
    type = pa.binary(value_bytes)
    fixed = pa.FixedSizeBinaryArray.from_buffers(type, len(keys), [None, content])
    backend.get_state(_VALUES).columns.put(keys, fixed.cast(pa.binary()))
