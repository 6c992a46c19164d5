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

from proof.claimer import RELEASED, TAKEN, claimer_steps, wanted_by
from proof.model_checker import Explored, explore
from proof.protocol_state import (
    EXCLUSIVE,
    LATE,
    SHARED,
    Driver,
    Metadata,
    Protocol,
    State,
    Steps,
    Token,
    at_step,
    named_file,
    named_token,
    next_number,
    stored_metadata,
    with_driver,
    with_metadata,
    without_directory,
    without_metadata,
)
from proof.sweeper import sweep_steps

_LOST_JOB = "a job of which another has claimed the newest checkpoint"
_UNDECIDED = frozenset(
    {
        "ask again",
        "look",
        "is it past?",
        "take back",
        "warn",
        "is it still past?",
        "take back own",
    }
)
"""Steps of a driver that has published a checkpoint, and does not know yet what becomes of it."""

SHORT = (
    Protocol(),
    Protocol(checkpoints=2, lost_answers=0, sweeps=1),
    Protocol(checkpoints=2, lost_answers=0, claimers=1),
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
    "a claim to a checkpoint that does not end its job": Protocol(
        ends=False, checkpoints=2, lost_answers=0, claimers=1
    ),
    "an end of a job that is not the claimer's own yet": Protocol(
        ends_what_it_owns=False, checkpoints=2, lost_answers=0, claimers=1
    ),
    "a checkpoint taken back without a warning": Protocol(
        warns=False, checkpoints=2, lost_answers=0, claimers=1
    ),
    "a driver that does not ask who has claimed its checkpoints": Protocol(
        asks_who_claimed=False, checkpoints=2, lost_answers=0, claimers=1
    ),
    "a claim to a checkpoint without a look at its job": Protocol(
        claimer_looks=False, checkpoints=2, lost_answers=0, claimers=1
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
        claimers=protocol.claimers,
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
            if gone and not _is_out_of_use(metadata, state):
                return f"checkpoint {metadata.number} is there without {named_file(min(gone))}"
        # The newest is where a restart goes on: the last success, or one behind it that nobody was told of.
        is_restart = metadata.number == newest and state.claimer.at not in RELEASED
        if is_restart and state.head not in (metadata.token, metadata.base):
            return f"a restart finds {named_token(metadata.token)}, and the job is at {named_token(state.head)}"
    return None


def _is_out_of_use(metadata: Metadata, state: State) -> bool:
    """Whether another job has the checkpoint's files, and nobody restores it: the job has ended.

    Its driver has yet to take it back; or the job had left it behind; or it was started all the same.
    """
    claimer = state.claimer
    if claimer.at not in RELEASED:
        return False
    driver = state.drivers[metadata.token[0] - 1]
    if metadata.number <= wanted_by(claimer).number and metadata.token not in state.line:
        return True
    return state.claim != claimer.epoch or driver.at in _UNDECIDED


def steps_of(state: State, protocol: Protocol) -> Steps:
    """Everything that can happen next."""
    if len(state.drivers) < protocol.starts:
        number = len(state.drivers) + 1
        yield f"driver {number} starts", state._replace(drivers=(*state.drivers, Driver()))
    for index, driver in enumerate(state.drivers):
        yield from _starting_steps(state, protocol, index, driver)
        yield from _asking_steps(state, index, driver)
        yield from _batch_steps(state, protocol, index, driver)
        yield from _late_steps(state, protocol, index, driver)
        yield from _taking_back_steps(state, index, driver)
        yield from _disturbing_steps(state, index, driver)
        yield from _cleaner_steps(state, protocol, index, driver)
    yield from sweep_steps(state, protocol)
    yield from claimer_steps(state, protocol)


# Drivers


def _starting_steps(state: State, protocol: Protocol, index: int, driver: Driver) -> Steps:
    who = f"driver {index + 1}"
    match driver.at:
        case "list" if state.claimer.at in RELEASED:
            yield f"{who} finds that there is no such job any more", at_step(state, index, "over")
        case "list":
            seen = driver._replace(known=state.stored, at="epoch" if protocol.claims else "begin")
            numbers = [metadata.number for metadata in state.stored]
            after = with_driver(state, index, seen)
            yield (
                f"{who} lists checkpoints {numbers}",
                after if protocol.claims else _gone_on_from(after, index),
            )
        case "epoch":
            yield (
                f"{who} reads that claim {state.claim} is the newest",
                with_driver(state, index, driver._replace(epoch=state.claim + 1, at="claim")),
            )
        case "claim" if state.claim >= driver.epoch:
            yield f"{who} finds its claim {driver.epoch} published", _again(state, protocol, index)
        case "claim":
            tokens = frozenset(metadata.token for metadata in driver.known)
            after = state._replace(claim=driver.epoch, claimed=tokens, ends=False)
            yield (
                f"{who} publishes claim {driver.epoch}",
                at_step(after, index, "again")
                if protocol.looks_again
                else _gone_on_from(after, index),
            )
        case "again":
            numbers_before = [metadata.number for metadata in driver.known]
            numbers = [metadata.number for metadata in state.stored]
            if state.claim == driver.epoch and numbers == numbers_before:
                asks = protocol.claimers and protocol.asks_who_claimed
                yield (
                    f"{who} finds nothing new, and goes on",
                    at_step(state, index, "is it claimed?") if asks else _begun(state, index),
                )
            else:
                yield f"{who} finds that others went on", _again(state, protocol, index)


def _asking_steps(state: State, index: int, driver: Driver) -> Steps:
    """A driver that owns the job looks whether another job has a checkpoint of it, and then whether its own is there."""
    who = f"driver {index + 1}"
    match driver.at:
        case "is it claimed?":
            tokens = frozenset(metadata.token for metadata in driver.known)
            if tokens & state.marked:
                yield (
                    f"{who} finds that another job has claimed a checkpoint, and stops",
                    at_step(state, index, "over"),
                )
            elif any(metadata.files - state.files for metadata in driver.known[-1:]):
                yield f"{who} finds files gone, and stops", at_step(state, index, "over")
            else:
                yield f"{who} finds no claim of another job", at_step(state, index, "is it there?")
        case "is it there?":
            if state.claimer.at in RELEASED:
                yield (
                    f"{who} finds that there is no such job any more",
                    at_step(state, index, "over"),
                )
            elif all(metadata in state.stored for metadata in driver.known[-1:]):
                yield f"{who} finds its checkpoint there", _begun(state, index)
            else:
                yield f"{who} finds its checkpoint gone", at_step(state, index, "over")


def _batch_steps(state: State, protocol: Protocol, index: int, driver: Driver) -> Steps:
    who = f"driver {index + 1}"
    match driver.at:
        case "begin":
            number = next_number(driver)
            if number <= protocol.checkpoints:
                files = {(EXCLUSIVE, index + 1, number), (SHARED, index + 1, number)}
                yield (
                    f"tasks of {who} write files of checkpoint {number}",
                    at_step(state._replace(files=state.files | files), index, "publish"),
                )
        case "publish" | "ask again":
            yield from _publications(state, protocol, index, driver)
        case "look":
            if state.claim == driver.epoch:
                yield f"{who} still owns the job: success", _succeeded(state, protocol, index)
            else:
                yield f"{who} finds claim {state.claim}", at_step(state, index, "is it past?")


def _late_steps(state: State, protocol: Protocol, index: int, driver: Driver) -> Steps:
    who, number = f"driver {index + 1}", next_number(driver)
    match driver.at:
        case "is it past?":
            if _is_past(state, (index + 1, number)):
                behind, why = "take back", "came too late"
            elif _has_ended(state, (index + 1, number)):
                behind, why = ("warn" if protocol.warns else "take back own"), "came after the end"
            else:
                behind, why = "over", "counts"
            yield (
                f"{who} finds that checkpoint {number} {why}, and stops",
                at_step(state, index, behind),
            )
        case "give up":
            own = {(EXCLUSIVE, index + 1, number)}
            after = (
                state._replace(files=state.files - own)
                if protocol.own_files_only
                else without_directory(state, number)
            )
            yield (
                f"{who} gives checkpoint {number} up, and deletes files",
                at_step(after, index, "over"),
            )


def _taking_back_steps(state: State, index: int, driver: Driver) -> Steps:
    """A driver takes a checkpoint back that the job has left behind, or that it has published behind the job's end."""
    who, number = f"driver {index + 1}", next_number(driver)
    match driver.at:
        case "warn":
            marked = state._replace(marked=state.marked | {(index + 1, number)})
            yield (
                f"{who} says that it takes checkpoint {number} back",
                at_step(marked, index, "is it still past?"),
            )
        case "is it still past?":
            if _has_ended(state, (index + 1, number)):
                yield f"{who} finds no newer claim", at_step(state, index, "take back own")
            else:
                yield (
                    f"{who} finds that the job goes on from checkpoint {number}",
                    at_step(_unmarked(state, (index + 1, number)), index, "over"),
                )
        case "take back own":
            yield (
                f"{who} deletes _metadata of checkpoint {number} again",
                at_step(without_metadata(state, number), index, "take back own files"),
            )
        case "take back own files":
            # Another late driver may have files in that directory, and be about to publish.
            own = frozenset({(EXCLUSIVE, index + 1, number)})
            after = _unmarked(state._replace(files=state.files - own), (index + 1, number))
            yield (
                f"{who} deletes its files of checkpoint {number} again",
                at_step(after, index, "over"),
            )
        case "take back":
            yield (
                f"{who} deletes _metadata of checkpoint {number} again",
                at_step(without_metadata(state, number), index, "take back files"),
            )
        case "take back files":
            yield (
                f"{who} deletes the directory of checkpoint {number} again",
                at_step(without_directory(state, number), index, "over"),
            )


def _is_past(state: State, token: Token) -> bool:
    """Whether the job goes on without a checkpoint that was published too late."""
    numbers = {number for _, number in state.claimed}
    numbers |= {metadata.number for metadata in state.stored}
    return token not in state.claimed and max(numbers, default=0) > token[1]


def _has_ended(state: State, token: Token) -> bool:
    """Whether the newest claim ends the job, without a checkpoint that was published since."""
    return state.ends and token not in state.claimed


def _unmarked(state: State, token: Token) -> State:
    return state._replace(marked=state.marked - {token})


def _disturbing_steps(state: State, index: int, driver: Driver) -> Steps:
    who, number = f"driver {index + 1}", next_number(driver)
    may_write_late = driver.at not in ("list", "epoch", "claim", "again", "begin")
    if state.late_writes and may_write_late:
        files = state.files | {(LATE, index + 1, number)}
        yield (
            f"a twin of a task of {who} writes a file of checkpoint {number}",
            state._replace(files=files, late_writes=state.late_writes - 1),
        )
    if driver.at != "dead" and (state.sweeps or state.sweep.at != "off"):
        # Only the sweep can tell one that was killed from one that stands still: by the grace period.
        yield f"{who} is killed", at_step(state, index, "dead")


def _publications(state: State, protocol: Protocol, index: int, driver: Driver) -> Steps:
    who, number = f"driver {index + 1}", next_number(driver)
    wanted = f"{who} publishes checkpoint {number}"
    before = stored_metadata(state, number)
    behind = "look" if protocol.claims else "no look"
    if before is None or not protocol.exclusive:
        after = with_metadata(state, _metadata(driver, index))
        if behind == "no look":
            yield wanted, _succeeded(after, protocol, index)
        else:
            yield wanted, at_step(after, index, behind)
        if state.lost_answers and driver.at == "publish":
            lost = after._replace(lost_answers=state.lost_answers - 1)
            yield f"{wanted}, and the answer is lost", at_step(lost, index, "ask again")
            lost = state._replace(lost_answers=state.lost_answers - 1)
            yield f"{wanted}, and the request is lost", at_step(lost, index, "ask again")
    elif driver.at == "ask again" and (not protocol.tokens or before.token == (index + 1, number)):
        told = (
            f"{who} asks again, is told that checkpoint {number} exists, and takes it for its own"
        )
        yield (
            told,
            (
                at_step(state, index, behind)
                if behind == "look"
                else _succeeded(state, protocol, index)
            ),
        )
    else:
        yield (
            f"{who} is told that somebody else has published checkpoint {number}",
            at_step(state, index, "give up"),
        )


def _metadata(driver: Driver, index: int) -> Metadata:
    """What a driver publishes: its own files, and the shared one of the checkpoint before."""
    number = next_number(driver)
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
        return at_step(state, index, "over")
    return at_step(state._replace(repetitions=state.repetitions + 1), index, "list")


def _gone_on_from(state: State, index: int) -> State:
    """A driver has the job; from what does it go on?"""
    driver = state.drivers[index]
    state = at_step(state, index, "begin")
    latest = driver.known[-1] if driver.known else None
    if (latest.token if latest else None) == state.head:
        return state
    if latest is not None and latest.base == state.head:
        # The driver never learned that it had succeeded, or was told to stop: it counts from now on.
        return state._replace(head=latest.token, line=state.line | {latest.token})
    which = f"checkpoint {latest.number} of driver {latest.token[0]}" if latest else "nothing"
    return state._replace(
        wrong=f"driver {index + 1} goes on from {which}, not from {named_token(state.head)}"
    )


def _begun(state: State, index: int) -> State:
    """A driver begins its first checkpoint; if there is a newer claim, that will stop it."""
    after = _gone_on_from(state, index)
    if state.claim != state.drivers[index].epoch:
        return at_step(state, index, "begin") if after.wrong else after
    if state.claimer.at in TAKEN:
        return state._replace(wrong=f"driver {index + 1} goes on with {_LOST_JOB}")
    return after


def _succeeded(state: State, protocol: Protocol, index: int) -> State:
    """A driver takes its checkpoint for completed, and lets older ones go."""
    driver = state.drivers[index]
    if state.claimer.at in TAKEN:
        return state._replace(wrong=f"driver {index + 1} has completed a checkpoint of {_LOST_JOB}")
    new = _metadata(driver, index)
    stored = stored_metadata(state, new.number)
    if stored is None or stored.token != new.token:
        there = named_token(stored.token if stored else None)
        return state._replace(wrong=f"driver {index + 1} takes {there} for its own")
    if state.head not in (new.token, new.base):
        return state._replace(
            wrong=f"driver {index + 1} has completed checkpoint {new.number} behind "
            f"{named_token(new.base)}, and the job is at {named_token(state.head)}"
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
    return with_driver(state, index, driver)


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
            after = without_metadata(state, number)
            deleted = stored_metadata(state, number)
            # A repeated request can bring it back, without its files: nobody restores it any more.
            line = state.line - {deleted.token} if deleted else state.line
            after = after._replace(line=line)
        else:
            after = without_directory(state, number)
        rest = driver._replace(
            doomed=driver.doomed[1:] if driver.is_begun else driver.doomed,
            is_begun=not driver.is_begun,
        )
        yield f"{who} deletes {what} of checkpoint {number}", with_driver(after, index, rest)
    elif driver.unused:
        after = state._replace(files=state.files - driver.unused)
        yield (
            f"{who} deletes shared files that no checkpoint refers to",
            with_driver(after, index, driver._replace(unused=frozenset())),
        )
