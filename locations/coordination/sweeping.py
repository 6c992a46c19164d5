"""The sweep: it finds and deletes files that crashes have left and that no checkpoint refers to.

A file is deleted only if all of this holds:

- its name is one that Holdfast gives, in a directory for such files, and not in a linked one;
- every `_metadata` of the job, including the newest, was read after the file was listed, and none of them names the
  file, under any path: names are random and never used twice;
- it is older than the grace period, by the store's own clock;
- no driver claimed the job during the sweep.

A `_metadata` that can't be read stops the sweep, because the files that it needs are unknown. So does the metadata of
another checkpoint or job in its place.
"""

import dataclasses
import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from os import PathLike

from holdfast.common import uripath
from holdfast.errors import CheckpointConflictError, InvalidRequestError
from holdfast.locations.coordination.checkpoints import load_checkpoints
from holdfast.locations.coordination.leases import store_clock_ms
from holdfast.locations.file_systems import (
    PROBE_PREFIX,
    FileStatus,
    PendingUpload,
    abort_uploads,
    file_system_for,
    pending_uploads,
)
from holdfast.locations.handles import files_of
from holdfast.locations.storages import (
    CHECKPOINT,
    EPOCHS,
    LEASE,
    METADATA_FILE,
    SHARED,
    STATE_FILE,
    CompletedCheckpoint,
    JobDirectory,
    check_job_id,
    entropy_paths,
    entropy_root,
    has_marker,
    is_checkpoint,
    list_all,
    list_each,
    savepoint_base,
    savepoints_in,
)

_log = logging.getLogger(__name__)

GRACE_S = 24 * 60 * 60.0
"""Maximum time of a writer from its first byte to the commit, with a wide margin."""

MIN_GRACE_S = 600.0
"""The shortest grace period that is safe while a job runs."""

_MAX_ATTEMPTS = 100

_RANDOM = "[0-9a-f]{32}"
_HIDDEN = rf"\.(?:[^/]+)\.{_RANDOM}\.inprogress"
_STATE_FILE = re.compile(rf"{STATE_FILE.pattern}|{LEASE.pattern}|{_HIDDEN}")
_JOB_FILE = re.compile(rf"{PROBE_PREFIX}{_RANDOM}|{_HIDDEN}")


@dataclass(frozen=True, slots=True)
class SweepReport:
    """The files that a sweep deleted or, with `dry_run`, would delete.

    Attributes:
        files: The files, by URI.
        directories: URIs of directories that are empty then and that no writer will use.
        uploads: Unfinished uploads, on stores that keep them without listing them.
        within_grace: Number of files that no checkpoint refers to, but that are younger than the grace
            period: a writer may still be active.
        dry_run: Whether nothing was deleted.
    """

    files: tuple[FileStatus, ...]
    directories: tuple[str, ...]
    within_grace: int
    dry_run: bool
    uploads: tuple[PendingUpload, ...] = ()

    @property
    def total_bytes(self) -> int:
        """Length of all the files."""
        return sum(file.size for file in self.files)


@dataclass(slots=True)
class _Place:
    """The candidates in a directory of one store, listed before any metadata was read.

    Attributes:
        now_ms: The store's time of the listing.
        files: Files with names that Holdfast gives.
        uncommitted: Directories without `_metadata`, each with the URIs of its entries.
        uploads: Unfinished uploads with names that Holdfast gives.
    """

    now_ms: int
    files: list[FileStatus] = field(default_factory=list)
    uncommitted: dict[str, list[str]] = field(default_factory=dict)
    uploads: list[PendingUpload] = field(default_factory=list)

    def add_checkpoints(self, directories: Sequence[str]) -> None:
        """Add the files in the directories of checkpoints."""
        for directory, inside in list_each(directories).items():
            self.add_state_files(inside)
            if not _is_committed(inside):
                self.uncommitted[directory] = [file.uri for file in inside]

    def add_savepoints(self, directories: Sequence[FileStatus]) -> None:
        """Add the files in the directories of unfinished savepoints."""
        changed_ms = {directory.uri: directory.modified_ms for directory in directories}
        for directory, inside in list_each(list(changed_ms)).items():
            if _is_committed(inside):
                continue  # it belongs to the user, with all of its files
            # A user may be copying a savepoint here with a tool that preserves times.
            self.add_state_files(
                dataclasses.replace(file, modified_ms=max(file.modified_ms, changed_ms[directory]))
                for file in inside
            )
            self.uncommitted[directory] = [file.uri for file in inside]
            self.add_uploads(pending_uploads(directory))

    def add_state_files(self, entries: Iterable[FileStatus]) -> None:
        """Add the entries with names of state files."""
        self.files += [
            entry
            for entry in entries
            if not (entry.is_directory or entry.is_link)
            and _STATE_FILE.fullmatch(uripath.name(entry.uri))
        ]

    def add_uploads(self, uploads: Iterable[PendingUpload]) -> None:
        """Add the uploads with names of state files."""
        self.uploads += [
            upload for upload in uploads if _STATE_FILE.fullmatch(uripath.name(upload.uri))
        ]

    def report(
        self, names: set[str], highest: int, grace_s: float, *, dry_run: bool
    ) -> SweepReport:
        """Select the files to delete, given the names of all needed ones and the id of the newest checkpoint."""
        orphans = [file for file in self.files if uripath.name(file.uri) not in names]
        oldest_kept_ms = self.now_ms - grace_s * 1000
        old = tuple(file for file in orphans if file.modified_ms < oldest_kept_ms)
        uploads = tuple(upload for upload in self.uploads if upload.started_ms < oldest_kept_ms)
        deleted = {file.uri for file in old}
        directories = tuple(
            directory
            for directory, inside in self.uncommitted.items()
            if _is_unused(directory, highest) and deleted.issuperset(inside)
        )
        within_grace = len(orphans) - len(old) + len(self.uploads) - len(uploads)
        return SweepReport(old, directories, within_grace, dry_run, uploads)


