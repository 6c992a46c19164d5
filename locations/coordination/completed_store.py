"""The completed checkpoints that a job retains, and the deletion of the others off the commit path."""

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import NamedTuple

from holdfast.common import collect_failures, raise_first, uripath
from holdfast.errors import CheckpointError, InvalidRequestError
from holdfast.locations.coordination.claims import ClaimedCheckpoints
from holdfast.locations.coordination.leases import Leases, find_leases
from holdfast.locations.file_systems import file_system_for, retry_deadline
from holdfast.locations.handles import FileStateHandle, files_of
from holdfast.locations.metadata import ClaimedCheckpoint
from holdfast.locations.storages import (
    SHARED,
    CompletedCheckpoint,
    FileSystemCompletedCheckpointStorageLocation,
    is_checkpoint,
    is_file_of,
)

_log = logging.getLogger(__name__)


class CheckpointsCleaner:
    """A bounded pool of threads that delete. Errors are only logged.

    Args:
        threads: Maximum number of deletions at a time; one deletes a whole directory, in bulk requests.
        deadline_s: Seconds after which a failing deletion is not retried. The process waits for deletions when it ends.

    Source:
        Flink, CheckpointsCleaner.
    """

    def __init__(self, threads: int = 2, deadline_s: float = 10.0) -> None:
        if threads < 1:
            raise InvalidRequestError(f"cleaner's threads must be >= 1, got {threads}")
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="holdfast-cleaner")
        self._deadline_s = deadline_s
        self._running: set[Future[None]] = set()

    def run(self, delete: Callable[[], object], name: str) -> None:
        """Run a deletion, which may fail, in the background; `name` is for the log."""

        def delete_and_log() -> None:
            try:
                with retry_deadline(self._deadline_s):
                    delete()
            except Exception:  # noqa: BLE001  # the job continues without it, whatever it is
                _log.warning("could not clean up: %s", name, exc_info=True)

        try:
            future = self._pool.submit(delete_and_log)
        except RuntimeError:  # closed, or Python is exiting
            delete_and_log()
            return
        self._running.add(future)
        future.add_done_callback(self._running.discard)

    def wait(self) -> None:
        """Wait for all deletions that were requested so far."""
        wait(tuple(self._running))

    def close(self) -> None:
        """Wait for running deletions; later ones run in the caller's thread."""
        self._pool.shutdown(wait=True)


class SharedStateRegistry:
    """The last checkpoint that refers to each shared file.

    Args:
        delete: Deletes a file that no checkpoint refers to, now or later.

    Source:
        Flink, SharedStateRegistryImpl; a file is identified by its URI, which is never used twice.
    """

    def __init__(self, delete: Callable[[FileStateHandle], None]) -> None:
        self._delete = delete
        self._lock = threading.Lock()
        self._files: dict[str, tuple[FileStateHandle, int]] = {}

    def register(self, handle: FileStateHandle, checkpoint_id: int) -> None:
        """Note that a checkpoint refers to a file.

        Raises:
            InvalidRequestError: Another handle has that URI.
        """
        with self._lock:
            known, last_used = self._files.get(handle.uri, (handle, checkpoint_id))
            if known != handle:
                message = "shared file is registered already with another length or checksum"
                raise InvalidRequestError(message, handle.uri)
            self._files[handle.uri] = (handle, max(last_used, checkpoint_id))

    def unregister_unused(self, lowest_id: int) -> None:
        """Delete the files that no checkpoint with at least this id refers to."""
        with self._lock:
            unused = [handle for handle, used in self._files.values() if used < lowest_id]
            for handle in unused:
                del self._files[handle.uri]
        for handle in unused:
            self._delete(handle)


