"""Notes of restores and rollbacks in a checkpointLocation: they keep Spark away, and make both repeatable.

    metadata                    {"unfinished":"restore: repeat it, …"} during the operation: the query has no id
    holdfast-unfinished.json    the operation and the future content of `metadata`: see `ChangeNote`
    .holdfast-attempt-<n>       {"number":1,"token":"…","paths":{…},"is_done":false}, published once
    .holdfast-restored          {"restore":{…},"paths":{…}}, written after a restore, before its other notes go

No version of Spark starts a query without an id. A process that repeats the same operation resumes it.

Stores can't replace a file in one step: for a moment there is no `metadata`. If the operation is interrupted
right there, Spark 4.2 and later refuse to start; Spark 4.1 would start the query under a new id.

An interrupted attempt looks like one that is still running, so the highest attempt number counts. A process publishes
the next number when it begins or repeats an operation; and again at the end, before Spark may start the query. Each
number goes to a single process, so no process ends an operation that another has started again and perhaps cleared.
On a store that can't refuse to overwrite a file, the user promises a single writer here too.

`.holdfast-restored` is needed because a process that is killed after the last step returned no settings for the query.
"""

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from holdfast.errors import CheckpointConflictError, InvalidRequestError
from holdfast.locations.file_systems import publish
from holdfast.spark.checkpoint_location import (
    METADATA,
    UNFINISHED_FILE,
    delete,
    names_in,
    read,
    read_json,
    read_json_in,
    replace,
)

RESTORE = "restore"
ROLLBACK = "rollback"

RESTORED_FILE = ".holdfast-restored"

_ATTEMPT = re.compile(r"\.holdfast-attempt-([1-9][0-9]*)")


