"""Find and delete what crashes have left behind: files that no checkpoint leads to.

A file is deleted only if all of this holds:

- its name is one that Holdfast gives, in a directory where Holdfast puts such files;
- every `_metadata` of the job was read, after the file was listed, and none names it, by whatever
  path: names are random, and never used twice;
- it is older than the grace period, by the store's own clock;
- nobody has claimed the job while the sweep was looking.

One `_metadata` that can't be read stops the sweep: what it leads to is not known.
"""

import logging
import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from os import PathLike

from holdfast.errors import (
    CheckpointConflictError,
    CheckpointNotFoundError,
    InvalidRequestError,
)
from holdfast.locations import _uris
from holdfast.locations._handles import FileStateHandle
from holdfast.locations.coordination._checkpoints import load_checkpoint
from holdfast.locations.file_systems import PROBE_PREFIX, FileStatus, file_system_for
from holdfast.locations.storages import (
    CHECKPOINT,
    EPOCHS,
    METADATA_FILE,
    JobDirectory,
    check_job_id,
    newest_epoch,
)

_log = logging.getLogger(__name__)

GRACE_S = 24 * 60 * 60.0
"""Time that a writer may take from its first byte to the commit, with a wide margin."""

_RANDOM = "[0-9a-f]{32}"
_HIDDEN = rf"\.(?:[^/]+)\.{_RANDOM}\.inprogress"
_STATE_FILE = re.compile(rf"(?:[0-9a-f]{{8}}-)?{_RANDOM}|{_HIDDEN}")
_JOB_FILE = re.compile(rf"{PROBE_PREFIX}{_RANDOM}|{_HIDDEN}")


@dataclass(frozen=True, slots=True)
class SweepReport:
    """What a sweep deleted, or would have.

    Attributes:
        files: The files, by URI.
        directories: URIs of directories in which nothing else was, and nobody will write.
        too_young: Number of files that nothing leads to, but that are younger than the grace
            period: somebody may still be writing them.
        dry_run: Whether nothing was deleted.
    """

    files: tuple[FileStatus, ...]
    directories: tuple[str, ...]
    too_young: int
    dry_run: bool

    @property
    def total_bytes(self) -> int:
        """Length of all the files."""
        return sum(file.size for file in self.files)


@dataclass(slots=True)
class _Found:
    """What a look around has found; metadata is read after that.

    Attributes:
        files: Everything whose name is one of ours.
        uncommitted: Directories without `_metadata`, each with the URIs of what is in it.
    """

    files: list[FileStatus] = field(default_factory=list)
    uncommitted: dict[str, list[str]] = field(default_factory=dict)


def sweep(
    directory: str | PathLike[str],
    job_id: str,
    *,
    savepoint_directory: str | PathLike[str] | None = None,
    grace_s: float = GRACE_S,
    dry_run: bool = False,
) -> SweepReport:
    """Delete a job's orphaned files; the job may be running.

    Args:
        directory: The checkpoint directory, in which the job has its own.
        job_id: The job.
        savepoint_directory: Where its unfinished savepoints are swept too.
        grace_s: Seconds that a file must have been left alone, by the store's clock. More than
            any checkpoint takes from its first byte to its commit.
        dry_run: Whether only to say what would be deleted.

    Raises:
        CheckpointCorruptedError: A `_metadata` can't be read; nothing was deleted.
        UnsupportedFormatError: A newer version wrote one; nothing was deleted.
        CheckpointConflictError: A driver started meanwhile; nothing was deleted.
        CheckpointNotFoundError: The job has no directory.
        InvalidRequestError: The grace period is negative.
    """
    if grace_s < 0:
        raise InvalidRequestError(f"grace period of {grace_s} seconds is negative")
    job = JobDirectory(
        _uris.join(_uris.checkpoint_directory(directory), check_job_id(job_id)), single_writer=True
    )
    epoch = newest_epoch(job.uri)
    oldest_kept_ms = _store_clock_ms(job.uri) - grace_s * 1000
    found = _look_around(job)
    if savepoint_directory is not None:
        _look_for_savepoints(found, _uris.checkpoint_directory(savepoint_directory), job_id)
    names, highest = _reachable(job)
    orphans = [file for file in found.files if _uris.name(file.uri) not in names]
    files = tuple(file for file in orphans if file.modified_ms < oldest_kept_ms)
    going = {file.uri for file in files}
    directories = tuple(
        directory
        for directory, inside in found.uncommitted.items()
        if _is_dead(directory, highest) and going.issuperset(inside)
    )
    if newest_epoch(job.uri) != epoch:
        message = "a driver took over the job while it was looked through; sweep again"
        raise CheckpointConflictError(message, job.uri)
    if not dry_run:
        file_system = file_system_for(job.uri)
        file_system.delete(file.uri for file in files)
        for directory_uri in directories:
            file_system_for(directory_uri).delete_empty_directory(directory_uri)
        if files or directories:
            _log.info("swept %d orphaned files below %s", len(files), job.uri)
    return SweepReport(files, directories, len(orphans) - len(files), dry_run)


