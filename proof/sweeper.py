"""A sweep in the model of the protocol: it deletes files that no checkpoint refers to.

lists files that are older than the grace period, lists checkpoints, reads their metadata, checks for new checkpoints
deletes the files that no checkpoint refers to
"""

from proof.protocol_state import File, Protocol, State, Steps, Sweep, next_number


def sweep_steps(state: State, protocol: Protocol) -> Steps:
    """Yield the possible next steps of a sweep."""
    sweep = state.sweep
    first, second = ("list", "read") if protocol.reads_last else ("read", "list")
    match sweep.at:
        case "off" if state.sweeps:
            started = state._replace(sweeps=state.sweeps - 1)
            yield "a sweep begins", started._replace(sweep=Sweep(first))
        case "list":
            old = frozenset(file for file in state.files if _is_old(file, state, protocol))
            kept = sweep.files if second == "list" else frozenset()
            next_step = "delete" if second == "list" else "read"
            yield "the sweep lists files", state._replace(sweep=Sweep(next_step, old - kept))
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
                next_step = "delete" if second == "read" else "list"
                if protocol.lists_again:
                    read = Sweep("look again", files, sweep.numbers)
                else:
                    read = Sweep(next_step, files)
                yield "the sweep reads their metadata", state._replace(sweep=read)
        case "look again":
            if {metadata.number for metadata in state.stored} <= sweep.numbers:
                next_step = "delete" if second == "read" else "list"
                yield (
                    "the sweep finds no others",
                    state._replace(sweep=Sweep(next_step, sweep.files)),
                )
            else:
                yield "the sweep finds others", state._replace(sweep=Sweep("read", sweep.files))
        case "delete":
            yield (
                "the sweep deletes files",
                state._replace(files=state.files - sweep.files, sweep=Sweep()),
            )


def _is_old(file: File, state: State, protocol: Protocol) -> bool:
    """Return whether a file is older than the grace period, which is longer than any attempt."""
    _, number_of_driver, number = file
    driver = state.drivers[number_of_driver - 1]
    if not protocol.grace or driver.at in ("dead", "over"):
        return True
    return number < next_number(driver)
