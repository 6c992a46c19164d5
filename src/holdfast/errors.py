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

Each error has a `kind`: that of its class, or one that distinguishes it from other errors of the class. Only wrong calls of
the API have none. The text of an error ends with its code, such as `[HF-BATCH-GAP]` for the kind `batch-gap`, and
docs/runbook.md has an entry for each code.
"""

from typing import Self

from holdfast.redaction import redact


class CheckpointError(Exception):
    """Base of all errors raised on purpose.

    The message is for people and may change; the class, `location` and `kind` are for code.

    Args:
        message: The failure and the way out, in lower case.
        location: URI of the file or directory it is about, or empty. It is appended to the text, redacted.
        kind: The case, such as `taken-over`; by default that of the class.
    """

    kind: str = ""

    def __init__(self, message: str, location: str = "", kind: str = "") -> None:
        location = redact(location)
        # All of it in `args`, because Spark pickles errors on their way to the driver.
        super().__init__(message, location, kind)
        self.location = location
        self.kind = kind or self.kind

    @property
    def code(self) -> str:
        """Code of the entry in the runbook, such as `HF-BATCH-GAP`; empty without a kind."""
        return f"HF-{self.kind.upper()}" if self.kind else ""

    def __str__(self) -> str:
        location = f": location={self.location!r}" if self.location else ""
        code = f" [{self.code}]" if self.code else ""
        return f"{self.args[0]}{location}{code}"


class InvalidRequestError(CheckpointError, ValueError):
    """An argument, a setting or a directory can't be used as given."""


class StreamClosedError(InvalidRequestError):
    """The stream was finished or discarded before this call."""


class CheckpointNotFoundError(CheckpointError):
    """No checkpoint, file or directory is at that place."""

    kind = "file-missing"


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

    kind = "outcome-unknown"


class StorageUnavailableError(CheckpointError):
    """The store did not carry out the request; nothing has changed."""

    kind = "store-failed"


class StorageFullError(StorageUnavailableError):
    """The store has no room, or no quota, left; nothing has changed."""

    kind = "storage-full"


class ResourceExhaustedError(StorageUnavailableError):
    """This machine has no memory, file handles or threads left; stored bytes are not damaged."""

    kind = "resources"


class CheckpointCorruptedError(CheckpointError):
    """Bytes that were read differ from the bytes that were written."""

    kind = "corrupted"


class UnsupportedFormatError(CheckpointError):
    """The file has a format version that this Holdfast can't read."""

    kind = "format"


class UnreadableStateError(CheckpointError):
    """A state has values that only a class of the job that wrote them can read; other states can be read."""

    kind = "unreadable-state"


class StateMigrationError(CheckpointError):
    """Stored state has another type than its descriptor, and can't be converted."""

    kind = "state-type"


class CheckpointDeclinedError(CheckpointError):
    """The reports of the subtasks can't become a checkpoint; the batch has to be repeated.

    Attributes:
        is_repeatable: Whether the loss of an executor can have caused the error, so that the batch may succeed if it is
            repeated at once. A sink that reads its rows several times looks the same.
    """

    kind = "declined"
    is_repeatable = False


class BatchGapError(CheckpointError):
    """The batch that Spark hands over doesn't follow the last completed checkpoint."""

    kind = "batch-gap"
