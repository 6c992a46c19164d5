"""Keeps Spark away from a checkpointLocation that is being changed, also if the change is interrupted.

    metadata                    {"unfinished":"restore: repeat it, …"} meanwhile, so that it has no id
    holdfast-unfinished.json    what is being done, and what `metadata` will say: see `Unfinished`

No version of Spark starts a query without an id. A process that repeats the same change goes on with it.

Stores can't replace a file in one step: for a moment there is no `metadata`. If the change is interrupted
right there, Spark 4.2 and later refuse to start; Spark 4.1 would start the query under a new id.
"""

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
    read_json_in,
    replace,
)
from holdfast.spark.savepoints.notes.attempts import (
    Attempt,
    done,
    forget_attempts,
    newest_attempt,
    next_attempt,
)


class Unfinished(msgspec.Struct, frozen=True, kw_only=True):
    """The operation that has begun on a checkpointLocation, as the note there says.

    Attributes:
        kind: `restore` or `roll back`.
        to: The commit token of the savepoint that is restored, or the batch that is gone back to.
        metadata: The future content of Spark's `metadata` file.
        query_id: The query's id in that file.
        token: Random; the commit token of a checkpoint that is made.
        job_id: The job that the checkpoint is made in, or that goes back too; None if there is none.
        checkpoint_dir: The directory of that job's checkpoints.
        shuffle_partitions: Over how many partitions Spark's state is spread in the end; None if it
            stays as it is.
    """

    kind: str
    to: str
    metadata: str
    query_id: str
    token: str
    job_id: str | None = None
    checkpoint_dir: str | None = None
    shuffle_partitions: int | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """A restore or a roll back, and where it is made.

    Attributes:
        location: URI of the checkpointLocation.
        note: The operation.
    """

    location: str
    note: Unfinished

    def is_finished(self) -> bool:
        """Whether all was done, and only the note is left."""
        if METADATA not in names_in(self.location):
            return False
        return read(f"{self.location}/{METADATA}") == self.note.metadata.encode()

    def begin(self, *, paths: Mapping[str, str] | None = None) -> Attempt:
        """Keep Spark away from here from now on. It may be called again for the same change.

        Args:
            paths: For a restore, how the paths of input files change.

        Returns:
            The attempt; former attempts can't `finish` any more.

        Raises:
            InvalidRequestError: Another change is being made here.
            CheckpointConflictError: Another process has begun the same in this moment.
        """
        uri = f"{self.location}/{UNFINISHED_FILE}"
        try:
            publish(uri, msgspec.json.encode(self.note), single_writer=True)
        except CheckpointConflictError as error:
            message = "something else is being done to this checkpointLocation; finish that first"
            raise InvalidRequestError(message, self.location) from error
        attempt = next_attempt(self.location, paths or {})
        marker = {"unfinished": f"{self.note.kind}: repeat it, and this query can be started"}
        replace(f"{self.location}/{METADATA}", msgspec.json.encode(marker))
        return attempt

    def finish(self, attempt: Attempt) -> Attempt:
        """Let Spark start the query again; the note of the change stays.

        Raises:
            CheckpointConflictError: Another process has begun the same anew; Spark is still kept away.
        """
        ended = done(self.location, attempt)
        self._let_spark_start()
        return ended

    def finish_what_is_done(self) -> None:
        """Do the last step of an attempt that was interrupted right before it."""
        last = newest_attempt(self.location)
        if last is not None and last.is_done and not self.is_finished():
            self._let_spark_start()

    def forget(self) -> None:
        """Delete the note: nothing is left to be done."""
        forget_attempts(self.location)
        delete([f"{self.location}/{UNFINISHED_FILE}"])

    def _let_spark_start(self) -> None:
        replace(f"{self.location}/{METADATA}", self.note.metadata.encode())


def change_begun_in(checkpoint_location: str) -> Change | None:
    """The change that was begun here and is not finished; None if nothing was begun.

    Raises:
        CheckpointCorruptedError: The note can't be read.
    """
    what = "what was being done here"
    note = read_json_in(checkpoint_location, UNFINISHED_FILE, Unfinished, description=what)
    return None if note is None else Change(checkpoint_location, note)
