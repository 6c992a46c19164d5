"""Who owns a job: numbered claims, of which the highest counts.

    <job>/_epoch/<n>    a JSON object, published once: epoch, owner, claimed_ms, completed_ids

A driver that starts publishes the next number. One that was thought dead finds that number when
it next looks: before it begins a checkpoint, before it commits, and right after. What it commits
in between is either what the job goes on from, because both meet at the same `_metadata`, or is of
an id that the job has left behind; then it is taken away again.

Source:
    SlateDB's writer epochs, and its boundary that writers check after they created a file.
"""

import logging
import time
import uuid
from collections.abc import Callable, Iterable

import msgspec

from holdfast.errors import (
    CheckpointConflictError,
    CheckpointCorruptedError,
    CheckpointError,
)
from holdfast.locations import _uris
from holdfast.locations.file_systems import file_system_for, publish

_log = logging.getLogger(__name__)

EPOCHS = "_epoch"

_MOST_ATTEMPTS = 100


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """What a claim's file says.

    Attributes:
        epoch: Its number, 1 or more.
        owner: Random, so that a driver recognises its own claim.
        claimed_ms: When, by the driver's clock, milliseconds since 1970 UTC.
        completed_ids: The job's completed checkpoints as the new owner found them.
    """

    epoch: int
    owner: str
    claimed_ms: int
    completed_ids: tuple[int, ...]


class DirectoryOwnership:
    """A driver's claim to the job in a directory."""

    def __init__(self, directory: str, completed_ids: Callable[[], Iterable[int]]) -> None:
        self._job_directory = directory
        self._directory = _uris.join(directory, EPOCHS)
        self._completed_ids = completed_ids
        self.epoch = 0

    def claim(self, *, single_writer: bool) -> None:
        """Publish the next number.

        Raises:
            CheckpointConflictError: Other drivers go on claiming the job at the same time.
        """
        for _ in range(_MOST_ATTEMPTS):
            completed_ids = tuple(sorted(self._completed_ids()))
            claim = Claim(
                epoch=newest_epoch(self._job_directory) + 1,
                owner=uuid.uuid4().hex,
                claimed_ms=time.time_ns() // 1_000_000,
                completed_ids=completed_ids,
            )
            try:
                publish(
                    self._uri(claim.epoch), msgspec.json.encode(claim), single_writer=single_writer
                )
            except CheckpointConflictError:
                continue  # somebody was faster, and has to be topped
            self.epoch = claim.epoch
            # Another driver may have committed, or topped this claim, before it was published.
            if (
                newest_epoch(self._job_directory) == claim.epoch
                and tuple(sorted(self._completed_ids())) == completed_ids
            ):
                self._forget_older()
                return
        message = f"job was claimed by others {_MOST_ATTEMPTS} times while this driver tried to"
        raise CheckpointConflictError(message, self._directory)

    def check(self) -> None:
        newest = newest_epoch(self._job_directory)
        if newest != self.epoch:
            message = (
                f"another driver has taken over this job (its epoch is {newest}, this driver's is "
                f"{self.epoch}); stop this one, or start it again to take the job back"
            )
            raise CheckpointConflictError(message, self._directory)

    def is_past(self, checkpoint_id: int, /) -> bool:
        claim = self._read(newest_epoch(self._job_directory))
        if checkpoint_id in claim.completed_ids:
            return False
        known = (*claim.completed_ids, *self._completed_ids())
        return any(other > checkpoint_id for other in known)

    def _read(self, epoch: int) -> Claim:
        with file_system_for(self._directory).open(self._uri(epoch)) as stream:
            try:
                return msgspec.json.decode(stream.read(), type=Claim)
            except msgspec.MsgspecError as error:
                message = f"claim to the job can't be read ({error})"
                raise CheckpointCorruptedError(message, self._uri(epoch)) from error

    def _forget_older(self) -> None:
        file_system = file_system_for(self._directory)
        try:
            entries = file_system.list(self._directory)
            file_system.delete([one.uri for one in entries if 0 < _number(one.uri) < self.epoch])
        except CheckpointError:
            _log.warning("could not delete older claims to a job", exc_info=True)

    def _uri(self, epoch: int) -> str:
        return _uris.join(self._directory, str(epoch))


def newest_epoch(directory: str) -> int:
    """Number of the claim that counts in a job's directory; 0 if it was never claimed."""
    claims = _uris.join(directory, EPOCHS)
    return max((_number(one.uri) for one in file_system_for(claims).list(claims)), default=0)


def _number(uri: str) -> int:
    """The number that a file is named after, or 0."""
    name = _uris.name(uri)
    return int(name) if name.isascii() and name.isdigit() else 0
