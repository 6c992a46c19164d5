"""Look-ups by key in keyed state of a checkpoint, while the job runs."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from os import PathLike
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa

from holdfast.backends.inspection.catalogue import find_state
from holdfast.backends.inspection.keyed_parts import Table
from holdfast.backends.inspection.reading import key_columns, tables_in
from holdfast.backends.keyed import BlockCache, Keys, RestoredTable
from holdfast.common import SYSTEM_CLOCK, Clock, map_in_parallel, uripath
from holdfast.errors import CheckpointNotFoundError, InvalidRequestError
from holdfast.locations.coordination import explain_deletion, hold_found_checkpoint
from holdfast.locations.storages import CompletedCheckpoint

_LOCAL = ("file", "memory")
_MAX_THREADS = 16


@dataclass(frozen=True, slots=True)
class FoundRows:
    """The rows of one or more keys, and the checkpoint that they are of.

    Attributes:
        rows: The rows, with the columns of `read_state`; none for a key without state.
        checkpoint_id: Number of the checkpoint.
        completed_ms: Time at which it was completed, by the driver's clock, milliseconds since 1970 UTC.
        pointer: URI of the checkpoint.
    """

    rows: pa.Table
    checkpoint_id: int
    completed_ms: int
    pointer: str


class StateLookup:
    """Keyed state that is open for look-ups by key; `open_state` makes it. Several threads may use it.

    It holds the checkpoint by a lease until `close`, or the end of its `with` block, and keeps the manifests and the blocks
    that were read last.
    """

    def __init__(
        self, find: "Callable[[], OpenState]", follow_s: float | None, clock: Clock
    ) -> None:
        self._find = find
        self._follow_s = follow_s
        self._clock = clock
        self._refreshing = threading.Lock()
        self._checked_s = clock.monotonic_s()
        self._open = find()

    @property
    def schema(self) -> pa.Schema:
        """The columns of rows."""
        return self._open.readable.schema

    @property
    def checkpoint_id(self) -> int:
        """Number of the checkpoint that is open."""
        return self._open.checkpoint_id

    def get(self, key: Any) -> FoundRows:
        """Look up one key.

        Args:
            key: A value for each of the key's columns, by name, or the value if there is one column; in the forms that
                `read_state` takes.

        Raises:
            InvalidRequestError: The key has other columns or types, or the state was closed.
            CheckpointNotFoundError: The checkpoint was deleted.
            CheckpointCorruptedError: Stored bytes are damaged.
        """
        return self.get_many([key])

    def get_many(self, keys: Iterable[Any]) -> FoundRows:
        """Look up several keys in one checkpoint; their rows come in no particular order. Raises as `get`."""
        wanted = list(keys)
        self._follow()
        opened = self._open
        try:
            return opened.look_up(wanted)
        except CheckpointNotFoundError:
            is_replaced = self._open is not opened  # by another thread, which has released it
            if not is_replaced and (self._follow_s is None or not self.refresh()):
                raise
            return self._open.look_up(wanted)

    def refresh(self) -> bool:
        """Continue with the newest checkpoint that the pointer leads to; return whether it is another one."""
        with self._refreshing:
            newest = self._find()
            former = self._open
            if newest.pointer == former.pointer and newest.completed_ms == former.completed_ms:
                newest.close()
                return False
            self._open = newest
            former.close()
            return True

    def close(self) -> None:
        """Release the checkpoint. May be called twice."""
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        self.close()

    def _follow(self) -> None:
        """Look for a newer checkpoint, if that is due; one thread at a time does."""
        now_s = self._clock.monotonic_s()
        if self._follow_s is not None and now_s - self._checked_s >= self._follow_s:
            self._checked_s = now_s
            self.refresh()


def open_state(
    pointer: str | PathLike[str],
    operator: str | None = None,
    state: str | None = None,
    *,
    kind: str | None = None,
    follow_s: float | None = None,
    max_cached_bytes: int = 64 << 20,
    clock: Clock = SYSTEM_CLOCK,
) -> StateLookup:
    """Open keyed state for many look-ups by key, while the job runs.

        with open_state("s3://bucket/checkpoints/totals", "totals", follow_s=1.0) as totals:
            found = totals.get({"user": "ann"})
            print(found.rows, found.checkpoint_id)

    Only the blocks are read that can have the keys. RocksDB's files are read whole when the state is opened.

    Args:
        pointer: As for `read_state`. A directory or a job leads to its newest checkpoint.
        operator: As for `read_state`.
        state: As for `read_state`.
        kind: As for `read_state`.
        follow_s: Seconds after which a look-up first looks for a newer checkpoint; None to stay with the first one.
        max_cached_bytes: Maximum size of the blocks that stay in memory.
        clock: Measures `follow_s`.

    Raises:
        InvalidRequestError: There is no such state, or it has no keys.
        CheckpointNotFoundError: There is no such checkpoint, or a file is gone.
        CheckpointCorruptedError: Stored bytes are damaged.
    """
    cache = BlockCache(max_cached_bytes)
    return StateLookup(
        lambda: _open(pointer, operator, state, kind, cache), follow_s=follow_s, clock=clock
    )


def _open(
    pointer: str | PathLike[str],
    operator: str | None,
    name: str | None,
    kind: str | None,
    cache: BlockCache,
) -> "OpenState":
    with ExitStack() as block:
        checkpoint = block.enter_context(hold_found_checkpoint(pointer))
        opened = OpenState(checkpoint, operator, name, kind, cache)
        opened.lease = block.pop_all()
        return opened


class OpenState:
    """Keyed state of one checkpoint that is open for look-ups by key; the arguments are those of `open_state`.

    A table has streams, so each thread that looks something up takes an idle one, or opens another.

    Attributes:
        lease: Keeps the job from deleting the checkpoint until `close`; empty by default.

    Raises:
        InvalidRequestError: There is no such state, or it has no keys.
    """

    def __init__(
        self,
        checkpoint: CompletedCheckpoint,
        operator: str | None,
        state: str | None,
        kind: str | None,
        cache: BlockCache,
    ) -> None:
        metadata = checkpoint.metadata
        stored = find_state(metadata, operator, state, raw=None, kind=kind, is_keyed=True)
        groups = metadata.operators[stored.operator].max_parallelism
        self.readable = replace(stored.readable(), max_parallelism=groups)
        self._tables = tables_in(self.readable)
        if not self._tables:
            message = f"state {stored.label!r} is {stored.kind}, which has no keys; read it with read_state"
            raise InvalidRequestError(message)
        self.checkpoint_id = checkpoint.checkpoint_id
        self.completed_ms = metadata.created_ms
        self.pointer = checkpoint.location.external_pointer
        self.lease = ExitStack()
        self._label = stored.label
        self._cache = cache
        self._idle: list[list[RestoredTable]] = [[] for _ in self._tables]
        self._opened: list[RestoredTable] = []
        is_local = uripath.scheme(self.pointer) in _LOCAL
        self._threads = 1 if is_local else _MAX_THREADS

    def look_up(self, keys: Sequence[Any]) -> FoundRows:
        """Return the rows of keys. Raises as `StateLookup.get`."""
        batches: list[pa.RecordBatch] = []
        if keys:
            with explain_deletion(self.pointer):
                results = map_in_parallel(
                    lambda work: list(self._read(work)),
                    list(self._works(keys)),
                    max_threads=self._threads,
                )
            batches = [batch for result in results for batch in result]
        return FoundRows(
            pa.Table.from_batches(batches, self.readable.schema),
            self.checkpoint_id,
            self.completed_ms,
            self.pointer,
        )

    def iter_rows(self, key: Any) -> Iterator[pa.RecordBatch]:
        """Iterate over the rows of a key that may have more of them than fit into memory. Raises as `StateLookup.get`."""
        for work in self._works([key]):
            yield from self._read(work)

    def close(self) -> None:
        self.lease.close()
        for table in self._opened:
            table.close()

    def _works(self, wanted: Sequence[Any]) -> Iterator[tuple[int, Table]]:
        """Distribute keys over threads: tables by their number, with the keys to look up."""
        rows = [key_columns(self._label, self._tables[0], key) for key in wanted]
        columns = list(map(pa.concat_arrays, zip(*rows, strict=True)))
        keys = Keys.of(columns, self.readable.max_parallelism)
        for number, table in enumerate(self._tables):
            chosen = table.at_keys(keys)
            if chosen is None or chosen.keys is None:
                continue
            count = len(chosen.keys)
            for part in np.array_split(np.arange(count), min(count, self._threads)):
                yield number, replace(chosen, keys=chosen.keys.take(part))

    def _read(self, work: tuple[int, Table]) -> Iterator[pa.RecordBatch]:
        number, table = work
        idle = self._idle[number]
        try:
            opened = idle.pop()
        except IndexError:
            opened = table.open(self._cache)
            self._opened.append(opened)
        yield from self.readable.batches([replace(table, opened=opened)])
        idle.append(opened)
