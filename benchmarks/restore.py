"""Time until a restarted job has its state back, compared with reading the bytes.

    python -m benchmarks.restore --mebibytes 1024 --directory /data

State of a list of rows is written once, by the given number of subtasks, into one checkpoint. Each round then runs
the plain read of its files, the restore from storage, the restore from local copies, and that from a worker's
memory, starting with a different one. Each runs in a new process, one subtask after the other, until all rows are
readable. The figures are medians; a ratio is the median of the rounds' ratios. The files are in the
system's cache, so the time of the disk does not hide differences.
"""

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.rounds import Cost, in_fresh_process, measure_rounds, print_times, time_action
from holdfast.backends import ListStateDescriptor, OperatorStateBackend
from holdfast.backends.assignment import OperatorSettings, assign
from holdfast.common import SYSTEM_CLOCK
from holdfast.locations import (
    CheckpointMetadata,
    FileSystemCheckpointStorage,
    StoredOperator,
    StoredSubtask,
    complete_checkpoint,
    latest_checkpoint,
)
from holdfast.locations.adapters import FileStateHandle
from holdfast.locations.handles import OperatorStateHandle
from holdfast.locations.storages import FileSystemCheckpointStorageAccess
from holdfast.spark.subtask import LocalFiles, WorkerMemory, digest_of

_UID = "operator"
_JOB = "benchmark"
_TYPE = pa.struct([("id", pa.int64()), ("name", pa.string())])
_DESCRIPTOR = ListStateDescriptor("rows", _TYPE)
_ROW_BYTES = 32
_ACTION = "restore"

TITLES = {
    "plain": "plain read",
    "storage": "from storage",
    "local": "from local copies",
    "worker": "from the worker",
}


def write(directory: str, *, mebibytes: int, subtasks: int, batches: int) -> None:
    """Write a checkpoint with state of the given size, added batch by batch."""
    access = _access(directory)
    access.initialize_base_locations_for_checkpoint()
    location = access.initialize_location_for_checkpoint(1)
    rows = (mebibytes << 20) // _ROW_BYTES // subtasks // batches
    states = {}
    for subtask in range(subtasks):
        backend = OperatorStateBackend()
        state = backend.get_list_state(_DESCRIPTOR)
        for batch in range(batches):
            ids = pa.array(np.arange(batch * rows, (batch + 1) * rows))
            names = pc.utf8_lpad(ids.cast(pa.string()), 20, "0")
            state.add_all(pa.StructArray.from_arrays([ids, names], fields=list(_TYPE)))
        (handle,) = backend.snapshot(location).run().state.managed_operator
        states[subtask] = StoredSubtask((handle,))
    metadata = CheckpointMetadata(
        job_id=_JOB,
        checkpoint_id=1,
        created_ms=0,
        duration_ms=0,
        writer="benchmark",
        operators={_UID: StoredOperator(subtasks, subtasks, states)},
    )
    complete_checkpoint(location, metadata)


def plain(directory: str) -> Cost:
    """Read the bytes of all files, one after the other, and do nothing with them."""
    files = [file for state in _load_subtasks(directory) for file in _files(state)]

    def read() -> None:
        for file in files:
            with open(file.uri.removeprefix("file://"), "rb", buffering=0) as stream:
                if len(stream.read()) != file.size:
                    raise ValueError(file.uri)

    return time_action(read)[0]


def storage(directory: str) -> Cost:
    """Restore from the checkpoint, beginning with its metadata."""
    return time_action(lambda: [_restore_and_read(state) for state in _load_subtasks(directory)])[0]


def local(directory: str) -> Cost:
    """Restore from the local copies of an earlier task."""
    files = LocalFiles(
        root=f"{directory}/local",
        operator=digest_of(_UID),
        subtask=0,
        checkpoint_id=2,
        max_bytes=1 << 50,
        clock=SYSTEM_CLOCK,
    )
    read_through = partial(files.read_through, on_read=_ignore)
    states = [state.with_streams(read_through) for state in _load_subtasks(directory)]
    for file in (file for state in states for file in _files(state)):
        file.open_input_stream().close()  # leaves a copy in the first round
    return time_action(lambda: [_restore_and_read(state) for state in states])[0]


def worker(directory: str) -> Cost:
    """Restore from the memory of the process that has written the state."""
    memory = WorkerMemory()
    assigned = _load_subtasks(directory)
    with tempfile.TemporaryDirectory(dir=directory) as again:
        access = _access(again)
        access.initialize_base_locations_for_checkpoint()
        location = access.initialize_location_for_checkpoint(1)
        handles: list[OperatorStateHandle] = []
        for number, state in enumerate(assigned):
            result = OperatorStateBackend.restore(state.managed_operator).snapshot(location).run()
            assert result.task_local is not None
            handles += result.state.managed_operator
            memory.keep(str(number), handles[-1], result.task_local, max_bytes=1 << 50)

        def take() -> None:
            for number, handle in enumerate(handles):
                written = memory.take(str(number), [handle])
                assert written is not None
                _look_at(OperatorStateBackend.from_written(written))

        return time_action(take)[0]


ENGINES: dict[str, Callable[[str], Cost]] = {
    "plain": plain,
    "storage": storage,
    "local": local,
    "worker": worker,
}


def main() -> None:
    """Write the state, measure all rounds and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--mebibytes", type=int, default=1024, help="size of the state")
    parser.add_argument("--subtasks", type=int, default=4)
    parser.add_argument("--batches", type=int, default=4, help="into how many parts it is added")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path, help="directory for files")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        in_fresh_process(
            partial(
                write,
                mebibytes=arguments.mebibytes,
                subtasks=arguments.subtasks,
                batches=arguments.batches,
            ),
            directory,
        )
        rounds = measure_rounds(
            dict(ENGINES),
            lambda engine: {_ACTION: in_fresh_process(engine, directory)},
            arguments.rounds,
            TITLES,
        )
    size = f"{arguments.mebibytes} MiB, {arguments.subtasks} subtasks"
    print_times(size, rounds, [_ACTION], TITLES)


def _access(directory: str) -> FileSystemCheckpointStorageAccess:
    return FileSystemCheckpointStorage(f"file://{directory}").create_checkpoint_storage(_JOB)


def _load_subtasks(directory: str) -> tuple[StoredSubtask, ...]:
    """Load the stored state of each subtask from the latest checkpoint."""
    last = latest_checkpoint(f"file://{directory}", job_id=_JOB)
    if last is None:
        raise ValueError(f"no checkpoint in {directory}")
    parallelism = last.metadata.operators[_UID].parallelism
    return assign(last.metadata, {_UID: OperatorSettings(parallelism)})[_UID].subtasks


def _files(state: StoredSubtask) -> list[FileStateHandle]:
    return [stream for stream in state.streams() if isinstance(stream, FileStateHandle)]


def _restore_and_read(state: StoredSubtask) -> OperatorStateBackend:
    return _look_at(OperatorStateBackend.restore(state.managed_operator))


def _look_at(backend: OperatorStateBackend) -> OperatorStateBackend:
    """Ask for the rows, as an operator would."""
    if not len(backend.get_list_state(_DESCRIPTOR).to_table()):
        raise ValueError("no rows")
    return backend


def _ignore(source: str) -> None:
    pass


if __name__ == "__main__":
    main()
