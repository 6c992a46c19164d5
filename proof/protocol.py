"""The protocol of commits, claims and shared files as a model: what drivers, tasks, cleaners and a sweep do, step by step.

A step is a call to the store, or several that nobody can come between. Everybody can stand still before each of
their steps for as long as they like, and go on: so a driver that was killed, one that was thought dead and comes
back, and a cleaner that is cut short are all in here without being said. Drivers are numbered in the order in which
they start; each takes its job over from whoever has it, and can itself be the next zombie.

    driver   lists checkpoints; reads the newest claim; publishes the next one; looks again
             (its tasks) writes a file of this checkpoint and one that later ones share
             publishes `_metadata`, asks again if the answer is lost; looks who owns the job; takes back what came too late
    cleaner  of each driver: deletes what retention lets go: `_metadata`, the directory, shared files nobody refers to
    task     a twin that writes once more, whenever it likes
    sweep    lists files, lists checkpoints, reads their metadata, deletes what none leads to

The checks of a driver before it begins and before it publishes are left out: they make it stop earlier, and the
protocol must hold without, because a driver can stand still right behind them. The store is S3, where a directory
is nothing that could be missing: what is refused elsewhere for lack of it happens here.

What has to hold: a checkpoint that somebody may restore has all of its files, and whoever goes on, goes on from
what the job has come to: no success is lost, or built upon twice.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from proof.model_checker import Explored, explore

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
        starts: How many drivers there are.
        checkpoints: Up to which number they go.
        lost_answers: How often the store performs a publish and doesn't say so.
        late_writes: How often a twin of a task writes once more.
        sweeps: How many sweeps there are.
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
    starts: int = 2
    checkpoints: int = 3
    lost_answers: int = 1
    late_writes: int = 0
    sweeps: int = 0
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


class State(NamedTuple):
    """The store, those who work on it, and what an observer has noted.

    Attributes:
        stored: Every `_metadata` that is there, by number.
        files: Every file that is there.
        claim: Number of the newest claim.
        claimed: Tokens of the checkpoints that the claim knows.
        drivers: By number.
        sweep: The sweep.
        head: Token of what the job has come to: the last success, or what a driver has gone on from.
        line: Tokens of all that led there.
        lost_answers: How many may still be lost.
        late_writes: How many may still come.
        sweeps: How many may still begin.
        repetitions: How many claims were repeated.
        wrong: What has gone wrong.
    """

    stored: tuple[Metadata, ...] = ()
    files: frozenset[File] = frozenset()
    claim: int = 0
    claimed: frozenset[Token] = frozenset()
    drivers: tuple[Driver, ...] = ()
    sweep: Sweep = Sweep()
    head: Token | None = None
    line: frozenset[Token] = frozenset()
    lost_answers: int = 0
    late_writes: int = 0
    sweeps: int = 0
    repetitions: int = 0
    wrong: str = ""


Steps = Iterator[tuple[str, State]]

SHORT = (
    Protocol(),
    Protocol(checkpoints=2, lost_answers=0, sweeps=1),
)
"""The protocol as it is, in seconds: with a third checkpoint and a lost answer, and beside a sweep."""

LONG = (
    Protocol(starts=3, checkpoints=2, lost_answers=0),
    Protocol(checkpoints=2, lost_answers=0, late_writes=1, sweeps=1),
)
"""The same in a minute: with a third driver, and with tasks that write late beside a sweep."""

BROKEN = {
    "without a fence": Protocol(claims=False, checkpoints=2, lost_answers=0),
    "a claim without a second look": Protocol(looks_again=False, checkpoints=2, lost_answers=0),
    "without a commit token": Protocol(tokens=False, checkpoints=2),
    "a store that replaces what is there": Protocol(exclusive=False, checkpoints=2, lost_answers=0),
    "data deleted before metadata": Protocol(metadata_first=False, checkpoints=2, lost_answers=0),
    "shared files deleted with their checkpoint": Protocol(
        shared_outlive=False, checkpoints=2, lost_answers=0
    ),
    "a failed attempt deletes the directory": Protocol(
        own_files_only=False, checkpoints=2, lost_answers=0
    ),
    "a sweep without a grace period": Protocol(
        grace=False, checkpoints=2, lost_answers=0, sweeps=1
    ),
    "a sweep that reads before it lists": Protocol(
        reads_last=False, checkpoints=2, lost_answers=0, sweeps=1
    ),
    "a sweep that does not look again": Protocol(
        lists_again=False, checkpoints=2, lost_answers=0, sweeps=1
    ),
}
"""The protocol with a rule left out, by what is left out: each of them loses something."""


def checked(protocol: Protocol) -> Explored[State]:
    """Every state of a protocol, up to the first that is bad."""
    return explore(first_state(protocol), lambda state: steps_of(state, protocol), problem_in)


def first_state(protocol: Protocol) -> State:
    """An empty store, and nobody there."""
    return State(
        lost_answers=protocol.lost_answers,
        late_writes=protocol.late_writes,
        sweeps=protocol.sweeps,
    )


def problem_in(state: State) -> str | None:
    """What is wrong in a state."""
    if state.wrong:
        return state.wrong
    newest = max((metadata.number for metadata in state.stored), default=0)
    for metadata in state.stored:
        # A late commit of a number that the job has left behind may be without files: nobody restores it.
        if metadata.token in state.line or metadata.number == newest:
            gone = metadata.files - state.files
            if gone:
                return f"checkpoint {metadata.number} is there without {_named(min(gone))}"
        # The newest is where a restart goes on: the last success, or one behind it that nobody was told of.
        if metadata.number == newest and state.head not in (metadata.token, metadata.base):
            return f"a restart finds {_which(metadata.token)}, and the job is at {_job(state)}"
    return None


def steps_of(state: State, protocol: Protocol) -> Steps:
    """Everything that can happen next."""
    if len(state.drivers) < protocol.starts:
        number = len(state.drivers) + 1
        yield f"driver {number} starts", state._replace(drivers=(*state.drivers, Driver()))
    for index, driver in enumerate(state.drivers):
        yield from _starting_steps(state, protocol, index, driver)
        yield from _batch_steps(state, protocol, index, driver)
        yield from _late_steps(state, protocol, index, driver)
        yield from _disturbing_steps(state, index, driver)
        yield from _cleaner_steps(state, protocol, index, driver)
    yield from _sweep_steps(state, protocol)


# Drivers


def _starting_steps(state: State, protocol: Protocol, index: int, driver: Driver) -> Steps:
    who = f"driver {index + 1}"
    match driver.at:
        case "list":
            seen = driver._replace(known=state.stored, at="epoch" if protocol.claims else "begin")
            numbers = [metadata.number for metadata in state.stored]
            after = _with(state, index, seen)
            yield (
                f"{who} lists checkpoints {numbers}",
                after if protocol.claims else _gone_on_from(after, index),
            )
        case "epoch":
            yield (
                f"{who} reads that claim {state.claim} is the newest",
                _with(state, index, driver._replace(epoch=state.claim + 1, at="claim")),
            )
        case "claim" if state.claim >= driver.epoch:
            yield f"{who} finds its claim {driver.epoch} published", _again(state, protocol, index)
        case "claim":
            tokens = frozenset(metadata.token for metadata in driver.known)
            after = state._replace(claim=driver.epoch, claimed=tokens)
            yield (
                f"{who} publishes claim {driver.epoch}",
                _at(after, index, "again") if protocol.looks_again else _gone_on_from(after, index),
            )
        case "again":
            numbers_before = [metadata.number for metadata in driver.known]
            numbers = [metadata.number for metadata in state.stored]
            if state.claim == driver.epoch and numbers == numbers_before:
                yield f"{who} finds nothing new, and goes on", _gone_on_from(state, index)
            else:
                yield f"{who} finds that others went on", _again(state, protocol, index)


def _batch_steps(state: State, protocol: Protocol, index: int, driver: Driver) -> Steps:
    who = f"driver {index + 1}"
    match driver.at:
        case "begin":
            number = _next_number(driver)
            if number <= protocol.checkpoints:
                files = {(EXCLUSIVE, index + 1, number), (SHARED, index + 1, number)}
                yield (
                    f"tasks of {who} write files of checkpoint {number}",
                    _at(state._replace(files=state.files | files), index, "publish"),
                )
        case "publish" | "ask again":
            yield from _publications(state, protocol, index, driver)
        case "look":
            if state.claim == driver.epoch:
                yield f"{who} still owns the job: success", _succeeded(state, protocol, index)
            else:
                yield f"{who} finds claim {state.claim}", _at(state, index, "is it past?")


def _late_steps(state: State, protocol: Protocol, index: int, driver: Driver) -> Steps:
    who, number = f"driver {index + 1}", _next_number(driver)
    match driver.at:
        case "is it past?":
            numbers_of_others = {token[1] for token in state.claimed}
            numbers_of_others |= {metadata.number for metadata in state.stored}
            is_known = (index + 1, number) in state.claimed
            is_past = not is_known and max(numbers_of_others) > number
            yield (
                f"{who} finds that checkpoint {number} {'came too late' if is_past else 'counts'}, and stops",
                _at(state, index, "take back" if is_past else "over"),
            )
        case "take back":
            yield (
                f"{who} deletes _metadata of checkpoint {number} again",
                _at(_without_metadata(state, number), index, "take back files"),
            )
        case "take back files":
            yield (
                f"{who} deletes the directory of checkpoint {number} again",
                _at(_without_directory(state, number), index, "over"),
            )
        case "give up":
            own = {(EXCLUSIVE, index + 1, number)}
            after = (
                state._replace(files=state.files - own)
                if protocol.own_files_only
                else _without_directory(state, number)
            )
            yield (
                f"{who} gives checkpoint {number} up, and deletes files",
                _at(after, index, "over"),
            )


def _disturbing_steps(state: State, index: int, driver: Driver) -> Steps:
    who, number = f"driver {index + 1}", _next_number(driver)
    may_write_late = driver.at not in ("list", "epoch", "claim", "again", "begin")
    if state.late_writes and may_write_late:
        files = state.files | {(LATE, index + 1, number)}
        yield (
            f"a twin of a task of {who} writes a file of checkpoint {number}",
            state._replace(files=files, late_writes=state.late_writes - 1),
        )
    if driver.at != "dead" and (state.sweeps or state.sweep.at != "off"):
        # Only the sweep can tell one that was killed from one that stands still: by the grace period.
        yield f"{who} is killed", _at(state, index, "dead")


def _publications(state: State, protocol: Protocol, index: int, driver: Driver) -> Steps:
    who, number = f"driver {index + 1}", _next_number(driver)
    wanted = f"{who} publishes checkpoint {number}"
    before = _stored(state, number)
    behind = "look" if protocol.claims else "no look"
    if before is None or not protocol.exclusive:
        after = _with_metadata(state, _metadata(driver, index))
        if behind == "no look":
            yield wanted, _succeeded(after, protocol, index)
        else:
            yield wanted, _at(after, index, behind)
        if state.lost_answers and driver.at == "publish":
            lost = after._replace(lost_answers=state.lost_answers - 1)
            yield f"{wanted}, and the answer is lost", _at(lost, index, "ask again")
            lost = state._replace(lost_answers=state.lost_answers - 1)
            yield f"{wanted}, and the request is lost", _at(lost, index, "ask again")
    elif driver.at == "ask again" and (not protocol.tokens or before.token == (index + 1, number)):
        told = (
            f"{who} asks again, is told that checkpoint {number} exists, and takes it for its own"
        )
        yield (
            told,
            (_at(state, index, behind) if behind == "look" else _succeeded(state, protocol, index)),
        )
    else:
        yield (
            f"{who} is told that somebody else has published checkpoint {number}",
            _at(state, index, "give up"),
        )


def _metadata(driver: Driver, index: int) -> Metadata:
    """What a driver publishes: its own files, and the shared one of the checkpoint before."""
    number = _next_number(driver)
    latest = driver.known[-1] if driver.known else None
    shared = {file for file in latest.files if file[0] == SHARED} if latest else set()
    # Two of them at most: older ones are merged into the newest.
    kept = sorted(shared, key=lambda file: file[2])[-1:]
    return Metadata(
        number,
        (index + 1, number),
        latest.token if latest else None,
        frozenset({(EXCLUSIVE, index + 1, number), (SHARED, index + 1, number), *kept}),
    )


def _again(state: State, protocol: Protocol, index: int) -> State:
    """A driver begins once more; after so many times it stands still, which is what it may do anyway."""
    if state.repetitions == protocol.repetitions:
        return _at(state, index, "over")
    return _at(state._replace(repetitions=state.repetitions + 1), index, "list")


def _gone_on_from(state: State, index: int) -> State:
    """A driver has the job; from what does it go on?"""
    driver = state.drivers[index]
    state = _at(state, index, "begin")
    latest = driver.known[-1] if driver.known else None
    if (latest.token if latest else None) == state.head:
        return state
    if latest is not None and latest.base == state.head:
        # The driver never learned that it had succeeded, or was told to stop: it counts from now on.
        return state._replace(head=latest.token, line=state.line | {latest.token})
    which = f"checkpoint {latest.number} of driver {latest.token[0]}" if latest else "nothing"
    return state._replace(wrong=f"driver {index + 1} goes on from {which}, not from {_job(state)}")


def _succeeded(state: State, protocol: Protocol, index: int) -> State:
    """A driver takes its checkpoint for completed, and lets older ones go."""
    driver = state.drivers[index]
    new = _metadata(driver, index)
    stored = _stored(state, new.number)
    if stored is None or stored.token != new.token:
        there = _which(stored.token if stored else None)
        return state._replace(wrong=f"driver {index + 1} takes {there} for its own")
    if state.head not in (new.token, new.base):
        return state._replace(
            wrong=f"driver {index + 1} has completed checkpoint {new.number} behind "
            f"{_which(new.base)}, and the job is at {_job(state)}"
        )
    known = (*driver.known, new)
    files = {file for metadata in known for file in metadata.files if file[0] == SHARED}
    needed = new.files if protocol.shared_outlive else new.files & {(SHARED, *new.token)}
    driver = driver._replace(
        at="begin",
        known=(new,),
        doomed=(*driver.doomed, *(metadata.number for metadata in driver.known)),
        unused=driver.unused | (files - needed),
    )
    state = state._replace(head=new.token, line=state.line | {new.token})
    return _with(state, index, driver)


# Cleaners


def _cleaner_steps(state: State, protocol: Protocol, index: int, driver: Driver) -> Steps:
    if driver.at == "dead":
        return
    who = f"the cleaner of driver {index + 1}"
    if driver.doomed:
        number = driver.doomed[0]
        is_metadata = driver.is_begun != protocol.metadata_first
        what = "_metadata" if is_metadata else "the directory"
        if is_metadata:
            after = _without_metadata(state, number)
            deleted = _stored(state, number)
            # A repeated request can bring it back, without its files: nobody restores it any more.
            line = state.line - {deleted.token} if deleted else state.line
            after = after._replace(line=line)
        else:
            after = _without_directory(state, number)
        rest = driver._replace(
            doomed=driver.doomed[1:] if driver.is_begun else driver.doomed,
            is_begun=not driver.is_begun,
        )
        yield f"{who} deletes {what} of checkpoint {number}", _with(after, index, rest)
    elif driver.unused:
        after = state._replace(files=state.files - driver.unused)
        yield (
            f"{who} deletes shared files that no checkpoint refers to",
            _with(after, index, driver._replace(unused=frozenset())),
        )


# The sweep


def _sweep_steps(state: State, protocol: Protocol) -> Steps:
    sweep = state.sweep
    first, second = ("list", "read") if protocol.reads_last else ("read", "list")
    match sweep.at:
        case "off" if state.sweeps:
            begun = state._replace(sweeps=state.sweeps - 1)
            yield "a sweep begins", begun._replace(sweep=Sweep(first))
        case "list":
            old = frozenset(file for file in state.files if _is_old(file, state, protocol))
            kept = sweep.files if second == "list" else frozenset()
            behind = "delete" if second == "list" else "read"
            yield "the sweep lists files", state._replace(sweep=Sweep(behind, old - kept))
        case "read":
            numbers = frozenset(metadata.number for metadata in state.stored)
            yield (
                "the sweep lists checkpoints",
                state._replace(sweep=Sweep("load", sweep.files, numbers)),
            )
        case "load":
            if sweep.numbers - {metadata.number for metadata in state.stored}:
                yield (
                    "the sweep misses one, and lists them again",
                    state._replace(sweep=Sweep("read", sweep.files)),
                )
            else:
                needed = frozenset(
                    file
                    for metadata in state.stored
                    if metadata.number in sweep.numbers
                    for file in metadata.files
                )
                files = sweep.files - needed if second == "read" else sweep.files | needed
                behind = "delete" if second == "read" else "list"
                if protocol.lists_again:
                    read = Sweep("look again", files, sweep.numbers)
                else:
                    read = Sweep(behind, files)
                yield "the sweep reads their metadata", state._replace(sweep=read)
        case "look again":
            if {metadata.number for metadata in state.stored} <= sweep.numbers:
                behind = "delete" if second == "read" else "list"
                yield "the sweep finds no others", state._replace(sweep=Sweep(behind, sweep.files))
            else:
                yield "the sweep finds others", state._replace(sweep=Sweep("read", sweep.files))
        case "delete":
            yield (
                "the sweep deletes files",
                state._replace(files=state.files - sweep.files, sweep=Sweep()),
            )


def _is_old(file: File, state: State, protocol: Protocol) -> bool:
    """Whether a file is older than the grace period, which is longer than any attempt takes."""
    _, number_of_driver, number = file
    driver = state.drivers[number_of_driver - 1]
    if not protocol.grace or driver.at in ("dead", "over"):
        return True
    return number < _next_number(driver)


# The store


def _with(state: State, index: int, driver: Driver) -> State:
    drivers = (*state.drivers[:index], driver, *state.drivers[index + 1 :])
    return state._replace(drivers=drivers)


def _at(state: State, index: int, at: str) -> State:
    return _with(state, index, state.drivers[index]._replace(at=at))


def _next_number(driver: Driver) -> int:
    return driver.known[-1].number + 1 if driver.known else 1


def _stored(state: State, number: int) -> Metadata | None:
    return next((metadata for metadata in state.stored if metadata.number == number), None)


def _with_metadata(state: State, metadata: Metadata) -> State:
    others = [each for each in state.stored if each.number != metadata.number]
    return state._replace(stored=tuple(sorted([*others, metadata])))


def _without_metadata(state: State, number: int) -> State:
    """By its path: whoever has written it."""
    return state._replace(stored=tuple(each for each in state.stored if each.number != number))


def _without_directory(state: State, number: int) -> State:
    """All files in a checkpoint's directory: whoever has written them."""
    return state._replace(
        files=frozenset(file for file in state.files if file[0] == SHARED or file[2] != number)
    )


def _job(state: State) -> str:
    return _which(state.head)


def _which(token: Token | None) -> str:
    return f"checkpoint {token[1]} of driver {token[0]}" if token else "nothing"


def _named(file: File) -> str:
    return f"the {file[0]} file of checkpoint {file[2]} of driver {file[1]}"
