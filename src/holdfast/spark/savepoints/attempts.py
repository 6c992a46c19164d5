"""Who is changing a checkpointLocation: what was interrupted can't be told from what still goes on.

    .holdfast-attempt-<n>    a JSON object, published once; the highest number counts

Whoever begins, or repeats what somebody else has begun, publishes the next number; so does whoever has
come to the end, before Spark may start the query. Only one gets the number behind its own, so nobody
ends what somebody else has begun anew, and perhaps cleared away. Where a store has to be told of a single
writer, that it is one is the user's promise here too.
"""

import re
import uuid
from collections.abc import Mapping

import msgspec

from holdfast.errors import CheckpointConflictError
from holdfast.locations.file_systems import publish
from holdfast.spark.checkpoint_location import delete, names_in, read_json

_NAME = re.compile(r"\.holdfast-attempt-([1-9][0-9]*)")


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One of those who do the same.

    Attributes:
        number: Counts them, and their ends, from 1.
        token: Random.
        paths: For the beginning of each URI of input files that a restore changes, what it is then.
        is_done: Whether all is there but what Spark's `metadata` file will say.
    """

    number: int
    token: str
    paths: dict[str, str] = {}
    is_done: bool = False


def is_attempt(path: str) -> bool:
    """Whether a file of a checkpointLocation is the note of an attempt."""
    return _NAME.fullmatch(path) is not None


def newest_attempt(checkpoint_location: str) -> Attempt | None:
    """The one that counts; None if nobody has noted any, as versions before this one.

    Raises:
        CheckpointCorruptedError: The file doesn't say.
    """
    matches = map(_NAME.fullmatch, names_in(checkpoint_location))
    number = max((int(match[1]) for match in matches if match is not None), default=None)
    if number is None:
        return None
    uri = _uri(checkpoint_location, number)
    return read_json(uri, Attempt, what="who is changing this checkpointLocation")


def next_attempt(checkpoint_location: str, paths: Mapping[str, str]) -> Attempt:
    """Become the one that counts. Raises `CheckpointConflictError`."""
    last = newest_attempt(checkpoint_location)
    number = 1 if last is None else last.number + 1
    attempt = Attempt(number=number, token=uuid.uuid4().hex, paths=dict(paths))
    return _published(checkpoint_location, attempt)


def check_newest(checkpoint_location: str, attempt: Attempt) -> None:
    """Give up if somebody has begun anew since. Raises `CheckpointConflictError`."""
    if newest_attempt(checkpoint_location) != attempt:
        raise _conflict(checkpoint_location)


def done(checkpoint_location: str, attempt: Attempt) -> Attempt:
    """Come to the end, unless somebody has begun anew. Raises `CheckpointConflictError`."""
    check_newest(checkpoint_location, attempt)
    ended = msgspec.structs.replace(attempt, number=attempt.number + 1, is_done=True)
    return _published(checkpoint_location, ended)


def forget_attempts(checkpoint_location: str) -> None:
    """Delete all of them."""
    names = filter(is_attempt, names_in(checkpoint_location))
    delete(f"{checkpoint_location}/{name}" for name in names)


def _published(checkpoint_location: str, attempt: Attempt) -> Attempt:
    uri = _uri(checkpoint_location, attempt.number)
    try:
        publish(uri, msgspec.json.encode(attempt), single_writer=True)
    except CheckpointConflictError as error:
        raise _conflict(checkpoint_location) from error
    return attempt


def _conflict(checkpoint_location: str) -> CheckpointConflictError:
    message = (
        "somebody else has begun the same here meanwhile; let that come to its end, or repeat it once "
        "nobody else is at it"
    )
    return CheckpointConflictError(message, checkpoint_location)


def _uri(checkpoint_location: str, number: int) -> str:
    return f"{checkpoint_location}/.holdfast-attempt-{number}"
