"""A proxy between an HTTP client and its server that fails on demand."""

import socket
import struct
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qsl, unquote, urlsplit

from holdfast.errors import InvalidRequestError
from holdfast.testing.request_faults import HttpFaults, HttpRequest, Plan

_PIECE_BYTES = 1 << 18
"""Bytes of a body in memory at once."""

_HOP_BY_HOP = {"connection", "expect", "keep-alive", "proxy-connection"}
"""Headers for the proxy itself, which signatures do not cover."""


@contextmanager
def http_faults(server: str) -> Iterator[HttpFaults]:
    """Run a proxy for a server on this machine, with planned faults, until the block ends.

        with http_faults("http://127.0.0.1:9000") as faults:
            faults.lose_answer(lambda request: request.method == "PUT")
            client = boto3.client("s3", endpoint_url=faults.url)

    Bodies are streamed both ways. `Host` is forwarded unchanged, because signatures cover it;
    `Expect: 100-continue` is answered by the proxy.

    Args:
        server: `http://host:port`.

    Raises:
        InvalidRequestError: The URL has another form.
    """
    parts = urlsplit(server)
    if parts.scheme != "http" or not parts.hostname or parts.path.strip("/"):
        raise InvalidRequestError(f"server must be http://host:port, got {server!r}")
    proxy = _Proxy(parts.hostname, parts.port or 80)
    try:
        yield proxy.faults
    finally:
        proxy.close()


