"""Finds and deletes files that crashes have left behind, and that no checkpoint leads to.

A file is deleted only if all of this holds:

- its name is one that Holdfast gives, in a directory where Holdfast puts such files, and not in one
  that somebody has linked there;
- every `_metadata` of the job was read, after the file was listed, the newest among them, and none names it,
  by whatever path: names are random, and never used twice;
- it is older than the grace period, by the store's own clock;
- nobody has claimed the job while the sweep was looking.

One `_metadata` that can't be read stops the sweep: what it leads to is not known. So does that of
another checkpoint or job: what the one that belongs there leads to is not known either.
"""

import dataclasses
import logging
import re
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from os import PathLike

from holdfast.common import uripath
from holdfast.errors import CheckpointConflictError, CheckpointNotFoundError, InvalidRequestError
from holdfast.locations.coordination.checkpoints import load_checkpoints
from holdfast.locations.file_systems import (
    PROBE_PREFIX,
    FileStatus,
    PendingUpload,
    abort_uploads,
    file_system_for,
    pending_uploads,
)
from holdfast.locations.handles import FileStateHandle
from holdfast.locations.storages import (
    CHECKPOINT,
    EPOCHS,
    METADATA_FILE,
    SHARED,
    STATE_FILE,
    CompletedCheckpoint,
    JobDirectory,
    check_job_id,
    entropy_paths,
    entropy_root,
    has_marker,
    list_all,
    list_each,
    newest_epoch,
    savepoint_base,
    savepoints_in,
)

_log = logging.getLogger(__name__)

GRACE_S = 24 * 60 * 60.0
"""Time that a writer may take from its first byte to the commit, with a wide margin."""

MIN_GRACE_S = 600.0
"""The shortest that may do while a job runs."""

_MOST_ATTEMPTS = 100

_RANDOM = "[0-9a-f]{32}"
_HIDDEN = rf"\.(?:[^/]+)\.{_RANDOM}\.inprogress"
_STATE_FILE = re.compile(rf"{STATE_FILE.pattern}|{_HIDDEN}")
_JOB_FILE = re.compile(rf"{PROBE_PREFIX}{_RANDOM}|{_HIDDEN}")


@dataclass(frozen=True, slots=True)
class SweepReport:
    """The files that a sweep deleted, or would have.

    Attributes:
        files: The files, by URI.
        directories: URIs of directories in which nothing else was, and nobody will write.
        uploads: Uploads that were begun and never finished, on stores that keep them without listing them.
        too_young: Number of files that nothing leads to, but that are younger than the grace
            period: somebody may still be writing them.
        dry_run: Whether nothing was deleted.
    """

    files: tuple[FileStatus, ...]
    directories: tuple[str, ...]
    too_young: int
    dry_run: bool
    uploads: tuple[PendingUpload, ...] = ()

    @property
    def total_bytes(self) -> int:
        """Length of all the files."""
        return sum(file.size for file in self.files)


