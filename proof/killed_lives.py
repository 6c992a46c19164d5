"""A sample of the crash points with real processes: one lives the life of a job and kills itself around a call.

What `crash_points` puts back is what the store held. Here the process is gone with its open files, its threads and
what the operating system knew of it.
"""

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path

from holdfast.locations.adapters import file_system_for
from holdfast.testing import ANY_CALL, faulty_file_system
from proof.crash_points import Crashes, go_on, live

_TOLD, _PROBLEM = "told", "problem"

_PROCESSES = multiprocessing.get_context("forkserver")
"""A process that has imported all this, and started no thread, is copied."""


def kill_everywhere(directory: Path, *, every: int) -> Crashes:
    """Let a process kill itself before and after each so many-th of its calls, and a driver go on each time.

    Args:
        directory: An empty directory on a local disk.
        every: Take each so many-th call.
    """
    _PROCESSES.set_forkserver_preload([__name__])
    calls = _calls(directory / "calls")
    points = [
        (number, is_before) for number in range(1, calls + 1, every) for is_before in (True, False)
    ]
    crashes = Crashes(calls, 2 * calls, len(points))
    for number, is_before in points:
        home = directory / f"{number}-{is_before}"
        home.mkdir(parents=True)
        crashes.restarts += 1
        problem = _ended(_live_and_die, home, number, is_before, status=-signal.SIGKILL)
        problem = problem or _ended(_go_on, home)
        if problem:
            when = "before" if is_before else "after"
            crashes.failures.append(f"{when} call {number}: {problem}")
    return crashes


def _ended(run: Callable[..., None], home: Path, *arguments: object, status: int = 0) -> str:
    """Let another process run this; what was wrong, or empty."""
    process = _PROCESSES.Process(target=run, args=(home, *arguments))
    process.start()
    process.join()
    problem = home / _PROBLEM
    if problem.exists():
        return problem.read_text()
    return "" if process.exitcode == status else f"process has ended with {process.exitcode}"


def _go_on(home: Path) -> None:
    told = home / _TOLD
    # Stored URIs have the scheme of the first file system that fails on demand in a process: so has this one.
    with faulty_file_system(_store(home)) as faults:
        try:
            go_on(faults.directory, int(told.read_text()) if told.exists() else 0)
        except Exception as error:  # noqa: BLE001  # whatever it is, it is wrong
            (home / _PROBLEM).write_text(f"{type(error).__name__}: {error}")


def _store(home: Path) -> str:
    return f"file://{home}/store"


def _calls(home: Path) -> int:
    """How many calls the life makes to which nothing happens."""
    file_system_for(_store(home)).prepare_directory(_store(home))
    with faulty_file_system(_store(home)) as faults:
        live(faults.directory, lambda _: None)
        return len(faults.calls) - faults.calls.count("abort")  # which nobody can plan for


def _live_and_die(home: Path, number: int, is_before: bool) -> None:  # noqa: FBT001  # a process's argument
    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def told(checkpoint_id: int) -> None:
        new = home / f"{_TOLD}.new"
        new.write_text(str(checkpoint_id))
        new.replace(home / _TOLD)

    with faulty_file_system(_store(home)) as faults:
        if is_before:
            faults.before(ANY_CALL, die, number)
        else:
            faults.after(ANY_CALL, die, number)
            # Nothing is behind a call that fails, as all but one do that publish a name at the same time.
            faults.before(ANY_CALL, die, number + 1)
        live(faults.directory, told)