class CompletedCheckpointStore:
    """Retains the newest checkpoints of a job and has the others deleted.

    The retained checkpoints stay however a query ends: Spark does not report whether a query that was stopped will
    be started again, which needs them. Savepoints and checkpoints of other jobs that this
    one was started from belong to the user or to their job, unless the job has claimed them: then they are deleted
    when no retained checkpoint needs a file of them. No other file outside of the job's directory is deleted.
    A checkpoint that is being read is deleted later; see `leases`.

    Args:
        num_retained: Number of retained checkpoints, at least 1.
        cleaner: Deletes the others.
        restored: The job's own completed checkpoints when its driver starts, oldest first.
        claims: The job's claimed checkpoints.

    Raises:
        InvalidRequestError: `num_retained` is less than 1.

    Source:
        Flink, DefaultCompletedCheckpointStore; its checkpoints are those that Flink retains on cancellation.
    """

    def __init__(
        self,
        num_retained: int,
        cleaner: CheckpointsCleaner,
        restored: Iterable[CompletedCheckpoint] = (),
        claims: ClaimedCheckpoints | None = None,
    ) -> None:
        if num_retained < 1:
            message = f"number of retained checkpoints must be >= 1, got {num_retained}"
            raise InvalidRequestError(message)
        self._num_retained = num_retained
        self._cleaner = cleaner
        self._lock = threading.RLock()
        self._retained: list[CompletedCheckpoint] = []
        self._deleting = threading.Lock()
        self._pending_deletion: list[CompletedCheckpoint] = []
        self._has_readers = True
        self._unused: list[FileStateHandle] = []
        self._shared_state = SharedStateRegistry(self._unused.append)
        self._claims = claims or ClaimedCheckpoints(directory="")
        for checkpoint in restored:
            self._register(checkpoint)
            self._retained.append(checkpoint)

    @property
    def checkpoints(self) -> tuple[CompletedCheckpoint, ...]:
        """The retained checkpoints, oldest first."""
        with self._lock:
            return tuple(self._retained)

    @property
    def latest(self) -> CompletedCheckpoint | None:
        """The newest retained checkpoint, or None."""
        checkpoints = self.checkpoints
        return checkpoints[-1] if checkpoints else None

    def add(
        self, checkpoint: CompletedCheckpoint, *, subsume: bool = True, has_readers: bool = True
    ) -> None:
        """Retain a checkpoint that was just completed, and subsume the oldest ones, unless a later call is to do that.

        Args:
            checkpoint: The checkpoint.
            subsume: Whether to subsume the oldest ones.
            has_readers: Whether there were leases when the owner of the job was checked after the commit.

        Raises:
            InvalidRequestError: The checkpoint is not newer than all others.
        """
        with self._lock:
            if self._retained and checkpoint.checkpoint_id <= self._retained[-1].checkpoint_id:
                number = checkpoint.checkpoint_id
                message = f"checkpoint {number} is not newer than the retained ones"
                raise InvalidRequestError(message, checkpoint.location.external_pointer)
            self._register(checkpoint)
            self._retained.append(checkpoint)
            self._has_readers = has_readers
            if subsume:
                self._pending_deletion += self._retained[: -self._num_retained]
                del self._retained[: -self._num_retained]
            lowest_id = self._retained[0].checkpoint_id
            self._shared_state.unregister_unused(lowest_id)
            has_unneeded_claims = subsume and bool(self._unneeded_claims())
            if self._pending_deletion or self._unused or has_unneeded_claims:
                self._cleaner.run(self._delete, f"checkpoints below {lowest_id}")

    def _delete(self) -> None:
        """Delete checkpoints, then their files and those that they shared; what fails or is postponed is tried again later.

        The metadata of all is deleted before any file, so no one ever sees a checkpoint with some of its files deleted.
        """
        with self._deleting:
            with self._lock:
                pending, has_readers = list(self._pending_deletion), self._has_readers
            leases = _leases_of(pending) if has_readers else Leases(frozenset(), ())
            unread = [
                _with_files(checkpoint)
                for checkpoint in pending
                if checkpoint.checkpoint_id not in leases.checkpoints
            ]
            deleted: list[_Unread] = []
            failures = _delete_metadata(unread, deleted)
            gone = {each.checkpoint.checkpoint_id for each in deleted}
            with self._lock:
                needed = {
                    file.uri
                    for checkpoint in self._pending_deletion
                    if checkpoint.checkpoint_id not in gone
                    for file in files_of(checkpoint.metadata.streams())
                }
                unused = [file.uri for file in self._unused if file.uri not in needed]
            unused += leases.ended
            failures += collect_failures(lambda group: self._delete_files(group, unused), [deleted])
            with self._lock:
                claims = [] if self._pending_deletion else self._unneeded_claims()
            failures += collect_failures(self._claims.release, claims)
            raise_first(failures)

    def _delete_files(self, deleted: "list[_Unread]", unused: list[str]) -> None:
        """Delete all files together, then the directories, of checkpoints whose metadata is deleted."""
        files = [*(uri for each in deleted for uri in each.files), *unused]
        if files:
            file_system_for(files[0]).delete(files)
        for each in deleted:
            if each.directory:
                file_system_for(each.directory).delete_empty_directory(each.directory)
        gone, names = {each.checkpoint.checkpoint_id for each in deleted}, set(unused)
        with self._lock:
            self._pending_deletion = [
                checkpoint
                for checkpoint in self._pending_deletion
                if checkpoint.checkpoint_id not in gone
            ]
            self._unused[:] = [file for file in self._unused if file.uri not in names]

    def _unneeded_claims(self) -> list[ClaimedCheckpoint]:
        return self._claims.find_unused(self._retained[0].checkpoint_id)

    def _register(self, checkpoint: CompletedCheckpoint) -> None:
        """Note the job's shared files that a checkpoint refers to."""
        self._claims.register(checkpoint)
        shared = uripath.join(uripath.parent(checkpoint.location.external_pointer), SHARED)
        for stream in checkpoint.metadata.streams():
            if isinstance(stream, FileStateHandle) and is_file_of(stream.uri, shared):
                self._shared_state.register(stream, checkpoint.checkpoint_id)


