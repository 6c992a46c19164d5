"""A NameNode and two DataNodes on loopback, which tests may break.

They start when the first test asks for them and stop with the session. What a test has broken is
mended before the next one, if it has asked for `hdfs_directory`. Where there can be no servers, the
tests are skipped and say why.
"""

import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hdfs_native import Client
from servers import infra

_GREETING_BYTES = 7
"""What a client sends before its first call: magic, version, service class, protocol."""


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
        infra.run("hdfs", "node", "kill", node, str(self.directory))

    def _start(self, node: str) -> None:
        infra.run("hdfs", "node", "start", node, str(self.directory))
        self._killed.discard(node)

    def _dfsadmin(self, *options: str) -> None:
        infra.run("hdfs", "dfsadmin", str(self.directory), *options)


@dataclass(frozen=True, slots=True)
class HdfsDirectory:
    """A directory, looked at behind the back of the code under test.

    Attributes:
        server: Where it is.
        path: The directory's path, without the file system.
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
        return sorted(
            entry.path.removeprefix(f"{self.path}/") for entry in below if not entry.isdir
        )

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
    with infra.started("hdfs") as known:
        yield HdfsServer(
            uri=known["uri"], conf_dir=Path(known["conf_dir"]), directory=Path(known["directory"])
        )


def _nothing() -> None:
    pass


@dataclass(slots=True)
class _Fault:
    """What happens to a call of the NameNode, by default nothing."""

    is_done: bool = True
    is_answered: bool = True
    meanwhile: Callable[[], object] = _nothing
    times: int = 1


@dataclass(slots=True)
class NameNodeProxy:
    """Stands between clients and the NameNode, and loses calls, or their answers, when told to.

    DataNodes are reached past it. Without Kerberos, whose calls it could not read.

    Attributes:
        server: The server whose NameNode it is.
        calls: The methods that clients have called so far, in order.
    """

    server: HdfsServer
    calls: list[str] = field(default_factory=list)
    _address: tuple[str, int] = ("127.0.0.1", 0)
    _faults: dict[str, _Fault] = field(default_factory=dict)
    _listener: socket.socket | None = None
    _open: set[socket.socket] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def uri(self) -> str:
        return f"hdfs://127.0.0.1:{self._address[1]}"

    def lose(
        self,
        method: str,
        *,
        is_done: bool,
        times: int = 1,
        meanwhile: Callable[[], object] = _nothing,
    ) -> None:
        """Cut the connection instead of answering the next calls of a method.

        Args:
            method: The method's name in Hadoop's `ClientNamenodeProtocol`.
            is_done: Whether the NameNode does what it is asked for.
            times: How many calls.
            meanwhile: Done before the connection is cut, behind what the NameNode does.
        """
        self._faults[method] = _Fault(is_done, False, meanwhile, times)

    def interrupt(self, method: str, meanwhile: Callable[[], object]) -> None:
        """Do something before the next call of a method reaches the NameNode, while it waits."""
        self._faults[method] = _Fault(meanwhile=meanwhile)

    def pending(self) -> set[str]:
        """The methods that were not called as often as something was to happen to them."""
        return {method for method, fault in self._faults.items() if fault.times > 0}

    def clear(self) -> None:
        """Let all be well, and forget the calls."""
        self._faults.clear()
        self.calls.clear()

    def start(self) -> None:
        """Listen, where it did before."""
        self._listener = socket.create_server(self._address)
        self._address = self._listener.getsockname()
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def stop(self) -> None:
        """Be as a NameNode that is down: all connections end, and new ones are refused."""
        if self._listener is not None:
            _close(self._listener)
        with self._lock:
            _close(*self._open)

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        host, _, port = self.server.uri.removeprefix("hdfs://").rpartition(":")
        try:
            name_node = socket.create_connection((host, int(port)))
        except OSError:
            _close(client)
            return
        with self._lock:
            self._open |= {client, name_node}
        lost: list[_Fault] = []  # whose answer comes next
        answers = threading.Thread(target=self._answer, args=(name_node, client, lost), daemon=True)
        answers.start()
        try:
            name_node.sendall(client.recv(_GREETING_BYTES, socket.MSG_WAITALL))
            while (call := _message(client)) is not None and not lost:
                fault = self._fault_of(_method(call))
                if not fault.is_answered:
                    if not fault.is_done:
                        fault.meanwhile()
                        break
                    lost.append(fault)
                else:
                    fault.meanwhile()
                name_node.sendall(call)
            if lost:
                answers.join()
        except OSError:
            pass
        finally:
            _close(client, name_node)
            with self._lock:
                self._open -= {client, name_node}

    def _fault_of(self, method: str) -> _Fault:
        with self._lock:
            self.calls.append(method)
            fault = self._faults.get(method)
            if fault is None or fault.times == 0:
                return _Fault()
            fault.times -= 1
            return fault

    @staticmethod
    def _answer(name_node: socket.socket, client: socket.socket, lost: list[_Fault]) -> None:
        with suppress(OSError):
            while (answer := _message(name_node)) is not None and not lost:
                client.sendall(answer)
        if lost:
            lost[0].meanwhile()
        _close(client, name_node)


def _message(connection: socket.socket) -> bytes | None:
    """The next one with its length in front, or None at the end."""
    head = connection.recv(4, socket.MSG_WAITALL)
    size = int.from_bytes(head)
    body = connection.recv(size, socket.MSG_WAITALL) if len(head) == 4 else b""
    return head + body if body and len(body) == size else None


def _method(call: bytes) -> str:
    """The method that is called, or empty if it is none of a file system.

    Behind the length stand two protobufs with a length of one byte each: a header of the call,
    and a header of the request, whose first field is the method's name.
    """
    request = call[5 + call[4] :]
    is_call = b"ClientProtocol" in request and request[1:2] == b"\x0a"
    return request[3 : 3 + request[2]].decode() if is_call else ""


def _close(*connections: socket.socket) -> None:
    for connection in connections:
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()


@contextmanager
def name_node_proxy(server: HdfsServer) -> Iterator[NameNodeProxy]:
    """A proxy of its own for the block."""
    proxy = NameNodeProxy(server)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()


@pytest.fixture(scope="session")
def hdfs() -> Iterator[HdfsServer]:
    with hdfs_server() as server:
        yield server


@pytest.fixture
def hdfs_directory(hdfs: HdfsServer) -> Iterator[HdfsDirectory]:
    with hdfs.new_directory() as directory:
        yield directory
