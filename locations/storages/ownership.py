"""Ownership of a job: numbered epochs; only the highest one counts.

    <job>/_epoch/<n>    a JSON object, published once: epoch, owner, claimed_ms, completed, ends

A driver that starts publishes the next number. A driver that was thought dead finds that number when it
looks next: before it begins a checkpoint, before it commits, and right after. A checkpoint that it commits
in between is either the one that the job resumes from, because both write the same `_metadata`, or it has an
id that the job has passed; then it is revoked. The same holds if the newest epoch ends the job.

Source:
    SlateDB's writer epochs, and its boundary that writers check after they created a file.
"""

import logging
import random
import re
import uuid
from collections.abc import Callable, Mapping

import msgspec

from holdfast.common import SYSTEM_CLOCK, Clock, json_decoder, uripath
from holdfast.errors import (
    CheckpointConflictError,
    CheckpointCorruptedError,
    CheckpointError,
    CheckpointNotFoundError,
)
from holdfast.locations.file_systems import FileStatus, file_system_for, publish
from holdfast.locations.storages.completed import load_checkpoint
from holdfast.locations.storages.contract import (
    CompletedCheckpoint,
    CompletedCheckpointStorageLocation,
)
from holdfast.locations.storages.layout import EPOCHS

_log = logging.getLogger(__name__)

_MAX_ATTEMPTS = 100

_MAX_WAIT_S = 0.02

_NUMBER = re.compile(r"[1-9][0-9]*")

ListCompleted = Callable[[], Mapping[int, CompletedCheckpointStorageLocation]]


class EpochRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The content of an epoch's file.

    Attributes:
        epoch: The epoch's number, 1 or more.
        owner: Random, so that a driver recognises its own epoch.
        claimed_ms: Time of the claim by the driver's clock, milliseconds since 1970 UTC.
        completed: Commit tokens of the job's completed checkpoints at that time, by id.
        ends: Whether the owner completes no checkpoint, because another job has claimed the newest one.
    """

    epoch: int
    owner: str
    claimed_ms: int
    completed: dict[int, str]
    ends: bool = False


_DECODER = json_decoder(EpochRecord)


class DirectoryOwnership:
    """A driver's claim to the job in a directory."""

    def __init__(
        self,
        directory: str,
        list_completed: ListCompleted,
        record: EpochRecord,
        completed: Mapping[int, CompletedCheckpoint],
    ) -> None:
        self._directory = directory
        self._list_completed = list_completed
        self._owner = record.owner
        self._modified_ms = _newest_status(directory).modified_ms
        self.epoch = record.epoch
        self.completed = completed

    @classmethod
    def claim(
        cls,
        directory: str,
        list_completed: ListCompleted,
        *,
        single_writer: bool,
        ends: bool = False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> "DirectoryOwnership":
        """Publish the next epoch and become the owner.

        Args:
            directory: The job's directory.
            list_completed: Lists the job's completed checkpoints.
            single_writer: The user's promise of a single writer, for stores that can't publish exclusively.
            ends: Whether no checkpoint of the job will follow. An epoch that ends the job is published right after
                the owner's first one, so that it lists every checkpoint that a former owner may have resumed from.
            clock: Dates the epoch, and waits for other drivers.

        Raises:
            CheckpointConflictError: Other drivers keep claiming the job at the same time.
            CheckpointCorruptedError: A completed checkpoint can't be read.
        """
        for _ in range(_MAX_ATTEMPTS):
            locations = list_completed()
            try:
                completed = {number: load_checkpoint(locations[number]) for number in locations}
            except CheckpointNotFoundError:
                continue  # deleted by the former owner, which is still running
            record = EpochRecord(
                epoch=newest_epoch(directory) + 1,
                owner=uuid.uuid4().hex,
                claimed_ms=clock.now_ms(),
                completed={number: completed[number].metadata.commit_token for number in completed},
            )
            if not _is_published(directory, record, single_writer=single_writer):
                continue  # another driver was first; try a higher epoch
            # Before it was published, another driver may have committed, or published a higher one.
            if newest_epoch(directory) == record.epoch and list_completed() == locations:
                if ends:
                    record = msgspec.structs.replace(record, epoch=record.epoch + 1, ends=True)
                    if not _is_published(directory, record, single_writer=single_writer):
                        continue
                _delete_older(directory, record.epoch)
                return cls(directory, list_completed, record, completed)
            clock.sleep(random.uniform(0, _MAX_WAIT_S))  # noqa: S311  # no secret
        message = f"job was claimed or changed {_MAX_ATTEMPTS} times while this driver claimed it"
        raise CheckpointConflictError(message, directory, kind="contended")

    def check(self) -> None:
        status = _newest_status(self._directory)
        if _number(status.uri) < self.epoch:
            # A listing may miss an epoch that is being published and the one that is deleted for it.
            status = _newest_status(self._directory)
        newest = _number(status.uri)
        if newest > self.epoch:
            raise CheckpointConflictError.taken_over(self._directory, newest=newest, own=self.epoch)
        # The same file has the same time; the owner of any other has to be read.
        is_known = newest == self.epoch and status.modified_ms == self._modified_ms
        if not is_known and (newest < self.epoch or self._newest_record().owner != self._owner):
            message = "the claim to this job is gone: its directory was deleted while it ran"
            raise CheckpointConflictError(message, self._directory, kind="claim-lost")

    def is_superseded(self, checkpoint_id: int, commit_token: str, /) -> bool:
        known = self._newest_record().completed
        if known.get(checkpoint_id) == commit_token:
            return False
        return any(other > checkpoint_id for other in (*known, *self._list_completed()))

    def ended_before(self, checkpoint_id: int, commit_token: str, /) -> bool:
        record = self._newest_record()
        return record.ends and record.completed.get(checkpoint_id) != commit_token

    def _newest_record(self) -> EpochRecord:
        for _ in range(_MAX_ATTEMPTS):
            uri = uripath.join(self._directory, EPOCHS, str(newest_epoch(self._directory)))
            try:
                with file_system_for(uri).open(uri) as stream:
                    return _DECODER.decode(stream.read())
            except CheckpointNotFoundError:
                continue  # a newer one was published, and this one deleted
            except msgspec.MsgspecError as error:
                message = f"claim to the job can't be read ({error})"
                raise CheckpointCorruptedError(message, uri) from error
        message = "claims to this job are deleted as soon as they are listed"
        raise CheckpointNotFoundError(message, self._directory)


def newest_epoch(directory: str) -> int:
    """Return the epoch that counts in a job's directory; 0 if the job was never claimed."""
    return _number(_newest_status(directory).uri)


def _newest_status(directory: str) -> FileStatus:
    """Return the file of the epoch that counts, or the directory of epochs if there is no file."""
    epochs = uripath.join(directory, EPOCHS)
    statuses = file_system_for(epochs).list(epochs)
    return max(
        statuses,
        key=lambda status: _number(status.uri),
        default=FileStatus(epochs, 0, 0, is_directory=True),
    )


def _number(uri: str) -> int:
    """Return the epoch in a file's name; 0 for any other name."""
    name = uripath.name(uri)
    return int(name) if _NUMBER.fullmatch(name) else 0


def _is_published(directory: str, record: EpochRecord, *, single_writer: bool) -> bool:
    """Publish an epoch; returns whether it is this driver's, and not another one's."""
    uri = uripath.join(directory, EPOCHS, str(record.epoch))
    try:
        publish(uri, msgspec.json.encode(record), single_writer=single_writer)
    except CheckpointConflictError:
        return False
    return True


def _delete_older(directory: str, epoch: int) -> None:
    """Delete older epochs; the newest one stays, so that numbers only increase."""
    try:
        epochs = uripath.join(directory, EPOCHS)
        uris = [status.uri for status in file_system_for(epochs).list(epochs)]
        file_system_for(epochs).delete(uri for uri in uris if 0 < _number(uri) < epoch)
    except CheckpointError:
        _log.warning("could not delete older epochs of a job", exc_info=True)
