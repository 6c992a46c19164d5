"""The file `holdfast-application.json`: the application id of a query that was rolled back or restored.

    {"application_id":"6d5f…-91c0…"}

Sinks such as Delta skip a batch whose id they have already seen from an application. A roll back and a restore
run batch ids again with other rows, so each of them writes this file before Spark may start the query. A query
without the file has its query id as application id.
"""

import msgspec

from holdfast.common import json_decoder
from holdfast.errors import CheckpointCorruptedError

APPLICATION_FILE = "holdfast-application.json"
"""The name of the file, directly in the checkpointLocation. A savepoint doesn't copy it."""


class _Application(msgspec.Struct, frozen=True):
    application_id: str


_DECODER = json_decoder(_Application)


def encode_application(query_id: str, token: str) -> bytes:
    """Return the content of the file, with an application id that no query has had.

    Args:
        query_id: Spark's id of the query.
        token: Random; the same when an interrupted roll back or restore is repeated.
    """
    return msgspec.json.encode(_Application(f"{query_id}-{token}"))


def decode_application(content: bytes | str, *, uri: str) -> str:
    """Return the application id in the content of the file.

    Raises:
        CheckpointCorruptedError: The content has no application id.
    """
    try:
        return _DECODER.decode(content).application_id
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CheckpointCorruptedError(f"application id can't be read ({error})", uri) from error
