"""A query by its stored files, and its address: the arguments of a caller."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Self, TypeAlias

from pyspark.sql.streaming.query import StreamingQuery

from holdfast.common import checkpoint_directory
from holdfast.errors import CheckpointNotFoundError, InvalidRequestError
from holdfast.locations.coordination import load_latest_checkpoint
from holdfast.locations.storages import CheckpointStorageAccess, CompletedCheckpoint
from holdfast.spark import sessions
from holdfast.spark.checkpoint_location import (
    APPLICATION_FILE,
    STATE_STORE,
    Link,
    decode_application,
    names_in,
    query_id_of,
    read,
    read_link,
)
from holdfast.spark.query import current_batch
from holdfast.spark.savepoints.change_notes import ROLLBACK, Change, change_at
from holdfast.spark.settings import PREFIX, Settings, Stores, check_settings, is_of_stores
from holdfast.spark_progress import progress_of

_KEPT = {
    "spark.sql.streaming.minBatchesToRetain",
    "spark.sql.streaming.noDataMicroBatches.enabled",
    "spark.sql.streaming.queryEvolution.enableSourceEvolution",
}
"""Settings, besides those of state stores, that belong to the query; the rest belongs to the application."""

_CHECKPOINT_DIR = f"{PREFIX}checkpoint.dir"

NO_OPERATORS_HINT = "if the query no longer has operators, pass operators=False"

Place: TypeAlias = str | PathLike[str]


def configuration_of(given: Mapping[str, str] | None) -> dict[str, str]:
    """Return the given Spark configuration, or that of the session, if there is one.

    Raises:
        InvalidRequestError: A setting is not valid.
    """
    if given is not None:
        check_settings(given)
        return dict(given)
    configuration = sessions.configuration()
    # The directory may be meant for other queries of the session.
    check_settings({key: text for key, text in configuration.items() if key != _CHECKPOINT_DIR})
    return configuration


def use_stores(configuration: Mapping[str, str], *uris: str | None) -> None:
    """Use the stores of these URIs with Spark's configuration, if it has settings of stores."""
    if any(is_of_stores(key) for key in configuration):
        Stores.parse(configuration, *uris).use()


def savepoint_directory(target: Place | None, configuration: Mapping[str, str]) -> str:
    """Return the directory of new savepoints: the target, or that of Spark's configuration.

    Raises:
        InvalidRequestError: Neither is set, or it can't be a directory of savepoints.
    """
    directory = target or Settings.parse(configuration).savepoint_dir
    if directory is None:
        message = "no savepoint directory: pass one, or set spark.holdfast.savepoint.dir"
        raise InvalidRequestError(message, kind="setting")
    return checkpoint_directory(directory)


