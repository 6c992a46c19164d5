"""Common code of the servers in the folders next to this file.

Exit status: 0 done, 2 wrong usage, 3 not available here, otherwise it failed; the last line on stderr has
why.
"""

import fcntl
import hashlib
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from random import SystemRandom
from typing import NoReturn

UNAVAILABLE = 3

MAX_START_S = 300.0
"""A server that takes longer to come or to go is stuck; a busy machine takes long."""

_PORTS_OF_SERVERS = range(15_000, 32_000)
"""Linux gives clients ports from 32768 on, macOS from 49152 on."""

Command = Callable[[list[str]], Mapping[str, str] | int | None]
"""Takes the arguments; returns the values that clients need, or an exit status."""


class UnavailableError(Exception):
    """There is no such server to be had on this machine."""


class UsageError(Exception):
    """An unknown command; `message` may have details."""


def run(command: Command, usage: str | None) -> NoReturn:
    """Run the command of the command line, and exit.

    Args:
        command: The command. The values that it returns are printed for a shell to evaluate.
        usage: The module's docstring; its second paragraph lists the commands.
    """
    try:
        if sys.argv[1:2] == ["hold"]:
            _hold(command, sys.argv[2:])
            sys.exit()
        values = command(sys.argv[1:])
    except UsageError as error:
        usages = (usage or "").split("\n\n")[1]
        print(*error.args, f"usage:\n{usages}", sep="\n", file=sys.stderr)
        sys.exit(2)
    except UnavailableError as error:
        print(error, file=sys.stderr)
        sys.exit(UNAVAILABLE)
    if isinstance(values, Mapping):
        _print_values(values)
        values = 0
    sys.exit(values)


def _hold(command: Command, arguments: list[str]) -> None:
    """Start a server, and stop it at the end of the standard input."""
    values = command(["start", *arguments])
    assert isinstance(values, Mapping)
    try:
        with suppress(BrokenPipeError):  # who has called is gone already
            _print_values(values)
            print(flush=True)
        sys.stdin.read()
    finally:
        command(["stop", values["directory"]])


def _print_values(values: Mapping[str, str]) -> None:
    for word, value in values.items():
        print(f"{word}={shlex.quote(value)}")


def java_program(subject: str) -> str:
    """The path of Java. Raises UnavailableError, which names what needs it."""
    program = f"{os.environ.get('JAVA_HOME', '')}/bin/java"
    if os.access(program, os.X_OK):
        return program
    return _program("java", subject)


def fetch_jars(subject: str, pom: Path, jars: Path) -> None:
    """Let Maven copy the jars that a POM names, with their dependencies, into a directory."""
    maven = _program("mvn", subject)
    options = ["--batch-mode", "--strict-checksums", "--update-snapshots", "--file", str(pom)]
    # A full name: a short one would be looked up first, and its absence means nothing for the network.
    goal = "org.apache.maven.plugins:maven-dependency-plugin:copy-dependencies"
    command = [maven, *options, goal, f"-DoutputDirectory={jars}"]
    fetched = subprocess.run(command, check=False, capture_output=True, text=True)
    if fetched.returncode == 0:
        return
    errors = re.findall(r"^\[ERROR\] (\S.*)", fetched.stdout, re.MULTILINE)
    reason = errors[0] if errors else (fetched.stderr or fetched.stdout).strip()
    if re.search("could not transfer|failed to transfer|offline mode", reason, re.IGNORECASE):
        raise UnavailableError(f"Maven can't reach the jars of {subject}: {reason}")
    sys.exit(f"mvn dependency:copy-dependencies failed: {reason}")


def build_once(name: str, version: str, build: Callable[[Path], Path]) -> Path:
    """Path of a program or directory in the cache, built if it is not there.

    Args:
        name: A name without the version.
        version: The version, or the `digest` of the source file.
        build: Builds it in an empty directory, and returns the path in there.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast"
    built = cache / f"{name}-{version}"
    if built.exists():
        return built
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be building it
        if not built.exists():
            with tempfile.TemporaryDirectory(dir=cache, prefix="building-") as directory:
                os.replace(build(Path(directory)), built)
    return built


def digest(file: Path) -> str:
    """The version of a program or directory that is built from this file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def _program(name: str, subject: str) -> str:
    program = shutil.which(name)
    if program is None:
        raise UnavailableError(f"{subject} needs Java 17 and Maven, and no {name} was found")
    return program


def new_directory(kind: str) -> Path:
    """Make the directory for all files of a server, which `stop` removes."""
    return Path(tempfile.mkdtemp(prefix=_prefix(kind)))


@contextmanager
def server_directory(kind: str) -> Iterator[Path]:
    """Make the directory of a server that the block starts; an error in the block stops the server."""
    directory = new_directory(kind)
    try:
        yield directory
    except BaseException:
        stop(directory)
        raise