def _store_clock_ms(directory: str) -> int:
    """What time the store has: that of a file it has just written."""
    file_system = file_system_for(directory)
    probe = _uris.join(directory, f"{PROBE_PREFIX}{uuid.uuid4().hex}")
    stream = file_system.create(probe)
    try:
        stream.write(b"what time is it?")
        stream.commit()
        for entry in file_system.list(directory):
            if entry.uri == probe:
                return entry.modified_ms
    finally:
        stream.abort()
        file_system.delete([probe])
    raise CheckpointNotFoundError("job's directory vanished while it was looked through", directory)


def _look_around(job: JobDirectory) -> _Found:
    found = _Found()
    for entry in file_system_for(job.uri).list(job.uri):
        name = _uris.name(entry.uri)
        if not entry.is_directory:
            if _JOB_FILE.fullmatch(name):
                found.files.append(entry)
        elif CHECKPOINT.fullmatch(name):
            _look_into_checkpoint(found, entry)
        elif entry.uri in (job.shared, _uris.join(job.uri, EPOCHS)):
            found.files += _ours(file_system_for(entry.uri).list(entry.uri))
    return found


def _look_for_savepoints(found: _Found, directory: str, job_id: str) -> None:
    ours = re.compile(rf"savepoint-{re.escape(job_id)}-[0-9a-f]{{12}}")
    for entry in file_system_for(directory).list(directory):
        if entry.is_directory and ours.fullmatch(_uris.name(entry.uri)):
            inside = file_system_for(entry.uri).list(entry.uri)
            # A finished one belongs to the user, with all that is in it.
            if not any(_uris.name(file.uri) == METADATA_FILE for file in inside):
                _look_into_checkpoint(found, entry)


def _look_into_checkpoint(found: _Found, directory: FileStatus) -> None:
    inside = list(file_system_for(directory.uri).list(directory.uri))
    found.files += _ours(inside)
    if not any(_uris.name(file.uri) == METADATA_FILE for file in inside):
        found.uncommitted[directory.uri] = [one.uri for one in inside]


def _ours(entries: Iterable[FileStatus]) -> list[FileStatus]:
    return [
        one
        for one in entries
        if not one.is_directory and _STATE_FILE.fullmatch(_uris.name(one.uri))
    ]


def _reachable(job: JobDirectory) -> tuple[set[str], int]:
    """Names of all files that completed checkpoints lead to, and their highest id; -1 if none."""
    names: set[str] = set()
    read: dict[int, bool] = {}
    while True:
        completed = job.completed_checkpoints()
        if completed.keys() <= read.keys():
            return names, max(completed, default=-1)
        for checkpoint_id in completed.keys() - read.keys():
            try:
                metadata = load_checkpoint(completed[checkpoint_id]).metadata
            except CheckpointNotFoundError:
                # The running job has deleted it. One that was completed since may have taken over
                # files that it shared, so the list is looked at once more.
                read[checkpoint_id] = False
                continue
            read[checkpoint_id] = True
            names |= {
                _uris.name(one.uri)
                for one in metadata.streams()
                if isinstance(one, FileStateHandle)
            }


def _is_dead(directory: str, highest: int) -> bool:
    """Whether nobody will write into it any more: an older checkpoint's, or a savepoint's.

    A directory of a higher checkpoint is left, however old: the next driver uses it again.
    """
    found = CHECKPOINT.fullmatch(_uris.name(directory))
    return found is None or int(found[1]) < highest
