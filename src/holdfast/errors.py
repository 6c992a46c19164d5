"""Everything that Holdfast raises on purpose, one class for each thing the caller can do.

CheckpointError
├── InvalidRequestError       fix the argument, setting or directory that the message names
│   └── StreamClosedError     the stream is finished; open a new one
├── CheckpointNotFoundError   nothing is there; name another place
├── CheckpointConflictError   somebody else owns this job or has written this; stop
├── OutcomeUnknownError       it may have happened; delete nothing, read again later
├── StorageUnavailableError   the store did not do it (out of reach, broken); try again
│   ├── StorageFullError      it has no space left; free some, then try again
│   └── OutOfResourcesError   this machine has no memory, file handles or threads left; free some, then try again
├── CheckpointCorruptedError  stored bytes are damaged; use another checkpoint
├── UnsupportedFormatError    a newer Holdfast wrote this; upgrade
├── UnreadableStateError      this state needs a class that is not here; all others can be read
├── StateMigrationError       the stored state does not fit the type that is asked for
├── CheckpointDeclinedError   this attempt can't be completed; repeat the batch
└── BatchGapError             Spark and the last checkpoint are at different batches

Some errors of a class have a `kind`, where a program may want to tell them from the others of that class:

InvalidRequestError        not-exclusive  the store can't tell two writers of one name apart; promise a single one
                           no-bucket      the bucket of the location does not exist
                           refused        the store doesn't let these credentials in, or not at this place
                           gone-on        the restored query has been started since; nothing is left to restore
CheckpointNotFoundError    not-begun      the query has done no batch yet; try again later
CheckpointConflictError    exists         the file or checkpoint to be made is there already
                           taken-over     another driver has claimed the job since
                           claim-lost     the claim to the job was deleted with the job's directory
                           contended      somebody else does the same right now; repeat it
                           claimed        another job has claimed the checkpoint or savepoint
"""

from typing import Self

from holdfast.redaction import shown


class CheckpointError(Exception):
    """Base of all errors raised on purpose.

    The message is for people and may change; the class, `location` and `kind` are for code.

    Args:
        message: What happened and the way out, in lower case.
        location: URI of the file or directory it is about, or empty. It is appended to the text,
            without what may be a secret in it.
        kind: Which of the cases that share the class, or empty; the module lists them.
    """

    def __init__(self, message: str, location: str = "", kind: str = "") -> None:
        location = shown(location)
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
    """Somebody else has written the file first: another driver owns this job."""

    @classmethod
    def exists(cls, location: str, what: str = "file") -> Self:
        """The conflict of a writer whose file somebody else has created before."""
        return cls(f"{what} exists already; somebody else has written it", location, "exists")

    @classmethod
    def taken_over(cls, location: str, *, newest: int, own: int) -> Self:
        """The conflict of a driver whose job another driver has claimed, by the epochs of both."""
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


class OutOfResourcesError(StorageUnavailableError):
    """This machine has no memory, file handles or threads left for it; what is stored is not damaged by that."""


class CheckpointCorruptedError(CheckpointError):
    """Bytes that were read differ from the bytes that were written."""


class UnsupportedFormatError(CheckpointError):
    """The file has a format version that this version of Holdfast doesn't know."""


class UnreadableStateError(CheckpointError):
    """A state holds values that only a class of the job that wrote them can read; other states can be read."""


class StateMigrationError(CheckpointError):
    """Stored state has another type than its descriptor, and can't be converted."""


class CheckpointDeclinedError(CheckpointError):
    """What the subtasks reported can't make a checkpoint; the batch has to be repeated."""


class BatchGapError(CheckpointError):
    """The batch that Spark hands over doesn't follow the last completed checkpoint."""