def start_process(
    command: Sequence[str | Path], directory: Path, environment: Mapping[str, str] | None = None
) -> "subprocess.Popen[bytes]":
    """Start the server of a directory: its output goes to `log` there, and its process id to `pid`."""
    with open(directory / "log", "wb") as log:
        server = subprocess.Popen(
            command,
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    (directory / "pid").write_text(str(server.pid))
    return server


def wait_until_ready(
    server: "subprocess.Popen[bytes]", directory: Path, is_ready: Callable[[], bool]
) -> None:
    """Wait until the server of a directory is ready; exits with its output if it ends before, or is stuck."""
    deadline = time.monotonic() + MAX_START_S
    while time.monotonic() < deadline and server.poll() is None:
        if is_ready():
            return
        time.sleep(0.05)
    log = (directory / "log").read_text(errors="replace")
    sys.exit(f"the server does not answer:\n{log}")


def is_listening(port: int) -> bool:
    """Return whether a server listens on a port of loopback."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
        return True
    return False


def stop(directory: Path) -> None:
    """Stop the server of a directory, if it still runs, and remove the directory; nothing of it is kept."""
    kill(directory / "pid", directory)
    shutil.rmtree(directory, ignore_errors=True)


def directory_of(path: str, kind: str) -> Path:
    """The directory that `start` has printed; nothing else is ever removed."""
    directory = Path(path)
    if not directory.name.startswith(_prefix(kind)):
        sys.exit(f"not a directory that start has printed: {path}")
    return directory


def _prefix(kind: str) -> str:
    return f"holdfast-{kind}-"


def is_running(pid: int, directory: Path) -> bool:
    """Return whether a process is still the one started for a directory, because ids are reused."""
    if Path("/proc/self").exists():  # small images of Linux have no ps
        try:
            command = Path(f"/proc/{pid}/cmdline").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return False
    else:
        ps = ["ps", "-ww", "-o", "args=", "-p", str(pid)]
        command = subprocess.run(ps, check=False, capture_output=True, text=True).stdout
    return str(directory) in command


def kill(pid_file: Path, directory: Path) -> None:
    """Kill the process that was started for a directory, if it still runs, and wait until it is gone."""
    pid = int(pid_file.read_text()) if pid_file.exists() else None
    if pid is None or not is_running(pid, directory):
        return
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + MAX_START_S
    while is_running(pid, directory) or _has_threads(pid):
        if time.monotonic() > deadline:
            sys.exit(f"process {pid} does not go")
        time.sleep(0.02)


def _has_threads(pid: int) -> bool:
    """Return whether threads other than the first still run and write; False without /proc."""
    try:
        return len(os.listdir(f"/proc/{pid}/task")) > 1
    except (FileNotFoundError, ProcessLookupError):
        return False


def kill_below(directory: Path) -> None:
    """Kill what runs in a directory, repeatedly: a process could start another before it is killed."""
    deadline = time.monotonic() + MAX_START_S
    while processes := processes_below(directory):
        if time.monotonic() > deadline:
            sys.exit(f"processes do not go: {processes}")
        for pid in processes:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def processes_below(directory: Path) -> list[int]:
    """Return the processes whose working directory is in a directory: servers, executors, Python workers."""
    below = os.fspath(directory.resolve())
    pids = []
    for pid in _pids():
        working_directory = _working_directory(pid)
        if working_directory == below or working_directory.startswith(f"{below}/"):
            pids.append(pid)
    return pids


def _pids() -> list[int]:
    if Path("/proc/self").exists():  # small images of Linux have no ps
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    ps = subprocess.run(["ps", "-ax", "-o", "pid="], check=False, capture_output=True, text=True)
    return [int(word) for word in ps.stdout.split()]


def _working_directory(pid: int) -> str:
    if not Path("/proc/self").exists():
        lsof = ["lsof", "-a", "-p", str(pid), "-d", "cwd", "-Fn"]
        output = subprocess.run(lsof, check=False, capture_output=True, text=True).stdout
        return next((line[1:] for line in output.splitlines() if line.startswith("n")), "")
    try:
        if is_alive(pid):
            return os.readlink(f"/proc/{pid}/cwd").removesuffix(" (deleted)")
    except OSError:  # gone, or of another user
        pass
    return ""


def is_alive(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return not Path("/proc/self").exists()
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}


def free_ports(count: int) -> list[int]:
    """Ports that are free now; all different, because they are held at the same time.

    They are not among the ports that systems assign to clients: such a port could be gone when a server that was
    killed comes back to it.
    """
    held: list[socket.socket] = []
    candidates = SystemRandom().sample(_PORTS_OF_SERVERS, 100 + count)
    try:
        while len(held) < count:
            with suppress(OSError):
                held.append(socket.create_server(("127.0.0.1", candidates.pop())))
        return [listener.getsockname()[1] for listener in held]
    finally:
        for listener in held:
            listener.close()
