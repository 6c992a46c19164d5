"""Runs of pytest that are ended from outside while servers of theirs run."""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest
from contracts.patience import HANGS_S, wait_until

_TESTS = Path(__file__).parents[1]

_MARK = "HOLDFAST_TEST_RUN"
"""A variable that all processes of a run have."""

_TEST = """
import os
import pathlib
import time
import pytest
{imports}

def test_servers(request):
    missing = []
    for server in {fixtures}:
        try:
            request.getfixturevalue(server)
        except pytest.skip.Exception as reason:
            missing.append(f"{{server}}: {{str(reason).splitlines()[0]}}")
    file = pathlib.Path(os.environ["HOLDFAST_TEST_READY"])
    file.with_suffix(".new").write_text("\\n".join(missing))
    file.with_suffix(".new").replace(file)
    time.sleep({seconds})
"""

# What a shell runs in the background ignores interrupts, and so would all that it starts.
_PYTEST = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
import pytest
raise SystemExit(pytest.main())
"""


def check_that_nothing_outlives(
    directory: Path, servers: Mapping[str, str], ending: signal.Signals, *arguments: str
) -> None:
    """End a run while a test of it has servers, and wait until no process of it is left.

    The test is skipped in the end where some of the servers can't be had.

    Args:
        directory: An empty one, for its files.
        servers: The lines that bring each server's fixture, by its name.
        ending: What ends it: an interrupt reaches all of its group, as that of a terminal does,
            others only pytest itself.
        arguments: The arguments of pytest.
    """
    mark = uuid.uuid4().hex
    ready = directory / "ready"
    file = directory / "test_servers.py"
    imports = "\n".join(servers.values())
    file.write_text(_TEST.format(imports=imports, fixtures=list(servers), seconds=HANGS_S))
    command = [sys.executable, "-c", _PYTEST, "-q", "-p", "no:cacheprovider", *arguments]
    # pytest gets only those settings that the command names.
    command += ["--rootdir", str(directory), "-c", os.devnull, str(file)]
    path = os.pathsep.join([str(_TESTS), *sys.path])
    variables = {_MARK: mark, "HOLDFAST_TEST_READY": str(ready), "PYTHONPATH": path}
    with open(directory / "log", "wb") as log:
        run = subprocess.Popen(
            command,
            cwd=directory,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        wait_until(lambda: ready.exists() or run.poll() is not None, "the test does not begin")
        said = (directory / "log").read_text()
        assert run.poll() is None, said
        missing = ready.read_text().splitlines()
        assert len(_processes(mark)) > len(servers) - len(missing), "a server is not there"
        if ending == signal.SIGINT:
            os.killpg(run.pid, ending)
        else:
            run.send_signal(ending)
        run.wait(HANGS_S)
        wait_until(lambda: not _processes(mark), lambda: f"still there: {_processes(mark)}")
        if missing:
            pytest.skip("; ".join(missing))
    finally:
        for process in _processes(mark):
            process.kill()
        run.wait()


def _processes(mark: str) -> list[psutil.Process]:
    processes = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(_MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
        except psutil.Error:  # gone, or somebody else's
            continue
    return processes
