"""A query by what it has stored, and the address by which a caller names it."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import TypeAlias

from pyspark.sql.streaming.query import StreamingQuery

from holdfast.common import checkpoint_directory
from holdfast.errors import CheckpointNotFoundError, InvalidRequestError
from holdfast.locations.coordination import load_latest_checkpoint
from holdfast.locations.storages import CheckpointStorageAccess, CompletedCheckpoint
from holdfast.spark import sessions
from holdfast.spark.checkpoint_location import STATE_STORE, Link, query_id_of, read_link
from holdfast.spark.savepoints.configuration import configuration_of, use_stores
from holdfast.spark.settings import Settings
from holdfast.spark_progress import progress_of

_KEPT = {
    "spark.sql.streaming.minBatchesToRetain",
    "spark.sql.streaming.noDataMicroBatches.enabled",
    "spark.sql.streaming.queryEvolution.enableSourceEvolution",
}
"""Other settings that a query needs to go on as it was; the rest is the application's."""


GONE_WAY_OUT = "if the query goes on without its operators pass operators=False"

Place: TypeAlias = str | PathLike[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredQuery:
    """A query by what it has stored: Spark's own side, and the checkpoints of its operators.

    Attributes:
        checkpoint_location: Spark's own checkpoint directory for it.
        query_id: Spark's id of it.
        job_id: The job of its operators; the query's id if it has none.
        access: Where the checkpoints of its operators are; None if it has none, or they don't count.
        checkpoint_dir: The directory of these checkpoints; None if they are in none.
        configuration: Spark's configuration as the query has it, as far as it is known.
        streaming_query: Spark's own object; None if only the checkpointLocation is known.
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
        """Settings that the query has for its state; none if only its location is known.

        A session that happens to be in this process says nothing of it.
        """
        if self.streaming_query is None:
            return {}
        return {
            key: text
            for key, text in self.configuration.items()
            if key.startswith(STATE_STORE) or key in _KEPT
        }

    def checkpoint_of_operators(self) -> CompletedCheckpoint | None:
        """The newest checkpoint of the query's operators; None if it has no operators.

        Raises:
            CheckpointNotFoundError: It has operators, but they have no checkpoint.
            InvalidRequestError: The job is another query's.
        """
        if self.access is None:
            return None
        last = load_latest_checkpoint(self.access)
        if last is None:
            message = (
                f"operators of the query have no completed checkpoint in job {self.job_id}. With "
                "storage memory and no directory they are only in the process that runs it. If the "
                f"checkpoints are elsewhere name checkpoint_dir and job_id; {GONE_WAY_OUT}"
            )
            raise CheckpointNotFoundError(message, self.checkpoint_location)
        self.check_owns(last)
        return last

    def check_owns(self, checkpoint: CompletedCheckpoint) -> None:
        """Refuse a checkpoint of another query. Raises `InvalidRequestError`."""
        owner = progress_of(checkpoint.metadata).query_id
        if owner != self.query_id:
            message = (
                f"job {self.job_id} is that of another query, {owner}, and this is {self.query_id}; "
                "name the right one"
            )
            raise InvalidRequestError(message, checkpoint.location.external_pointer)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryAddress:
    """How a caller names a query and the checkpoints of its operators.

    Attributes:
        query: The query, or the URI of its checkpointLocation.
        checkpoint_dir: The directory of its operators' checkpoints; None to go by its checkpointLocation.
        job_id: The job of its operators; None to go by its checkpointLocation.
        operators: Whether the query has operators whose state counts.
        configuration: Spark's configuration, of a query that is given by URI; None for the session's.
    """

    query: StreamingQuery | Place
    checkpoint_dir: Place | None
    job_id: str | None
    operators: bool
    configuration: Mapping[str, str] | None

    def reached_location(self) -> str:
        """URI of the checkpointLocation, which can be read from now on. Errors of `stored_query`."""
        return self._reached()[0]

    def stored_query(self, *, query_id: str | None = None) -> StoredQuery:
        """Look up what the query has stored.

        Args:
            query_id: Spark's id of the query, where its checkpointLocation doesn't say it at the
                moment.

        Raises:
            InvalidRequestError: There is no such checkpointLocation, or the query belongs to Spark
                Connect, or has a configuration of its own.
        """
        location, configuration, streaming_query = self._reached()
        if query_id is None:
            query_id = query_id_of(location)
        link = self._link(location, configuration, query_id)
        return StoredQuery(
            checkpoint_location=location,
            query_id=query_id,
            job_id=query_id if link is None else link.job_id,
            access=None if link is None else _access(link, configuration),
            checkpoint_dir=None if link is None else link.checkpoint_dir,
            configuration=configuration,
            streaming_query=streaming_query,
        )

    def _reached(self) -> tuple[str, dict[str, str], StreamingQuery | None]:
        """The checkpointLocation, whose store is made usable, Spark's configuration, and its object."""
        streaming_query = None
        if isinstance(self.query, str | PathLike):
            location = checkpoint_directory(self.query)
            configuration = configuration_of(self.configuration)
        elif self.configuration is not None:
            message = (
                "a query has a configuration of its own; leave it out, or give the query's URI"
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
        """Where the checkpoints of the query's operators are; None if it has none that count.

        Settings of a session don't count: they may be there for other queries.
        """
        is_named = self.checkpoint_dir is not None or self.job_id is not None
        if not self.operators:
            if is_named:
                message = (
                    "operators=False and where their checkpoints are don't go together; name one"
                )
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
                f"where job {self.job_id} has its checkpoints is not known; name checkpoint_dir too"
            )
            raise InvalidRequestError(message, location)
        return Link(
            checkpoint_dir=checkpoint_directory(directory),
            job_id=self.job_id or (link.job_id if link else query_id),
            storage="filesystem",
        )


def _access(link: Link, configuration: dict[str, str]) -> CheckpointStorageAccess:
    settings = dataclasses.replace(
        Settings.parse(configuration),
        checkpoint_dir=link.checkpoint_dir,
        checkpoint_storage=link.storage,
    )
    use_stores(configuration, settings.checkpoint_dir)
    return settings.open_storage().create_checkpoint_storage(link.job_id)
