"""A server in the process of its clients, without a thread or a port, but with all code of the client.

Instead of a socket, urllib3 gets an object that collects the whole request, lets the server answer it in
the client's own thread, and returns the bytes that a socket would. So botocore, urllib3 and http.client
write, parse and fail as they do on a network, in a fraction of the time.

    urllib3 ──> connection ──> HttpFaults ──> server            in this process
    others  ──> a port of loopback ─────────> the same server   obstore, aiohttp, other processes
"""

import http
import io
import os
import socket
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from unittest import mock
from urllib.parse import parse_qsl, unquote

from servers.memory_s3 import Answer
from urllib3.util import connection as urllib3_connections

from holdfast.testing import HttpFaults, HttpRequest
from holdfast.testing.request_faults import Answer as PlannedAnswer
from holdfast.testing.request_faults import apply_effects

Server = Callable[[HttpRequest, bytes], Answer]
"""Answers a request, given its body."""

_ROUTES: dict[tuple[str, int], "_Route"] = {}
"""By host and port."""


class _Route:
    def __init__(self, server: Server, faults: HttpFaults | None) -> None:
        self.server = server
        self.faults = faults
        self.process = os.getpid()
        self.connections: weakref.WeakSet[_Connection] = weakref.WeakSet()


@contextmanager
def serve(server: Server) -> Iterator[str]:
    """Serve until the block ends; yields `http://127.0.0.1:port`.

    The urllib3 of this process calls the server directly; everything else uses loopback.
    """
    with _http_server(server) as port, _route_to("127.0.0.1", port, _Route(server, None)):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def in_process_faults(server: Server) -> Iterator[HttpFaults]:
    """Put faults between the server and the urllib3 of this process."""
    host = "faults.invalid"
    port = next(port for port in range(1, 1 << 16) if (host, port) not in _ROUTES)
    faults = HttpFaults(f"http://{host}:{port}")
    with _route_to(host, port, _Route(server, faults)):
        yield faults
        faults.clear()


@contextmanager
def _route_to(host: str, port: int, route: _Route) -> Iterator[None]:
    if not _ROUTES:
        _PATCH.start()
    _ROUTES[host, port] = route
    try:
        yield
    finally:
        del _ROUTES[host, port]
        for connection in list(route.connections):  # pools of clients keep them
            connection.shutdown(socket.SHUT_RDWR)
        if not _ROUTES:
            _PATCH.stop()


_connected = urllib3_connections.create_connection


def _connect(address: tuple[str, int], *arguments: Any, **settings: Any) -> Any:
    route = _ROUTES.get(address)
    if route is None or route.process != os.getpid():  # a fork has a copy of the server
        return _connected(address, *arguments, **settings)
    return _Connection(route)


_PATCH = mock.patch.object(urllib3_connections, "create_connection", _connect)


