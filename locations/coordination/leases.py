"""Leases of readers: a checkpoint that is being read is deleted later.

    <job>/_epoch/_lease-<N>-<seconds>-<random>     an empty file; it counts for that time after its last modification

The time is that of the store, so clocks of readers and drivers need not agree. A reader renews its lease with a new
file. If the reader is killed, the lease ends, and its file is deleted by the driver, or by a sweep.

A reader writes its lease, then makes sure that `_metadata` is there. A driver that has committed a checkpoint lists the directory
to see whether it still owns the job, and so sees the leases before it deletes older checkpoints. So a lease that was written before a
newer checkpoint was committed is always seen. A leased checkpoint stays whole, and the driver looks again after its next commits; a restarted
driver finds it among the completed checkpoints.

Only a checkpoint in a job's directory needs a lease: savepoints belong to the user.
"""

import logging
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from os import PathLike
from typing import NamedTuple

from holdfast.common import uripath
from holdfast.errors import CheckpointError, CheckpointNotFoundError
from holdfast.locations.coordination.checkpoints import find_checkpoint
from holdfast.locations.file_systems import (
    PROBE_PREFIX,
    create_file,
    file_system_for,
    retry_deadline,
)
from holdfast.locations.storages import (
    EPOCHS,
    LEASE,
    CompletedCheckpoint,
    checkpoint_id_of,
    find_metadata,
    is_checkpoint,
)
from holdfast.redaction import redact

_log = logging.getLogger(__name__)

LEASE_S = 300
"""Seconds that a lease counts unless it is renewed."""

_RENEWAL_S = LEASE_S / 3

_MAX_LEASE_S = 3600
"""No lease counts for longer, whatever its name."""

_DEADLINE_S = 10.0
_MAX_ATTEMPTS = 100

_WITHOUT_LEASE: set[str] = set()
"""Directories of jobs in which this process can't write leases, so that it warns once."""


class CheckpointLease:
    """A reader's lease of the checkpoint in a directory."""

    def __init__(self, pointer: str) -> None:
        self._pointer = pointer
        self._uri = ""

    def renew(self) -> None:
        """Write a lease that counts from now on, then delete the former one.

        Raises:
            CheckpointError: The lease can't be written.
        """
        file_system = file_system_for(self._pointer)
        former = self._uri
        name = f"_lease-{checkpoint_id_of(self._pointer)}-{LEASE_S}-{uuid.uuid4().hex}"
        uri = uripath.join(uripath.parent(self._pointer), EPOCHS, name)
        with retry_deadline(_DEADLINE_S):
            with create_file(file_system, uri):
                pass  # empty, so that a full disk has room for it
            self._uri = uri
            file_system.delete([former] if former else [])

    def release(self) -> None:
        """Delete the lease. Never raises, because it ends by itself."""
        with suppress(CheckpointError), retry_deadline(_DEADLINE_S):
            file_system_for(self._pointer).delete([self._uri] if self._uri else [])


def acquire_lease(pointer: str) -> CheckpointLease | None:
    """Lease a checkpoint by the URI of its directory. The lease ends unless it is renewed.

    Returns:
        None if the checkpoint needs no lease, or if this process can't write one, which is logged once for each job.

    Raises:
        CheckpointNotFoundError: The checkpoint was deleted.
    """
    if not is_checkpoint(pointer):
        return None
    lease = CheckpointLease(pointer)
    try:
        lease.renew()
    except CheckpointError as error:
        if _is_deleted(pointer):
            raise deleted_error(pointer) from error
        _warn_once(uripath.parent(pointer), error)
        return None
    try:
        if _is_deleted(pointer):
            raise deleted_error(pointer)
    except CheckpointError:
        lease.release()
        raise
    return lease


@contextmanager
def hold_checkpoint(pointer: str) -> Iterator[None]:
    """Keep a job from deleting the checkpoint in a directory while the block reads it.

    Raises:
        CheckpointNotFoundError: The checkpoint was deleted, before or in the block; or a file of it is missing.
    """
    lease = acquire_lease(pointer)
    is_done = threading.Event()
    if lease is not None:
        thread = threading.Thread(target=_keep, args=(lease, is_done), daemon=True)
        thread.start()
    try:
        with explain_deletion(pointer):
            yield
    finally:
        is_done.set()
        if lease is not None:
            thread.join()  # a renewal in progress would outlive the release
            lease.release()