class _Proxy:
    """Accepts connections, and serves each in a separate thread."""

    def __init__(self, host: str, port: int) -> None:
        self.server = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._address = self._listener.getsockname()
        self.faults = HttpFaults(f"http://127.0.0.1:{self._address[1]}")
        self._lock = threading.Lock()
        self._is_closing = False
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._acceptor = threading.Thread(target=self._accept, name="http faults", daemon=True)
        self._acceptor.start()

    def watch(self, connected: socket.socket) -> None:
        """Close the connection when the proxy closes."""
        with self._lock:
            if self._is_closing:
                raise ConnectionAbortedError("the proxy is closed")
            self._sockets.add(connected)

    def forget(self, connected: socket.socket | None) -> None:
        with self._lock:
            self._sockets -= {connected}

    def close(self) -> None:
        with self._lock:
            self._is_closing = True
            for connected in self._sockets:
                with suppress(OSError):  # the other side was faster
                    connected.shutdown(socket.SHUT_RDWR)
        self.faults.clear()
        with suppress(OSError), socket.create_connection(self._address):
            pass  # wakes the acceptor
        self._acceptor.join()
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            connected, _ = self._listener.accept()
            if self._is_closing:
                connected.close()
                return
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            thread = threading.Thread(
                target=self._serve, args=(connected,), name="http faults", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def _serve(self, connected: socket.socket) -> None:
        # An error of the server's connection ends the client's, and vice versa.
        with suppress(OSError, HTTPException), connected:
            try:
                self.watch(connected)
                _Connection(connected, self)
            finally:
                self.forget(connected)


class _Connection(BaseHTTPRequestHandler):
    """A client's connection, with one connection to the server for each request."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def __init__(self, connected: socket.socket, proxy: _Proxy) -> None:
        self._proxy = proxy
        self._server = HTTPConnection(*proxy.server)
        self._watched: socket.socket | None = None
        super().__init__(connected, ("", 0), None)  # type: ignore[arg-type]  # never used

    def handle(self) -> None:
        try:
            super().handle()
        finally:
            self._hang_up()

    def handle_one_request(self) -> None:
        self._is_awaited = False
        self.raw_requestline = self.rfile.readline(1 << 16)
        if not self.raw_requestline or not self.parse_request():
            self.close_connection = True
            return
        self._target = self.requestline.split()[1]  # `path` has fewer slashes
        path, _, query = self._target.partition("?")
        self._request = HttpRequest(
            self.command,
            unquote(path),
            dict(parse_qsl(query, keep_blank_values=True)),
            {name.lower(): value for name, value in self.headers.items()},
        )
        self._body = self._read_body()
        plans = self._proxy.faults.begin(self._request)
        if any(plan.before(self) for plan in plans if plan.before):
            return
        with self._perform() as response:
            self._request.performed = True
            if any(plan.after(self) for plan in plans if plan.after):
                self._hang_up()
            else:
                self._pass_on(response, plans)

    def handle_expect_100(self) -> bool:
        self._is_awaited = True
        return True

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing, because `requests` has everything."""

    def answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        for _ in self._body:
            pass
        has_body = status not in {204, 304}
        of_body = {"Content-Type": "application/xml", "Content-Length": str(len(body))}
        self._begin_answer(status, None, {**(of_body if has_body else {}), **headers}.items())
        if has_body and self.command != "HEAD":
            self.wfile.write(body)

    def reset(self) -> None:
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.close_connection = True

    def _read_body(self) -> Iterator[bytes]:
        """Yield the pieces of the request's body, with the framing of its chunks."""
        is_chunked = "chunked" in self._request.headers.get("transfer-encoding", "").lower()
        length = int(self._request.headers.get("content-length", 0))
        if self._is_awaited:
            self.send_response_only(100)
            self.end_headers()
        if not is_chunked:
            yield from self._read(length)
            return
        while size := int((line := self._read_line()).split(b";")[0], 16):
            yield line
            yield from self._read(size)
            yield self._read_line()
        while line.strip():  # trailers
            yield line
            line = self._read_line()
        yield line

    def _read(self, count: int) -> Iterator[bytes]:
        while count:
            piece = self.rfile.read1(min(count, _PIECE_BYTES))
            if not piece:
                raise ConnectionAbortedError("the client left")
            count -= len(piece)
            self._request.body_bytes += len(piece)
            yield piece

    def _read_line(self) -> bytes:
        line = self.rfile.readline(1 << 16)
        if not line:
            raise ConnectionAbortedError("the client left")
        return line

    def _perform(self) -> HTTPResponse:
        """Forward the request to the server."""
        server = self._connect()
        server.putrequest(self.command, self._target, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in _HOP_BY_HOP:
                server.putheader(name, value)
        server.putheader("Connection", "close")
        server.endheaders()
        is_read = True
        for piece in self._body:
            try:
                if is_read:
                    server.send(piece)
            except OSError:
                is_read = False  # a server may answer and close before it has read everything
        return server.getresponse()

    def _pass_on(self, response: HTTPResponse, plans: list[Plan]) -> None:
        """Forward the answer to the client, with planned damage."""
        limits = [plan.kept_bytes for plan in plans if plan.kept_bytes is not None]
        flipped_bits = [plan.flipped_bit for plan in plans if plan.flipped_bit]
        own = {*_HOP_BY_HOP, "transfer-encoding"}
        headers = [pair for pair in response.getheaders() if pair[0].lower() not in own]
        is_chunked = response.length is None
        if is_chunked:
            headers.append(("Transfer-Encoding", "chunked"))
        self._begin_answer(response.status, response.reason, headers)
        sent = 0
        while piece := bytearray(response.read(_PIECE_BYTES)):
            for offset, bit in flipped_bits:
                if sent <= offset < sent + len(piece):
                    piece[offset - sent] ^= 1 << bit
            is_cut = any(sent + len(piece) > limit for limit in limits)
            if is_cut:
                del piece[min(limits) - sent :]
            sent += len(piece)
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), bytes(piece)) if is_chunked else piece)
            if is_cut:
                break
        else:
            is_cut = bool(response.length)  # by the server
        if is_cut:
            self.close_connection = True
        elif is_chunked:
            self.wfile.write(b"0\r\n\r\n")

    def _begin_answer(
        self, status: int, reason: str | None, headers: Iterable[tuple[str, str]]
    ) -> None:
        self._request.status = status
        self.send_response_only(status, reason)
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()

    def _connect(self) -> HTTPConnection:
        """Open a new connection to the server.

        The server may close an idle connection at the moment when it is used again, which would be an
        unplanned fault.
        """
        self._hang_up()
        self._server.sock = self._watched = socket.create_connection(self._proxy.server)
        self._watched.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._proxy.watch(self._watched)
        return self._server

    def _hang_up(self) -> None:
        self._proxy.forget(self._watched)
        self._server.close()