class _Connection:
    """Replaces a client's socket."""

    def __init__(self, route: _Route) -> None:
        self._route = route
        # Clients poll its number to see whether there is something to read.
        self._near, self._far = socket.socketpair()
        self._request: HttpRequest | None = None
        self._is_awaited = False
        self._sent = bytearray()
        self._missing = 0
        self._answers = io.BytesIO()
        self._is_cut = False
        self._is_reset = False
        route.connections.add(self)

    def sendall(self, data: Any) -> None:
        if self._is_cut:
            raise BrokenPipeError("the server has closed the connection")
        self._sent += data
        if self._request is None:
            head, end, rest = bytes(self._sent).partition(b"\r\n\r\n")
            if not end:
                return
            self._begin(head.decode("latin-1"), rest)
        if len(self._sent) >= self._missing and self._request is not None:
            request, self._request = self._request, None
            body = bytes(self._sent)
            self._sent.clear()
            self._perform(request, body)

    def makefile(self, mode: str, buffering: int = -1) -> Any:
        raw = _Answers(self)
        return raw if buffering == 0 else io.BufferedReader(raw)

    def read_into(self, buffer: memoryview) -> int:
        if self._is_awaited:
            self._is_awaited = False
            self._near.recv(1)
        count = self._answers.readinto(buffer)
        if count == 0 and self._is_reset:
            raise ConnectionResetError("as planned")
        if count == 0 and not self._is_cut:
            raise AssertionError("the client waits for an answer to half a request")
        return count

    def close(self) -> None:
        self._is_cut = True
        self._near.close()
        self._far.close()

    def fileno(self) -> int:
        return self._near.fileno()

    def settimeout(self, _: float | None) -> None:
        """Nothing here takes time."""

    def shutdown(self, _: int) -> None:
        self._cut()

    def _begin(self, head: str, rest: bytes) -> None:
        first, *lines = head.split("\r\n")
        pairs = (line.partition(":")[::2] for line in lines)
        self._request = request_of(first, {name: value.strip() for name, value in pairs})
        headers = self._request.headers
        if "chunked" in headers.get("transfer-encoding", ""):
            raise NotImplementedError("a body of unknown length")
        self._missing = int(headers.get("content-length", 0))
        self._sent = bytearray(rest)
        self._answers = io.BytesIO()
        if headers.get("expect") == "100-continue":
            self._answers = io.BytesIO(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._is_awaited = True
            self._far.send(b"!")

    def _perform(self, request: HttpRequest, body: bytes) -> None:
        faults = self._route.faults
        plans = faults.begin(request) if faults else []
        if planned := apply_effects(plan.before for plan in plans):
            self._end(request, planned, body)
            return
        request.body_bytes = len(body)
        answer = self._route.server(request, body)
        request.performed = True
        if planned := apply_effects(plan.after for plan in plans):
            self._end(request, planned, body)
            return
        content = bytearray(answer.body)
        for plan in plans:
            if plan.flipped_bit and plan.flipped_bit[0] < len(content):
                content[plan.flipped_bit[0]] ^= 1 << plan.flipped_bit[1]
        kept = min((plan.kept_bytes for plan in plans if plan.kept_bytes is not None), default=None)
        self._send(request, Answer(answer.status, bytes(content), answer.headers), kept)

    def _end(self, request: HttpRequest, planned: PlannedAnswer, body: bytes) -> None:
        if planned.status is None:
            self._is_reset = True
            self._cut()
            return
        request.body_bytes = len(body)
        headers = {"content-type": "application/xml", **planned.headers}
        self._send(request, Answer(planned.status, planned.body, headers))

    def _send(self, request: HttpRequest, answer: Answer, kept: int | None = None) -> None:
        """Send an answer; if its body is longer than `kept`, close the connection after these bytes."""
        request.status = answer.status
        body = b"" if request.method == "HEAD" or answer.status in {204, 304} else answer.body
        lines = [f"HTTP/1.1 {answer.status} {http.HTTPStatus(answer.status).phrase}"]
        lines += [f"{name}: {value}" for name, value in headers_of(answer).items()]
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        self._answers = io.BytesIO(head + body[:kept])
        if kept is not None and kept < len(body):
            self._cut()

    def _cut(self) -> None:
        self._is_cut = True
        self._far.close()  # clients that poll the connection see its end


class _Answers(io.RawIOBase):
    """The stream that a client reads."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._connection.read_into(memoryview(buffer))


def request_of(first: str, headers: Mapping[str, str]) -> HttpRequest:
    """Return the request with a first line and headers."""
    method, target, _ = first.split(" ")
    path, _, query = target.partition("?")
    parameters = dict(parse_qsl(query, keep_blank_values=True))
    lower = {name.lower(): value for name, value in headers.items()}
    return HttpRequest(method, unquote(path), parameters, lower)


def headers_of(answer: Answer) -> dict[str, str]:
    """Return the headers of an answer, with its length."""
    if answer.status in {204, 304}:
        return dict(answer.headers)
    return {**answer.headers, "Content-Length": str(len(answer.body))}


@contextmanager
def _http_server(server: Server) -> Iterator[int]:
    """Run a server whose threads end with their connections; yields its port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1  # head and body go together

        def handle_one_request(self) -> None:
            self.raw_requestline = self.rfile.readline(1 << 16)
            if not self.raw_requestline or not self.parse_request():
                self.close_connection = True
                return
            request = request_of(self.requestline, dict(self.headers.items()))
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            answer = server(request, body)
            self.send_response_only(answer.status)
            for name, value in headers_of(answer).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)
            self.wfile.flush()

        def handle_expect_100(self) -> bool:
            continues = super().handle_expect_100()
            self.wfile.flush()
            return continues

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    class Listener(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, *_: object) -> None:
            """Ignore disconnected clients."""

    with Listener(("127.0.0.1", 0), Handler) as listener:
        accepting = threading.Thread(target=listener.serve_forever, args=(0.05,), daemon=True)
        accepting.start()
        try:
            yield listener.server_address[1]
        finally:
            listener.shutdown()
            accepting.join()