@dataclass(slots=True)
class _Place:
    """Files found in a directory of one store, before any metadata was read.

    Attributes:
        now_ms: The store's time then.
        files: Everything whose name is one of ours.
        uncommitted: Directories without `_metadata`, each with the URIs of what is in it.
        uploads: Files that are being made, whose names are ours.
    """

    now_ms: int
    files: list[FileStatus] = field(default_factory=list)
    uncommitted: dict[str, list[str]] = field(default_factory=dict)
    uploads: list[PendingUpload] = field(default_factory=list)

    def look_into_checkpoints(self, directories: Sequence[str]) -> None:
        """Add the files in the directories of checkpoints."""
        for directory, inside in list_each(directories).items():
            self.add_ours(inside)
            if not _is_committed(inside):
                self.uncommitted[directory] = [file.uri for file in inside]

    def look_into_savepoints(self, directories: Sequence[FileStatus]) -> None:
        """Add the files in the directories of unfinished savepoints."""
        changed_ms = {directory.uri: directory.modified_ms for directory in directories}
        for directory, inside in list_each(list(changed_ms)).items():
            if _is_committed(inside):
                continue  # it belongs to the user, with all that is in it
            # You may be copying a savepoint to here, and its files keep their times.
            self.add_ours(
                dataclasses.replace(file, modified_ms=max(file.modified_ms, changed_ms[directory]))
                for file in inside
            )
            self.uncommitted[directory] = [file.uri for file in inside]
            self.add_uploads(pending_uploads(directory))

    def add_ours(self, entries: Iterable[FileStatus]) -> None:
        """Add the files among them that have names of state files."""
        self.files += [
            entry
            for entry in entries
            if not (entry.is_directory or entry.is_link)
            and _STATE_FILE.fullmatch(uripath.name(entry.uri))
        ]

    def add_uploads(self, uploads: Iterable[PendingUpload]) -> None:
        """Add those among them that were begun under names of state files."""
        self.uploads += [
            upload for upload in uploads if _STATE_FILE.fullmatch(uripath.name(upload.uri))
        ]

    def report(
        self, names: set[str], highest: int, grace_s: float, *, dry_run: bool
    ) -> SweepReport:
        """The files that can be deleted, by the names of those that are needed and the number of the newest checkpoint."""
        orphans = [file for file in self.files if uripath.name(file.uri) not in names]
        oldest_kept_ms = self.now_ms - grace_s * 1000
        old = tuple(file for file in orphans if file.modified_ms < oldest_kept_ms)
        uploads = tuple(upload for upload in self.uploads if upload.started_ms < oldest_kept_ms)
        going = {file.uri for file in old}
        directories = tuple(
            directory
            for directory, inside in self.uncommitted.items()
            if _is_dead(directory, highest) and going.issuperset(inside)
        )
        too_young = len(orphans) - len(old) + len(self.uploads) - len(uploads)
        return SweepReport(old, directories, too_young, dry_run, uploads)


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
        directory: The checkpoint directory, in which the job has its own. With `_entropy_` at its end, as
            the job has it: what is spread is found by that.
        job_id: The job.
        savepoint_directory: Where its unfinished savepoints are swept too.
        grace_s: Seconds that a file must have been left alone, by the store's clock. More than
            any checkpoint takes from its first byte to its commit.
        dry_run: Whether only to say what would be deleted. It writes one small file all the same,
            and deletes it again: that is how it learns the store's time.

    Raises:
        CheckpointCorruptedError: A `_metadata` can't be read, or is of another checkpoint or job;
            nothing was deleted.
        UnsupportedFormatError: A newer version wrote one; nothing was deleted.
        CheckpointConflictError: A driver started meanwhile; nothing was deleted.
        CheckpointNotFoundError: The job has no directory.
        InvalidRequestError: The grace period is negative, or a directory can't be one of
            checkpoints or savepoints.
    """
    _check_grace(grace_s)
    job = JobDirectory.below(uripath.checkpoint_directory(directory), job_id, single_writer=False)
    savepoints = None if savepoint_directory is None else savepoint_base(savepoint_directory)
    epoch = newest_epoch(job.uri)
    places = [_look_around(job)]
    if savepoints is not None:
        places.append(_look_for_savepoints(savepoints, job_id))
    checkpoints = _all_checkpoints(job, epoch)
    highest = max((checkpoint.checkpoint_id for checkpoint in checkpoints), default=-1)
    names = {
        uripath.name(stream.uri)
        for checkpoint in checkpoints
        for stream in checkpoint.metadata.streams()
        if isinstance(stream, FileStateHandle)
    }
    reports = [place.report(names, highest, grace_s, dry_run=dry_run) for place in places]
    if newest_epoch(job.uri) != epoch:
        message = "a driver took over the job while it was looked through; sweep again"
        raise CheckpointConflictError(message, job.uri, kind="contended")
    return _carried_out(reports, dry_run=dry_run)


def sweep_savepoints(
    directory: str | PathLike[str],
    job_id: str,
    *,
    grace_s: float = GRACE_S,
    dry_run: bool = False,
) -> SweepReport:
    """Delete a job's unfinished savepoints, where it has no directory of checkpoints.

    That is so of queries without operators, whose job is called like the query.

    Args:
        directory: Where its savepoints are.
        job_id: The job.
        grace_s: Seconds that a file must have been left alone, by the store's clock. More than
            any savepoint takes.
        dry_run: Whether only to say what would be deleted; as for `sweep`.

    Raises:
        InvalidRequestError: The grace period is negative, or the directory can't be one of savepoints.
    """
    _check_grace(grace_s)
    place = _look_for_savepoints(savepoint_base(directory), check_job_id(job_id))
    return _carried_out([place.report(set(), -1, grace_s, dry_run=dry_run)], dry_run=dry_run)


def jobs_with_savepoints(directory: str | PathLike[str]) -> list[str]:
    """Ids of the jobs that have savepoints in a directory, finished or not, sorted."""
    return sorted({job_id for _, job_id in savepoints_in(savepoint_base(directory))})


def _check_grace(grace_s: float) -> None:
    if not grace_s >= 0:
        raise InvalidRequestError(f"grace period of {grace_s} seconds is negative")


def _carried_out(reports: Sequence[SweepReport], *, dry_run: bool) -> SweepReport:
    """All reports as one, after what they list was deleted."""
    if not dry_run:
        for report in reports:
            _delete(report)
    return SweepReport(
        tuple(file for report in reports for file in report.files),
        tuple(directory for report in reports for directory in report.directories),
        sum(report.too_young for report in reports),
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
    """Every completed checkpoint, and surely the newest.

    Between the listing and the reading the job can go on, delete what was listed, and a driver that was thought dead
    can commit a checkpoint of that number. Then the newest that was read says nothing of what the job needs. What the
    owner itself has committed is no such checkpoint, nor is one that still is the newest after it was read.
    """
    for _ in range(_MOST_ATTEMPTS):
        checkpoints = load_checkpoints(job)
        if not checkpoints or checkpoints[-1].metadata.epoch == epoch:
            return checkpoints
        if max(job.completed_checkpoints(), default=0) <= checkpoints[-1].checkpoint_id:
            return checkpoints
    message = "job went on time after time while its checkpoints were read; sweep again"
    raise CheckpointConflictError(message, job.uri, kind="contended")


def _store_clock_ms(directory: str) -> int:
    """The store's own time: that of a file which it has just written."""
    file_system = file_system_for(directory)
    probe = uripath.join(directory, f"{PROBE_PREFIX}{uuid.uuid4().hex}")
    stream = file_system.create(probe)
    try:
        stream.commit()  # empty: there is room for that on a full disk
        for entry in file_system.list(directory):
            if entry.uri == probe:
                return entry.modified_ms
    finally:
        stream.abort()
        file_system.delete([probe])
    raise CheckpointNotFoundError("job's directory vanished while it was looked through", directory)


