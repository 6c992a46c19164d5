"""What a job has claimed: whether it still needs that, and how it is deleted when it doesn't."""

import logging
import threading
from collections.abc import Callable, Iterable

from holdfast.common import map_in_parallel, uripath
from holdfast.errors import CheckpointConflictError, CheckpointNotFoundError
from holdfast.locations.coordination.checkpoint_files import files_of
from holdfast.locations.coordination.checkpoints import load_checkpoints
from holdfast.locations.coordination.claiming import claimant_of, claimed_at, withdraw_claim
from holdfast.locations.file_systems import file_system_for
from holdfast.locations.handles import StreamStateHandle
from holdfast.locations.metadata import ClaimedCheckpoint
from holdfast.locations.storages import (
    CHECKPOINT,
    METADATA_FILE,
    CompletedCheckpoint,
    JobDirectory,
    belongs_to,
    find_metadata,
    is_file_of,
    list_each,
    load_checkpoint,
    resolve_pointer,
)

_log = logging.getLogger(__name__)

StreamsOf = Callable[[CompletedCheckpoint], Iterable[StreamStateHandle]]


class Claims:
    """The checkpoints and savepoints that a job has claimed, and has not deleted yet.

    Args:
        directory: URI of the job's directory.
        claimed: What the job has claimed.
        streams_of: Gives all that a checkpoint or savepoint leads to.
    """

    def __init__(
        self,
        directory: str,
        claimed: Iterable[ClaimedCheckpoint] = (),
        streams_of: StreamsOf = lambda checkpoint: checkpoint.metadata.streams(),
    ) -> None:
        self._directory = directory
        self._streams_of = streams_of
        self._lock = threading.Lock()
        self._last_used = dict.fromkeys(claimed, -1)
        self._needed_elsewhere: set[ClaimedCheckpoint] = set()

    @classmethod
    def carried(cls, directory: str, last: CompletedCheckpoint, streams_of: StreamsOf) -> "Claims":
        """What a job still has of the claims that its last checkpoint names: it was written before any of them went."""
        needed = {file.uri for file in files_of(last.metadata.streams())}
        claimed = [
            claim
            for claim in last.metadata.claimed
            if _is_held(claim, directory)
            and not (needed.isdisjoint(claim.files) and _is_over(claim))
        ]
        return cls(directory, claimed, streams_of)

    @property
    def claimed(self) -> tuple[ClaimedCheckpoint, ...]:
        """What was claimed, and is not deleted yet."""
        with self._lock:
            return tuple(self._last_used)

    @property
    def files(self) -> frozenset[str]:
        """URIs of all files that came with it."""
        return frozenset(uri for claim in self.claimed for uri in claim.files)

    def register(self, checkpoint: CompletedCheckpoint) -> None:
        """Note what of it a checkpoint of the job needs."""
        with self._lock:
            if not self._last_used:
                return
            needed = {file.uri for file in files_of(checkpoint.metadata.streams())}
            for claim, last_used in self._last_used.items():
                if not needed.isdisjoint(claim.files):
                    self._last_used[claim] = max(last_used, checkpoint.checkpoint_id)

    def unused(self, lowest_id: int) -> list[ClaimedCheckpoint]:
        """What no checkpoint from an id on needs, nor another savepoint."""
        with self._lock:
            return [
                claim
                for claim, last_used in self._last_used.items()
                if last_used < lowest_id and claim not in self._needed_elsewhere
            ]

    def release(self, claim: ClaimedCheckpoint) -> None:
        """Delete what was claimed: `_metadata` first, then the files, the record of the claim, the directory.

        After a crash it is to be repeated. Of the files that the claim names none goes to which another
        checkpoint or savepoint in that place leads; if one of them is in the directory itself, all stays.

        Raises:
            CheckpointConflictError: A checkpoint of this job still needs it; nothing was deleted.
            CheckpointCorruptedError: What another checkpoint leads to can't be read; nothing was deleted.
        """
        self._check_unneeded(claim)
        stored = _stored(claim)
        is_other = stored is not None and stored.metadata.commit_token != claim.commit_token
        if is_other or not _is_held(claim, self._directory):
            _log.warning("%s was claimed by this job, and is not its own any more", claim.pointer)
            withdraw_claim(claim.pointer, self._directory)
        else:
            needed = self._needed_beside(claim.pointer)
            if any(
                uripath.name(uri) in needed for uri in claim.files if is_file_of(uri, claim.pointer)
            ):
                _log.info("%s stays: another savepoint needs files of it", claim.pointer)
                with self._lock:
                    self._needed_elsewhere.add(claim)
                return
            file_system = file_system_for(claim.pointer)
            if stored is not None:  # else the place may be used anew
                file_system.delete([uripath.join(claim.pointer, METADATA_FILE)])
            if claimant_of(claim.pointer) is not None:  # else a former driver has deleted the files
                file_system.delete(
                    uri
                    for uri in claim.files
                    if uripath.name(uri) not in needed and belongs_to(uri, claim.pointer)
                )
                file_system.delete([claimed_at(claim.pointer)])
            file_system.delete_empty_directory(claim.pointer)
            _log.info("deleted %s, which this job had claimed", claim.pointer)
        with self._lock:
            del self._last_used[claim]

    def _check_unneeded(self, claim: ClaimedCheckpoint) -> None:
        files = set(claim.files)
        for checkpoint in load_checkpoints(JobDirectory(self._directory, single_writer=False)):
            if not files.isdisjoint(file.uri for file in files_of(checkpoint.metadata.streams())):
                message = (
                    f"checkpoint {checkpoint.checkpoint_id} needs files that its job has claimed"
                )
                raise CheckpointConflictError(message, claim.pointer, kind="contended")

    def _needed_beside(self, pointer: str) -> set[str]:
        """Names of files to which other checkpoints lead that lie where one does."""
        return {
            uripath.name(file.uri)
            for checkpoint in _beside(pointer)
            for file in files_of(self._streams_of(checkpoint))
        }


def _is_held(claim: ClaimedCheckpoint, directory: str) -> bool:
    """Whether a claim of a job stands, or was being ended when the job's driver died."""
    holder = claimant_of(claim.pointer)
    return holder.directory == directory if holder is not None else _stored(claim) is None


def _is_over(claim: ClaimedCheckpoint) -> bool:
    """Whether all of it is deleted: the record of a claim goes last, and what is left of a directory then is empty."""
    return claimant_of(claim.pointer) is None and _stored(claim) is None


def _stored(claim: ClaimedCheckpoint) -> CompletedCheckpoint | None:
    """What is in the place of what was claimed; None if nothing is."""
    try:
        return load_checkpoint(resolve_pointer(claim.pointer))
    except CheckpointNotFoundError:
        return None


def _beside(pointer: str) -> list[CompletedCheckpoint]:
    """All other checkpoints of the job that one is of, or all savepoints in the directory of one."""
    parent = uripath.parent(pointer)
    if CHECKPOINT.fullmatch(uripath.name(pointer)):
        checkpoints = load_checkpoints(JobDirectory(parent, single_writer=False))
    else:
        entries = file_system_for(parent).list(parent)
        inside = list_each([entry.uri for entry in entries if entry.is_directory])
        locations = [
            location
            for entries in inside.values()
            if (location := find_metadata(entries)) is not None
        ]
        checkpoints = map_in_parallel(load_checkpoint, locations)
    return [
        checkpoint for checkpoint in checkpoints if checkpoint.location.external_pointer != pointer
    ]
