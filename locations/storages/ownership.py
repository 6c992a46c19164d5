"""Who owns a job: numbered claims, of which the highest counts.

    <job>/_epoch/<n>    a JSON object, published once: epoch, owner, claimed_ms, completed, ends

A driver that starts publishes the next number. One that was thought dead finds that number when
it next looks: before it begins a checkpoint, before it commits, and right after. What it commits
in between is either what the job goes on from, because both meet at the same `_metadata`, or is of
an id that the job has left behind; then it is taken away again. So it is if the newest claim ends the job.

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
from holdfast.locations.storages.contract import (
    CompletedCheckpoint,
    CompletedCheckpointStorageLocation,
)
from holdfast.locations.storages.loading import load_checkpoint

_log = logging.getLogger(__name__)

EPOCHS = "_epoch"

_MOST_ATTEMPTS = 100

_LONGEST_WAIT_S = 0.02

_NUMBER = re.compile(r"[1-9][0-9]*")

ListCompleted = Callable[[], Mapping[int, CompletedCheckpointStorageLocation]]


class Claim(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The content of a claim's file.

    Attributes:
        epoch: The epoch's number, 1 or more.
        owner: Random, so that a driver recognises its own claim.
        claimed_ms: When, by the driver's clock, milliseconds since 1970 UTC.
        completed: The job's completed checkpoints as the new owner found them: commit tokens by id.
        ends: Whether the owner completes no checkpoint, because another job has claimed the newest.
    """

    epoch: int
    owner: str
    claimed_ms: int
    completed: dict[int, str]
    ends: bool = False


_DECODER = json_decoder(Claim)


class DirectoryOwnership:
    """A driver's claim to the job in a directory.

    Attributes:
        epoch: Number of the claim.
        completed: The job's completed checkpoints when it was claimed, by id, oldest first.
    """

    def __init__(
        self,
        directory: str,
        list_completed: ListCompleted,
        claim: Claim,
        completed: Mapping[int, CompletedCheckpoint],
    ) -> None:
        self._directory = directory
        self._list_completed = list_completed
        self._owner = claim.owner
        self._modified_ms = _newest_status(directory).modified_ms
        self.epoch = claim.epoch
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
        """Publish the next number.

        Args:
            directory: The job's directory.
            list_completed: Lists the job's completed checkpoints.
            single_writer: Whether the store can't do it exclusively.
            ends: Whether no checkpoint of the job will follow. A claim that ends the job is published right behind
                the owner's own: so it knows every checkpoint that an owner before may have gone on from.
            clock: Dates the claim, and waits for other drivers.

        Raises:
            CheckpointConflictError: Other drivers go on claiming the job at the same time.
            CheckpointCorruptedError: A completed checkpoint can't be read.
        """
        for _ in range(_MOST_ATTEMPTS):
            locations = list_completed()
            try:
                completed = {number: load_checkpoint(locations[number]) for number in locations}
            except CheckpointNotFoundError:
                continue  # the former owner has gone on, and deleted it
            claim = Claim(
                epoch=newest_epoch(directory) + 1,
                owner=uuid.uuid4().hex,
                claimed_ms=clock.now_ms(),
                completed={number: completed[number].metadata.commit_token for number in completed},
            )
            if not _is_published(directory, claim, single_writer=single_writer):
                continue  # somebody was faster, and has to be topped
            # Another driver may have committed, or topped this claim, before it was published.
            if newest_epoch(directory) == claim.epoch and list_completed() == locations:
                if ends:
                    claim = msgspec.structs.replace(claim, epoch=claim.epoch + 1, ends=True)
                    if not _is_published(directory, claim, single_writer=single_writer):
                        continue
                _forget_below(directory, claim.epoch)
                return cls(directory, list_completed, claim, completed)
            clock.sleep(random.uniform(0, _LONGEST_WAIT_S))  # noqa: S311  # no secret
        message = f"job was claimed or went on {_MOST_ATTEMPTS} times while this driver claimed it"
        raise CheckpointConflictError(message, directory, kind="contended")

    def check(self) -> None:
        status = _newest_status(self._directory)
        if _number(status.uri) < self.epoch:
            # A listing may miss a claim that is made, and the one that is forgotten for it.
            status = _newest_status(self._directory)
        newest = _number(status.uri)
        if newest > self.epoch:
            raise CheckpointConflictError.taken_over(self._directory, newest=newest, own=self.epoch)
        # The same file has the same time; who owns another one has to be read.
        is_known = newest == self.epoch and status.modified_ms == self._modified_ms
        if not is_known and (newest < self.epoch or self._newest_claim().owner != self._owner):
            message = "the claim to this job is gone: its directory was deleted while it ran"
            raise CheckpointConflictError(message, self._directory, kind="claim-lost")

    def is_past(self, checkpoint_id: int, commit_token: str, /) -> bool:
        claim = self._newest_claim()
        known = claim.completed
        if known.get(checkpoint_id) == commit_token:
            return False
        return any(other > checkpoint_id for other in (*known, *self._list_completed()))

    def has_ended_before(self, checkpoint_id: int, commit_token: str, /) -> bool:
        claim = self._newest_claim()
        return claim.ends and claim.completed.get(checkpoint_id) != commit_token

    def _newest_claim(self) -> Claim:
        for _ in range(_MOST_ATTEMPTS):
            uri = _claim_at(self._directory, newest_epoch(self._directory))
            try:
                with file_system_for(uri).open(uri) as stream:
                    return _DECODER.decode(stream.read())
            except CheckpointNotFoundError:
                continue  # a newer one was published, and this one forgotten
            except msgspec.MsgspecError as error:
                message = f"claim to the job can't be read ({error})"
                raise CheckpointCorruptedError(message, uri) from error
        raise CheckpointNotFoundError("claims to this job vanish", self._directory)


def newest_epoch(directory: str) -> int:
    """Number of the claim that counts in a job's directory; 0 if it was never claimed."""
    return _number(_newest_status(directory).uri)


def _newest_status(directory: str) -> FileStatus:
    """The file of the claim that counts, or the directory of claims."""
    claims = uripath.join(directory, EPOCHS)
    nothing = FileStatus(claims, 0, 0, is_directory=True)
    statuses = file_system_for(claims).list(claims)
    return max(statuses, key=lambda status: _number(status.uri), default=nothing)


def _number(uri: str) -> int:
    """The number that a claim is named after; 0 of anything else."""
    name = uripath.name(uri)
    return int(name) if _NUMBER.fullmatch(name) else 0


def _claim_at(directory: str, epoch: int) -> str:
    return uripath.join(directory, EPOCHS, str(epoch))


def _is_published(directory: str, claim: Claim, *, single_writer: bool) -> bool:
    """Publish a claim, unless another driver has published that number."""
    content = msgspec.json.encode(claim)
    try:
        publish(_claim_at(directory, claim.epoch), content, single_writer=single_writer)
    except CheckpointConflictError:
        return False
    return True


def _forget_below(directory: str, epoch: int) -> None:
    """Delete the claims that don't count any more; the newest stays, so that numbers go up."""
    try:
        claims = uripath.join(directory, EPOCHS)
        uris = [status.uri for status in file_system_for(claims).list(claims)]
        file_system_for(claims).delete(uri for uri in uris if 0 < _number(uri) < epoch)
    except CheckpointError:
        _log.warning("could not delete older claims to a job", exc_info=True)
