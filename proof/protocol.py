"""The protocol of commits, claims and shared files as a model: the steps of drivers, tasks, cleaners and a sweep.

A step is a call to the store, or several calls that nothing can interrupt. Each actor can wait for any time before
each of its steps. This includes a driver that was killed, one that was considered dead and resumes, and a cleaner
that is interrupted. Drivers are numbered in the order in which they start; each takes its job over from its current
owner, and can become the next zombie.

    driver   lists checkpoints; reads the newest claim; publishes the next one; checks again
             (its tasks) writes a file of this checkpoint and one that later checkpoints share
             publishes `_metadata`, asks again if the answer is lost; checks the owner of the job; takes late checkpoints back
    cleaner  of each driver: applies retention: deletes `_metadata`, the directory, shared files without references
    task     a twin that writes once more at any time
    sweep    lists files, lists checkpoints, reads their metadata, deletes unreachable files

The check of a driver before it begins is left out: it makes it stop earlier, and the protocol must hold without it,
because a driver can wait right after it. The store is S3, where a directory can't
be missing: calls that other stores refuse because of a missing directory succeed here.

Invariants: a checkpoint that may be restored has all of its files, and each restart resumes from the latest
checkpoint of the job: no success is lost, or continued twice.
"""

from proof.claimer import CLAIMED_STEPS, RELEASED, claimer_steps, wanted_by
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

_LOST_JOB = "a job whose newest checkpoint another one has claimed"
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
"""Steps of a driver that has published a checkpoint, and does not know its outcome yet."""

SHORT = (
    Protocol(),
    Protocol(checkpoints=2, lost_answers=0, sweeps=1),
    Protocol(checkpoints=2, lost_answers=0, claimers=1),
)
"""The protocol itself, in seconds: with a third checkpoint and a lost answer, with a sweep, and with a claimer."""

LONG = (
    Protocol(starts=3, checkpoints=2, lost_answers=0),
    Protocol(checkpoints=2, lost_answers=0, late_writes=1, sweeps=1),
)
"""The same in a minute: with a third driver, and with tasks that write late during a sweep."""

BROKEN = {
    "without a fence": Protocol(claims=False, checkpoints=2, lost_answers=0),
    "a claim without a second check": Protocol(checks_again=False, checkpoints=2, lost_answers=0),
    "without a commit token": Protocol(tokens=False, checkpoints=2),
    "a store that replaces existing files": Protocol(
        exclusive=False, checkpoints=2, lost_answers=0
    ),
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
    "a sweep that does not check again": Protocol(
        lists_again=False, checkpoints=2, lost_answers=0, sweeps=1
    ),
    "a claim to a checkpoint that does not end its job": Protocol(
        ends=False, checkpoints=2, lost_answers=0, claimers=1
    ),
    "an end of a job that is not the claimer's own yet": Protocol(
        ends_own_job=False, checkpoints=2, lost_answers=0, claimers=1
    ),
    "a checkpoint taken back without a warning": Protocol(
        warns=False, checkpoints=2, lost_answers=0, claimers=1
    ),
    "a driver that does not ask actor has claimed its checkpoints": Protocol(
        checks_claims=False, checkpoints=2, lost_answers=0, claimers=1
    ),
    "a claim to a checkpoint without a check of its job": Protocol(
        claimer_checks=False, checkpoints=2, lost_answers=0, claimers=1
    ),
}
"""The protocol without a rule, by the missing rule: each loses something."""


def explore_protocol(protocol: Protocol) -> Explored[State]:
    """Explore all states of a protocol, up to the first bad one."""
    return explore(first_state(protocol), lambda state: steps_of(state, protocol), problem_in)


def first_state(protocol: Protocol) -> State:
    """Return an empty store without actors."""
    return State(
        lost_answers=protocol.lost_answers,
        late_writes=protocol.late_writes,
        sweeps=protocol.sweeps,
        claimers=protocol.claimers,
    )


def problem_in(state: State) -> str | None:
    """Return the violation in a state, or None."""
    if state.wrong:
        return state.wrong
    newest = max((metadata.number for metadata in state.stored), default=0)
    for metadata in state.stored:
        # A late commit of an old number may lack files, because it is never restored.
        if metadata.token in state.line or metadata.number == newest:
            gone = metadata.files - state.files
            if gone and not _is_out_of_use(metadata, state):
                return f"checkpoint {metadata.number} is there without {named_file(min(gone))}"
        # A restart resumes from the newest: the last success, or the next one, if its driver has not learned of it.
        is_restart = metadata.number == newest and state.claimer.at not in RELEASED
        if is_restart and state.head not in (metadata.token, metadata.base):
            return f"a restart finds {named_token(metadata.token)}, and the job is at {named_token(state.head)}"
    return None