@contextmanager
def explain_deletion(pointer: str) -> Iterator[None]:
    """Name the reason if a file is missing in the block because the job has deleted the checkpoint.

    Raises:
        CheckpointNotFoundError: The block has raised it.
    """
    try:
        yield
    except CheckpointNotFoundError as error:
        if is_checkpoint(pointer) and _is_deleted(pointer):
            raise deleted_error(pointer) from error
        raise


@contextmanager
def hold_found_checkpoint(pointer: str | PathLike[str]) -> Iterator[CompletedCheckpoint]:
    """Find a checkpoint as `find_checkpoint` does, and hold it for the block.

    A pointer to a directory or a job leads to a newer checkpoint if the job deletes the one that was found.
    """
    with ExitStack() as block:
        for _ in range(_MAX_ATTEMPTS):
            checkpoint = find_checkpoint(pointer)
            with suppress(CheckpointNotFoundError):
                block.enter_context(hold_checkpoint(checkpoint.location.external_pointer))
                break
        yield checkpoint


class Leases(NamedTuple):
    """The leases of a job's checkpoints.

    Attributes:
        checkpoints: The ids of the checkpoints with a lease that counts now, by the store's clock.
        ended: URIs of leases that no longer count.
    """

    checkpoints: frozenset[int]
    ended: tuple[str, ...]


def find_leases(job_directory: str) -> Leases:
    """Return the leases in a job's directory."""
    epochs = uripath.join(job_directory, EPOCHS)
    leases = [
        (entry, matched)
        for entry in file_system_for(epochs).list(epochs)
        if (matched := LEASE.fullmatch(uripath.name(entry.uri)))
    ]
    now_ms = store_clock_ms(job_directory) if leases else 0
    checkpoints, ended = set(), []
    for entry, matched in leases:
        if entry.modified_ms + 1000 * min(int(matched["seconds"]), _MAX_LEASE_S) > now_ms:
            checkpoints.add(int(matched["checkpoint"]))
        else:
            ended.append(entry.uri)
    return Leases(frozenset(checkpoints), tuple(ended))


def is_leased(directory: str) -> bool:
    """Return whether a lease of the checkpoint in a directory counts now, by the store's clock."""
    if not is_checkpoint(directory):
        return False
    return checkpoint_id_of(directory) in find_leases(uripath.parent(directory)).checkpoints


def store_clock_ms(directory: str) -> int:
    """Return the store's own time: that of a file which it has just written."""
    file_system = file_system_for(directory)
    probe = uripath.join(directory, f"{PROBE_PREFIX}{uuid.uuid4().hex}")
    stream = file_system.create(probe)
    try:
        stream.commit()  # empty, so that a full disk has room for it
        for entry in file_system.list(directory):
            if entry.uri == probe:
                return entry.modified_ms
    finally:
        stream.abort()
        file_system.delete([probe])
    raise CheckpointNotFoundError("job's directory was deleted during the sweep", directory)


def deleted_error(pointer: str) -> CheckpointNotFoundError:
    """Return the error of a reader whose checkpoint the job has deleted."""
    message = (
        "the job deleted this checkpoint while it was read; name the job's directory for its newest checkpoint, "
        f"{uripath.parent(pointer)}"
    )
    return CheckpointNotFoundError(message, pointer, kind="deleted")


def _is_deleted(pointer: str) -> bool:
    return find_metadata(file_system_for(pointer).list(pointer)) is None


def _keep(lease: CheckpointLease, is_done: threading.Event) -> None:
    while not is_done.wait(_RENEWAL_S):
        try:
            lease.renew()
        except CheckpointError as error:  # the former one still counts for some time
            _log.warning("the lease of a checkpoint that is being read can't be renewed: %s", error)


def _warn_once(job_directory: str, error: CheckpointError) -> None:
    if job_directory not in _WITHOUT_LEASE:
        _WITHOUT_LEASE.add(job_directory)
        _log.warning(
            "checkpoints of %s are read without a lease, so the job may delete one while it is read: %s",
            redact(job_directory),
            error,
        )
