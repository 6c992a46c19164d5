"""Make a small file appear once and for all, also on stores that don't offer this themselves."""

import threading
import uuid
from contextlib import suppress

from holdfast.common import map_in_parallel, uripath
from holdfast.errors import (
    CheckpointConflictError,
    CheckpointError,
    CheckpointNotFoundError,
    InvalidRequestError,
    OutcomeUnknownError,
)
from holdfast.locations.file_systems.registry import file_system_for
from holdfast.locations.file_systems.retrying import RetryingExclusiveFileSystem, RetryingFileSystem

_RACERS = 8
_PATIENCE_S = 10.0

PROBE_PREFIX = "_probe-"

_ONE_WRITER = (
    "if never more than one driver at a time runs a job, declare that (single_writer=True, or "
    "spark.holdfast.checkpoint.single-writer), else use another store"
)


def publish(uri: str, data: bytes, *, single_writer: bool) -> None:
    """Store a small file only if its name is free.

    Args:
        uri: The file's normalized URI.
        data: The file's bytes, which nobody else would write: they hold something random.
        single_writer: Whether to look whether the name is free, instead of relying on the store.

    Raises:
        CheckpointConflictError: The name is taken by other bytes.
        OutcomeUnknownError: The store did not say.
        InvalidRequestError: The store can't do it, and nobody declared a single writer.
    """
    file_system = file_system_for(uri)
    try:
        if single_writer:
            _publish_unless_seen(file_system, uri, data)
        else:
            _exclusive(file_system, uri).publish(uri, data)
    except CheckpointConflictError:
        if not _holds(file_system, uri, data):
            raise


def check_exclusive(directory: str) -> None:
    """Try whether of several writers of the same name in a directory exactly one wins.

    Some stores ignore the condition, and replace what is there without a word. This can show
    that a store is one of them; it can't prove that it is none. Once per process and directory.

    Raises:
        InvalidRequestError: Several won, or the store does not offer it at all.
    """
    file_system = _exclusive(file_system_for(directory), directory)
    if directory in file_system.found_exclusive:
        return
    uri = uripath.join(directory, f"{PROBE_PREFIX}{uuid.uuid4().hex}")
    start = threading.Barrier(_RACERS)

    def race(data: bytes) -> bool:
        with suppress(threading.BrokenBarrierError):  # fewer threads are a race too
            start.wait(_PATIENCE_S)
        return _wins(file_system, uri, data)

    candidates = [b"%d" % number for number in range(_RACERS)]
    try:
        wins = map_in_parallel(race, candidates, max_threads=_RACERS)
        won = [data for data, wins_it in zip(candidates, wins, strict=True) if wins_it]
        with file_system.open(uri) as stream:
            stored = stream.read()
        late = _wins(file_system, uri, b"late")
    finally:
        file_system.delete([uri])
    # None may have won: an answer that is lost makes the winner's own repetition lose.
    if late or len(won) > 1 or (won and won != [stored]):
        message = f"this store lets a writer replace another one's file; {_ONE_WRITER}"
        raise InvalidRequestError(message, directory, kind="not-exclusive")
    file_system.found_exclusive.add(directory)


def _wins(file_system: RetryingExclusiveFileSystem, uri: str, data: bytes) -> bool:
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


def _publish_unless_seen(file_system: RetryingFileSystem, uri: str, data: bytes) -> None:
    def attempt() -> None:
        if any(entry.uri == uri for entry in file_system.list(uripath.parent(uri))):
            raise CheckpointConflictError.exists(uri)
        if isinstance(file_system, RetryingExclusiveFileSystem):
            file_system.inner.publish(uri, data)
            return
        stream = file_system.inner.create(uri)
        try:
            stream.write(data)
            stream.commit()
        finally:
            stream.abort()

    file_system.retrier.publish(attempt)


def _holds(file_system: RetryingFileSystem, uri: str, data: bytes) -> bool:
    """Whether the file is what we have written ourselves, and the answer was lost on the way."""
    try:
        with file_system.open(uri) as stored:
            return stored.read() == data
    except CheckpointNotFoundError:
        return False  # it was there, and was deleted
    except CheckpointError as error:
        message = "file exists already, and reading whose it is failed"
        raise OutcomeUnknownError(message, uri) from error