class _Unread(NamedTuple):
    """A checkpoint that no one reads.

    Attributes:
        checkpoint: The checkpoint.
        directory: URI of its directory; an empty string if its storage deletes it as a whole.
        metadata: URI of its metadata, unless its storage deletes it.
        files: URIs of the files that only this checkpoint has, to be deleted after its metadata. Files that killed tasks
            have left next to them are the sweep's.
    """

    checkpoint: CompletedCheckpoint
    directory: str = ""
    metadata: str = ""
    files: tuple[str, ...] = ()


def _with_files(checkpoint: CompletedCheckpoint) -> _Unread:
    """Return a checkpoint with its files, by the names in its metadata."""
    location = checkpoint.location
    pointer = location.external_pointer
    if (
        not isinstance(location, FileSystemCompletedCheckpointStorageLocation)
        or location.is_link
        or not is_checkpoint(pointer)
    ):
        return _Unread(checkpoint)
    files = files_of(checkpoint.metadata.streams())
    own = tuple(file.uri for file in files if is_file_of(file.uri, pointer))
    return _Unread(checkpoint, pointer, location.metadata_handle.uri, own)


def _leases_of(checkpoints: list[CompletedCheckpoint]) -> Leases:
    """Return the leases of checkpoints of one job."""
    pointers = [checkpoint.location.external_pointer for checkpoint in checkpoints]
    jobs = dict.fromkeys(uripath.parent(pointer) for pointer in pointers if is_checkpoint(pointer))
    leases = [find_leases(job) for job in jobs]
    return Leases(
        frozenset[int]().union(*(each.checkpoints for each in leases)),
        tuple(uri for each in leases for uri in each.ended),
    )


def _delete_metadata(unread: list[_Unread], deleted: list[_Unread]) -> list[CheckpointError]:
    """Delete the metadata of checkpoints, and add these to `deleted`; returns the failures."""

    def delete(group: list[_Unread]) -> None:
        for each in group:
            if not each.directory:
                each.checkpoint.discard()
        uris = [each.metadata for each in group if each.directory]
        if uris:
            file_system_for(uris[0]).delete(uris)
        deleted.extend(group)

    failures = collect_failures(delete, [unread])
    if failures and len(unread) > 1:  # so that one that can't be deleted keeps only itself
        failures = collect_failures(delete, [[each] for each in unread])
    return failures
