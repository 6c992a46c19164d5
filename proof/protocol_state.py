"""Rules and states of the model of the protocol, with the effects of calls to the store."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

Token = tuple[int, int]
"""An attempt: the numbers of the driver and of the checkpoint."""

File = tuple[str, int, int]
"""A file of an attempt: its kind, and the numbers of the driver and of the checkpoint."""

EXCLUSIVE, SHARED, LATE = "exclusive", "shared", "late"


@dataclass(frozen=True)
class Protocol:
    """The rules of the protocol, and the bounds of the model.

    Attributes:
        claims: After its commit, a driver checks the owner of the job, and takes late checkpoints back.
        checks_again: A driver that has claimed checks whether the checkpoints are still those that it read.
        tokens: A conflict is examined; otherwise it is considered the answer to the driver's own request.
        exclusive: The store gives a name to one writer only.
        metadata_first: Deletion begins with `_metadata`.
        shared_outlive: A shared file stays as long as a retained checkpoint refers to it.
        own_files_only: A driver that aborts deletes its own files, instead of the checkpoint's directory.
        grace: The sweep keeps files of attempts in progress.
        reads_last: The sweep reads metadata after listing files, not before.
        lists_again: After reading metadata, the sweep checks for new checkpoints.
        ends: The claim of a job that claims a checkpoint specifies that the former job has no later checkpoint.
        ends_own_job: It is published after a claim of the same job that was checked again.
        warns: A driver that takes back a checkpoint after the end announces it, and checks whether a job continues from it.
        checks_claims: A driver that starts checks whether another job has claimed a checkpoint.
        claimer_checks: A job that has claimed a checkpoint checks whether it still owns the former job.
        starts: Number of drivers.
        checkpoints: Highest number of a checkpoint.
        lost_answers: Number of publish calls that are performed and whose answers are lost.
        late_writes: Number of late writes by twins of tasks.
        sweeps: Number of sweeps.
        claimers: Number of other jobs that begin with a checkpoint of this one.
        repetitions: Total number of repeated claims, because others have continued concurrently.
    """

    claims: bool = True
    checks_again: bool = True
    tokens: bool = True
    exclusive: bool = True
    metadata_first: bool = True
    shared_outlive: bool = True
    own_files_only: bool = True
    grace: bool = True
    reads_last: bool = True
    lists_again: bool = True
    ends: bool = True
    ends_own_job: bool = True
    warns: bool = True
    checks_claims: bool = True
    claimer_checks: bool = True
    starts: int = 2
    checkpoints: int = 3
    lost_answers: int = 1
    late_writes: int = 0
    sweeps: int = 0
    claimers: int = 0
    repetitions: int = 2


class Metadata(NamedTuple):
    """The content of `_metadata`: number and token of the checkpoint, the token of the previous one, its files."""

    number: int
    token: Token
    base: Token | None
    files: frozenset[File]


class Driver(NamedTuple):
    """A driver, and its cleaner.

    Attributes:
        at: The driver's next step.
        known: The checkpoints that it retains.
        epoch: Number of its claim.
        released: Numbers of checkpoints that its cleaner deletes.
        is_half_deleted: Whether the cleaner has deleted the first half of the first of them.
        unused: Shared files that it deletes after them.
    """

    at: str = "list"
    known: tuple[Metadata, ...] = ()
    epoch: int = 0
    released: tuple[int, ...] = ()
    is_half_deleted: bool = False
    unused: frozenset[File] = frozenset()


class Sweep(NamedTuple):
    """A sweep: its next step, the files that it may delete, the checkpoints that it has listed."""

    at: str = "off"
    files: frozenset[File] = frozenset()
    numbers: frozenset[int] = frozenset()


class Claimer(NamedTuple):
    """Another job that begins with the newest checkpoint of this one, and deletes it when it is no longer needed.

    Attributes:
        at: The job's next step.
        wanted: The checkpoint.
        known: The checkpoints that it has listed.
        epoch: Number of its claim.
        needed: Files that other checkpoints refer to.
    """

    at: str = "off"
    wanted: Metadata | None = None
    known: tuple[Metadata, ...] = ()
    epoch: int = 0
    needed: frozenset[File] = frozenset()


class State(NamedTuple):
    """The store, its actors, and the records of an observer.

    Attributes:
        stored: All existing `_metadata`, by number.
        files: All existing files.
        claim: Number of the newest claim.
        claimed: Tokens of the checkpoints in the claim.
        ends: Whether the claim specifies that no checkpoint follows.
        marked: Tokens of the checkpoints that another job has claimed.
        drivers: The drivers by number.
        sweep: The sweep.
        claimer: The other job.
        head: Token of the job's latest checkpoint: the last success, or the one from which a driver has resumed.
        line: Tokens of all checkpoints that led to it.
        lost_answers: Number of answers that may still be lost.
        late_writes: Number of remaining late writes.
        sweeps: Number of remaining sweeps.
        claimers: Number of remaining other jobs.
        repetitions: Number of repeated claims.
        wrong: The violation that has occurred.
    """

    stored: tuple[Metadata, ...] = ()
    files: frozenset[File] = frozenset()
    claim: int = 0
    claimed: frozenset[Token] = frozenset()
    ends: bool = False
    marked: frozenset[Token] = frozenset()
    drivers: tuple[Driver, ...] = ()
    sweep: Sweep = Sweep()
    claimer: Claimer = Claimer()
    head: Token | None = None
    line: frozenset[Token] = frozenset()
    lost_answers: int = 0
    late_writes: int = 0
    sweeps: int = 0
    claimers: int = 0
    repetitions: int = 0
    wrong: str = ""


Steps = Iterator[tuple[str, State]]


def with_driver(state: State, index: int, driver: Driver) -> State:
    drivers = (*state.drivers[:index], driver, *state.drivers[index + 1 :])
    return state._replace(drivers=drivers)


def at_step(state: State, index: int, at: str) -> State:
    return with_driver(state, index, state.drivers[index]._replace(at=at))


def next_number(driver: Driver) -> int:
    return driver.known[-1].number + 1 if driver.known else 1


def stored_metadata(state: State, number: int) -> Metadata | None:
    return next((metadata for metadata in state.stored if metadata.number == number), None)


def with_metadata(state: State, metadata: Metadata) -> State:
    others = [each for each in state.stored if each.number != metadata.number]
    return state._replace(stored=tuple(sorted([*others, metadata])))


def without_metadata(state: State, number: int) -> State:
    """Delete a `_metadata` by its path, regardless of its writer."""
    return state._replace(stored=tuple(each for each in state.stored if each.number != number))


def without_directory(state: State, number: int) -> State:
    """Delete all files in a checkpoint's directory, regardless of their writers."""
    return state._replace(
        files=frozenset(file for file in state.files if file[0] == SHARED or file[2] != number)
    )


def named_token(token: Token | None) -> str:
    return f"checkpoint {token[1]} of driver {token[0]}" if token else "nothing"


def named_file(file: File) -> str:
    return f"the {file[0]} file of checkpoint {file[2]} of driver {file[1]}"
