"""Requests for batches: small files that the driver writes and the data source reads, on the same host.

{"request": str, "at_ms": int}

A file is replaced atomically. One process of the host writes it and another reads it. The writer holds a lock on it, so
that the next driver on the host recognizes and deletes the files of killed drivers.
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
        request: A unique id.
        at_ms: When the batch is due, in milliseconds since 1970; the past means at once.
    """

    request: str
    at_ms: int


def request_file(name: str, directory: str | None = None) -> Path:
    """Return the path of requests to the source of that name; the default directory is this process's temporary one."""
    return Path(directory or tempfile.gettempdir(), f"holdfast-ticks-{name}.json")


_locks: dict[Path, int] = {}
"""The open descriptor of each file that this process wrote last, which holds its lock."""


def request_batch(name: str, at_ms: int) -> None:
    """Request a batch from the source of that name, replacing an earlier request.

    Raises:
        OSError: The file can't be written.
    """
    file = request_file(name)
    if file not in _locks:
        _delete_abandoned(file.parent)
    temporary = file.with_suffix(f".{uuid.uuid4().hex}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with suppress(OSError):  # without locks, files of killed drivers stay
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.write(descriptor, json.dumps({"request": uuid.uuid4().hex, "at_ms": at_ms}).encode())
        os.replace(temporary, file)
    except BaseException:
        os.close(descriptor)
        with suppress(OSError):
            temporary.unlink()
        raise
    _release(file)
    _locks[file] = descriptor


def cancel_request(name: str, directory: str | None = None) -> None:
    """Delete the request to the source of that name; arguments of `request_file`.

    Raises:
        OSError: The file can't be deleted.
    """
    file = request_file(name, directory)
    file.unlink(missing_ok=True)
    _release(file)


def request_of(name: str, directory: str | None = None) -> Request | None:
    """Return the last request to the source of that name, or None; arguments of `request_file`."""
    try:
        return Request(**json.loads(request_file(name, directory).read_bytes()))
    except FileNotFoundError:
        return None


def _release(file: Path) -> None:
    """Release the lock on the previous file of this name."""
    descriptor = _locks.pop(file, None)
    if descriptor is not None:
        os.close(descriptor)


def _delete_abandoned(directory: Path) -> None:
    """Delete the requests of killed drivers, on which no process holds a lock."""
    for file in directory.glob(request_file("*").name):
        with suppress(OSError):  # of another user, or locked
            descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Unless a driver has replaced it since it was opened.
                if os.path.samestat(os.fstat(descriptor), file.stat()):
                    file.unlink()
            finally:
                os.close(descriptor)
