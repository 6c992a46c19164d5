"""Runs of pytest that are interrupted while their servers run."""

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
"""A variable in the environment of all processes of a run."""

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

# Background processes of a shell ignore interrupts, and so would their children.
_PYTEST = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
import pytest
raise SystemExit(pytest.main())
"""


def check_servers_end_with_run(
    directory: Path, servers: Mapping[str, str], ending: signal.Signals, *arguments: str
) -> None:
    """End a run while one of its tests has servers, and wait until all of its processes have ended.

    The test is skipped at the end if some of the servers are not available.

    Args:
        directory: An empty directory for its files.
        servers: The import statement of each server's fixture, by its name.
        ending: The signal: an interrupt is sent to its whole group, like that of a terminal,
            others only to pytest itself.
        arguments: Arguments of pytest.
    """
    mark = uuid.uuid4().hex
    ready = directory / "ready"
    file = directory / "test_servers.py"
    imports = "\n".join(servers.values())
    file.write_text(_TEST.format(imports=imports, fixtures=list(servers), seconds=HANGS_S))
    command = [sys.executable, "-c", _PYTEST, "-q", "-p", "no:cacheprovider", *arguments]
    # pytest uses only the settings of the command.
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
        wait_until(lambda: ready.exists() or run.poll() is not None, "the test does not start")
        assert run.poll() is None, (directory / "log").read_text()
        missing = ready.read_text().splitlines()
        assert len(_processes(mark)) > len(servers) - len(missing), "a server is missing"
        if ending == signal.SIGINT:
            os.killpg(run.pid, ending)
        else:
            run.send_signal(ending)
        run.wait(HANGS_S)
        wait_until(lambda: not _processes(mark), lambda: f"still running: {_processes(mark)}")
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
        except psutil.Error:  # ended, or of another user
            continue
    return processes
