"""A small file on the driver's host by which the driver asks the data source for a batch.

{"request": str, "at_ms": int}

It is replaced at once as a whole. Who writes it and who reads it are different processes of one host. The writer holds
a lock on it, so that the next driver on the host can tell what a killed one has left, and deletes that.
"""

import fcntl
import json
import os
import tempfile
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Request:
    """A request for a batch.

    Attributes:
        request: Tells it from other requests.
        at_ms: When the batch is to come, in milliseconds since 1970; the past means at once.
    """

    request: str
    at_ms: int


def file_of(name: str, directory: str | None = None) -> Path:
    """Where requests for the source of that name are: in a directory, or in that for temporary files of this process."""
    return Path(directory or tempfile.gettempdir(), f"holdfast-wake-{name}.json")


_held: dict[Path, int] = {}
"""Descriptors of the files that this process has written last, which hold the locks."""


def ask(name: str, at_ms: int) -> None:
    """Ask the source of that name for a batch, in place of what it was asked for before.

    Raises:
        OSError: The file can't be written.
    """
    file = file_of(name)
    if file not in _held:
        _delete_abandoned(file.parent)
    written = file.with_suffix(f".{uuid.uuid4().hex}")
    descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with suppress(OSError):  # a file system without locks keeps what killed drivers leave
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.write(descriptor, json.dumps({"request": uuid.uuid4().hex, "at_ms": at_ms}).encode())
        os.replace(written, file)
    except BaseException:
        os.close(descriptor)
        with suppress(OSError):
            written.unlink()
        raise
    _release(file)
    _held[file] = descriptor


def forget(name: str, directory: str | None = None) -> None:
    """Take back what the source of that name was asked for, by way of `file_of`.

    Raises:
        OSError: The file can't be deleted.
    """
    file = file_of(name, directory)
    file.unlink(missing_ok=True)
    _release(file)


def request_of(name: str, directory: str | None = None) -> Request | None:
    """What the source of that name was last asked for, by way of `file_of`; None if nothing is left of it."""
    try:
        return Request(**json.loads(file_of(name, directory).read_bytes()))
    except FileNotFoundError:
        return None


def _release(file: Path) -> None:
    """Let go of the lock on the file that was written before under this name."""
    descriptor = _held.pop(file, None)
    if descriptor is not None:
        os.close(descriptor)


def _delete_abandoned(directory: Path) -> None:
    """Delete the requests of drivers that were killed: nothing holds a lock on them."""
    for file in directory.glob(file_of("*").name):
        with suppress(OSError):  # somebody else's, or locked
            descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Not what a driver has put in its place since it was opened.
                if os.path.samestat(os.fstat(descriptor), file.stat()):
                    file.unlink()
            finally:
                os.close(descriptor)