def application_id(checkpoint_location: Place | None = None) -> str:
    """Return the id for a sink that skips a batch which it has already written, such as Delta's `txnAppId`.

    The id stays the same when Spark repeats a batch after a crash, so that the sink skips the repetition. A
    rollback, a restore and a fork change it: the same batch ids then have other rows, which the sink would skip
    silently under the old id. Before the first of these it is Spark's query id.

    Args:
        checkpoint_location: The query's checkpointLocation, for a `foreachBatch` function without operators of
            Holdfast. None inside a sink, or inside the function passed to `stateful_query`: then it is the id of the
            query that runs the batch, also with Spark Connect.

    Raises:
        InvalidRequestError: No location is given and this thread runs no batch, or no query has its
            checkpointLocation there yet.
        CheckpointCorruptedError: The id can't be read, or a rollback or restore is not finished there.
        StorageUnavailableError: The store could not be read.
    """
    if checkpoint_location is None:
        return current_batch().application_id()
    location = checkpoint_directory(checkpoint_location)
    use_stores(configuration_of(None), location)
    if APPLICATION_FILE not in names_in(location):
        return query_id_of(location)
    uri = f"{location}/{APPLICATION_FILE}"
    return decode_application(read(uri), uri=uri)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredQuery:
    """A query by its stored files: Spark's own side, and the checkpoints of its operators.

    Attributes:
        checkpoint_location: Spark's checkpoint directory of the query.
        query_id: Spark's id of the query.
        job_id: The job of its operators; the query's id without operators.
        access: The checkpoints of its operators; None without operators, or if they are ignored.
        checkpoint_dir: The directory of these checkpoints; None if they are in none.
        configuration: The known part of the query's Spark configuration.
        streaming_query: Spark's object; None if only the checkpointLocation is known.
    """

    checkpoint_location: str
    query_id: str
    job_id: str
    access: CheckpointStorageAccess | None
    checkpoint_dir: str | None
    configuration: dict[str, str]
    streaming_query: StreamingQuery | None

    @property
    def streaming_settings(self) -> dict[str, str]:
        """The query's settings of its state; empty if only its location is known.

        A session that happens to be in this process may have other settings.
        """
        if self.streaming_query is None:
            return {}
        return {
            key: text
            for key, text in self.configuration.items()
            if key.startswith(STATE_STORE) or key in _KEPT
        }

    def checkpoint_of_operators(self) -> CompletedCheckpoint | None:
        """Return the newest checkpoint of the query's operators; None without operators.

        Raises:
            CheckpointNotFoundError: It has operators, but they have no checkpoint.
            InvalidRequestError: The job belongs to another query.
        """
        if self.access is None:
            return None
        last = load_latest_checkpoint(self.access)
        if last is None:
            message = (
                f"operators of the query have no completed checkpoint in job {self.job_id}. With "
                "storage memory and no directory they are only in the process that runs it. If the "
                f"checkpoints are elsewhere pass checkpoint_dir and job_id; {NO_OPERATORS_HINT}"
            )
            raise CheckpointNotFoundError(message, self.checkpoint_location, kind="no-checkpoint")
        self.check_owns(last)
        return last

    def check_owns(self, checkpoint: CompletedCheckpoint) -> None:
        """Refuse a checkpoint of another query. Raises `InvalidRequestError`."""
        owner = progress_of(checkpoint.metadata).query_id
        if owner != self.query_id:
            message = f"job {self.job_id} belongs to another query, {owner}; this query is {self.query_id}"
            raise InvalidRequestError(
                message, checkpoint.location.external_pointer, kind="other-query"
            )


