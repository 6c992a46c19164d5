"""Keyed state of a subtask in RocksDB or ForSt files: incremental checkpoints and native savepoints.

The files contain entries in the format of `entries`, with several versions of a key. The newest one is valid; elements
added to a list are joined, the oldest first. Keys of other key groups remain from before a rescaling.

Source:
    Flink, RocksIncrementalSnapshotStrategy (2.3.0); RocksDB, StringAppendOperator.
"""

import bisect
import itertools
import operator
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from holdfast.backends.arrow import run_starts
from holdfast.flink.handles import IncrementalHandle, StreamHandle
from holdfast.flink.serializers import reading
from holdfast.flink.state_files import StateFiles
from holdfast.flink.states.descriptions import KeyedDescription, keyed_description
from holdfast.flink.states.entries import Entries, EntryReader, byte_strings
from holdfast.flink.states.keyed_state import prefix_bytes
from holdfast.flink.states.sst import MERGE, VALUE, Run, SstFile, as_byte_strings

_FILES = ".sst"
_SEPARATOR = b","

_Deletion = tuple[bytes, bytes, int]


@dataclass(frozen=True, slots=True)
class RocksGroups:
    """Keyed state of a subtask in files, described but not read; `streams` has the files of each state."""

    handle: IncrementalHandle
    description: KeyedDescription
    max_parallelism: int
    streams: dict[str, list[StreamHandle]]

    @classmethod
    def of(
        cls, handle: IncrementalHandle, files: StateFiles, max_parallelism: int
    ) -> "RocksGroups":
        """Read the description, and the state of each file. Raises `CheckpointError`."""
        with files.open(handle.meta) as stream:
            description = keyed_description(files.input(stream, 0, stream.size))
        streams: dict[str, list[StreamHandle]] = {}
        for name, content in handle.files:
            if name.endswith(_FILES):
                with files.open(content) as stream, reading(f"file {name!r}"):
                    streams.setdefault(SstFile(stream).column_family, []).append(content)
        return cls(handle, description, max_parallelism, streams)

    def columns(self, state: int, files: StateFiles) -> Iterator[tuple[int, list[pa.Array]]]:
        """Return the columns of a state in each key group with entries. Raises `CheckpointError`."""
        info = self.description.states[state]
        size = prefix_bytes(self.max_parallelism)
        reader = EntryReader(info, self.description.key, size)
        first, count = self.handle.first, self.handle.count
        with ExitStack() as opened:
            tables = [
                SstFile(opened.enter_context(files.open(content)))
                for content in self.streams.get(info.name, ())
            ]
            deletions = [deletion for table in tables for deletion in table.range_deletions()]
            start = first.to_bytes(size, "big")
            sources = [
                _Sorted(table.runs(start, reader.key_width, reader.value_width)) for table in tables
            ]
            for group in range(first, first + count):
                with reading(f"key group {group}"):
                    prefix = group.to_bytes(size, "big")
                    runs = [run for source in sources for run in source.with_prefix(prefix)]
                    entries = _newest(runs, _within(deletions, group, size))
                    columns = reader.columns(group, entries) if len(entries.keys) else None
                if columns is not None:
                    yield group, columns


class _Sorted:
    """Sorted entries, which are consumed prefix by prefix."""

    def __init__(self, runs: Iterator[Run]) -> None:
        self._runs = runs
        self._next: Run | None = next(runs, None)

    def with_prefix(self, prefix: bytes) -> Iterator[Run]:
        run = self._next
        while run is not None:
            count = bisect.bisect_right(run.keys, prefix, key=lambda key: bytes(key[: len(prefix)]))
            if count:
                yield run[:count]
            if count < len(run.keys):
                run = run[count:]
                break
            run = next(self._runs, None)
        self._next = run


def _within(deletions: list[_Deletion], group: int, size: int) -> list[_Deletion]:
    """Return the deletions that affect a key group."""
    start, end = group.to_bytes(size, "big"), (group + 1).to_bytes(size + 1, "big")[-size:]
    is_last = group + 1 == 1 << 8 * size
    return [
        deletion for deletion in deletions if deletion[1] > start and (is_last or deletion[0] < end)
    ]


def _newest(runs: list[Run], deletions: list[_Deletion]) -> Entries:
    """Return the newest entry of each key, without deleted ones."""
    if not deletions and (rows := _newest_rows(runs)) is not None:
        return rows
    keys = [key for run in runs for key in byte_strings(run.keys)]
    values = [value for run in runs for value in byte_strings(run.values)]
    has_only_values = not deletions and all((run.kinds == VALUE).all() for run in runs)
    if has_only_values and all(
        map(operator.lt, keys, keys[1:])
    ):  # from a single file, or from files in order
        return Entries(keys, values)
    sequences = [-sequence for run in runs for sequence in run.sequences.tolist()]
    kinds = [kind for run in runs for kind in run.kinds.tolist()]
    versions = sorted(zip(keys, sequences, kinds, values, strict=True))
    keys, values = [], []
    for key, several in itertools.groupby(versions, operator.itemgetter(0)):
        deleted = -1
        if deletions:
            deleted = max((at for start, end, at in deletions if start <= key < end), default=-1)
        parts: list[bytes] = []
        for _, negative, kind, value in several:
            if -negative < deleted or kind not in {VALUE, MERGE}:
                break
            parts.append(value)
            if kind == VALUE:
                break
        if parts:
            keys.append(key)
            values.append(parts[0] if len(parts) == 1 else _SEPARATOR.join(reversed(parts)))
    return Entries(keys, values)


def _newest_rows(runs: list[Run]) -> Entries | None:
    """Do the same for rows that are all values; None for others."""
    keys = [run.keys for run in runs if isinstance(run.keys, np.ndarray)]
    values = [run.values for run in runs if isinstance(run.values, np.ndarray)]
    if not runs or len(keys) < len(runs) or any((run.kinds != VALUE).any() for run in runs):
        return None
    rows, contents = np.concatenate(keys), np.concatenate(values)
    names = as_byte_strings(rows)
    if (names[:-1] < names[1:]).all():  # from a single file, or from files in order
        return Entries(rows, contents)
    sequences = np.concatenate([run.sequences for run in runs])
    # As in the comparison of single entries, ties are decided by the bytes of values.
    order = np.lexsort([*contents.T[::-1], -sequences, names])
    names = names[order]
    order = order[run_starts(names)]
    return Entries(rows[order], contents[order])
