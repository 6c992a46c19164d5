"""Notes of who is changing a checkpointLocation: an interrupted attempt looks like one that still goes on.

    .holdfast-attempt-<n>    {"number":1,"token":"…","paths":{…},"is_done":false}, published once

The highest number counts. A process publishes the next number when it begins, or repeats what another has
begun; and again when it has come to the end, before Spark may start the query. A number goes to a single
process, so nobody ends what another process has begun anew, and perhaps cleared away. Where a store can't
refuse to overwrite a file, the user promises here too that there is a single writer.
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
    """An attempt at a restore or a roll back, or the end of an attempt.

    Attributes:
        number: Counts attempts, and their ends, from 1.
        token: Random; tells attempts of the same number apart.
        paths: What a restore replaces at the beginning of URIs of input files, by what was there.
        is_done: Whether all is there but Spark's `metadata` file.
    """

    number: int
    token: str
    paths: dict[str, str] = {}
    is_done: bool = False


def is_attempt(path: str) -> bool:
    """Whether a file of a checkpointLocation is the note of an attempt."""
    return _NAME.fullmatch(path) is not None


def newest_attempt(checkpoint_location: str) -> Attempt | None:
    """The attempt that counts; None if there is no note of any.

    Raises:
        CheckpointCorruptedError: The note can't be read.
    """
    matches = map(_NAME.fullmatch, names_in(checkpoint_location))
    number = max((int(match[1]) for match in matches if match is not None), default=None)
    if number is None:
        return None
    uri = _uri(checkpoint_location, number)
    return read_json(uri, Attempt, description="the change of this checkpointLocation in progress")


def next_attempt(checkpoint_location: str, paths: Mapping[str, str]) -> Attempt:
    """Begin an attempt, which counts from now on. Raises `CheckpointConflictError`."""
    last = newest_attempt(checkpoint_location)
    number = 1 if last is None else last.number + 1
    attempt = Attempt(number=number, token=uuid.uuid4().hex, paths=dict(paths))
    return _published(checkpoint_location, attempt)


def check_newest(checkpoint_location: str, attempt: Attempt) -> None:
    """Refuse to go on if another attempt has begun since. Raises `CheckpointConflictError`."""
    if newest_attempt(checkpoint_location) != attempt:
        raise _conflict(checkpoint_location)


def done(checkpoint_location: str, attempt: Attempt) -> Attempt:
    """End an attempt, unless another has begun since. Raises `CheckpointConflictError`."""
    check_newest(checkpoint_location, attempt)
    ended = msgspec.structs.replace(attempt, number=attempt.number + 1, is_done=True)
    return _published(checkpoint_location, ended)


def forget_attempts(checkpoint_location: str) -> None:
    """Delete the notes of all attempts."""
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
    return CheckpointConflictError(message, checkpoint_location, kind="contended")


def _uri(checkpoint_location: str, number: int) -> str:
    return f"{checkpoint_location}/.holdfast-attempt-{number}"
