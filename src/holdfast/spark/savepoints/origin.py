"""The query that a savepoint is taken of, or that is rolled back."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike

import msgspec
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.common import checkpoint_directory
from holdfast.errors import CheckpointCorruptedError, CheckpointNotFoundError, InvalidRequestError
from holdfast.locations.coordination import load_latest_checkpoint
from holdfast.locations.storages import CheckpointStorageAccess, CompletedCheckpoint
from holdfast.spark import sessions
from holdfast.spark.checkpoint_location import (
    LINK_FILE,
    METADATA,
    Link,
    decode_link,
    names_in,
    read,
)
from holdfast.spark.settings import Settings, Stores, check_known, is_of_stores
from holdfast.spark_progress import progress_of

_STATE_STORE = "spark.sql.streaming.stateStore."
_KEPT = {
    "spark.sql.streaming.minBatchesToRetain",
    "spark.sql.streaming.noDataMicroBatches.enabled",
    "spark.sql.streaming.queryEvolution.enableSourceEvolution",
}
"""Other settings that a query needs to go on as it was; the rest is the application's."""


GONE_WAY_OUT = "if the query goes on without its operators pass operators=False"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A query, by what it has stored.

    Attributes:
        checkpoint_location: Spark's own checkpoint directory for it.
        query_id: Spark's id of it.
        job_id: The job of its operators; the query's id if it has none.
        access: Where the checkpoints of its operators are; None if it has none, or they don't count.
        checkpoint_dir: The directory of that; None if it has none.
        configuration: Spark's configuration as the query has it, as far as it is known.
        query: The query itself; None if only its checkpointLocation is known.
    """

    checkpoint_location: str
    query_id: str
    job_id: str
    access: CheckpointStorageAccess | None
    checkpoint_dir: str | None
    configuration: dict[str, str]
    query: StreamingQuery | None

    @property
    def streaming_settings(self) -> dict[str, str]:
        """Settings that the query has for its state; none if only its location is known.

        A session that happens to be in this process says nothing of it.
        """
        if self.query is None:
            return {}
        return {
            key: text
            for key, text in self.configuration.items()
            if key.startswith(_STATE_STORE) or key in _KEPT
        }

    def latest_checkpoint(self) -> CompletedCheckpoint | None:
        """The newest checkpoint of the query's operators; None if it has none.

        Raises:
            CheckpointNotFoundError: It has operators, but they no checkpoint.
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


def origin_of(
    query: "StreamingQuery | str | PathLike[str]",
    *,
    checkpoint_dir: str | PathLike[str] | None,
    job_id: str | None,
    operators: bool,
    configuration: Mapping[str, str] | None,
    query_id: str | None = None,
) -> Origin:
    """Find what a query has stored.

    Args:
        query: The query, or the URI of its checkpointLocation.
        checkpoint_dir: The directory of its operators' checkpoints; None to find it.
        job_id: Their job; None to find it.
        operators: Whether it has any whose state counts.
        configuration: Spark's configuration, of a query that is given by URI; None for the session's.
        query_id: Its id, where its checkpointLocation doesn't say it at the moment.

    Raises:
        InvalidRequestError: It is no checkpointLocation, or belongs to Spark Connect, or has a
            configuration of its own.
    """
    if isinstance(query, str | PathLike):
        known = None
        location = checkpoint_directory(query)
        found = configuration_of(configuration)
    elif configuration is not None:
        message = "a query has a configuration of its own; leave it out, or give the query's URI"
        raise InvalidRequestError(message)
    else:
        known = sessions.known_query(query)
        location = checkpoint_directory(known.checkpoint_location)
        found = known.configuration
    use_stores(found, location)
    if query_id is None:
        query_id = query_id_of(location)
    access, job, directory = None, query_id, None
    if operators:
        link = _link_to(location, found, query_id, checkpoint_dir, job_id)
        if link is not None:
            access, job, directory = _access(link, found), link.job_id, link.checkpoint_dir
    elif checkpoint_dir is not None or job_id is not None:
        message = "operators=False and where their checkpoints are don't go together; name one"
        raise InvalidRequestError(message)
    return Origin(
        checkpoint_location=location,
        query_id=query_id,
        job_id=job,
        access=access,
        checkpoint_dir=directory,
        configuration=found,
        query=None if known is None else query,  # type: ignore[arg-type]  # it is no location
    )


def configuration_of(given: Mapping[str, str] | None) -> dict[str, str]:
    """Spark's configuration: what was given, or that of the session, if there is one.

    Raises:
        InvalidRequestError: A key looks like a setting of Holdfast and is none.
    """
    configuration = sessions.configuration() if given is None else dict(given)
    check_known(configuration)
    return configuration


def use_stores(configuration: Mapping[str, str], *uris: str | None) -> None:
    """Reach what is at those URIs as Spark's configuration says, if it says anything of stores."""
    if any(is_of_stores(key) for key in configuration):
        Stores.parse(configuration, *uris).use()


def query_id_of(checkpoint_location: str) -> str:
    """Spark's id of the query that a checkpointLocation belongs to.

    Raises:
        InvalidRequestError: It is none, or its restore or roll back is not finished.
    """
    if METADATA not in names_in(checkpoint_location):
        message = "no query has its checkpointLocation here: there is no 'metadata' file"
        raise InvalidRequestError(message, checkpoint_location)
    uri = f"{checkpoint_location}/{METADATA}"
    try:
        return msgspec.json.decode(read(uri), type=_Metadata).id
    except msgspec.MsgspecError as error:
        message = (
            "query's id can't be read; if a restore or a roll back was interrupted here, repeat it "
            f"first ({error})"
        )
        raise CheckpointCorruptedError(message, uri) from error


class _Metadata(msgspec.Struct):
    """Spark's `metadata` file."""

    id: str


def has_link(checkpoint_location: str) -> bool:
    """Whether a query has had operators, as its checkpointLocation says."""
    return LINK_FILE in names_in(checkpoint_location)


def _link_to(
    location: str,
    configuration: dict[str, str],
    query_id: str,
    checkpoint_dir: str | PathLike[str] | None,
    job_id: str | None,
) -> Link | None:
    """Where the checkpoints of a query's operators are; None if it has none.

    Settings of a session don't count: they may be there for other queries.
    """
    link = None
    if has_link(location):
        uri = f"{location}/{LINK_FILE}"
        link = decode_link(read(uri), uri=uri)
    if checkpoint_dir is None and job_id is None:
        return link
    directory = checkpoint_dir or (
        link.checkpoint_dir if link else Settings.parse(configuration).checkpoint_dir
    )
    if directory is None:
        message = f"where job {job_id} has its checkpoints is not known; name checkpoint_dir too"
        raise InvalidRequestError(message, location)
    return Link(
        checkpoint_dir=checkpoint_directory(directory),
        job_id=job_id or (link.job_id if link else query_id),
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
