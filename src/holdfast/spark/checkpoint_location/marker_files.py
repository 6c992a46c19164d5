"""Files directly in a checkpointLocation: the query, its application id, and the link to its checkpoints.

    metadata                     {"id":"6d5f…"}: Spark's id of the query. While a restore or a rollback is not
                                 finished there is no id, which keeps Spark from starting the query.
    holdfast.json                {"checkpoint_dir":"s3://bucket/holdfast","job_id":"totals","storage":"filesystem"}
    holdfast-application.json    {"application_id":"6d5f…-91c0…"}, of a query that was rolled back or restored
    holdfast-unfinished.json     a restore or a rollback in progress, see `savepoints`

Sinks such as Delta skip a batch whose id they have already seen from an application. A rollback and a restore run
batch ids again with other rows, so each of them writes the application id before Spark may start the query. A query
without that file has its query id as application id.
"""

import msgspec

from holdfast.common import json_decoder
from holdfast.errors import CheckpointCorruptedError, InvalidRequestError
from holdfast.spark.checkpoint_location.files import names_in, read, read_json_in

METADATA = "metadata"
LINK_FILE = "holdfast.json"
APPLICATION_FILE = "holdfast-application.json"
"""A savepoint doesn't copy this file."""

UNFINISHED_FILE = "holdfast-unfinished.json"
"""A savepoint doesn't copy this file."""


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """The location of a query's checkpoints.

    Attributes:
        checkpoint_dir: URI of the directory with the jobs' directories; None if there is no such directory.
        job_id: The job.
        storage: `filesystem` or `memory`.
    """

    checkpoint_dir: str | None
    job_id: str
    storage: str


class _Metadata(msgspec.Struct):
    """The part of `metadata` that is read; Spark may store more."""

    id: str


class _Application(msgspec.Struct, frozen=True):
    application_id: str


_METADATA_DECODER = json_decoder(_Metadata)
_APPLICATION_DECODER = json_decoder(_Application)


def encode_link(link: Link) -> str:
    """Return the text of `holdfast.json`."""
    return msgspec.json.encode(link).decode()


def read_link(checkpoint_location: str) -> Link | None:
    """Read the link to a query's checkpoints; None if the query has had no operators.

    Raises:
        CheckpointCorruptedError: The file is not such a link.
    """
    return read_json_in(
        checkpoint_location, LINK_FILE, Link, description="link to the query's checkpoints"
    )


def has_link(checkpoint_location: str) -> bool:
    """Return whether a query has had operators, according to its checkpointLocation."""
    return LINK_FILE in names_in(checkpoint_location)


def query_id_of(checkpoint_location: str) -> str:
    """Return Spark's id of the query that a checkpointLocation belongs to.

    Raises:
        InvalidRequestError: The directory is not the checkpointLocation of a query.
        CheckpointCorruptedError: The file has no id: a restore or a rollback is not finished.
    """
    if METADATA not in names_in(checkpoint_location):
        message = "no query has its checkpointLocation here: there is no 'metadata' file"
        raise InvalidRequestError(message, checkpoint_location)
    uri = f"{checkpoint_location}/{METADATA}"
    try:
        return _METADATA_DECODER.decode(read(uri)).id
    except msgspec.MsgspecError as error:
        message = (
            "query's id can't be read; if a restore or a rollback was interrupted here, repeat it "
            f"first ({error})"
        )
        raise CheckpointCorruptedError(message, uri) from error


def with_query_id(content: bytes, query_id: str) -> str:
    """Return the content of `metadata` with another query id.

    Raises:
        CheckpointCorruptedError: The content is not JSON.
    """
    try:
        metadata = json_decoder(dict[str, object]).decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        message = f"Spark's file {METADATA!r} can't be read ({error})"
        raise CheckpointCorruptedError(message) from error
    return msgspec.json.encode(metadata | {"id": query_id}).decode()


def encode_application(query_id: str, token: str) -> bytes:
    """Return the content of `holdfast-application.json`, with an application id that no query has had.

    Args:
        query_id: Spark's id of the query.
        token: Random; the same when an interrupted rollback or restore is repeated.
    """
    return msgspec.json.encode(_Application(f"{query_id}-{token}"))


def decode_application(content: bytes | str, *, uri: str) -> str:
    """Return the application id in the content of `holdfast-application.json`.

    Raises:
        CheckpointCorruptedError: The content has no application id.
    """
    try:
        return _APPLICATION_DECODER.decode(content).application_id
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CheckpointCorruptedError(f"application id can't be read ({error})", uri) from error
