"""Savepoints of stopped queries with other state than their own: Spark's logs stay, `state/` is left out."""

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Self

import msgspec

from holdfast.common import Clock
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
from holdfast.spark.savepoints.configuration import savepoint_directory, use_stores
from holdfast.spark.savepoints.stopped_query import StoppedQuery
from holdfast.spark.savepoints.stored_query import Place, QueryAddress, StoredQuery
from holdfast.spark.savepoints.take import Base, Copier, progress_alone
from holdfast.spark_progress import SPARK, SPARK_FILES, SparkFile, SparkFiles, progress_of
from pyspark_holdfast_wake import BEGINNING

MakeOperators = Callable[[CheckpointStorageLocation], Mapping[str, StoredOperator]]
"""Writes the state of operators into a savepoint."""

_LOG_VERSION = "v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryToExchange:
    """A stopped query without operators of ours, behind the last batch that is done.

    Attributes:
        stored: The stored files of the query.
        batch: The batch.
        begun: The batch behind it, if that was begun and is not done; it is planned anew.
    """

    stored: StoredQuery
    batch: LoggedBatch
    begun: int | None

    @classmethod
    def at(cls, location: Place, configuration: Mapping[str, str] | None) -> Self:
        """Look the query up.

        Args:
            location: URI of its checkpointLocation.
            configuration: Settings of Spark that say how stores are reached; None for the session's.

        Raises:
            InvalidRequestError: There is no such query, or it runs, or it has operators of Holdfast already.
            CheckpointNotFoundError: The query has done no batch yet.
        """
        address = QueryAddress(
            query=location,
            checkpoint_dir=None,
            job_id=None,
            operators=True,
            configuration=configuration,
        )
        query = StoppedQuery.at(address).stored
        uri = query.checkpoint_location
        if query.access is not None:
            message = "the query has its state in Holdfast already; take_savepoint makes a savepoint of it"
            raise InvalidRequestError(message, uri)
        done = newest_committed(uri)
        if done is None:
            raise CheckpointNotFoundError("the query has done no batch yet", uri, kind="not-begun")
        newest = newest_batch(uri)
        begun = newest if newest is not None and newest > done else None
        return cls(stored=query, batch=batch_at(uri, tree(uri), done), begun=begun)

    def write(
        self, target: Place | None, make_operators: MakeOperators, *, wakes: bool, clock: Clock
    ) -> str:
        """Write a savepoint of it.

        Args:
            target: URI of the directory to make it in; None for `spark.holdfast.savepoint.dir`.
            make_operators: Writes the state that it goes on with.
            wakes: Whether it goes on with a source of wake-ups behind its own sources.
            clock: Says when it is made.

        Returns:
            Pointer to the savepoint.

        Raises:
            InvalidRequestError: The directory or the query's log can't be used.
            StorageUnavailableError: Something could not be read or written; no savepoint was made.
        """
        started_s = clock.monotonic_s()
        query = self.stored
        directory = savepoint_directory(target, query.configuration)
        use_stores(query.configuration, directory)
        files = tree(query.checkpoint_location)
        selected = select(files, self.batch)
        storage = FileSystemCheckpointStorage(directory, single_writer=True)
        access = storage.create_checkpoint_storage(query.job_id)
        location = access.initialize_location_for_savepoint(self.batch.batch_id + 1, directory)
        with dispose_on_error(location):
            offsets = [path for path in selected if path.startswith("offsets/") and wakes]
            others = {
                path: files[path]
                for path in selected
                if not path.startswith("state/") and path not in offsets
            }
            copied = Copier(location, Base()).files(query.checkpoint_location, others)
            for path in offsets:
                content = _with_wake_ups(read_text(f"{query.checkpoint_location}/{path}"), path)
                handle = copy_stream(partial(io.BytesIO, content.encode()), location)
                copied.append(SparkFile(path, handle))
            spark_files = SparkFiles(
                is_committed=True,
                # Format 2 of state shows in Spark's log of commits, too, which stays.
                settings=query.streaming_settings | inferred_settings(selected),
                files=tuple(copied),
                state_origins={},
            )
            metadata = progress_alone(query, self.batch, clock.now_ms())
            progress = progress_of(metadata)
            if wakes:
                entry = _with_wake_ups(progress.offsets, f"offsets/{self.batch.batch_id}")
                progress = msgspec.structs.replace(progress, offsets=entry)
            metadata = msgspec.structs.replace(
                metadata,
                operators=dict(make_operators(location)),
                coordinator_states={
                    SPARK: msgspec.msgpack.encode(progress),
                    SPARK_FILES: spark_files.encode(location.external_pointer),
                },
                duration_ms=1000 * (clock.monotonic_s() - started_s),
            )
            completed = complete_checkpoint(location, metadata)
        return completed.location.external_pointer


def _with_wake_ups(entry: str, path: str) -> str:
    """An entry of the offset log with a line for a source of wake-ups, which is the last in the plan."""
    version, _, _ = entry.partition("\n")
    if version != _LOG_VERSION:
        message = (
            f"Spark's log {path!r} is of version {version}, to which no source can be added; leave "
            "spark.sql.streaming.queryEvolution.enableSourceEvolution out"
        )
        raise InvalidRequestError(message)
    return f"{entry.rstrip()}\n{BEGINNING}"
