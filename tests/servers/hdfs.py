"""A NameNode and two DataNodes on loopback, which tests may break.

They start when the first test requests them and stop with the session. After a test with
`hdfs_directory` they are repaired. If there can't be servers, the tests are skipped with the reason.
"""

import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hdfs_native import Client, WriteOptions
from servers import infra
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

_GREETING_BYTES = 7
"""Length of a client's greeting: magic, version, service class, protocol."""


@dataclass(slots=True, kw_only=True)
class HdfsServer:
    """A file system with faults. Each method waits until it has taken effect.

    Attributes:
        uri: `hdfs://127.0.0.1:port`.
        conf_dir: Directory of `core-site.xml` and `hdfs-site.xml`, for `HADOOP_CONF_DIR`.
        directory: All files of the servers; their logs are `name.log` and `data.log`.
    """

    uri: str
    conf_dir: Path
    directory: Path
    _killed: set[str] = field(default_factory=set)
    _is_safe: bool = False

    def client(self) -> Client:
        """Return a client of the superuser with few retries, instead of three minutes of them."""
        soon = {"dfs.client.failover.max.attempts": "3"}
        return Client(self.uri, soon, config_dir=str(self.conf_dir))

    @contextmanager
    def new_directory(self) -> "Iterator[HdfsDirectory]":
        """Create an empty directory, which is deleted after the block."""
        directory = HdfsDirectory(self, f"/test-{uuid.uuid4().hex}", self.client())
        directory.client.mkdirs(directory.path)
        try:
            yield directory
        finally:
            self.repair()
            directory.client.delete(directory.path, recursive=True)

    def restart_name_node(self) -> None:
        """Kill the NameNode and start it again, with its data and port; this ends safe mode."""
        self.kill_name_node()
        self.start_name_node()

    def kill_name_node(self) -> None:
        self._kill("name")
        self._is_safe = False

    def start_name_node(self) -> None:
        """Start the NameNode, and wait until running DataNodes have reported all their blocks."""
        self._start("name")

    def kill_data_node(self, node: str = "data1") -> None:
        """Kill `data1` or `data2`; for 12 seconds the NameNode considers it alive."""
        self._kill(node)

    def start_data_node(self, node: str = "data1") -> None:
        self._start(node)

    def safe_mode(self, *, on: bool) -> None:
        """Refuse writes, or accept them again."""
        self._dfsadmin("-safemode", "enter" if on else "leave")
        self._is_safe = on

    def set_quota(
        self, path: str, *, names: int | None = None, space_bytes: int | None = None
    ) -> None:
        """Limit the content of a directory; None removes a limit.

        Args:
            path: The directory, without the file system.
            names: Number of files and directories, including itself.
            space_bytes: Size; a block in progress counts as two whole ones, 256 MiB.
        """
        for value, kind in ((names, "Quota"), (space_bytes, "SpaceQuota")):
            options = [f"-clr{kind}"] if value is None else [f"-set{kind}", str(value)]
            self._dfsadmin(*options, path)

    def repair(self) -> None:
        """Start killed nodes, and leave safe mode."""
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
    """A directory, accessed without the code under test.

    Attributes:
        server: Its server.
        path: The directory's path, without the file system.
        client: A client of hdfs-native without faults.
    """

    server: HdfsServer
    path: str
    client: Client = field(repr=False)

    @property
    def uri(self) -> str:
        return self.server.uri + self.path

    def files(self) -> list[str]:
        """Return the relative paths of the files below it, sorted."""
        below = self.client.list_status(self.path, recursive=True)
        return sorted(
            entry.path.removeprefix(f"{self.path}/") for entry in below if not entry.isdir
        )

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        with self.client.read(f"{self.path}/{name}") as file:
            content: bytes = file.read()
        return content

    def write(self, name: str, content: bytes) -> None:
        """Create a file. A client excludes a DataNode that is slow on a busy machine, and doesn't try it again."""
        options = WriteOptions(overwrite=True)
        refused = retry_if_exception_type(RuntimeError)
        for attempt in Retrying(stop=stop_after_attempt(3), retry=refused, reraise=True):
            with attempt, self.client.create(f"{self.path}/{name}", options) as file:
                file.write(content)


@contextmanager
def hdfs_server() -> Iterator[HdfsServer]:
    """Run the servers of `infra/hdfs` with a new file system."""
    with infra.running("hdfs") as known:
        yield HdfsServer(
            uri=known["uri"], conf_dir=Path(known["conf_dir"]), directory=Path(known["directory"])
        )


def _do_nothing() -> None:
    pass


@dataclass(slots=True)
class _Fault:
    """The fault of a call of the NameNode, by default none."""

    is_done: bool = True
    is_answered: bool = True
    action: Callable[[], object] = _do_nothing
    times: int = 1


@dataclass(slots=True)
class NameNodeProxy:
    """A proxy between clients and the NameNode that loses calls or answers on demand.

    Clients access DataNodes directly. It can't read calls with Kerberos.

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
        action: Callable[[], object] = _do_nothing,
    ) -> None:
        """Cut the connection instead of answering the next calls of a method.

        Args:
            method: The method's name in Hadoop's `ClientNamenodeProtocol`.
            is_done: Whether the NameNode does what it is asked for.
            times: How many calls.
            action: Called before the connection is cut, after the NameNode has performed the call.
        """
        self._faults[method] = _Fault(is_done, False, action, times)

    def interrupt(self, method: str, action: Callable[[], object]) -> None:
        """Run an action before the next call of a method reaches the NameNode."""
        self._faults[method] = _Fault(action=action)

    def pending(self) -> set[str]:
        """Return the methods with planned faults that have not occurred yet."""
        return {method for method, fault in self._faults.items() if fault.times > 0}

    def clear(self) -> None:
        """Remove all faults, and forget the calls."""
        self._faults.clear()
        self.calls.clear()

    def start(self) -> None:
        """Listen, on the same port as before."""
        self._listener = socket.create_server(self._address)
        self._address = self._listener.getsockname()
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def stop(self) -> None:
        """End all connections and refuse new ones, like a NameNode that is down."""
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
                        fault.action()
                        break
                    lost.append(fault)
                else:
                    fault.action()
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
            lost[0].action()
        _close(client, name_node)


def _message(connection: socket.socket) -> bytes | None:
    """Read the next message, with its length; None at the end."""
    head = connection.recv(4, socket.MSG_WAITALL)
    size = int.from_bytes(head)
    body = connection.recv(size, socket.MSG_WAITALL) if len(head) == 4 else b""
    return head + body if body and len(body) == size else None


def _method(call: bytes) -> str:
    """Return the called method, or an empty string if it is not a method of a file system.

    The length is followed by two protobufs with a length of one byte each: a header of the call,
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
    """Run a proxy for the block."""
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
