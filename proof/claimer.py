"""Another job in the model of the protocol, which begins with a checkpoint: it claims that, and eventually deletes it.

claimer  lists checkpoints of the former job; claims that job, as its last owner; checks again
         publishes `_claimed` next to the newest checkpoint
         checks whether it still owns the former job and the checkpoint still exists; if not, deletes `_claimed`
         much later: reads the files of other checkpoints there; deletes `_metadata`, all other files, `_claimed`
"""

from proof.protocol_state import Claimer, Metadata, Protocol, State, Steps, without_metadata

RELEASED = frozenset({"delete files", "delete claim", "done"})
"""Steps of a job that deletes or has deleted its claimed checkpoint."""

CLAIMED_STEPS = RELEASED | {"has", "delete metadata"}
"""Steps of a job that has begun with its claimed checkpoint."""


def claimer_steps(state: State, protocol: Protocol) -> Steps:
    """Yield the possible next steps of the other job."""
    claimer = state.claimer
    match claimer.at:
        case "off" if state.claimers and state.stored:
            wanted = state.stored[-1]
            started = state._replace(
                claimers=state.claimers - 1, claimer=Claimer("list", wanted=wanted)
            )
            yield f"another job is to begin with checkpoint {wanted.number}", started
        case "list" | "epoch" | "claim" | "again":
            yield from _claiming_steps(state, protocol)
        case "end":
            yield from _ending_steps(state, protocol)
        case "mark" | "look" | "is it there?":
            yield from _marking_steps(state, protocol)
        case "withdraw":
            yield "the claimer deletes _claimed again", _at(_unmark(state), "off")
        case "has" | "delete metadata" | "delete files" | "delete claim":
            yield from _releasing_steps(state)


def _claiming_steps(state: State, protocol: Protocol) -> Steps:
    """Let the claimer become the last owner of the former job."""
    claimer = state.claimer
    match claimer.at:
        case "list":
            seen = claimer._replace(at="epoch", known=state.stored)
            yield "the claimer lists checkpoints", state._replace(claimer=seen)
        case "epoch":
            read = claimer._replace(at="claim", epoch=state.claim + 1)
            yield "the claimer reads the newest claim", state._replace(claimer=read)
        case "claim" if state.claim >= claimer.epoch:
            yield "the claimer finds its claim published", _again(state, protocol)
        case "claim":
            tokens = frozenset(metadata.token for metadata in claimer.known)
            ends = protocol.ends and not protocol.ends_own_job
            after = state._replace(claim=claimer.epoch, claimed=tokens, ends=ends)
            yield f"the claimer publishes claim {claimer.epoch}", _at(after, "again")
        case "again":
            numbers, before = (
                [metadata.number for metadata in stored] for stored in (state.stored, claimer.known)
            )
            if state.claim != claimer.epoch or numbers != before:
                yield "the claimer finds that others have continued", _again(state, protocol)
            elif claimer.known[-1:] == (claimer.wanted,):
                yield "the claimer finds nothing new", _at(state, "end")
            else:
                yield "the claimer finds another checkpoint the newest", _at(state, "off")


def _ending_steps(state: State, protocol: Protocol) -> Steps:
    """Let the claimer publish that no checkpoint of the former job follows."""
    claimer = state.claimer
    match claimer.at:
        case "end" if not (protocol.ends and protocol.ends_own_job):
            yield from claimer_steps(_at(state, "mark"), protocol)
        case "end" if state.claim > claimer.epoch:
            yield "the claimer finds the next claim published", _again(state, protocol)
        case "end":
            last = claimer._replace(at="mark", epoch=claimer.epoch + 1)
            after = state._replace(claim=last.epoch, ends=True, claimer=last)
            yield f"the claimer publishes claim {last.epoch}, the last", after


def _marking_steps(state: State, protocol: Protocol) -> Steps:
    """Let the claimer take the checkpoint, and check whether it was allowed to."""
    claimer = state.claimer
    match claimer.at:
        case "mark":
            marked = state._replace(marked=state.marked | {wanted_by(claimer).token})
            next_step = "look" if protocol.claimer_checks else "is it there?"
            yield "the claimer publishes _claimed", _at(marked, next_step)
        case "look" if state.claim == claimer.epoch:
            yield "the claimer still owns the job", _at(state, "is it there?")
        case "look":
            yield f"the claimer finds claim {state.claim}", _at(state, "withdraw")
        case "is it there?" if wanted_by(claimer) in state.stored:
            yield "the claimer begins with the checkpoint", _at(state, "has")
        case "is it there?":
            yield "the claimer finds the checkpoint gone", _at(state, "withdraw")


def _releasing_steps(state: State) -> Steps:
    """Let the claimer delete the checkpoint that it no longer needs."""
    claimer = state.claimer
    wanted = wanted_by(claimer)
    match claimer.at:
        case "has":
            others = [metadata for metadata in state.stored if metadata != wanted]
            needed = frozenset(file for metadata in others for file in metadata.files)
            read = claimer._replace(at="delete metadata", needed=needed)
            yield (
                "the claimer reads the files of other checkpoints",
                state._replace(claimer=read),
            )
        case "delete metadata":
            after = without_metadata(state, wanted.number)
            yield "the claimer deletes _metadata", _at(after, "delete files")
        case "delete files":
            after = state._replace(files=state.files - (wanted.files - claimer.needed))
            yield "the claimer deletes the other files", _at(after, "delete claim")
        case "delete claim":
            yield "the claimer deletes _claimed", _at(_unmark(state), "done")


def _again(state: State, protocol: Protocol) -> State:
    """Let the claimer begin once more; after the maximum number of repetitions it waits."""
    if state.repetitions == protocol.repetitions:
        return _at(state, "off")
    return _at(state._replace(repetitions=state.repetitions + 1), "list")


def _at(state: State, at: str) -> State:
    return state._replace(claimer=state.claimer._replace(at=at))


def _unmark(state: State) -> State:
    return state._replace(marked=state.marked - {wanted_by(state.claimer).token})


def wanted_by(claimer: Claimer) -> Metadata:
    """Return the checkpoint with which a job begins."""
    if claimer.wanted is None:
        raise ValueError("no other job has started")
    return claimer.wanted
