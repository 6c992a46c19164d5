"""A NameNode and two DataNodes on loopback, which tests may break.

They start when the first test asks for them and stop with the session. What a test has broken is
mended before the next one, if it has asked for `hdfs_directory`. Where there can be no servers, the
tests are skipped and say why.
"""

import os
import shlex
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hdfs_native import Client

_INFRA = Path(__file__).parents[2] / "infra" / "hdfs"

_UNAVAILABLE = 3
"""What `infra/hdfs/start` exits with where there can be no servers."""


@dataclass(slots=True, kw_only=True)
class HdfsServer:
    """A file system, and what can happen to it. Each method waits until it has happened.

    Attributes:
        uri: `hdfs://127.0.0.1:port`.
        conf_dir: Directory of `core-site.xml` and `hdfs-site.xml`, for `HADOOP_CONF_DIR`.
        directory: Where it keeps all; `name.log` and `data.log` say what the servers did.
    """

    uri: str
    conf_dir: Path
    directory: Path
    _killed: set[str] = field(default_factory=set)
    _is_safe: bool = False

    def client(self) -> Client:
        """A client of the superuser; it gives up soon, not after three minutes."""
        soon = {"dfs.client.failover.max.attempts": "3"}
        return Client(self.uri, soon, config_dir=str(self.conf_dir))

    @contextmanager
    def new_directory(self) -> "Iterator[HdfsDirectory]":
        """An empty directory, deleted after the block with all that is in it."""
        directory = HdfsDirectory(self, f"/test-{uuid.uuid4().hex}", self.client())
        directory.client.mkdirs(directory.path)
        try:
            yield directory
        finally:
            self.mend()
            directory.client.delete(directory.path, recursive=True)

    def restart_name_node(self) -> None:
        """Kill the NameNode and start it again, with its data and port; it forgets safe mode."""
        self.kill_name_node()
        self.start_name_node()

    def kill_name_node(self) -> None:
        self._kill("name")
        self._is_safe = False

    def start_name_node(self) -> None:
        """Start it; where DataNodes run too, wait until all their blocks are there."""
        self._start("name")

    def kill_data_node(self, node: str = "data1") -> None:
        """Kill `data1` or `data2`; for 12 seconds the NameNode takes it for alive."""
        self._kill(node)

    def start_data_node(self, node: str = "data1") -> None:
        self._start(node)

    def safe_mode(self, *, on: bool) -> None:
        """Refuse all that writes, or no longer."""
        self._dfsadmin("-safemode", "enter" if on else "leave")
        self._is_safe = on

    def set_quota(
        self, path: str, *, names: int | None = None, space_bytes: int | None = None
    ) -> None:
        """Limit what is below a directory; None is no limit.

        Args:
            path: The directory, without the file system.
            names: Files and directories, itself among them.
            space_bytes: A block that is written counts as two whole ones, 256 MiB.
        """
        for value, kind in ((names, "Quota"), (space_bytes, "SpaceQuota")):
            what = [f"-clr{kind}"] if value is None else [f"-set{kind}", str(value)]
            self._dfsadmin(*what, path)

    def mend(self) -> None:
        """Start what was killed, and leave safe mode."""
        for node in sorted(self._killed):
            self._start(node)
        if self._is_safe:
            self.safe_mode(on=False)

    def _kill(self, node: str) -> None:
        self._killed.add(node)
        _run("node", "kill", node, str(self.directory))

    def _start(self, node: str) -> None:
        _run("node", "start", node, str(self.directory))
        self._killed.discard(node)

    def _dfsadmin(self, *options: str) -> None:
        _run("dfsadmin", str(self.directory), *options)


@dataclass(frozen=True, slots=True)
class HdfsDirectory:
    """A directory, looked at behind the back of the code under test.

    Attributes:
        server: Where it is.
        path: Its path, without the file system.
        client: A client of hdfs-native that no fault reaches.
    """

    server: HdfsServer
    path: str
    client: Client = field(repr=False)

    @property
    def uri(self) -> str:
        return self.server.uri + self.path

    def files(self) -> list[str]:
        """Paths of the files below it, relative to it, sorted."""
        below = self.client.list_status(self.path, recursive=True)
        return sorted(one.path.removeprefix(f"{self.path}/") for one in below if not one.isdir)

    def read(self, name: str) -> bytes:
        """The content of a file."""
        with self.client.read(f"{self.path}/{name}") as file:
            content: bytes = file.read()
        return content

    def write(self, name: str, content: bytes) -> None:
        """A new file."""
        with self.client.create(f"{self.path}/{name}") as file:
            file.write(content)


@contextmanager
def hdfs_server() -> Iterator[HdfsServer]:
    """The servers of `infra/hdfs`, with a file system of their own."""
    started = subprocess.run(
        [_INFRA / "start"], check=False, capture_output=True, text=True, env=_environment()
    )
    if started.returncode == _UNAVAILABLE:
        pytest.skip(started.stderr.strip().splitlines()[-1])
    assert started.returncode == 0, started.stderr
    known = dict(word.split("=", 1) for word in shlex.split(started.stdout))
    directory = known["directory"]
    try:
        yield HdfsServer(
            uri=known["uri"], conf_dir=Path(known["conf_dir"]), directory=Path(directory)
        )
    finally:
        _run("stop", directory)


def _run(command: str, *arguments: str) -> None:
    done = subprocess.run(
        [_INFRA / command, *arguments],
        check=False,
        capture_output=True,
        text=True,
        env=_environment(),
    )
    assert done.returncode == 0, f"{command} {' '.join(arguments)}: {done.stderr}{done.stdout}"


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHON": sys.executable}


@pytest.fixture(scope="session")
def hdfs() -> Iterator[HdfsServer]:
    with hdfs_server() as server:
        yield server


@pytest.fixture
def hdfs_directory(hdfs: HdfsServer) -> Iterator[HdfsDirectory]:
    with hdfs.new_directory() as directory:
        yield directory
