"""Errors that report a lack of memory, file handles, threads or disk, and not a fault of bytes or values."""

import errno

from holdfast.errors import CheckpointError, ResourceExhaustedError, StorageFullError

FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors of writes that need more room than a disk, a quota or the limit of a file's length leaves."""

_LACKS = {
    errno.ENOMEM: "too little memory",
    errno.EMFILE: "too few file handles",
    errno.ENFILE: "too few file handles",
    errno.EAGAIN: "too few threads or too little memory",
}
_NO_THREAD = "can't start new thread"  # the text of CPython's RuntimeError


def shortage_of(error: BaseException, location: str = "") -> CheckpointError | None:
    """Return the error to raise instead of one that comes from a lack of memory, file handles, threads or disk.

    Call it before you blame stored bytes or a user's values for an error of Arrow, Python or the system: an intact
    checkpoint must not be reported as damaged because a machine was too small.

    Args:
        error: The error that was caught.
        location: The file or directory that was being read or written.

    Returns:
        `ResourceExhaustedError` or `StorageFullError`; None if the error is about something else.
    """
    number = getattr(error, "errno", None) if isinstance(error, OSError) else None
    if number in FULL_ERRNOS:
        return StorageFullError(f"no space left on this machine's disk ({error})", location)
    if isinstance(error, MemoryError):  # Arrow's is one, too
        lacking = "too little memory"
    elif isinstance(error, RuntimeError) and _NO_THREAD in str(error):
        lacking = "too few threads"
    elif number in _LACKS:
        lacking = _LACKS[number]
    else:
        return None
    message = f"this machine has {lacking} for this ({error}); nothing is damaged"
    return ResourceExhaustedError(message, location)


def raise_shortage(error: BaseException, location: str = "") -> None:
    """Raise what `shortage_of` returns, if it returns an error."""
    shortage = shortage_of(error, location)
    if shortage is not None:
        raise shortage from error
