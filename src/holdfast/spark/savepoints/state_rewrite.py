"""Savepoints of stopped queries with new operators in place of Spark's state: Spark's logs stay, `state/` is left out."""

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Self

import msgspec

from holdfast.common import SYSTEM_CLOCK
from holdfast.errors import CheckpointNotFoundError, InvalidRequestError
from holdfast.locations.coordination import complete_checkpoint, copy_stream, dispose_on_error
from holdfast.locations.metadata import StoredOperator
from holdfast.locations.storages import CheckpointStorageLocation, FileSystemCheckpointStorage
from holdfast.spark.checkpoint_location import (
    LoggedBatch,
    batch_at,
    inferred_settings,
    newest_batch,
    newest_committed,
    read_text,
    select,
    tree,
)
from holdfast.spark.savepoints.copier import Base, Copier
from holdfast.spark.savepoints.stored_query import (
    Place,
    QueryAddress,
    StoppedQuery,
    StoredQuery,
    savepoint_directory,
    use_stores,
)
from holdfast.spark.savepoints.take import metadata_without_operators
from holdfast.spark_progress import SPARK, SPARK_FILES, SparkFile, SparkFiles, progress_of
from pyspark_holdfast_ticks import BEGINNING

WriteOperators = Callable[[CheckpointStorageLocation], Mapping[str, StoredOperator]]
"""Writes the state of operators into a savepoint."""

_LOG_VERSION = "v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRewrite:
    """A stopped query without Holdfast operators, whose state is to be rewritten.

    `batch` is the last committed one, `uncommitted` the id of the batch after it, if Spark has begun it and plans it again.
    """

    stored: StoredQuery
    batch: LoggedBatch
    uncommitted: int | None

    @classmethod
    def at(cls, location: Place, configuration: Mapping[str, str] | None) -> Self:
        """Look the query up by its checkpointLocation.

        Raises:
            InvalidRequestError: There is no such query, or it runs, or it has Holdfast operators already.
            CheckpointNotFoundError: The query has not completed a batch yet.
        """
        address = QueryAddress(location, configuration=configuration)
        query = StoppedQuery.at(address).stored
        uri = query.checkpoint_location
        if query.access is not None:
            message = (
                "the query has its state in Holdfast already; take a savepoint with take_savepoint"
            )
            raise InvalidRequestError(message, uri)
        committed = newest_committed(uri)
        if committed is None:
            message = "the query has not completed a batch yet"
            raise CheckpointNotFoundError(message, uri, kind="not-begun")
        newest = newest_batch(uri)
        uncommitted = newest if newest is not None and newest > committed else None
        return cls(stored=query, batch=batch_at(uri, tree(uri), committed), uncommitted=uncommitted)

    def write(
        self, target: Place | None, write_operators: WriteOperators, *, has_ticks: bool
    ) -> str:
        """Write a savepoint of the query with other state, and return its pointer.

        Args:
            target: URI of the directory to make it in; None for `spark.holdfast.savepoint.dir`.
            write_operators: Writes the new state.
            has_ticks: Whether the restored query has a source of idle ticks after its own sources.

        Raises:
            InvalidRequestError: The directory or the query's log can't be used.
            StorageUnavailableError: Something could not be read or written; no savepoint was made.
        """
        started_s = SYSTEM_CLOCK.monotonic_s()
        query = self.stored
        directory = savepoint_directory(target, query.configuration)
        use_stores(query.configuration, directory)
        storage = FileSystemCheckpointStorage(directory, single_writer=True)
        access = storage.create_checkpoint_storage(query.job_id)
        location = access.initialize_location_for_savepoint(self.batch.batch_id + 1, directory)
        with dispose_on_error(location):
            spark_files = self._copy_files(location, has_ticks=has_ticks)
            metadata = metadata_without_operators(query, self.batch, SYSTEM_CLOCK.now_ms())
            progress = progress_of(metadata)
            if has_ticks:
                entry = _with_ticks(progress.offsets, f"offsets/{self.batch.batch_id}")
                progress = msgspec.structs.replace(progress, offsets=entry)
            metadata = msgspec.structs.replace(
                metadata,
                operators=dict(write_operators(location)),
                coordinator_states={
                    SPARK: msgspec.msgpack.encode(progress),
                    SPARK_FILES: spark_files.encode(location.external_pointer),
                },
                duration_ms=1000 * (SYSTEM_CLOCK.monotonic_s() - started_s),
            )
            complete_checkpoint(location, metadata)
        return location.external_pointer

    def _copy_files(self, location: CheckpointStorageLocation, *, has_ticks: bool) -> SparkFiles:
        """Copy Spark's files except its state, with a source of idle ticks in the offset log if there is one."""
        root = self.stored.checkpoint_location
        files = tree(root)
        selected = select(files, self.batch)
        offsets = [path for path in selected if path.startswith("offsets/") and has_ticks]
        others = {
            path: files[path]
            for path in selected
            if not path.startswith("state/") and path not in offsets
        }
        copies = Copier(location, Base()).copy_files(root, others)
        for path in offsets:
            content = _with_ticks(read_text(f"{root}/{path}"), path)
            handle = copy_stream(partial(io.BytesIO, content.encode()), location)
            copies.append(SparkFile(path, handle))
        return SparkFiles(
            is_committed=True,
            # Format 2 of state shows in Spark's commit log, too, which stays.
            settings=self.stored.streaming_settings | inferred_settings(selected),
            files=tuple(copies),
            state_origins={},
        )


def _with_ticks(entry: str, path: str) -> str:
    """Add the offset of a source of idle ticks, the last in the plan, to an entry of the offset log."""
    version, _, _ = entry.partition("\n")
    if version != _LOG_VERSION:
        message = (
            f"Spark's log {path!r} has version {version}, to which no source can be added; leave "
            "spark.sql.streaming.queryEvolution.enableSourceEvolution out"
        )
        raise InvalidRequestError(message)
    return f"{entry.rstrip()}\n{BEGINNING}"
