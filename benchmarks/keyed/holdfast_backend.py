"""Our own keyed backend, through what operators call.

    python -m benchmarks.keyed.holdfast_backend columnar|heap|rocksdb value|reducing DIRECTORY [reopened]

Totals are a value that is looked up and put, or a reducing state, which adds without looking. A snapshot
goes to a storage in files, synced, as a subtask's does; all but heap tables also keep local copies of shared files. Reopened
is the state with each batch, as Spark's tasks do it: from the checkpoint before, in a process that keeps its files mapped.
"""

import pickle
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa

from benchmarks.keyed.serving import Figures, Phases, serve
from benchmarks.keyed.works import KEY_GROUPS, KEY_TYPES, Batch, Longs, all_keys, batch_of
from holdfast.backends.descriptors import (
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from holdfast.backends.keyed import (
    BackendName,
    KeyedStateBackend,
    Keys,
    RocksDBSettings,
    StateTables,
    Workspace,
    open_tables,
)
from holdfast.backends.keyed.states import FoldingColumns, ValueColumns
from holdfast.backends.keys import KeyGroupRange
from holdfast.locations import FileSystemCheckpointStorage
from holdfast.locations.handles import (
    FileStateHandle,
    PlaceholderStreamStateHandle,
    SegmentsStateHandle,
    StreamStateHandle,
)
from holdfast.locations.storages import CheckpointStorageLocation

_ROCKSDB = RocksDBSettings(memory_bytes=512 << 20)  # as for plain RocksDB
TOTALS = pa.struct([pa.field("count", pa.int64()), pa.field("sum", pa.int64())])
_FOLDS = ReducingStateDescriptor("totals", {"count": "count", "sum": "sum"}, TOTALS)


class Holdfast:
    """An engine.

    Args:
        tables: Name of the backend.
        state: Type of the state with the totals: `value` or `reducing`.
        directory: For checkpoints, and local copies.
        is_reopened: Whether the state of the last snapshot is reopened before each counted batch.
    """

    _batch: Batch
    _shares: list[tuple[KeyedStateBackend, Batch]]

    def __init__(
        self, tables: BackendName, state: str, directory: Path, *, is_reopened: bool = False
    ) -> None:
        self._tables_name = tables
        self._is_reducing = state == "reducing"
        self._directory = directory
        self._copies = str(directory / "local")
        self._is_reopened = is_reopened
        self._workspace = Workspace()
        storage = FileSystemCheckpointStorage(f"file://{directory}/checkpoints")
        self._access = storage.create_checkpoint_storage("benchmark")
        self._access.initialize_base_locations_for_checkpoint()
        self._checkpoint_id = 0
        self._location: CheckpointStorageLocation | None = None
        self._handles: list[SegmentsStateHandle] = []
        self._unused: dict[str, StreamStateHandle] = {}
        self._backends: list[KeyedStateBackend] = []
        self._ranges: list[KeyGroupRange] = []

    def begin(self, type: str) -> None:
        self._type = type
        self._key = pa.schema([pa.field("key", KEY_TYPES[type])])

    def fill(self, keys: int, parallelism: int) -> None:
        self._open(parallelism)
        for batch in all_keys(keys, self._type):
            for backend, rows in self._split_by_subtask(batch):
                distinct = backend.keys([rows.keys])
                if self._is_reducing:
                    _reducing(backend).add(distinct, {"sum": pa.array(rows.values)})
                else:
                    ones = np.ones(len(distinct), np.int64)
                    _value(backend).put(distinct, _totals(ones, rows.values[distinct.rows.order]))
            self.snapshot()

    def load(self, path: str) -> None:
        self._batch = batch_of(Path(path), self._type)
        self._shares = list(self._split_by_subtask(self._batch))  # a shuffle's business
        self.delete_unused()

    def delete_unused(self) -> None:
        """Delete what no checkpoint needs, and make the directory of the next, which is the driver's business."""
        for name, stream in self._unused.items():
            stream.discard_state()
            Path(self._copies, name).unlink(missing_ok=True)
        self._unused = {}
        self._link_copies()
        if self._location is None:
            number = self._checkpoint_id + 1
            self._location = self._access.initialize_location_for_checkpoint(number)

    @property
    def only_backend(self) -> KeyedStateBackend:
        """The backend of the only subtask."""
        (backend,) = self._backends
        return backend

    def count(self) -> Figures:
        phases = Phases()
        if self._is_reopened:
            self._close()
            self._open(1)
            self.only_backend.get_state(_TOTALS)
            phases.end("open")
        backend = self.only_backend
        keys = backend.keys([self._batch.keys])
        phases.end("group")
        if self._is_reducing:
            _reducing(backend).add(keys, {"sum": pa.array(self._batch.values)})
            phases.end("write")
            return phases.figures
        totals = _value(backend)
        counts, sums = _numbers(totals.get(keys))
        counts = counts + keys.rows.counts
        sums = sums.copy()
        np.add.at(sums, keys.codes, self._batch.values)
        phases.end("look up")
        totals.put(keys, _totals(counts, sums))
        phases.end("write")
        return phases.figures

    def access(self) -> Figures:
        phases = Phases()
        backend = self.only_backend
        state = backend.get_state(_SUM)
        keys = backend.keys([self._batch.keys])
        codes = keys.codes.tolist()
        phases.end("group")
        backend.begin_batch(keys)
        backend.set_current_key(0)
        state.value()
        phases.end("prefetch")
        for index, value in zip(codes, self._batch.values.tolist(), strict=True):
            backend.set_current_key(index)
            before = state.value()
            state.update(value if before is None else before + value)
        phases.end("value and update")
        backend.end_batch()
        phases.end("write back")
        return phases.figures

    def sums(self) -> Figures:
        backend = self.only_backend
        keys = backend.keys([self._batch.keys])
        sums = backend.get_state(_SUM).columns.get(keys)
        return {"sum": float(sums.fill_null(0).to_numpy()[keys.codes].sum())}

    def snapshot(self) -> Figures:
        phases = Phases()
        self._checkpoint_id += 1
        location, self._location = self._location, None
        if location is None:
            location = self._access.initialize_location_for_checkpoint(self._checkpoint_id)
        parts = [backend.snapshot(self._checkpoint_id, location) for backend in self._backends]
        phases.end("capture")
        states = [part.run().state for part in parts]
        phases.end("store")
        for backend in self._backends:
            backend.notify_checkpoint_complete(self._checkpoint_id)
        phases.end("confirm")
        handles = [
            handle
            for state in states
            for handle in state.with_streams(self._resolve_placeholder).managed_keyed
            if isinstance(handle, SegmentsStateHandle)
        ]
        self._note_unused(handles)
        self._handles = handles
        return phases.figures

    def reopen(self, parallelism: int) -> None:
        self._close()
        self._workspace = Workspace()  # as a new process
        self._open(parallelism)

    def leave(self) -> None:
        (self._directory / "handles").write_bytes(
            pickle.dumps((self._checkpoint_id, self._handles))
        )

    def resume(self) -> None:
        left = (self._directory / "handles").read_bytes()
        self._checkpoint_id, self._handles = pickle.loads(left)  # noqa: S301  # it is our own
        self._open(1)

    def look(self) -> Figures:
        count = total = 0
        for backend, rows in self._shares:
            keys = backend.keys([rows.keys])
            state = _reducing(backend) if self._is_reducing else _value(backend)
            counts, sums = _numbers(state.get(keys))
            count += int((counts * keys.rows.counts).sum())
            total += int((sums * keys.rows.counts).sum())
        return {"count": count, "sum": total}

    def put_entries(self) -> None:
        backend = self.only_backend
        keys = backend.keys([self._batch.keys])
        values = pa.array(self._batch.values)
        backend.get_map_state(_ENTRIES).columns.put(keys, values, values)

    def get_entries(self) -> Figures:
        backend = self.only_backend
        keys = backend.keys([self._batch.keys])
        values = backend.get_map_state(_ENTRIES).columns.get(keys, pa.array(self._batch.values))
        return {"sum": float(values.to_numpy().sum())}

    def list_entries(self) -> Figures:
        backend = self.only_backend
        keys = backend.keys([self._batch.keys])
        entries = backend.get_map_state(_ENTRIES).columns.items(keys)
        return {"entries": len(entries), "sum": float(entries.values.to_numpy().sum())}

    def register(self) -> None:
        backend = self.only_backend
        keys = backend.keys([self._batch.keys])
        backend.event_time_timers().columns.register(keys, self._batch.values)

    def fire(self, until_ms: int) -> Figures:
        backend = self.only_backend
        return {"fired": len(backend.event_time_timers().columns.fire(until_ms))}

    def _close(self) -> None:
        for backend in self._backends:
            backend.close()

    def _open(self, parallelism: int) -> None:
        """Backends of the last snapshot, or empty: what the process opens serves all its subtasks."""
        self._ranges = [
            KeyGroupRange(
                KEY_GROUPS * index // parallelism, KEY_GROUPS * (index + 1) // parallelism - 1
            )
            for index in range(parallelism)
        ]
        self._backends = [
            KeyedStateBackend(self._tables(groups), self._key, KEY_GROUPS, groups)
            for groups in self._ranges
        ]

    def _link_copies(self) -> None:
        """Copies that one subtask has deleted and another needs are there again: the start of a query's task sees to it."""
        for handle in self._handles:
            for name, stream in handle.segments.items():
                path = Path(self._copies, name)
                if isinstance(stream, FileStateHandle) and not path.exists():
                    path.parent.mkdir(exist_ok=True)
                    path.hardlink_to(stream.uri.removeprefix("file://"))

    def _tables(self, groups: KeyGroupRange) -> StateTables:
        first, last = groups.start_key_group, groups.end_key_group
        shares = [handle.intersection(first, last) for handle in self._handles]
        handles = [share for share in shares if share is not None]
        return open_tables(
            groups,
            handles,
            backend=self._tables_name,
            directory=self._copies,
            workspace=self._workspace,
            rocksdb=_ROCKSDB,
        )

    def _split_by_subtask(self, batch: Batch) -> Iterator[tuple[KeyedStateBackend, Batch]]:
        """Yield each subtask's backend with its rows."""
        if len(self._backends) == 1:
            yield self._backends[0], batch
            return
        groups = Keys.of([batch.keys], KEY_GROUPS)
        of_rows = (groups.sort_keys >> np.uint64(48)).astype(np.int64)[groups.codes]
        for backend, chosen in zip(self._backends, self._ranges, strict=True):
            mine = (of_rows >= chosen.start_key_group) & (of_rows <= chosen.end_key_group)
            yield backend, Batch(batch.keys.filter(pa.array(mine)), batch.values[mine])

    def _resolve_placeholder(self, stream: StreamStateHandle) -> StreamStateHandle:
        """Replace a placeholder by the stream of the previous checkpoint, as the driver does."""
        if not isinstance(stream, PlaceholderStreamStateHandle):
            return stream
        return next(
            handle.segments[stream.name]
            for handle in self._handles
            if stream.name in handle.segments
        )

    def _note_unused(self, handles: Sequence[SegmentsStateHandle]) -> None:
        """Note the files of the previous checkpoint that this one no longer uses."""
        used = {name for handle in handles for name in handle.segments}
        for handle in self._handles:
            self._unused |= {
                name: stream for name, stream in handle.segments.items() if name not in used
            }


_TOTALS = ValueStateDescriptor("totals", TOTALS)
_SUM = ValueStateDescriptor("sum", pa.int64())
_ENTRIES = MapStateDescriptor("entries", pa.int64(), pa.int64())


def _value(backend: KeyedStateBackend) -> ValueColumns:
    return backend.get_state(_TOTALS).columns


def _reducing(backend: KeyedStateBackend) -> FoldingColumns:
    columns = backend.get_reducing_state(_FOLDS).columns
    if not isinstance(columns, FoldingColumns):
        raise TypeError("known functions are folded by arrays")
    return columns


def _totals(counts: Longs, sums: Longs) -> pa.StructArray:
    return pa.StructArray.from_arrays([pa.array(counts), pa.array(sums)], fields=list(TOTALS))


def _numbers(totals: pa.StructArray) -> tuple[Longs, Longs]:
    """Counts and sums; 0 for keys without state."""
    columns = totals.flatten()
    if totals.null_count:  # what is there needs no copy
        columns = [column.fill_null(0) for column in columns]
    counts, sums = (column.to_numpy() for column in columns)
    return counts, sums


if __name__ == "__main__":
    name, state, directory, *reopened = sys.argv[1:]
    serve(Holdfast(cast("BackendName", name), state, Path(directory), is_reopened=bool(reopened)))