def _look_around(job: JobDirectory) -> _Place:
    place = _Place(_store_clock_ms(job.uri))
    checkpoints = []
    for entry in file_system_for(job.uri).list(job.uri):
        name = uripath.name(entry.uri)
        if entry.is_link:
            continue
        if not entry.is_directory:
            if _JOB_FILE.fullmatch(name):
                place.files.append(entry)
        elif CHECKPOINT.fullmatch(name):
            checkpoints.append(entry.uri)
        elif name in (SHARED, EPOCHS):
            place.add_ours(file_system_for(entry.uri).list(entry.uri))
    place.look_into_checkpoints(checkpoints)
    place.add_uploads(pending_uploads(job.uri))
    if has_marker(job.state_uri):
        _look_everywhere(place, job.state_uri)
    return place


def _look_everywhere(place: _Place, spread: str) -> None:
    """Add what is in the many directories that state files are spread over."""
    directories = entropy_paths(spread)
    inside = [
        entry.uri
        for entry in list_all(directories)
        if entry.is_directory and not entry.is_link and _holds_state(uripath.name(entry.uri))
    ]
    place.add_ours(list_all(inside))
    # Asked for once, and not in each of them: few are unfinished at any time.
    below = tuple(f"{directory}/" for directory in directories)
    uploads = pending_uploads(entropy_root(spread))
    place.add_uploads(upload for upload in uploads if upload.uri.startswith(below))


def _is_committed(inside: Iterable[FileStatus]) -> bool:
    return any(uripath.name(file.uri) == METADATA_FILE for file in inside)


def _holds_state(name: str) -> bool:
    """Whether state files are in a directory of that name."""
    return name == SHARED or CHECKPOINT.fullmatch(name) is not None


def _look_for_savepoints(directory: str, job_id: str) -> _Place:
    savepoints = [
        entry
        for entry, of_job in savepoints_in(directory)
        if of_job == job_id and not entry.is_link
    ]
    place = _Place(_store_clock_ms(directory) if savepoints else 0)
    place.look_into_savepoints(savepoints)
    return place


def _is_dead(directory: str, highest: int) -> bool:
    """Whether nobody will write into a directory any more: it is an older checkpoint's, or a savepoint's.

    A directory of a higher checkpoint is left, however old: the next driver uses it again.
    """
    matched = CHECKPOINT.fullmatch(uripath.name(directory))
    return matched is None or int(matched[1]) < highest