def _is_out_of_use(metadata: Metadata, state: State) -> bool:
    """Return whether another job owns the checkpoint's files, and it is not restored, because the job has ended.

    Its driver has yet to take it back, or the job has newer checkpoints, or it was started anyway.
    """
    claimer = state.claimer
    if claimer.at not in RELEASED:
        return False
    driver = state.drivers[metadata.token[0] - 1]
    if metadata.number <= wanted_by(claimer).number and metadata.token not in state.line:
        return True
    return state.claim != claimer.epoch or driver.at in _UNDECIDED


def steps_of(state: State, protocol: Protocol) -> Steps:
    """Yield all possible next steps."""
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
    actor = f"driver {index + 1}"
    match driver.at:
        case "list" if state.claimer.at in RELEASED:
            yield f"{actor} finds that the job no longer exists", at_step(state, index, "over")
        case "list":
            seen = driver._replace(known=state.stored, at="epoch" if protocol.claims else "begin")
            numbers = [metadata.number for metadata in state.stored]
            after = with_driver(state, index, seen)
            yield (
                f"{actor} lists checkpoints {numbers}",
                after if protocol.claims else _resume(after, index),
            )
        case "epoch":
            yield (
                f"{actor} reads that claim {state.claim} is the newest",
                with_driver(state, index, driver._replace(epoch=state.claim + 1, at="claim")),
            )
        case "claim" if state.claim >= driver.epoch:
            yield (
                f"{actor} finds its claim {driver.epoch} published",
                _again(state, protocol, index),
            )
        case "claim":
            tokens = frozenset(metadata.token for metadata in driver.known)
            after = state._replace(claim=driver.epoch, claimed=tokens, ends=False)
            yield (
                f"{actor} publishes claim {driver.epoch}",
                at_step(after, index, "again") if protocol.checks_again else _resume(after, index),
            )
        case "again":
            numbers_before = [metadata.number for metadata in driver.known]
            numbers = [metadata.number for metadata in state.stored]
            if state.claim == driver.epoch and numbers == numbers_before:
                asks = protocol.claimers and protocol.checks_claims
                yield (
                    f"{actor} finds nothing new, and continues",
                    at_step(state, index, "is it claimed?") if asks else _begin(state, index),
                )
            else:
                yield f"{actor} finds that others have continued", _again(state, protocol, index)


def _asking_steps(state: State, index: int, driver: Driver) -> Steps:
    """Let a driver that owns the job check for claims of another job, and for its own checkpoint."""
    actor = f"driver {index + 1}"
    match driver.at:
        case "is it claimed?":
            tokens = frozenset(metadata.token for metadata in driver.known)
            if tokens & state.marked:
                yield (
                    f"{actor} finds that another job has claimed a checkpoint, and stops",
                    at_step(state, index, "over"),
                )
            elif any(metadata.files - state.files for metadata in driver.known[-1:]):
                yield f"{actor} finds files gone, and stops", at_step(state, index, "over")
            else:
                yield (
                    f"{actor} finds no claim of another job",
                    at_step(state, index, "is it there?"),
                )
        case "is it there?":
            if state.claimer.at in RELEASED:
                yield (
                    f"{actor} finds that the job no longer exists",
                    at_step(state, index, "over"),
                )
            elif all(metadata in state.stored for metadata in driver.known[-1:]):
                yield f"{actor} finds its checkpoint there", _begin(state, index)
            else:
                yield f"{actor} finds its checkpoint gone", at_step(state, index, "over")


def _batch_steps(state: State, protocol: Protocol, index: int, driver: Driver) -> Steps:
    actor = f"driver {index + 1}"
    match driver.at:
        case "begin":
            number = next_number(driver)
            if number <= protocol.checkpoints:
                files = {(EXCLUSIVE, index + 1, number), (SHARED, index + 1, number)}
                yield (
                    f"tasks of {actor} write files of checkpoint {number}",
                    at_step(state._replace(files=state.files | files), index, "publish"),
                )
        case "publish" | "ask again":
            yield from _publications(state, protocol, index, driver)
        case "look":
            if state.claim == driver.epoch:
                yield (
                    f"{actor} still owns the job: success",
                    _record_success(state, protocol, index),
                )
            else:
                yield f"{actor} finds claim {state.claim}", at_step(state, index, "is it past?")


