"""What the model of the protocol is made of: its rules, and its states, with what a call to the store does to them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

Token = tuple[int, int]
"""Which attempt: the driver's number, and the checkpoint's."""

File = tuple[str, int, int]
"""A file of an attempt: what it is, the driver's number, the checkpoint's."""

EXCLUSIVE, SHARED, LATE = "exclusive", "shared", "late"


@dataclass(frozen=True)
class Protocol:
    """Which of its rules are kept, and how far a model goes.

    Attributes:
        claims: A driver looks after its commit who owns the job, and takes back what came too late.
        looks_again: A driver that has claimed looks whether the checkpoints are still those that it read.
        tokens: "It exists" is looked into; without, it counts as the answer to the own request.
        exclusive: The store gives a name to one writer alone.
        metadata_first: Deletion begins with `_metadata`.
        shared_outlive: A shared file stays as long as a retained checkpoint refers to it.
        own_files_only: A driver that gives up deletes its own files, instead of the checkpoint's directory.
        grace: The sweep spares files of attempts that may go on.
        reads_last: The sweep reads metadata behind the list of files, not before it.
        lists_again: The sweep looks, behind the metadata that it has read, whether there are others by now.
        ends: The claim of a job that claims a checkpoint says that no checkpoint of the former job follows.
        ends_what_it_owns: It is published behind a claim of the same job which was looked at again.
        warns: A driver that takes back what came after the end says so first, and looks whether somebody goes on from it.
        asks_who_claimed: A driver that starts looks whether another job has claimed a checkpoint.
        claimer_looks: A job that has claimed a checkpoint looks whether the former job is still its own.
        starts: How many drivers there are.
        checkpoints: Up to which number they go.
        lost_answers: How often the store performs a publish and doesn't say so.
        late_writes: How often a twin of a task writes once more.
        sweeps: How many sweeps there are.
        claimers: How many other jobs begin with a checkpoint of this one.
        repetitions: How often drivers claim again, all together, because others went on meanwhile.
    """

    claims: bool = True
    looks_again: bool = True
    tokens: bool = True
    exclusive: bool = True
    metadata_first: bool = True
    shared_outlive: bool = True
    own_files_only: bool = True
    grace: bool = True
    reads_last: bool = True
    lists_again: bool = True
    ends: bool = True
    ends_what_it_owns: bool = True
    warns: bool = True
    asks_who_claimed: bool = True
    claimer_looks: bool = True
    starts: int = 2
    checkpoints: int = 3
    lost_answers: int = 1
    late_writes: int = 0
    sweeps: int = 0
    claimers: int = 0
    repetitions: int = 2


class Metadata(NamedTuple):
    """What a `_metadata` says: number and token of the checkpoint, the token of the one before, its files."""

    number: int
    token: Token
    base: Token | None
    files: frozenset[File]


class Driver(NamedTuple):
    """A driver, and its cleaner.

    Attributes:
        at: The driver's next step.
        known: The checkpoints that it keeps.
        epoch: Number of its claim.
        doomed: Numbers of checkpoints that its cleaner deletes.
        is_begun: Whether the cleaner has done the first half of the first of them.
        unused: Shared files that it deletes behind them.
    """

    at: str = "list"
    known: tuple[Metadata, ...] = ()
    epoch: int = 0
    doomed: tuple[int, ...] = ()
    is_begun: bool = False
    unused: frozenset[File] = frozenset()


class Sweep(NamedTuple):
    """A sweep: its next step, the files that it may delete, the checkpoints that it has listed."""

    at: str = "off"
    files: frozenset[File] = frozenset()
    numbers: frozenset[int] = frozenset()


class Claimer(NamedTuple):
    """Another job that begins with the newest checkpoint of this one, and deletes it when it needs it no more.

    Attributes:
        at: The job's next step.
        wanted: The checkpoint.
        known: The checkpoints that it has listed.
        epoch: Number of its claim.
        needed: Files that other checkpoints lead to.
    """

    at: str = "off"
    wanted: Metadata | None = None
    known: tuple[Metadata, ...] = ()
    epoch: int = 0
    needed: frozenset[File] = frozenset()


class State(NamedTuple):
    """The store, those who work on it, and what an observer has noted.

    Attributes:
        stored: Every `_metadata` that is there, by number.
        files: Every file that is there.
        claim: Number of the newest claim.
        claimed: Tokens of the checkpoints that the claim knows.
        ends: Whether the claim says that no checkpoint follows.
        marked: Tokens of the checkpoints that another job has claimed.
        drivers: By number.
        sweep: The sweep.
        claimer: The other job.
        head: Token of what the job has come to: the last success, or what a driver has gone on from.
        line: Tokens of all that led there.
        lost_answers: How many may still be lost.
        late_writes: How many may still come.
        sweeps: How many may still begin.
        claimers: How many other jobs may still come.
        repetitions: How many claims were repeated.
        wrong: What has gone wrong.
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
    """By its path: whoever has written it."""
    return state._replace(stored=tuple(each for each in state.stored if each.number != number))


def without_directory(state: State, number: int) -> State:
    """All files in a checkpoint's directory: whoever has written them."""
    return state._replace(
        files=frozenset(file for file in state.files if file[0] == SHARED or file[2] != number)
    )


def named_token(token: Token | None) -> str:
    return f"checkpoint {token[1]} of driver {token[0]}" if token else "nothing"


def named_file(file: File) -> str:
    return f"the {file[0]} file of checkpoint {file[2]} of driver {file[1]}"
