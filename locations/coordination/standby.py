"""The active driver of a job, and its standbys, which wait until its heartbeats stop.

    <job>/_epoch/_driver-<term>            a JSON object, published once: owner, host, process, silence_s
    <job>/_epoch/_driver-<term>-<number>   an empty file: a heartbeat; the driver deletes the one before
    <job>/_epoch/_driver-<term>-released   an empty file: the driver has ended, and a standby may continue the job
    <job>/_epoch/_driver-<term>-ended      an empty file: the job has ended

Only the highest term counts. A standby lists the files several times within the time of silence after which it takes
over. If those of the highest term stay the same for that time, by its own clock, it publishes the next term: of several
standbys one does. So clocks of hosts need not agree. Time in which the standby was paused, or the store away, does not
count, because the driver may have been paused with it. If the drivers have different times, the longer one counts.

This decides when a query is started, and never who commits: that is decided by the job's epoch, which the query claims with its
first batch. So a driver that was thought dead, and was only slow, loses nothing but the job. It finds the higher term
when a heartbeat was late enough for a standby to miss it, and commits nothing after the claim in any case.

Files of lower terms are deleted by the next driver. Those of the highest one stay, so that terms only increase.
"""

import logging
import os
import socket
import uuid
from collections import defaultdict
from contextlib import suppress

import msgspec

from holdfast.common import Clock, Moment, is_within, json_decoder, moment, uripath
from holdfast.errors import CheckpointConflictError, CheckpointError, CheckpointNotFoundError
from holdfast.locations.file_systems import create_file, file_system_for, publish, retry_deadline
from holdfast.locations.storages import DRIVER, EPOCHS, JobDirectory

_log = logging.getLogger(__name__)

HEARTBEATS = 4
"""Heartbeats of the driver, and looks of a standby, within the time of silence after which the standby takes over."""

_ENDED = "ended"
_RELEASED = "released"


class DriverRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a term's file.

    Attributes:
        owner: Random, so that a driver recognises its own term.
        host: The name of the driver's host, for people.
        process: The id of its process there.
        silence_s: Seconds without a heartbeat after which its standbys take over.
    """

    owner: str
    host: str
    process: int
    silence_s: float


_DECODER = json_decoder(DriverRecord)


class ActiveDriver:
    """The driver that runs the job, unless a standby has taken over.

    Args:
        job: The job's directory.
        term: The driver's term, which it has published.
        silence_s: Seconds without a heartbeat after which a standby takes over.
        clock: The driver's clock.
    """

    def __init__(self, job: JobDirectory, term: int, silence_s: float, clock: Clock) -> None:
        self.term = term
        self.interval_s = silence_s / HEARTBEATS
        self._job = job
        self._silence_s = silence_s
        self._clock = clock
        self._number = 0
        self._former: list[str] = []
        self._shown: Moment = moment(clock)
        self._suspect_heartbeats = 0

    def write_heartbeat(self) -> None:
        """Write a heartbeat; call it every `interval_s`. If it comes late, look for a standby that has taken over.

        Raises:
            CheckpointConflictError: A standby has taken over.
            CheckpointError: The store failed.
        """
        with retry_deadline(self.interval_s):
            start = moment(self._clock)
            self._number += 1
            former, uri = self._former, _uri(self._job, self.term, str(self._number))
            self._former = [*former, uri]  # it may be there even after an error
            _create_empty(uri)
            if not is_within(self._silence_s, self._shown, moment(self._clock)):
                # A standby that has just decided publishes its term a moment later: look again next time.
                self._suspect_heartbeats = HEARTBEATS
            self._shown = start
            if self._suspect_heartbeats:
                self._suspect_heartbeats -= 1
                self.check()
            file_system_for(uri).delete(former)
            self._former = [uri]

    def check(self) -> None:
        """Look whether a standby has taken over.

        Raises:
            CheckpointConflictError: A standby has.
            CheckpointError: The store failed.
        """
        newest = max(_signs(self._job), default=0)
        if newest > self.term:
            message = (
                f"a standby has taken over this job (its term is {newest}, this driver's is {self.term}): this driver "
                "had sent no heartbeat for too long. Start it again, and it waits as a standby"
            )
            raise CheckpointConflictError(message, self._job.uri, kind="taken-over")

    def end(self) -> None:
        """Record that the job has ended: standbys end too."""
        self._leave(_ENDED)

    def release(self) -> None:
        """Record that this driver ends, so that a standby takes over at once."""
        self._leave(_RELEASED)

    def _leave(self, sign: str) -> None:
        try:
            with retry_deadline(self._silence_s):
                _create_empty(_uri(self._job, self.term, sign))
                file_system_for(self._job.uri).delete(self._former)
        except CheckpointError:
            _log.warning("standbys have to wait, because the store failed", exc_info=True)


class Standby:
    """A driver that waits while another one sends heartbeats.

    Args:
        job: The job's directory. It is created when this driver becomes active.
        silence_s: Seconds without a heartbeat after which it takes over.
        clock: The driver's clock; only differences within this process count.

    Attributes:
        interval_s: Seconds between two looks.
        has_ended: Whether the job has ended while this driver waited.
    """

    def __init__(self, job: JobDirectory, silence_s: float, clock: Clock) -> None:
        self.interval_s = silence_s / HEARTBEATS
        self.has_ended = False
        self._job = job
        self._silence_s = silence_s
        self._limit_s = silence_s
        self._clock = clock
        self._has_waited = False
        self._term = 0
        self._signs = frozenset[str]()
        self._silent_s = 0.0
        self._looked_s = 0.0

    def look(self) -> ActiveDriver | None:
        """Look for heartbeats; call it every `interval_s`, until it returns or the job `has_ended`.

        Returns:
            This driver as the active one, if it has taken over.

        Raises:
            CheckpointError: The store failed, or can't keep drivers apart.
        """
        with retry_deadline(self.interval_s):
            signs_by_term = _signs(self._job)
        term = max(signs_by_term, default=0)
        signs = frozenset(signs_by_term[term]) if term else frozenset()
        if not term or signs & {_ENDED, _RELEASED}:
            if _ENDED in signs and self._has_waited:
                self.has_ended = True
                return None
            return self._take_over(term)
        self._has_waited = True
        now_s = self._clock.monotonic_s()
        if (term, signs) != (self._term, self._signs):
            if term != self._term:
                self._limit_s = max(self._silence_s, self._silence_of(term))
            self._term, self._signs, self._silent_s = term, signs, 0.0
        else:
            self._silent_s += min(now_s - self._looked_s, 2 * self.interval_s)
        self._looked_s = now_s
        if self._silent_s < self._limit_s:
            return None
        _log.warning(
            "the active driver of %s has sent no heartbeat for %.1f s",
            self._job.uri,
            self._silent_s,
        )
        return self._take_over(term)

    def _take_over(self, former: int) -> ActiveDriver | None:
        """Publish the next term; None if another standby was faster."""
        term = former + 1
        self._job.prepare()
        record = DriverRecord(
            owner=uuid.uuid4().hex,
            host=socket.gethostname(),
            process=os.getpid(),
            silence_s=self._silence_s,
        )
        active = ActiveDriver(self._job, term, self._silence_s, self._clock)
        try:
            publish(
                _uri(self._job, term),
                msgspec.json.encode(record),
                single_writer=self._job.single_writer,
            )
        except CheckpointConflictError:
            self._has_waited = True
            return None
        _log.info("this driver is now the active driver of %s, in term %d", self._job.uri, term)
        self._delete_lower(term)
        return active

    def _delete_lower(self, term: int) -> None:
        try:
            uris = [
                _uri(self._job, lower, sign)
                for lower, signs in _signs(self._job).items()
                for sign in signs
                if lower < term
            ]
            file_system_for(self._job.uri).delete(uris)
        except CheckpointError:
            _log.warning("could not delete heartbeats of earlier drivers", exc_info=True)

    def _silence_of(self, term: int) -> float:
        """Return the time of silence of the driver of a term, which is logged; 0 if a newer term has replaced it."""
        try:
            with file_system_for(self._job.uri).open(_uri(self._job, term)) as stream:
                record = _DECODER.decode(stream.read())
        except (CheckpointNotFoundError, msgspec.MsgspecError):
            return 0.0
        _log.info(
            "process %d on %s is the active driver of %s; this one waits as a standby",
            record.process,
            record.host,
            self._job.uri,
        )
        return record.silence_s


def _signs(job: JobDirectory) -> dict[int, set[str]]:
    """Return the signs of drivers by term: numbers of heartbeats, ends, and '' for the file of the term."""
    signs = defaultdict[int, set[str]](set)
    for entry in job.epoch_entries():
        if matched := DRIVER.fullmatch(uripath.name(entry.uri)):
            signs[int(matched["term"])].add(matched["sign"] or "")
    return signs


def _uri(job: JobDirectory, term: int, sign: str = "") -> str:
    name = f"_driver-{term}-{sign}" if sign else f"_driver-{term}"
    return uripath.join(job.uri, EPOCHS, name)


def _create_empty(uri: str) -> None:
    """Create an empty file that only this driver creates, so it may be there after a lost answer."""
    with suppress(CheckpointConflictError), create_file(file_system_for(uri), uri):
        pass  # empty, so that a full disk has room for it