def _late_steps(state: State, protocol: Protocol, index: int, driver: Driver) -> Steps:
    actor, number = f"driver {index + 1}", next_number(driver)
    match driver.at:
        case "is it past?":
            if _is_past(state, (index + 1, number)):
                next_step, reason = "take back", "came too late"
            elif _has_ended(state, (index + 1, number)):
                next_step, reason = (
                    ("warn" if protocol.warns else "take back own"),
                    "came after the end",
                )
            else:
                next_step, reason = "over", "counts"
            yield (
                f"{actor} finds that checkpoint {number} {reason}, and stops",
                at_step(state, index, next_step),
            )
        case "give up":
            own = {(EXCLUSIVE, index + 1, number)}
            after = (
                state._replace(files=state.files - own)
                if protocol.own_files_only
                else without_directory(state, number)
            )
            yield (
                f"{actor} aborts checkpoint {number}, and deletes files",
                at_step(after, index, "over"),
            )


def _taking_back_steps(state: State, index: int, driver: Driver) -> Steps:
    """Let a driver take back a checkpoint that is too old, or that it has published after the end of the job."""
    actor, number = f"driver {index + 1}", next_number(driver)
    match driver.at:
        case "warn":
            marked = state._replace(marked=state.marked | {(index + 1, number)})
            yield (
                f"{actor} announces that it takes checkpoint {number} back",
                at_step(marked, index, "is it still past?"),
            )
        case "is it still past?":
            if _has_ended(state, (index + 1, number)):
                yield f"{actor} finds no newer claim", at_step(state, index, "take back own")
            else:
                yield (
                    f"{actor} finds that the job continues from checkpoint {number}",
                    at_step(_unmark(state, (index + 1, number)), index, "over"),
                )
        case "take back own":
            yield (
                f"{actor} deletes _metadata of checkpoint {number} again",
                at_step(without_metadata(state, number), index, "take back own files"),
            )
        case "take back own files":
            # Another late driver may have files in that directory, and be about to publish.
            own = frozenset({(EXCLUSIVE, index + 1, number)})
            after = _unmark(state._replace(files=state.files - own), (index + 1, number))
            yield (
                f"{actor} deletes its files of checkpoint {number} again",
                at_step(after, index, "over"),
            )
        case "take back":
            yield (
                f"{actor} deletes _metadata of checkpoint {number} again",
                at_step(without_metadata(state, number), index, "take back files"),
            )
        case "take back files":
            yield (
                f"{actor} deletes the directory of checkpoint {number} again",
                at_step(without_directory(state, number), index, "over"),
            )


def _is_past(state: State, token: Token) -> bool:
    """Return whether the job continues without a checkpoint that was published too late."""
    numbers = {number for _, number in state.claimed}
    numbers |= {metadata.number for metadata in state.stored}
    return token not in state.claimed and max(numbers, default=0) > token[1]


def _has_ended(state: State, token: Token) -> bool:
    """Return whether the newest claim ends the job, without a checkpoint that was published since."""
    return state.ends and token not in state.claimed


def _unmark(state: State, token: Token) -> State:
    return state._replace(marked=state.marked - {token})


def _disturbing_steps(state: State, index: int, driver: Driver) -> Steps:
    actor, number = f"driver {index + 1}", next_number(driver)
    may_write_late = driver.at not in ("list", "epoch", "claim", "again", "begin")
    if state.late_writes and may_write_late:
        files = state.files | {(LATE, index + 1, number)}
        yield (
            f"a twin of a task of {actor} writes a file of checkpoint {number}",
            state._replace(files=files, late_writes=state.late_writes - 1),
        )
    if driver.at != "dead" and (state.sweeps or state.sweep.at != "off"):
        # Only the sweep can distinguish a killed driver from a waiting one: by the grace period.
        yield f"{actor} is killed", at_step(state, index, "dead")


def _publications(state: State, protocol: Protocol, index: int, driver: Driver) -> Steps:
    actor, number = f"driver {index + 1}", next_number(driver)
    wanted = f"{actor} publishes checkpoint {number}"
    before = stored_metadata(state, number)
    next_step = "look" if protocol.claims else "no look"
    if before is None or not protocol.exclusive:
        after = with_metadata(state, _metadata(driver, index))
        if next_step == "no look":
            yield wanted, _record_success(after, protocol, index)
        else:
            yield wanted, at_step(after, index, next_step)
        if state.lost_answers and driver.at == "publish":
            lost = after._replace(lost_answers=state.lost_answers - 1)
            yield f"{wanted}, and the answer is lost", at_step(lost, index, "ask again")
            lost = state._replace(lost_answers=state.lost_answers - 1)
            yield f"{wanted}, and the request is lost", at_step(lost, index, "ask again")
    elif driver.at == "ask again" and (not protocol.tokens or before.token == (index + 1, number)):
        yield (
            f"{actor} asks again, learns that checkpoint {number} exists, and considers it its own",
            (
                at_step(state, index, next_step)
                if next_step == "look"
                else _record_success(state, protocol, index)
            ),
        )
    else:
        yield (
            f"{actor} learns that another driver has published checkpoint {number}",
            at_step(state, index, "give up"),
        )


