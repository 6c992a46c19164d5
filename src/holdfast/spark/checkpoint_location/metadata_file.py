"""Spark's file `metadata`: the id of the query that a checkpointLocation belongs to.

    {"id":"6d5f…"}

While a restore or a roll back is not finished the file has no id, which keeps Spark away.
"""

import msgspec

from holdfast.common import json_decoder
from holdfast.errors import CheckpointCorruptedError, InvalidRequestError
from holdfast.spark.checkpoint_location.small_files import names_in, read

METADATA = "metadata"
"""The name of the file, directly in the checkpointLocation."""


class _Metadata(msgspec.Struct):
    """The part of the file that is read; Spark may have more in it."""

    id: str


_DECODER = json_decoder(_Metadata)


def query_id_of(checkpoint_location: str) -> str:
    """Spark's id of the query that a checkpointLocation belongs to.

    Raises:
        InvalidRequestError: No query has its checkpointLocation here.
        CheckpointCorruptedError: The file has no id: a restore or a roll back is not finished.
    """
    if METADATA not in names_in(checkpoint_location):
        message = "no query has its checkpointLocation here: there is no 'metadata' file"
        raise InvalidRequestError(message, checkpoint_location)
    uri = f"{checkpoint_location}/{METADATA}"
    try:
        return _DECODER.decode(read(uri)).id
    except msgspec.MsgspecError as error:
        message = (
            "query's id can't be read; if a restore or a roll back was interrupted here, repeat it "
            f"first ({error})"
        )
        raise CheckpointCorruptedError(message, uri) from error


def with_query_id(content: bytes, query_id: str) -> str:
    """The text of the file for another query, all else as it is.

    Raises:
        CheckpointCorruptedError: The content is not JSON.
    """
    try:
        known = json_decoder(dict[str, object]).decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        message = f"Spark's file {METADATA!r} can't be read ({error})"
        raise CheckpointCorruptedError(message) from error
    return msgspec.json.encode(known | {"id": query_id}).decode()