class ChangeNote(msgspec.Struct, frozen=True, kw_only=True):
    """A restore or rollback, as its note stores it.

    Attributes:
        kind: `restore` or `rollback`.
        to: The commit token of the savepoint to restore, or the batch to roll back to.
        metadata: The future content of Spark's `metadata` file.
        query_id: The query's id in that file.
        token: Random; the commit token of a checkpoint that a restore makes.
        job_id: The job that gets the checkpoint, or is rolled back too; None without operators.
        checkpoint_dir: The directory of that job's checkpoints.
        shuffle_partitions: The number of partitions of Spark's state after a restore; None if it stays.
    """

    kind: str
    to: str
    metadata: str
    query_id: str
    token: str
    job_id: str | None = None
    checkpoint_dir: str | None = None
    shuffle_partitions: int | None = None


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt at a restore or a rollback, or the end of an attempt.

    Attributes:
        number: Counts attempts, and their ends, from 1.
        token: Random; distinguishes attempts with the same number.
        paths: The `paths` argument of a restore.
        is_done: Whether everything is there except Spark's `metadata` file.
    """

    number: int
    token: str
    paths: dict[str, str] = {}
    is_done: bool = False


class CompletedRestore(msgspec.Struct, frozen=True, kw_only=True):
    """A restore that is done: its note, and its `paths` argument."""

    restore: ChangeNote
    paths: dict[str, str]


@dataclass(frozen=True, slots=True)
class Change:
    """A restore or a rollback of a checkpointLocation."""

    location: str
    note: ChangeNote

    def is_finished(self) -> bool:
        """Return whether only the notes are left to delete."""
        if METADATA not in names_in(self.location):
            return False
        return read(f"{self.location}/{METADATA}") == self.note.metadata.encode()

    def begin(self, *, paths: Mapping[str, str] | None = None) -> Attempt:
        """Keep Spark away from now on; can be called again for the same operation.

        Returns:
            The attempt; earlier attempts can no longer `finish`.

        Raises:
            InvalidRequestError: Another operation is unfinished here.
            CheckpointConflictError: Another process has begun the same operation at this moment.
        """
        uri = f"{self.location}/{UNFINISHED_FILE}"
        try:
            publish(uri, msgspec.json.encode(self.note), single_writer=True)
        except CheckpointConflictError as error:
            message = "another operation on this checkpointLocation is unfinished; finish it first"
            raise InvalidRequestError(message, self.location, kind="unfinished") from error
        last = newest_attempt(self.location)
        number = 1 if last is None else last.number + 1
        attempt = Attempt(number=number, token=uuid.uuid4().hex, paths=dict(paths or {}))
        _publish_attempt(self.location, attempt)
        marker = {"unfinished": f"{self.note.kind}: repeat it, and this query can be started"}
        replace(f"{self.location}/{METADATA}", msgspec.json.encode(marker))
        return attempt

    def finish(self, attempt: Attempt) -> Attempt:
        """Let Spark start the query again; the notes stay.

        Raises:
            CheckpointConflictError: Another process has begun the same operation; Spark is still kept away.
        """
        check_newest(self.location, attempt)
        end = msgspec.structs.replace(attempt, number=attempt.number + 1, is_done=True)
        _publish_attempt(self.location, end)
        self._let_spark_start()
        return end

    def finish_done_attempt(self) -> None:
        """Do the last step of an attempt that was interrupted right before it."""
        last = newest_attempt(self.location)
        if last is not None and last.is_done and not self.is_finished():
            self._let_spark_start()

    def forget(self) -> None:
        """Delete the notes of the operation and its attempts."""
        attempts = filter(is_attempt, names_in(self.location))
        delete(f"{self.location}/{name}" for name in attempts)
        delete([f"{self.location}/{UNFINISHED_FILE}"])

    def _let_spark_start(self) -> None:
        replace(f"{self.location}/{METADATA}", self.note.metadata.encode())


def change_at(checkpoint_location: str) -> Change | None:
    """Return the operation whose note is here, or None. Raises `CheckpointCorruptedError`."""
    note = read_json_in(
        checkpoint_location,
        UNFINISHED_FILE,
        ChangeNote,
        description="the note of the unfinished operation",
    )
    return None if note is None else Change(checkpoint_location, note)


def completed_restore(checkpoint_location: str) -> CompletedRestore | None:
    """Return the restore that made this checkpointLocation; None without one, or after a rollback.

    Raises:
        CheckpointCorruptedError: The note can't be read.
    """
    return read_json_in(
        checkpoint_location, RESTORED_FILE, CompletedRestore, description="the note of the restore"
    )


def is_attempt(path: str) -> bool:
    """Return whether a file of a checkpointLocation is the note of an attempt."""
    return _ATTEMPT.fullmatch(path) is not None


def newest_attempt(checkpoint_location: str) -> Attempt | None:
    """Return the attempt that counts, or None without any. Raises `CheckpointCorruptedError`."""
    matches = map(_ATTEMPT.fullmatch, names_in(checkpoint_location))
    number = max((int(match[1]) for match in matches if match is not None), default=None)
    if number is None:
        return None
    uri = _attempt_uri(checkpoint_location, number)
    return read_json(uri, Attempt, description="the note of the attempt")


def check_newest(checkpoint_location: str, attempt: Attempt) -> None:
    """Refuse to continue if another attempt has begun since. Raises `CheckpointConflictError`."""
    if newest_attempt(checkpoint_location) != attempt:
        raise _conflict_error(checkpoint_location)


def _publish_attempt(checkpoint_location: str, attempt: Attempt) -> None:
    uri = _attempt_uri(checkpoint_location, attempt.number)
    try:
        publish(uri, msgspec.json.encode(attempt), single_writer=True)
    except CheckpointConflictError as error:
        raise _conflict_error(checkpoint_location) from error


def _conflict_error(checkpoint_location: str) -> CheckpointConflictError:
    message = (
        "another process is restoring or rolling back this checkpointLocation; wait until it has finished, or, if "
        "it is dead, repeat the operation"
    )
    return CheckpointConflictError(message, checkpoint_location, kind="contended")


def _attempt_uri(checkpoint_location: str, number: int) -> str:
    return f"{checkpoint_location}/.holdfast-attempt-{number}"
