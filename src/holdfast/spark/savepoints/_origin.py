"""The query that a savepoint is taken of, or that is rolled back."""

import dataclasses
from dataclasses import dataclass
from os import PathLike

import msgspec
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.errors import CheckpointCorruptedError, InvalidRequestError
from holdfast.locations import CheckpointStorageAccess, checkpoint_directory, latest_checkpoint
from holdfast.spark import _sessions
from holdfast.spark._coordinator import progress_of
from holdfast.spark._link import LINK_FILE, Link, decode_link
from holdfast.spark._settings import Settings
from holdfast.spark._stores import Stores
from holdfast.spark.savepoints._files import names_in, read
from holdfast.spark.savepoints._selection import METADATA

_STREAMING = "spark.sql.streaming."


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A query, by what it has stored.

    Attributes:
        checkpoint_location: Spark's own checkpoint directory for it.
        query_id: Spark's id of it.
        job_id: The job of its operators; the query's id if it has none.
        access: Where the checkpoints of its operators are; None if it has none.
        configuration: Spark's configuration as the query has it, as far as it is known.
        sink: How Spark describes its sink; None if nobody can be asked.
        query: The query itself; None if only its checkpointLocation is known.
    """

    checkpoint_location: str
    query_id: str
    job_id: str
    access: CheckpointStorageAccess | None
    configuration: dict[str, str]
    sink: str | None
    query: StreamingQuery | None

    @property
    def streaming_settings(self) -> dict[str, str]:
        """Settings of Spark for streaming queries that somebody has made."""
        return {key: text for key, text in self.configuration.items() if key.startswith(_STREAMING)}


def origin_of(
    query: "StreamingQuery | str | PathLike[str]",
    *,
    checkpoint_dir: str | PathLike[str] | None,
    job_id: str | None,
    query_id: str | None = None,
) -> Origin:
    """Find what a query has stored.

    Args:
        query: The query, or the URI of its checkpointLocation.
        checkpoint_dir: The directory of its operators' checkpoints; None to find it.
        job_id: Their job; None to find it.
        query_id: Its id, where its checkpointLocation doesn't say it at the moment.

    Raises:
        InvalidRequestError: It is no checkpointLocation, or belongs to Spark Connect.
    """
    if isinstance(query, str | PathLike):
        known = None
        location = checkpoint_directory(query)
        configuration = _sessions.configuration()
    else:
        known = _sessions.known_query(query)
        location = checkpoint_directory(known.checkpoint_location)
        configuration = known.configuration
    use_stores(configuration, location)
    if query_id is None:
        query_id = query_id_of(location)
    link = _link_of(location)
    if checkpoint_dir is not None:
        directory = checkpoint_directory(checkpoint_dir)
        link = Link(
            checkpoint_dir=directory,
            job_id=job_id or (link.job_id if link else query_id),
            storage="filesystem",
        )
    elif link is not None and job_id is not None:
        link = msgspec.structs.replace(link, job_id=job_id)
    access, job = _operators(link, configuration, query_id, job_id)
    return Origin(
        checkpoint_location=location,
        query_id=query_id,
        job_id=job,
        access=access,
        configuration=configuration,
        sink=known.sink if known else None,
        query=None if known is None else query,  # type: ignore[arg-type]  # it is no location
    )


def use_stores(configuration: dict[str, str], *uris: str | None) -> None:
    """Reach what is at those URIs as Spark's configuration says."""
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


def _link_of(checkpoint_location: str) -> Link | None:
    if LINK_FILE not in names_in(checkpoint_location):
        return None
    uri = f"{checkpoint_location}/{LINK_FILE}"
    return decode_link(read(uri), uri=uri)


def _operators(
    link: Link | None, configuration: dict[str, str], query_id: str, job_id: str | None
) -> tuple[CheckpointStorageAccess | None, str]:
    """Where the checkpoints of a query's operators are, and the id of their job."""
    settings = Settings.parse(configuration)
    if link is not None:
        settings = dataclasses.replace(
            settings, checkpoint_dir=link.checkpoint_dir, checkpoint_storage=link.storage
        )
        job = link.job_id
    else:
        job = job_id or settings.job_id or query_id
        if settings.checkpoint_dir is None:
            return None, query_id
    use_stores(configuration, settings.checkpoint_dir)
    access = settings.open_storage().create_checkpoint_storage(job)
    if link is None:
        # The settings may be there for other queries. What belongs to this one says so.
        last = latest_checkpoint(access)
        if last is None or progress_of(last.metadata).query_id != query_id:
            return None, query_id
    return access, job
