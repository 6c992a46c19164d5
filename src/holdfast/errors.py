"""Everything that Holdfast raises on purpose, one class for each thing the caller can do.

CheckpointError
├── InvalidRequestError       fix the argument, setting or directory that the message names
│   └── StreamClosedError     the stream is finished; open a new one
├── CheckpointNotFoundError   nothing is there; name another place
├── CheckpointConflictError   another driver owns this job or has written this; stop
├── OutcomeUnknownError       it may have happened; delete nothing, read again later
├── StorageUnavailableError   the store did not do it (unreachable, broken); try again
│   ├── StorageFullError      no space is left there; free some, then try again
│   └── ResourceExhaustedError   this machine has no memory, file handles or threads left; free some, then try again
├── CheckpointCorruptedError  stored bytes are damaged; use another checkpoint
├── UnsupportedFormatError    a newer Holdfast wrote this; upgrade
├── UnreadableStateError      this state needs a class that is not installed; the others can be read
├── StateMigrationError       the stored state can't be converted to the requested type
├── CheckpointDeclinedError   this attempt can't be completed; repeat the batch
└── BatchGapError             Spark and the last checkpoint are at different batches

Some errors have a `kind`, where a program may want to distinguish them from others of their class:

InvalidRequestError        not-exclusive  the store can't keep two writers of one name apart; promise a single one
                           no-bucket      the bucket of the location does not exist
                           refused        the store denies access to these credentials, or to this location
                           gone-on        the restored query was started since; nothing is left to restore
CheckpointNotFoundError    not-begun      the query has completed no batch yet; try again later
CheckpointConflictError    exists         the file or checkpoint exists already
                           taken-over     another driver has claimed the job since
                           claim-lost     the claim to the job was deleted with the job's directory
                           contended      another process does the same at this moment; repeat it
                           claimed        another job has claimed the checkpoint or savepoint
"""

from typing import Self

from holdfast.redaction import redact


class CheckpointError(Exception):
    """Base of all errors raised on purpose.

    The message is for people and may change; the class, `location` and `kind` are for code.

    Args:
        message: The failure and the way out, in lower case.
        location: URI of the file or directory it is about, or empty. It is appended to the text, redacted.
        kind: One of the cases that the module lists, or empty.
    """

    def __init__(self, message: str, location: str = "", kind: str = "") -> None:
        location = redact(location)
        # All of it in `args`, because Spark pickles errors on their way to the driver.
        super().__init__(message, location, kind)
        self.location = location
        self.kind = kind

    def __str__(self) -> str:
        message = str(self.args[0])
        return f"{message}: location={self.location!r}" if self.location else message


class InvalidRequestError(CheckpointError, ValueError):
    """An argument, a setting or a directory can't be used as given."""


class StreamClosedError(InvalidRequestError):
    """The stream was finished or discarded before this call."""


class CheckpointNotFoundError(CheckpointError):
    """No checkpoint, file or directory is at that place."""


class CheckpointConflictError(CheckpointError):
    """Another writer was first: another driver owns this job."""

    @classmethod
    def exists(cls, location: str, subject: str = "file") -> Self:
        """Return the error of a writer whose file another writer has created before."""
        return cls(f"{subject} exists already; another writer created it", location, "exists")

    @classmethod
    def taken_over(cls, location: str, *, newest: int, own: int) -> Self:
        """Return the error of a driver whose job another driver has claimed."""
        message = (
            f"another driver has taken over this job (its epoch is {newest}, this driver's is {own}); "
            "stop this one, or start it again to take the job back"
        )
        return cls(message, location, "taken-over")


class OutcomeUnknownError(CheckpointError):
    """The write may have taken effect and must not be undone; read to find out."""


class StorageUnavailableError(CheckpointError):
    """The store did not carry out the request; nothing has changed."""


class StorageFullError(StorageUnavailableError):
    """The store has no room, or no quota, left; nothing has changed."""


class ResourceExhaustedError(StorageUnavailableError):
    """This machine has no memory, file handles or threads left; stored bytes are not damaged."""


class CheckpointCorruptedError(CheckpointError):
    """Bytes that were read differ from the bytes that were written."""


class UnsupportedFormatError(CheckpointError):
    """The file has a format version that this Holdfast can't read."""


class UnreadableStateError(CheckpointError):
    """A state has values that only a class of the job that wrote them can read; other states can be read."""


class StateMigrationError(CheckpointError):
    """Stored state has another type than its descriptor, and can't be converted."""


class CheckpointDeclinedError(CheckpointError):
    """The reports of the subtasks can't become a checkpoint; the batch has to be repeated."""


class BatchGapError(CheckpointError):
    """The batch that Spark hands over doesn't follow the last completed checkpoint."""
