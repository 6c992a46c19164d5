"""Publishing of small files: a file appears whole and at most once, on any store."""

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from holdfast.common import map_in_parallel, uripath
from holdfast.errors import (
    CheckpointConflictError,
    CheckpointError,
    CheckpointNotFoundError,
    InvalidRequestError,
    OutcomeUnknownError,
)
from holdfast.locations.file_systems.port import FileSystem
from holdfast.locations.file_systems.registry import file_system_for
from holdfast.locations.file_systems.retrying import RetryingExclusiveFileSystem, RetryingFileSystem

_RACERS = 8
_BARRIER_TIMEOUT_S = 10.0

PROBE_PREFIX = "_probe-"

_ONE_WRITER = (
    "if only one driver at a time runs a job, declare it (single_writer=True or "
    "spark.holdfast.checkpoint.single-writer); otherwise use another store"
)


@contextmanager
def create_file(file_system: FileSystem, uri: str) -> Iterator[Callable[[bytes], object]]:
    """Create a file that appears as a whole when the block ends, and not at all if the block fails; yields `write`."""
    stream = file_system.create(uri)
    try:
        yield stream.write
        stream.commit()
    finally:
        stream.abort()


def publish(uri: str, data: bytes, *, single_writer: bool) -> None:
    """Store a small file if its name is free.

    Args:
        uri: The file's normalized URI.
        data: The file's bytes, unique to this writer because they contain something random.
        single_writer: Whether to check that the name is free, instead of relying on the store.

    Raises:
        CheckpointConflictError: The name is taken by other bytes.
        OutcomeUnknownError: The store did not answer.
        InvalidRequestError: The store can't do it, and no single writer was declared.
    """
    file_system = file_system_for(uri)
    try:
        if single_writer:
            _check_then_publish(file_system, uri, data)
        else:
            _exclusive(file_system, uri).publish(uri, data)
    except CheckpointConflictError:
        if not _contains(file_system, uri, data):
            raise


def check_exclusive(directory: str) -> None:
    """Test that exactly one of several concurrent writers of a name in a directory succeeds.

    Some stores ignore the condition and silently replace the file. This check can expose such a
    store, but can't prove that a store is safe. It runs once per process and directory.

    Raises:
        InvalidRequestError: Several writers succeeded, or the store can't create files exclusively.
    """
    file_system = _exclusive(file_system_for(directory), directory)
    if directory in file_system.exclusive_directories:
        return
    uri = uripath.join(directory, f"{PROBE_PREFIX}{uuid.uuid4().hex}")
    start = threading.Barrier(_RACERS)

    def race(data: bytes) -> bool:
        with suppress(threading.BrokenBarrierError):  # fewer threads are a race too
            start.wait(_BARRIER_TIMEOUT_S)
        return _won_race(file_system, uri, data)

    candidates = [b"%d" % number for number in range(_RACERS)]
    try:
        wins = map_in_parallel(race, candidates, max_threads=_RACERS)
        winners = [data for data, has_won in zip(candidates, wins, strict=True) if has_won]
        with file_system.open(uri) as stream:
            stored = stream.read()
        late = _won_race(file_system, uri, b"late")
    finally:
        file_system.delete([uri])
    # There may be no winner: if its answer is lost, the winner's own retry fails.
    if late or len(winners) > 1 or (winners and winners != [stored]):
        message = f"this store lets one writer replace another writer's file; {_ONE_WRITER}"
        raise InvalidRequestError(message, directory, kind="not-exclusive")
    file_system.exclusive_directories.add(directory)


def _won_race(file_system: RetryingExclusiveFileSystem, uri: str, data: bytes) -> bool:
    try:
        file_system.publish(uri, data)
    except CheckpointConflictError:
        return False
    return True


def _exclusive(file_system: RetryingFileSystem, uri: str) -> RetryingExclusiveFileSystem:
    if isinstance(file_system, RetryingExclusiveFileSystem):
        return file_system
    message = f"this store can't keep two drivers apart; {_ONE_WRITER}"
    raise InvalidRequestError(message, uri, kind="not-exclusive")


def _check_then_publish(file_system: RetryingFileSystem, uri: str, data: bytes) -> None:
    def attempt() -> None:
        if any(entry.uri == uri for entry in file_system.list(uripath.parent(uri))):
            raise CheckpointConflictError.exists(uri)
        if isinstance(file_system, RetryingExclusiveFileSystem):
            file_system.inner.publish(uri, data)
            return
        with create_file(file_system.inner, uri) as write:
            write(data)

    file_system.retrier.publish(attempt)


def _contains(file_system: RetryingFileSystem, uri: str, data: bytes) -> bool:
    """Return whether the file has our own bytes, so that only the store's answer was lost."""
    try:
        with file_system.open(uri) as stored:
            return stored.read() == data
    except CheckpointNotFoundError:
        return False  # it existed and has been deleted
    except CheckpointError as error:
        message = "file already exists, and its owner could not be read"
        raise OutcomeUnknownError(message, uri) from error
