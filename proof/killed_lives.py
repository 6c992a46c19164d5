"""A sample of the crash points with real processes: one runs a job, and kills itself around a call.

`crash_points` restores the content of the store. Here the process ends with its open files, its threads and its
state in the operating system.
"""

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path

from holdfast.locations.adapters import file_system_for
from holdfast.testing import ANY_CALL, faulty_file_system
from proof.crash_points import Crashes, resume_job, run_job

_COMPLETED, _PROBLEM = "completed", "problem"

_PROCESSES = multiprocessing.get_context("forkserver")
"""Forks a process that has imported these modules, and has no threads."""


def kill_everywhere(directory: Path, *, every: int) -> Crashes:
    """Let a process kill itself before and after every n-th call, and resume the job each time.

    Args:
        directory: An empty directory on a local disk.
        every: The interval of calls.
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
        problem = _run_in_process(_run_and_die, home, number, is_before, status=-signal.SIGKILL)
        problem = problem or _run_in_process(_resume, home)
        if problem:
            when = "before" if is_before else "after"
            crashes.failures.append(f"{when} call {number}: {problem}")
    return crashes


def _run_in_process(
    run: Callable[..., None], home: Path, *arguments: object, status: int = 0
) -> str:
    """Run a function in another process; returns a violation, or an empty string."""
    process = _PROCESSES.Process(target=run, args=(home, *arguments))
    process.start()
    process.join()
    problem = home / _PROBLEM
    if problem.exists():
        return problem.read_text()
    return "" if process.exitcode == status else f"process has ended with {process.exitcode}"


def _resume(home: Path) -> None:
    completed = home / _COMPLETED
    # Stored URIs have the scheme of the first faulty file system of a process, and so does this one.
    with faulty_file_system(_store(home)) as faults:
        try:
            resume_job(faults.directory, int(completed.read_text()) if completed.exists() else 0)
        except Exception as error:  # noqa: BLE001  # each error is a violation
            (home / _PROBLEM).write_text(f"{type(error).__name__}: {error}")


def _store(home: Path) -> str:
    return f"file://{home}/store"


def _calls(home: Path) -> int:
    """Return the number of calls of a run without faults."""
    file_system_for(_store(home)).prepare_directory(_store(home))
    with faulty_file_system(_store(home)) as faults:
        run_job(faults.directory, lambda _: None)
        return len(faults.calls) - faults.calls.count("abort")  # which has no faults


def _run_and_die(home: Path, number: int, is_before: bool) -> None:  # noqa: FBT001  # a process's argument
    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def note_completed(checkpoint_id: int) -> None:
        new = home / f"{_COMPLETED}.new"
        new.write_text(str(checkpoint_id))
        new.replace(home / _COMPLETED)

    with faulty_file_system(_store(home)) as faults:
        if is_before:
            faults.before(ANY_CALL, die, number)
        else:
            faults.after(ANY_CALL, die, number)
            # There is no point after a failed call; of several that publish one name, all but one fail.
            faults.before(ANY_CALL, die, number + 1)
        run_job(faults.directory, note_completed)