def sweep(
    directory: str | PathLike[str],
    job_id: str,
    *,
    savepoint_directory: str | PathLike[str] | None = None,
    grace_s: float = GRACE_S,
    dry_run: bool = False,
    now_ms: int | None = None,
) -> SweepReport:
    """Delete a job's orphaned files; the job may be running.

    Args:
        directory: The checkpoint directory, as the job has it: with `_entropy_` at its end if its
            state files have random characters.
        job_id: The job.
        savepoint_directory: The directory of the job's unfinished savepoints, to be swept too.
        grace_s: Minimum age of a deleted file in seconds, by the store's clock; longer than
            any checkpoint takes from its first byte to its commit.
        dry_run: Only report the files, without deleting them. A small file is written and deleted anyway, to learn
            the store's time.
        now_ms: The time to compare with, milliseconds since 1970 UTC, only with `dry_run`: nothing is written then.

    Raises:
        CheckpointCorruptedError: A `_metadata` can't be read, or is of another checkpoint or job; nothing was deleted.
        UnsupportedFormatError: A newer version wrote one; nothing was deleted.
        CheckpointConflictError: A driver started in the meantime; nothing was deleted.
        CheckpointNotFoundError: The job has no directory.
        InvalidRequestError: The grace period is negative, or a directory is not valid; or files would be deleted by a
            time that is not the store's.
    """
    _check_grace(grace_s)
    if now_ms is not None and not dry_run:
        raise InvalidRequestError("now_ms needs dry_run: files are deleted by the store's time")
    job = JobDirectory.below(uripath.checkpoint_directory(directory), job_id, single_writer=False)
    savepoints = None if savepoint_directory is None else savepoint_base(savepoint_directory)
    epoch = job.newest_epoch()
    places = [_scan_job(job, now_ms)]
    if savepoints is not None:
        places.append(_scan_savepoints(savepoints, job_id, now_ms))
    checkpoints = _all_checkpoints(job, epoch)
    highest = max((checkpoint.checkpoint_id for checkpoint in checkpoints), default=-1)
    names = {
        uripath.name(file.uri)
        for checkpoint in checkpoints
        for file in files_of(checkpoint.metadata.streams())
    }
    reports = [place.report(names, highest, grace_s, dry_run=dry_run) for place in places]
    if job.newest_epoch() != epoch:
        message = "a driver took over the job during the sweep; sweep again"
        raise CheckpointConflictError(message, job.uri, kind="contended")
    return _apply(reports, dry_run=dry_run)


def sweep_savepoints(
    directory: str | PathLike[str],
    job_id: str,
    *,
    grace_s: float = GRACE_S,
    dry_run: bool = False,
) -> SweepReport:
    """Delete unfinished savepoints, as `sweep` does, of a job without a directory of checkpoints.

    Queries without operators have such jobs, named after the query.

    Raises:
        InvalidRequestError: The grace period is negative, or the directory is not valid.
    """
    _check_grace(grace_s)
    place = _scan_savepoints(savepoint_base(directory), check_job_id(job_id))
    return _apply([place.report(set(), -1, grace_s, dry_run=dry_run)], dry_run=dry_run)


