"""Rows routed to key groups by another hash than that of their input order; large states are sorted on disk.

    run      rows sorted by group, up to `RUN_BYTES` of input
    piece    a part of a run in the file: an Arrow record batch with the column `group` before the others

Groups are read in ascending order. So only the current piece of each run is in memory, and a reader gets one key
group, or several small ones up to `_BLOCK_BYTES`, at a time.
"""

import itertools
import os
import tempfile
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.errors import StorageFullError

Groups = npt.NDArray[np.int64]

Place = tuple[int, int]
"""Start and number of bytes."""

_GROUP = "group"
RUN_BYTES, _PIECE_BYTES, _BLOCK_BYTES = 8 << 20, 64 << 10, 4 << 20
_FEW_BYTES = 1 << 20
"""States up to this size stay in memory."""


class SpillFile:
    """An unnamed temporary file, created on the first write and deleted with this object."""

    def __init__(self) -> None:
        self._file: BinaryIO | None = None
        self._size = 0

    def append(self, data: pa.Buffer) -> Place:
        """Append bytes; returns their place. Raises `StorageFullError`."""
        place = self._size, data.size
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # closed with this object
                weakref.finalize(self, self._file.close)
            left = memoryview(data)
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            message = f"rows don't fit into temporary files; set TMPDIR to another directory: {error.strerror}"
            raise StorageFullError(message, tempfile.gettempdir()) from error
        self._size += data.size
        return place

    def read(self, place: Place) -> pa.Buffer:
        assert self._file is not None
        start, size = place
        data = bytearray(size)
        view = memoryview(data)
        while view:
            count = os.preadv(self._file.fileno(), [view], start)
            assert count, "a temporary file is as long as what was written to it"
            view, start = view[count:], start + count
        return pa.py_buffer(data)


@dataclass(slots=True)
class _Run:
    """Rows in the order of their groups.

    Attributes:
        pieces: The first group of each piece, and its place in the file, or the piece itself.
        read: Number of pieces read.
        rows: Rows of the last read piece that were not returned yet.
    """

    pieces: list[tuple[int, Place | pa.RecordBatch]]
    read: int = 0
    rows: pa.RecordBatch | None = None


class SpilledRows:
    """Rows of a state, sorted by their new key groups.

    Args:
        schema: Schema of the rows.
        groups: Number of groups.
        file: File for states that do not fit into memory.
        run_bytes: Maximum bytes of rows in memory before they are sorted and written.
    """

    def __init__(
        self, schema: pa.Schema, groups: int, file: SpillFile, *, run_bytes: int = RUN_BYTES
    ) -> None:
        self.schema = schema
        self._with_group = schema.insert(0, pa.field(_GROUP, pa.int32()))
        self._file = file
        self._run_bytes = run_bytes
        self._bytes_of = np.zeros(groups, np.float64)
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._runs: list[_Run] = []
        self._position = 0
        self.count = 0

    def add(self, rows: pa.RecordBatch, groups: Groups) -> None:
        """Take rows, and the group of each. Raises `StorageFullError`."""
        if not len(rows):
            return
        self.count += len(rows)
        self._bytes_of += np.bincount(groups, minlength=len(self._bytes_of)) * (
            rows.nbytes / len(rows)
        )
        columns = [pa.array(groups.astype(np.int32)), *rows.columns]
        self._waiting.append(pa.record_batch(columns, schema=self._with_group))
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= self._run_bytes:
            self._end_run(on_disk=True)

    def finish(self) -> None:
        """Finish the input; no more rows can be added. Raises `StorageFullError`."""
        if self._waiting:
            self._end_run(on_disk=self._waiting_bytes > min(_FEW_BYTES, self._run_bytes))

    def blocks(self, first: int, end: int) -> Iterator[tuple[Groups, pa.Table]]:
        """Read the rows of a range of groups in ascending order, with the group of each row.

        Each table has one group, or several small ones. Reading an earlier group than before starts from the beginning.
        """
        if first < self._position:
            for run in self._runs:
                run.read, run.rows = 0, None
        self._rows_before(first)
        while first < end:
            sizes = np.cumsum(self._bytes_of[first:end])
            stop = first + max(1, int(np.searchsorted(sizes, _BLOCK_BYTES, "right")))
            rows = self._rows_before(stop)
            if len(rows):
                groups = rows.column(_GROUP).to_numpy()
                order = np.argsort(groups, kind="stable")
                rows = rows.take(pa.array(order)).combine_chunks()
                yield groups[order].astype(np.int64), rows.drop_columns([_GROUP])
            first = stop

    def by_group(self, first: int, end: int) -> Iterator[tuple[int, pa.Table]]:
        """Read one group at a time; groups without rows are omitted."""
        for groups, rows in self.blocks(first, end):
            edges = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), len(groups)]
            for start, stop in itertools.pairwise(edges):
                yield int(groups[start]), rows.slice(start, stop - start)

    def _end_run(self, *, on_disk: bool) -> None:
        rows = pa.Table.from_batches(self._waiting, self._with_group)
        self._waiting, self._waiting_bytes = [], 0
        order = np.argsort(rows.column(_GROUP).to_numpy(), kind="stable")
        batches = rows.take(pa.array(order)).combine_chunks().to_batches()
        for batch in batches:
            self._runs.append(self._store(batch) if on_disk else _Run([(0, batch)]))

    def _store(self, rows: pa.RecordBatch) -> _Run:
        step = max(1, int(len(rows) * _PIECE_BYTES / max(1, rows.nbytes)))
        pieces = []
        for start in range(0, len(rows), step):
            piece = rows.slice(start, step)
            pieces.append((piece.column(0)[0].as_py(), self._file.append(piece.serialize())))
        return _Run(pieces)

    def _rows_before(self, end: int) -> pa.Table:
        """Return the rows of groups before `end` that were not returned before."""
        self._position = end
        batches = [rows for run in self._runs for rows in self._take(run, end)]
        return pa.Table.from_batches(batches, self._with_group)

    def _take(self, run: _Run, end: int) -> Iterator[pa.RecordBatch]:
        while True:
            if run.rows is None:
                if run.read == len(run.pieces) or run.pieces[run.read][0] >= end:
                    return
                _, piece = run.pieces[run.read]
                run.read += 1
                if isinstance(piece, tuple):
                    piece = pa.ipc.read_record_batch(self._file.read(piece), self._with_group)
                run.rows = piece
            count = int(np.searchsorted(run.rows.column(0).to_numpy(), end))
            yield run.rows.slice(0, count)
            if count < len(run.rows):
                run.rows = run.rows.slice(count)
                return
            run.rows = None