@dataclass(frozen=True, slots=True)
class QueryAddress:
    """The arguments that identify a query and the checkpoints of its operators.

    Attributes:
        query: The query, or the URI of its checkpointLocation.
        checkpoint_dir: The directory of its operators' checkpoints; None for that of its checkpointLocation.
        job_id: The job of its operators; None for that of its checkpointLocation.
        operators: Whether the query has operators whose state counts.
        configuration: Spark's configuration, for a query given by URI; None for the session's.
    """

    query: StreamingQuery | Place
    checkpoint_dir: Place | None = None
    job_id: str | None = None
    operators: bool = True
    configuration: Mapping[str, str] | None = None

    def stored_query(self, *, query_id: str | None = None) -> StoredQuery:
        """Look up the stored files of the query.

        Args:
            query_id: Spark's id of the query, if its checkpointLocation doesn't have it at the moment.

        Raises:
            InvalidRequestError: There is no such checkpointLocation, or the query belongs to Spark
                Connect, or is given with a configuration.
        """
        location, configuration, streaming_query = self.reach()
        if query_id is None:
            query_id = query_id_of(location)
        link = self._link(location, configuration, query_id)
        return StoredQuery(
            checkpoint_location=location,
            query_id=query_id,
            job_id=query_id if link is None else link.job_id,
            access=None if link is None else _open_access(link, configuration),
            checkpoint_dir=None if link is None else link.checkpoint_dir,
            configuration=configuration,
            streaming_query=streaming_query,
        )

    def reach(self) -> tuple[str, dict[str, str], StreamingQuery | None]:
        """Make the store of the checkpointLocation usable; return its URI, Spark's configuration, and its object."""
        streaming_query = None
        if isinstance(self.query, str | PathLike):
            location = checkpoint_directory(self.query)
            configuration = configuration_of(self.configuration)
        elif self.configuration is not None:
            message = (
                "configuration is only for the URI of a checkpointLocation; a query has its own, so leave "
                "configuration out"
            )
            raise InvalidRequestError(message)
        else:
            streaming_query = self.query
            known = sessions.known_query(streaming_query)
            location = checkpoint_directory(known.checkpoint_location)
            configuration = known.configuration
        use_stores(configuration, location)
        return location, configuration, streaming_query

    def _link(self, location: str, configuration: dict[str, str], query_id: str) -> Link | None:
        """Return the place of the operators' checkpoints; None without operators, or if they are ignored.

        Settings of a session don't count: they may be meant for other queries.
        """
        is_named = self.checkpoint_dir is not None or self.job_id is not None
        if not self.operators:
            if is_named:
                message = "pass either operators=False, or checkpoint_dir and job_id of the operators, not both"
                raise InvalidRequestError(message)
            return None
        link = read_link(location)
        if not is_named:
            return link
        directory = self.checkpoint_dir or (
            link.checkpoint_dir if link else Settings.parse(configuration).checkpoint_dir
        )
        if directory is None:
            message = (
                f"the checkpoint directory of job {self.job_id} is unknown; pass checkpoint_dir too"
            )
            raise InvalidRequestError(message, location, kind="no-query")
        return Link(
            checkpoint_dir=checkpoint_directory(directory),
            job_id=self.job_id or (link.job_id if link else query_id),
            storage="filesystem",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedQuery:
    """A query that doesn't run here, without an unfinished operation other than a rollback.

    `finished` is an operation that is finished, but whose notes are still there.
    """

    stored: StoredQuery
    rollback: Change | None
    finished: Change | None

    @classmethod
    def at(cls, address: QueryAddress) -> Self:
        """Look the query up by its checkpointLocation.

        Raises:
            InvalidRequestError: The query runs, or another operation is unfinished here; or the address can't be
                used.
        """
        location, _, _ = address.reach()
        change, finished = change_at(location), None
        if change is not None and change.is_finished():
            change, finished = None, change  # it was interrupted before its notes were deleted
        if change is not None and change.note.kind != ROLLBACK:
            raise unfinished_error(change)
        stored = address.stored_query(query_id=change.note.query_id if change else None)
        if change is not None and not _has_same_job(stored, change):
            raise unfinished_error(change)
        if stored.query_id in sessions.active_query_ids():
            raise InvalidRequestError("query is running; stop it first", location, kind="running")
        return cls(stored=stored, rollback=change, finished=finished)


def unfinished_error(change: Change) -> InvalidRequestError:
    """Return the error for an unfinished operation, which has to be finished first."""
    note = change.note
    target = f" to batch {note.to}" if note.kind == ROLLBACK else ""
    if note.job_id is not None:
        target += f" with job {note.job_id} in {note.checkpoint_dir}"
    message = f"a {note.kind}{target} was begun here and is not finished; repeat it first"
    return InvalidRequestError(message, change.location, kind="unfinished")


def _has_same_job(stored: StoredQuery, change: Change) -> bool:
    """Return whether an unfinished rollback has the job of the stored query."""
    if change.note.job_id is None:
        return True  # without operators, or by a version that didn't note the job
    return (
        stored.access is not None
        and stored.job_id == change.note.job_id
        and stored.checkpoint_dir == change.note.checkpoint_dir
    )


def _open_access(link: Link, configuration: dict[str, str]) -> CheckpointStorageAccess:
    settings = dataclasses.replace(
        Settings.parse(configuration),
        checkpoint_dir=link.checkpoint_dir,
        checkpoint_storage=link.storage,
    )
    use_stores(configuration, settings.checkpoint_dir)
    return settings.open_storage().create_checkpoint_storage(link.job_id)