def _metadata(driver: Driver, index: int) -> Metadata:
    """Return the metadata that a driver publishes: its own files, and the shared one of the previous checkpoint."""
    number = next_number(driver)
    latest = driver.known[-1] if driver.known else None
    shared = {file for file in latest.files if file[0] == SHARED} if latest else set()
    # At most two: older ones are merged into the newest.
    kept = sorted(shared, key=lambda file: file[2])[-1:]
    return Metadata(
        number,
        (index + 1, number),
        latest.token if latest else None,
        frozenset({(EXCLUSIVE, index + 1, number), (SHARED, index + 1, number), *kept}),
    )


def _again(state: State, protocol: Protocol, index: int) -> State:
    """Let a driver begin once more; after the maximum number of repetitions it waits, as it may at any time."""
    if state.repetitions == protocol.repetitions:
        return at_step(state, index, "over")
    return at_step(state._replace(repetitions=state.repetitions + 1), index, "list")


def _resume(state: State, index: int) -> State:
    """Let a driver that has the job resume, and check from which checkpoint it does."""
    driver = state.drivers[index]
    state = at_step(state, index, "begin")
    latest = driver.known[-1] if driver.known else None
    if (latest.token if latest else None) == state.head:
        return state
    if latest is not None and latest.base == state.head:
        # Its driver never learned of the success, or has stopped: the checkpoint is valid from now on.
        return state._replace(head=latest.token, line=state.line | {latest.token})
    latest_name = f"checkpoint {latest.number} of driver {latest.token[0]}" if latest else "nothing"
    return state._replace(
        wrong=f"driver {index + 1} resumes from {latest_name}, not from {named_token(state.head)}"
    )


def _begin(state: State, index: int) -> State:
    """Let a driver begin its first checkpoint; a newer claim will stop it."""
    after = _resume(state, index)
    if state.claim != state.drivers[index].epoch:
        return at_step(state, index, "begin") if after.wrong else after
    if state.claimer.at in CLAIMED_STEPS:
        return state._replace(wrong=f"driver {index + 1} continues {_LOST_JOB}")
    return after


def _record_success(state: State, protocol: Protocol, index: int) -> State:
    """Let a driver consider its checkpoint completed, and release older ones."""
    driver = state.drivers[index]
    if state.claimer.at in CLAIMED_STEPS:
        return state._replace(wrong=f"driver {index + 1} has completed a checkpoint of {_LOST_JOB}")
    new = _metadata(driver, index)
    stored = stored_metadata(state, new.number)
    if stored is None or stored.token != new.token:
        there = named_token(stored.token if stored else None)
        return state._replace(wrong=f"driver {index + 1} takes {there} for its own")
    if state.head not in (new.token, new.base):
        return state._replace(
            wrong=f"driver {index + 1} has completed checkpoint {new.number} after "
            f"{named_token(new.base)}, and the job is at {named_token(state.head)}"
        )
    known = (*driver.known, new)
    files = {file for metadata in known for file in metadata.files if file[0] == SHARED}
    needed = new.files if protocol.shared_outlive else new.files & {(SHARED, *new.token)}
    driver = driver._replace(
        at="begin",
        known=(new,),
        released=(*driver.released, *(metadata.number for metadata in driver.known)),
        unused=driver.unused | (files - needed),
    )
    state = state._replace(head=new.token, line=state.line | {new.token})
    return with_driver(state, index, driver)


# Cleaners


def _cleaner_steps(state: State, protocol: Protocol, index: int, driver: Driver) -> Steps:
    if driver.at == "dead":
        return
    actor = f"the cleaner of driver {index + 1}"
    if driver.released:
        number = driver.released[0]
        is_metadata = driver.is_half_deleted != protocol.metadata_first
        part = "_metadata" if is_metadata else "the directory"
        if is_metadata:
            after = without_metadata(state, number)
            deleted = stored_metadata(state, number)
            # A repeated request can publish it again without its files: it is no longer restored.
            line = state.line - {deleted.token} if deleted else state.line
            after = after._replace(line=line)
        else:
            after = without_directory(state, number)
        rest = driver._replace(
            released=driver.released[1:] if driver.is_half_deleted else driver.released,
            is_half_deleted=not driver.is_half_deleted,
        )
        yield f"{actor} deletes {part} of checkpoint {number}", with_driver(after, index, rest)
    elif driver.unused:
        after = state._replace(files=state.files - driver.unused)
        yield (
            f"{actor} deletes shared files that no checkpoint refers to",
            with_driver(after, index, driver._replace(unused=frozenset())),
        )
