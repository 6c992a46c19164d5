"""How a snapshot of a database gets into a checkpoint."""

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass

from holdfast.backends.keyed.rocksdb.budget import RocksDBSettings
from holdfast.backends.keyed.rocksdb.database import Database
from holdfast.backends.keyed.rocksdb.rocksdb_table import RocksDBTable
from holdfast.backends.keyed.segments import write_tables
from holdfast.backends.keyed.table import TableRows, TableSpec
from holdfast.backends.keys import KeyGroupRange
from holdfast.backends.snapshot import SnapshotResult, SnapshotStreams
from holdfast.locations.handles import SegmentsStateHandle

_STEP_ROWS = 1 << 16


@dataclass(slots=True)
class CapturedDatabase:
    """A database as it was when the snapshot was taken: a directory of hard links.

    Attributes:
        path: The directory; empty if there was no state.
        settings: What it is opened with.
        specs: What its tables hold, by name.
        key_groups: The key groups whose rows count.
        now_ms: The time of the batch.
    """

    path: str
    settings: RocksDBSettings
    specs: Mapping[str, TableSpec]
    key_groups: KeyGroupRange
    now_ms: int

    def tables(self, database: Database) -> Iterator[tuple[TableSpec, Iterable[TableRows]]]:
        """The tables of the database, which has been opened, and their rows."""
        for name, spec in self.specs.items():
            family = database.family(name)
            table = RocksDBTable(spec, family, self.key_groups, lambda: self.now_ms)
            yield spec, table.scan(_STEP_ROWS)

    def release(self) -> None:
        """Delete the directory. Never raises."""
        if self.path:
            shutil.rmtree(self.path, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class FullSnapshotStrategy:
    """Writes all rows into a segment, which any backend reads.

    Attributes:
        key_groups: The key groups of the subtask.
        capture: Takes the database as it is.
    """

    key_groups: KeyGroupRange
    capture: Callable[[], CapturedDatabase]

    def sync_prepare_resources(self, checkpoint_id: int) -> CapturedDatabase:  # noqa: ARG002  # the port's
        return self.capture()

    def async_snapshot(
        self, resources: CapturedDatabase, streams: SnapshotStreams
    ) -> SnapshotResult[SegmentsStateHandle]:
        if not resources.specs:
            return SnapshotResult()
        database = Database(resources.path, resources.settings, is_read_only=True)
        with closing(database):
            tables = resources.tables(database)
            return SnapshotResult((write_tables(tables, self.key_groups, streams),))