def jobs_with_savepoints(directory: str | PathLike[str]) -> list[str]:
    """Return the ids of the jobs with savepoints in a directory, completed or not, sorted."""
    return sorted({job_id for _, job_id in savepoints_in(savepoint_base(directory))})


def _check_grace(grace_s: float) -> None:
    if not grace_s >= 0:
        raise InvalidRequestError(f"grace period must be >= 0 seconds, got {grace_s}")


def _apply(reports: Sequence[SweepReport], *, dry_run: bool) -> SweepReport:
    """Delete the files of all reports, unless `dry_run`, and merge the reports."""
    if not dry_run:
        for report in reports:
            _delete(report)
    return SweepReport(
        tuple(file for report in reports for file in report.files),
        tuple(directory for report in reports for directory in report.directories),
        sum(report.within_grace for report in reports),
        dry_run,
        tuple(upload for report in reports for upload in report.uploads),
    )


def _delete(report: SweepReport) -> None:
    if report.files:
        file_system_for(report.files[0].uri).delete(file.uri for file in report.files)
    for directory in report.directories:
        file_system_for(directory).delete_empty_directory(directory)
    abort_uploads(report.uploads)
    if report.files:
        _log.info("swept %d orphaned files, %d bytes", len(report.files), report.total_bytes)


def _all_checkpoints(job: JobDirectory, epoch: int) -> list[CompletedCheckpoint]:
    """Return every completed checkpoint; the newest is never missed.

    Between the listing and the reading the job can delete a listed checkpoint, and a driver that was thought dead
    can commit another one of that number. Then the newest one that was read does not name all files that the job needs.
    A checkpoint of the owner itself is not such a one, nor is one that is still the newest after it was read.
    """
    for _ in range(_MAX_ATTEMPTS):
        checkpoints = load_checkpoints(job)
        if not checkpoints or checkpoints[-1].metadata.epoch == epoch:
            return checkpoints
        if max(job.completed_checkpoints(), default=0) <= checkpoints[-1].checkpoint_id:
            return checkpoints
    message = "job completed checkpoints faster than they were read; sweep again"
    raise CheckpointConflictError(message, job.uri, kind="contended")


def _scan_job(job: JobDirectory, now_ms: int | None) -> _Place:
    place = _Place(store_clock_ms(job.uri) if now_ms is None else now_ms)
    checkpoints = []
    for entry in file_system_for(job.uri).list(job.uri):
        name = uripath.name(entry.uri)
        if entry.is_link:
            continue
        if not entry.is_directory:
            if _JOB_FILE.fullmatch(name):
                place.files.append(entry)
        elif is_checkpoint(entry.uri):
            checkpoints.append(entry.uri)
        elif name in (SHARED, EPOCHS):
            place.add_state_files(file_system_for(entry.uri).list(entry.uri))
    place.add_checkpoints(checkpoints)
    place.add_uploads(pending_uploads(job.uri))
    if has_marker(job.state_uri):
        _scan_entropy_paths(place, job.state_uri)
    return place


def _scan_entropy_paths(place: _Place, state_uri: str) -> None:
    """Add the files in the directories with random characters."""
    directories = entropy_paths(state_uri)
    inside = [
        entry.uri
        for entry in list_all(directories)
        if entry.is_directory
        and not entry.is_link
        and (uripath.name(entry.uri) == SHARED or is_checkpoint(entry.uri))
    ]
    place.add_state_files(list_all(inside))
    # Listed once, and not for each directory: few uploads are unfinished at any time.
    below = tuple(f"{directory}/" for directory in directories)
    uploads = pending_uploads(entropy_root(state_uri))
    place.add_uploads(upload for upload in uploads if upload.uri.startswith(below))


def _is_committed(inside: Iterable[FileStatus]) -> bool:
    return any(uripath.name(file.uri) == METADATA_FILE for file in inside)


def _scan_savepoints(directory: str, job_id: str, now_ms: int | None = None) -> _Place:
    savepoints = [
        entry for entry, owner in savepoints_in(directory) if owner == job_id and not entry.is_link
    ]
    if now_ms is None:
        now_ms = store_clock_ms(directory) if savepoints else 0
    place = _Place(now_ms)
    place.add_savepoints(savepoints)
    return place


def _is_unused(directory: str, highest: int) -> bool:
    """Return whether no writer will use a directory again: it is of an older checkpoint, or of a savepoint.

    A directory of a higher checkpoint stays, however old: the next driver uses it again.
    """
    matched = CHECKPOINT.fullmatch(uripath.name(directory))
    return matched is None or int(matched[1]) < highest
