"""A small file on the driver's host by which the driver asks the data source for a batch.

{"request": str, "at_ms": int}

It is replaced at once as a whole. Who writes it and who reads it are different processes of one host.
"""

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


def ask(name: str, at_ms: int) -> None:
    """Ask the source of that name for a batch, in place of what it was asked for before.

    Raises:
        OSError: The file can't be written.
    """
    file = file_of(name)
    written = file.with_suffix(f".{uuid.uuid4().hex}")
    try:
        written.write_text(json.dumps({"request": uuid.uuid4().hex, "at_ms": at_ms}))
        os.replace(written, file)
    except BaseException:
        with suppress(OSError):
            written.unlink()
        raise


def forget(name: str, directory: str | None = None) -> None:
    """Take back what the source of that name was asked for, by way of `file_of`.

    Raises:
        OSError: The file can't be deleted.
    """
    file_of(name, directory).unlink(missing_ok=True)


def request_of(name: str, directory: str | None = None) -> Request | None:
    """What the source of that name was last asked for, by way of `file_of`; None if nothing is left of it."""
    try:
        return Request(**json.loads(file_of(name, directory).read_bytes()))
    except FileNotFoundError:
        return None
